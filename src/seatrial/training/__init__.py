"""Distributed training: one trainer, its data and its models. Imports torch and nothing of ours but errors."""
