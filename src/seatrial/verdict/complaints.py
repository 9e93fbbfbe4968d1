"""What processes say when it is the others that they miss."""

from __future__ import annotations

__all__ = ["FABRIC"]

FABRIC = ("gloo", "nccl", "rccl", "connection reset", "connection closed", "connection refused", "timed out waiting")
"""Parts of messages, in small letters."""
