"""The plan of a trial: its checks and limits, the reader of plan files, and the built-in levels."""
