"""How many files this process may open."""

from __future__ import annotations

import contextlib
import resource


def raise_file_limit() -> None:
    """Raise the soft limit of open files, often 1,024, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
