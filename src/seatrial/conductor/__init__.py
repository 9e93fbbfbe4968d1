"""Says what is measured next, by whom, until when."""
