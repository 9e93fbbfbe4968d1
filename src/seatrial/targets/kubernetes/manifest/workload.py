"""The resolved and validated description of a run, from which alone every kind renders its objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Object = dict[str, Any]
"""An object of Kubernetes, or a part of one, in its JSON form."""

UID = 10_001
"""User, group and fsGroup of all our containers; our images have a line for it in /etc/passwd."""
CODE = "/opt/seatrial"
"""Read-only folder with the contents of the ConfigMaps: the parts of the bundle, the start script, a plan file."""
HOME = "/home/seatrial"
SCRATCH = "/tmp"
COPY = f"{SCRATCH}/seatrial"
"""Folder with copies of them that were compared with the manifest, and the joined bundle. It is in an emptyDir, and
disappears with the pod."""
JOIN_TIMEOUT_S = 900
"""Seconds that the pods wait for one another: five times what one of them needs to pull an image of 20 GB at 1 Gbit/s
(180 s), while another already has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that the pods tolerate. Without a value, any value is tolerated; without an effect, any effect."""

    key: str
    value: str | None = None
    effect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim and the path where it is mounted."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The changes of the user to the objects: JSON merge patches (RFC 7386)."""

    pod: Mapping[str, Any] = field(default_factory=dict)
    """For the template of every pod: metadata and spec."""
    container: Mapping[str, Any] = field(default_factory=dict)
    """For the container that holds ranks."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """For the workload itself, the last of the objects."""
    runtime: Mapping[str, Any] = field(default_factory=dict)
    """For the object that a kind needs before its workload, such as a TrainingRuntime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One run on one cluster. ``validation.py`` lists what is refused."""

    run: str
    """Name of the run, of its workload, and of every object that belongs to it."""
    namespace: str | None
    """None: the namespace of the user's current context."""
    image: str
    """The image that will train."""
    nodes: int
    """Number of pods that hold ranks."""
    nproc_per_node: int
    """Number of ranks in each of these pods."""
    arguments: tuple[str, ...]
    """The arguments of ``seatrial`` in the pods."""
    token: str
    """The secret by which the pods of the run authenticate one another."""
    ssh_key: str = ""
    """The private key by which pods under MPI reach one another, in the form of OpenSSH; empty without MPI."""
    python: str = "python3"
    """The interpreter in the image that has torch."""
    bundle: bytes | None = None
    """The bundle, a zip file. None: the image has seatrial installed."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files in the same folder, such as a plan: name -> content, UTF-8 text."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the containers."""
    gpu_resource: str | None = None
    """Resource name of a GPU. None: a trial of the CPUs."""
    gpus_per_node: int = 0
    """Number of GPUs of each pod that holds ranks."""
    resources: Mapping[str, str] = field(default_factory=dict)
    """Request and limit of each pod for cpu, memory and RDMA devices: resource name -> quantity."""
    shm_size: str = "1Gi"
    """Size of /dev/shm, as a Kubernetes quantity."""
    tolerations: tuple[Toleration, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that may run the pods."""
    spread: Literal["required", "preferred", "none"] = "preferred"
    """Whether each pod must, should or need not have a node of the cluster to itself."""
    host_network: bool = False
    """Whether the pods use the network of their nodes."""
    allow_egress: bool = False
    """Whether the NetworkPolicy lets the pods reach one another and DNS, in a namespace that denies egress."""
    claims: tuple[Claim, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    """Names of the Secrets for pulling the image."""
    service_account: str | None = None
    """None: the default account of the namespace."""
    supplemental_groups: tuple[int, ...] = ()
    """Group ids for files on shared storage."""
    ttl_s: int | None = None
    """Seconds from the end of the workload until the cluster deletes it. None: it stays."""
    live: str | None = None
    """Name of the run that a controller follows by the log of the first pod. None: people read the log."""
    deadline_s: float | None = None
    """Time limit of the trial. None: there is none."""
    max_restarts: int = 0
    """How often all pods may restart together."""
    openshift: Literal["arbitrary-uid", "custom-scc"] | None = None
    """How the pods satisfy the security constraints of OpenShift. None: any other cluster."""
    kind_options: Mapping[str, Any] = field(default_factory=dict)
    """Values of the options that only its kind takes (``Kind.options``), by name."""
    patch: Patch = field(default_factory=Patch)

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node

    @property
    def master_port(self) -> int:
        """A port from 20,000 to 31,999, derived from the name so that runs in one host network differ.

        Linux takes the ports of outgoing connections from above this range.
        """
        return 20_000 + sum(place * byte for place, byte in enumerate(self.run.encode(), start=1)) % 12_000
