"""The processes of ranks: ``worker_main`` for a trial, ``train_main`` for a training. They need torch and the standard
library only."""
