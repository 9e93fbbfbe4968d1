"""The target ``ssh``: hosts that are reached by ssh."""
