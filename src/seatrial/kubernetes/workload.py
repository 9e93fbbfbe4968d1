"""What is to become objects of a cluster, resolved and checked: every kind renders from this and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["CODE", "HOME", "JOIN_TIMEOUT_S", "SCRATCH", "UID", "Claim", "Object", "Patch", "Toleration", "Workload"]

Object = dict[str, Any]
"""An object of Kubernetes, or a part of one, as JSON has it."""

UID = 10_001
"""User, group and group of files of all our containers; images of ours have it."""
CODE = "/opt/seatrial"
"""Where the file that travels, and what goes with it, is seen in a container; nothing can be written there."""
HOME = "/home/seatrial"
SCRATCH = "/tmp"
JOIN_TIMEOUT_S = 900
"""How long pods wait for one another: one of them may have to pull an image of 20 GB (180 s at 1 Gbit/s) and another
one has it already; five times that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that the pods bear. Without a value: whatever its value is."""

    key: str
    value: str | None = None
    effect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim and where it is seen."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What a user adds to the objects: JSON merge patches (RFC 7386)."""

    pod: Mapping[str, Any] = field(default_factory=dict)
    """Into the template of every pod: metadata and spec."""
    container: Mapping[str, Any] = field(default_factory=dict)
    """Into the container that holds ranks."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Into the Job, JobSet, PyTorchJob, TrainJob or MPIJob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One job on one cluster. ``check.py`` says what is refused."""

    run: str
    """The name of the workload, and of every object that belongs to it."""
    namespace: str | None
    """None: that of the user's own context."""
    image: str
    nodes: int
    """Pods that hold ranks."""
    nproc_per_node: int
    arguments: tuple[str, ...]
    """What is typed after ``seatrial``, in the pods."""
    token: str
    """What all pods of the run know and nobody else."""
    python: str = "python3"
    bundle: bytes | None = None
    """The file that travels. None: the image has seatrial."""
    more: bytes | None = None
    """What lies beside it. None: nothing of it is asked for."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What is seen beside it, by name: a plan."""
    env: Mapping[str, str] = field(default_factory=dict)
    gpu_resource: str | None = None
    gpus_per_node: int = 0
    resources: Mapping[str, str] = field(default_factory=dict)
    """Further ones of each pod: cpu, memory, rdma devices; asked for and not exceeded."""
    shm_size: str = "1Gi"
    tolerations: tuple[Toleration, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    spread: Literal["required", "preferred", "none"] = "preferred"
    """Whether pods of a run may share a node."""
    host_network: bool = False
    claims: tuple[Claim, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    supplemental_groups: tuple[int, ...] = ()
    ttl_s: int | None = None
    """The workload is deleted so long after its end. None: it stays."""
    live: str | None = None
    """The name of the run that a controller follows by the log of the first pod. None: people read it."""
    deadline_s: float | None = None
    """Of the trial itself. None: it takes as long as it takes."""
    max_restarts: int = 0
    openshift: Literal["arbitrary-uid", "custom-scc"] | None = None
    mpi: Literal["openmpi", "mpich", "intel"] = "openmpi"
    mpirun: str = "mpirun"
    runtime: Literal["torch", "mpi"] = "torch"
    """Who starts the ranks of a TrainJob."""
    trainer_version: Literal["2.0", "2.1", "2.2+"] = "2.2+"
    """Of Kubeflow Trainer: what a patch may name in a TrainJob."""
    patch: Patch = field(default_factory=Patch)

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node

    @property
    def master_port(self) -> int:
        """One of 12,000 below those that Linux hands out, by the name: runs that share a machine's network differ."""
        return 20_000 + sum(place * byte for place, byte in enumerate(self.run.encode(), start=1)) % 12_000
