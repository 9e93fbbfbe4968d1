"""What to check and within which limits: the plan, its reader and the built-in levels."""
