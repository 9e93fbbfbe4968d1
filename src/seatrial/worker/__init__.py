"""One rank: it measures. torch and the standard library only."""
