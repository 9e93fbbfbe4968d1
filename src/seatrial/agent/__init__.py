"""The agent, one per node: starts ranks, owns their pipes, watches, signals, forwards. Standard library only."""
