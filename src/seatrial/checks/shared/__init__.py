"""Parts that several checks use."""
