"""The checks: one file each, or one folder where a file would pass 300 lines."""
