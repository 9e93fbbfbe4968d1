"""What ``--comm-profile`` and ``--comm-debug`` set in the environment of the ranks, on every target alike.

They are plain variables, which the report prints: the same lines in a job script of one's own do the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.errors import RequestError

__all__ = ["DEBUG", "PROFILES", "Profile", "comm_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Settings for one kind of network."""

    about: str
    """What they are for, in a few words."""
    settings: Mapping[str, str]
    source: str
    """Where they are documented."""


_UCX = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_coll_ucc_enable": "1", "OMPI_MCA_coll_ucc_priority": "100"}

PROFILES: Mapping[str, Profile] = {
    "ethernet": Profile(
        about="TCP sockets only, even where there is InfiniBand",
        settings={"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib"},
        source="NCCL user guide, environment variables; Open MPI FAQ, tuning the run-time characteristics of TCP",
    ),
    "ib": Profile(
        # NCCL falls back to sockets without a word; with its network named it fails instead.
        about="InfiniBand or RoCE, and no silent fallback to sockets",
        settings={"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"},
        source="NCCL user guide, environment variables",
    ),
    "efa": Profile(
        about="the Elastic Fabric Adapter of AWS, through libfabric and aws-ofi-nccl",
        # Huge pages make fork fail, which loaders of data do.
        settings={"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0", "FI_EFA_FORK_SAFE": "1"},
        source="libfabric fi_efa(7); the EFA cheat sheet of aws-samples/awsome-distributed-training",
    ),
    "ucx": Profile(
        about="Open MPI over UCX, its collectives over UCC; both must be built into it",
        settings=_UCX,
        source="Open MPI 5 documentation, UCX and UCC",
    ),
    "ucc-rocm": Profile(
        about="as ucx, for device memory of AMD: nothing is copied by way of the host",
        settings={
            **_UCX,
            "UCX_ROCM_COPY_D2H_THRESH": "0",
            "UCX_ROCM_COPY_H2D_THRESH": "0",
            "UCC_EC_ROCM_REDUCE_HOST_LIMIT": "0",
            "UCC_EC_ROCM_COPY_HOST_LIMIT": "0",
            "OMPI_MCA_mpi_accelerator_rocm_memcpyD2H_limit": "0",
            "OMPI_MCA_mpi_accelerator_rocm_memcpyH2D_limit": "0",
        },
        source="RafalSiwek/distributed-mlops-overview, which trained with it on NVIDIA and AMD together",
    ),
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
    """What the ranks get in their environment. Raises RequestError for a profile that nobody knows."""
    if profile is not None and profile not in PROFILES:
        raise RequestError(f"--comm-profile {profile}: no such profile; there is {', '.join(PROFILES)}.")
    return {**(PROFILES[profile].settings if profile is not None else {}), **(DEBUG if debug else {})}
