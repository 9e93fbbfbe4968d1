"""One per node: starts the ranks there, owns their pipes, watches, signals, forwards. Standard library only."""
