"""AMD's library that reads the states of devices: where it keeps its lock."""

from __future__ import annotations

from collections.abc import Mapping

_VARIABLE = "RSMI_MUTEX_THREAD_ONLY"


def rocm_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which the library (of rocm-smi, amd-smi and RCCL) locks within its process alone.

    Else its lock lies in a file of ``/dev/shm`` that all users may write to, and that any of them can make first. It is
    a robust mutex: glibc keeps pointers in it and writes where they lead. The library of ROCm 5.2 does not know the
    variable (``docs/security.md``).
    """
    return {} if _VARIABLE in environ else {_VARIABLE: "1"}
