"""The options of ``--on job``, ``jobset``, ``pytorchjob``, ``trainjob`` and ``mpijob``."""

from __future__ import annotations

from pathlib import Path

from seatrial.kubernetes.trainjob import PATCHES
from seatrial.launch.hosts import MIN_HOSTS, QUEUE_TIMEOUT
from seatrial.launch.option import NODES, Option

__all__ = ["COMMON", "MPI", "RUNTIME", "TRAINER_VERSION"]


def _text(flag: str, text: str, *, metavar: str, default: str | None = None) -> Option:
    return Option(flags=(flag,), name=_name(flag), help=text, metavar=metavar, default=default)


def _number(flag: str, text: str, *, metavar: str = "N") -> Option:
    return Option(flags=(flag,), name=_name(flag), help=text, type=int, metavar=metavar)


def _several(flag: str, text: str, *, metavar: str, kind: type = str) -> Option:
    return Option(flags=(flag,), name=_name(flag), help=text, type=kind, metavar=metavar, multiple=True)


def _flag(flag: str, text: str) -> Option:
    return Option(flags=(flag,), name=_name(flag), help=text, flag=True)


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


COMMON = (
    NODES,
    MIN_HOSTS,
    _text("--image", "The image that will train.", metavar="IMAGE"),
    _text("--name", "Name of the run and its objects; default: seatrial- and a random part.", metavar="NAME"),
    _text("--namespace", "Default: that of your context.", metavar="NAME"),
    _number("--gpus-per-node", "Devices of each pod."),
    _text(
        "--gpu-resource",
        "What a device is called: nvidia.com/gpu, amd.com/gpu; none: a trial of the CPUs.",
        metavar="NAME",
        default="nvidia.com/gpu",
    ),
    _text("--cpu", "CPUs of each pod: asked for, and not exceeded.", metavar="AMOUNT"),
    _text("--memory", "Memory of each pod, shared memory included.", metavar="AMOUNT"),
    _text("--shm-size", "Shared memory (/dev/shm) of each pod.", metavar="AMOUNT", default="1Gi"),
    _several("--rdma", "Further devices of each pod: rdma/hca=1, vpc.amazonaws.com/efa=4.", metavar="RESOURCE=N"),
    _several("--node-selector", "Nodes with this label only.", metavar="KEY=VALUE"),
    _text("--all-nodes", "One pod on each node with these labels.", metavar="KEY=VALUE[,..]"),
    _several("--toleration", "A taint that does not matter.", metavar="KEY[=VALUE][:EFFECT]"),
    Option(
        flags=("--spread",),
        name="spread",
        help="Whether each pod must, should or need not have a node to itself.",
        type=("required", "preferred", "none"),
        default="preferred",
    ),
    _flag("--host-network", "Use the network of the nodes."),
    _several("--pvc", "A PersistentVolumeClaim and where it is seen.", metavar="NAME:PATH"),
    _several("--pull-secret", "A Secret with which the image is pulled.", metavar="NAME"),
    _text("--service-account", "Of the pods.", metavar="NAME"),
    _several("--supplemental-group", "A further group of the processes, for shared files.", metavar="GID", kind=int),
    _number("--ttl", "Seconds from the end until the cluster deletes the workload.", metavar="SECONDS"),
    Option(
        flags=("--openshift",),
        name="openshift",
        help="arbitrary-uid: under restricted-v2; custom-scc: user 10001, with a constraint of the run's own.",
        type=("arbitrary-uid", "custom-scc"),
    ),
    _flag("--image-has-seatrial", "Use the seatrial in the image, and bring none along."),
    QUEUE_TIMEOUT,
    _text("--kubectl", "Which kubectl, or oc; default: kubectl of PATH, else oc.", metavar="PATH"),
    _flag("--keep", "Delete nothing at the end."),
    Option(
        flags=("--patch",),
        name="patch",
        help="YAML with pod, container or workload: merged into the manifests.",
        type=Path,
        metavar="FILE",
    ),
)
"""Of all five."""

RUNTIME = Option(
    flags=("--runtime",), name="runtime", help="Who starts the ranks.", type=("torch", "mpi"), default="torch"
)
TRAINER_VERSION = Option(
    flags=("--trainer-version",),
    name="trainer_version",
    help="Of Kubeflow Trainer, for a --patch that is not the same in all; default: the cluster's, or 2.2+.",
    type=tuple(PATCHES),
)
MPI = Option(
    flags=("--mpi",),
    name="mpi",
    help="The MPI in the image.",
    type=("openmpi", "mpich", "intel"),
    default="openmpi",
)
