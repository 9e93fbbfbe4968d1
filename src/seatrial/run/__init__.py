"""A run from request to verdict, conducted from this process."""
