"""The environment variables that ``--comm-profile`` and ``--comm-debug`` set for the ranks, on every target.

The report prints them, and exporting the same variables in a job script has the same effect. docs/launching.md links
the documentation of each.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.environment.flight_recorder import BUFFER

_UCX = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_coll_ucc_enable": "1", "OMPI_MCA_coll_ucc_priority": "100"}

PROFILES: Mapping[str, Mapping[str, str]] = {
    # TCP sockets only, even on hosts with InfiniBand.
    "ethernet": {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib"},
    # NCCL falls back to sockets silently; with its network named it fails instead.
    "ib": {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"},
    # For AWS. Huge pages make fork() fail, and data loaders fork.
    "efa": {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0", "FI_EFA_FORK_SAFE": "1"},
    # UCX and UCC must be built into Open MPI.
    "ucx": _UCX,
    # The same for AMD device memory: no copies by way of the host.
    "ucc-rocm": {
        **_UCX,
        **{f"UCX_ROCM_COPY_{way}_THRESH": "0" for way in ("D2H", "H2D")},
        **{f"UCC_EC_ROCM_{what}_HOST_LIMIT": "0" for what in ("REDUCE", "COPY")},
        **{f"OMPI_MCA_mpi_accelerator_rocm_memcpy{way}_limit": "0" for way in ("D2H", "H2D")},
    },
}

DEBUG: Mapping[str, str] = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET",
    # Not DETAIL: it verifies each collective with another one, which slows down what is measured.
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    # Agents name its file (environment/flight_recorder.py): the folder of the user differs from host to host.
    BUFFER: "2000",
}
"""``--comm-debug``: the libraries log what they chose, and why, in the output of the ranks. RCCL reads NCCL's names."""


def comm_settings(profile: str | None, *, debug: bool) -> dict[str, str]:
    """Return the variables for the ranks. ``profile`` is a name in PROFILES."""
    return {**(PROFILES[profile] if profile is not None else {}), **(DEBUG if debug else {})}
