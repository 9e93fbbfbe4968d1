"""What ``--comm-profile`` and ``--comm-debug`` set in the environment of the ranks, on every target alike.

They are plain variables, which the report prints: the same lines in a job script of one's own do the same. Where each
is documented stands in docs/launching.md.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEBUG", "PROFILES", "comm_settings"]

_UCX = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_coll_ucc_enable": "1", "OMPI_MCA_coll_ucc_priority": "100"}

PROFILES: Mapping[str, Mapping[str, str]] = {
    # TCP sockets only, even where there is InfiniBand.
    "ethernet": {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib"},
    # NCCL falls back to sockets without a word; with its network named it fails instead.
    "ib": {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"},
    # Of AWS. Huge pages make fork fail, which loaders of data do.
    "efa": {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0", "FI_EFA_FORK_SAFE": "1"},
    # Both must be built into Open MPI.
    "ucx": _UCX,
    # The same for device memory of AMD: nothing is copied by way of the host.
    "ucc-rocm": {
        **_UCX,
        "UCX_ROCM_COPY_D2H_THRESH": "0",
        "UCX_ROCM_COPY_H2D_THRESH": "0",
        "UCC_EC_ROCM_REDUCE_HOST_LIMIT": "0",
        "UCC_EC_ROCM_COPY_HOST_LIMIT": "0",
        "OMPI_MCA_mpi_accelerator_rocm_memcpyD2H_limit": "0",
        "OMPI_MCA_mpi_accelerator_rocm_memcpyH2D_limit": "0",
    },
}

DEBUG: Mapping[str, str] = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET",
    # Not DETAIL: it checks each collective with another one, and what is measured is slower by that.
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
}
"""``--comm-debug``: what was chosen and why is told in the output of the ranks. RCCL reads NCCL's names."""


def comm_settings(profile: str | None, *, debug: bool) -> dict[str, str]:
    """What the ranks get in their environment. ``profile``: a name in PROFILES."""
    return {**(PROFILES[profile] if profile is not None else {}), **(DEBUG if debug else {})}
