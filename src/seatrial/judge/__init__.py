"""From events to a verdict: fold, blame, decide, conclude. Pure."""
