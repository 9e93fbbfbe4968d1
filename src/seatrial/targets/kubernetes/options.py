"""The options of all kinds of workload in a cluster; further options of one kind are in its file (``Kind.options``)."""

from __future__ import annotations

from pathlib import Path

from seatrial.targets.hosts import MIN_HOSTS, QUEUE_TIMEOUT
from seatrial.targets.option import NODES, Option, duration_s


def _text(flag: str, text: str, *, metavar: str, default: str | None = None) -> Option:
    return Option(flags=(flag,), name=_name(flag), help=text, metavar=metavar, default=default)


def _number(flag: str, text: str) -> Option:
    return Option(flags=(flag,), name=_name(flag), help=text, type=int, metavar="N")


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
    _text("--name", "Name of the run and of its objects. Default: seatrial- and a random part.", metavar="NAME"),
    _text("--namespace", "Namespace of the objects. Default: the one of your context.", metavar="NAME"),
    _number("--gpus-per-node", "GPUs of each pod."),
    _text(
        "--gpu-resource",
        "Resource name of a GPU: nvidia.com/gpu, amd.com/gpu; none: a trial of the CPUs.",
        metavar="NAME",
        default="nvidia.com/gpu",
    ),
    _text("--cpu", "CPU request and limit of each pod.", metavar="AMOUNT"),
    _text("--memory", "Memory request and limit of each pod, including its shared memory.", metavar="AMOUNT"),
    _text("--shm-size", "Size of the shared memory (/dev/shm) of each pod.", metavar="AMOUNT", default="1Gi"),
    _several(
        "--rdma", "Further devices of each pod: rdma/hca=1, vpc.amazonaws.com/efa=4; repeatable.", metavar="RESOURCE=N"
    ),
    _several("--node-selector", "Use only nodes with this label; repeatable.", metavar="KEY=VALUE"),
    Option(
        flags=("--all-nodes",),
        name="all_nodes",
        help="Run one pod on each node with these labels; repeatable.",
        metavar="KEY=VALUE[,..]",
        is_list=True,
    ),
    _several("--toleration", "Taint to tolerate; repeatable.", metavar="KEY[=VALUE][:EFFECT]"),
    Option(
        flags=("--spread",),
        name="spread",
        help="Whether each pod must, should or need not have a node of the cluster to itself.",
        type=("required", "preferred", "none"),
        default="preferred",
    ),
    _flag("--host-network", "Use the network of the nodes instead of the pod network."),
    _flag("--allow-egress", "Let the pods reach one another and DNS in a namespace that denies egress."),
    _several("--pvc", "PersistentVolumeClaim and the path where it is mounted; repeatable.", metavar="NAME:PATH"),
    _several("--pull-secret", "Secret for pulling the image; repeatable.", metavar="NAME"),
    _text("--service-account", "ServiceAccount of the pods.", metavar="NAME"),
    _several(
        "--supplemental-group",
        "Supplemental group of the processes, for shared files; repeatable.",
        metavar="GID",
        kind=int,
    ),
    Option(
        flags=("--ttl",),
        name="ttl",
        help="Time after its end until the cluster deletes the workload.",
        type=duration_s,
        metavar="TIME",
    ),
    Option(
        flags=("--openshift",),
        name="openshift",
        help="arbitrary-uid: run under restricted-v2; custom-scc: as user 10001 under a constraint made for the run.",
        type=("arbitrary-uid", "custom-scc"),
    ),
    _flag("--image-has-seatrial", "Use the seatrial that is installed in the image instead of the bundle."),
    QUEUE_TIMEOUT,
    _text("--kubectl", "Path of kubectl or oc. Default: kubectl on PATH, else oc.", metavar="PATH"),
    _flag("--keep", "Keep all objects in the cluster after the run."),
    Option(
        flags=("--patch",),
        name="patch",
        help="YAML file with pod, container, workload or runtime, merged into the manifests.",
        type=Path,
        metavar="FILE",
    ),
)
