"""Figures, events, fold, statistics and the verdict: pure, standard library, no clock and no files."""
