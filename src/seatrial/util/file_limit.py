"""How many files this process may open."""

from __future__ import annotations

import contextlib
import resource


def raise_file_limit(wanted: int | None = None) -> None:
    """Raise the soft limit of open files, often 1,024, to ``wanted``, at most to the hard limit; None: to that.

    Processes that are started afterwards inherit it, and Slurm carries it to other hosts, which may not allow as much.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if wanted is None or wanted > hard != resource.RLIM_INFINITY else wanted
    if soft != resource.RLIM_INFINITY and (soft < most or most == resource.RLIM_INFINITY):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
