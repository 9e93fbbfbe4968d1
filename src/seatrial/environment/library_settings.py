"""Variables that keep the libraries of ranks from what other users of a machine, or strangers on the network, reach."""

from __future__ import annotations

from collections.abc import Mapping

_SETTINGS = {
    # rocm-smi, amd-smi and RCCL lock in memory of their process. Else the lock lies in a file of /dev/shm that each
    # user may write to and can make first: a robust mutex, in which glibc keeps pointers, and writes where they lead.
    # The library of ROCm 5.2 does not know the variable (docs/security.md).
    "RSMI_MUTEX_THREAD_ONLY": "1",
    # Else each rank answers whoever connects, without a proof, from NCCL 2.24 on, and trusts the lengths that it reads
    # (src/ras): a scan of its ports ends it (NVIDIA/nccl#1996, #1669), and it would be named.
    "NCCL_RAS_ENABLE": "0",
}


def library_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables that the user has not set."""
    return {name: value for name, value in _SETTINGS.items() if name not in environ}
