"""Loads torch for this folder: without numpy it warns once, when loaded, and warnings are errors in tests."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch  # noqa: F401
