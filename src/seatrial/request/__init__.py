"""From command-line options to a validated request: a trial, a training or a script."""
