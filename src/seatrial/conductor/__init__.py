"""The conductor: decides what each rank does next and until when, and which rank or node is suspected."""
