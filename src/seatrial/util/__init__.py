"""Small tools that several packages share; nothing of ours is imported here."""
