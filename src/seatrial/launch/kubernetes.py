"""``--on job``, ``jobset``, ``pytorchjob``, ``trainjob``, ``mpijob``: pods of a cluster of Kubernetes or OpenShift.

Nothing in the cluster reaches this machine: the pods call seatrial again (``Where.typed``), find one another by their
environment, and the first of them conducts (``joined.py``). Its log is what we hear of it (``kubernetes_live.py``).
With ``--dry-run`` the same manifests are printed, which ``kubectl apply`` takes as they are.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.kubernetes import parse
from seatrial.kubernetes.check import see_that_it_can_be
from seatrial.kubernetes.manifest import manifest
from seatrial.kubernetes.trainjob import NEWEST, PATCHES
from seatrial.kubernetes.workload import CODE, JOIN_TIMEOUT_S, Claim, Object, Patch, Toleration, Workload
from seatrial.launch.command import Command, Feed
from seatrial.launch.hosts import queue_timeout_s
from seatrial.launch.job import Job, Processes
from seatrial.launch.kubectl import Kubectl, find_kubectl
from seatrial.launch.kubernetes_access import chosen_nodes, see_that_it_may, trainer_version
from seatrial.launch.kubernetes_options import COMMON, MPI, RUNTIME, TRAINER_VERSION
from seatrial.launch.option import MPIRUN
from seatrial.launch.target import Placement, Target, Where
from seatrial.plan.source import is_level, read_file
from seatrial.report.streams import tell

__all__ = ["TARGETS", "Pods"]

_APPLY = ("kubectl", "apply", "-f", "-")
_CPU_PROCESSES = 2
_DEVICES = {"nvidia.com": "cuda", "amd.com": "rocm"}
_HERE = {"train": ("--out", "--output", "--max-restarts")}
"""What is for the machine where it is typed, not for the pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What only these targets know of their job."""

    workload: Workload
    kubectl: Kubectl | None
    """None: a dry run, which asks nobody."""
    under_mpi: bool
    """A launcher of its own starts the ranks."""
    min_hosts: int | None
    queue_timeout_s: float
    keep: bool


def _objects_of(job: Processes) -> list[Object]:
    """What is applied, or printed."""
    workload: Workload = job.detail.workload
    env = dict(job.env)
    deadline_s = more = None
    if isinstance(job, Job):
        # The first pod conducts: it works out which pairs to measure.
        more = _more() if "links" in job.plan.checks and workload.bundle is not None else None
        deadline_s = float(job.plan.deadline_s.value)
        env |= {"SEATRIAL_PLANT": ";".join(job.planted)} if job.planted else {}
    live = None if job.detail.kubectl is None else job.run
    return manifest(job.target, replace(workload, env=env, deadline_s=deadline_s, live=live, more=more))


def _resolve(where: Where) -> Placement:
    told = where.own
    if told["image"] is None:
        raise RequestError(f"--on {where.target}: --image IMAGE is needed, the image that will train.")
    kubectl = None
    if not where.dry_run:
        kubectl = Kubectl(program=find_kubectl(told["kubectl"]), namespace=told["namespace"])
    nodes, absent = _nodes(told, kubectl)
    workload = _workload(where, nodes)
    if where.target == "trainjob":
        workload = replace(workload, trainer_version=_trainer_version(told, workload.patch, kubectl))
    see_that_it_can_be(where.target, workload)
    queue_s = queue_timeout_s(told)
    if kubectl is not None:
        see_that_it_may(kubectl, where.target, manifest(where.target, workload))
    return Placement(
        nodes=workload.nodes,
        nproc_per_node=workload.nproc_per_node,
        device=_device(where, workload.gpu_resource),
        backend=where.backend,
        python=workload.python,
        words=f"in {workload.nodes} {'pod' if workload.nodes == 1 else 'pods'} ({where.target})",
        absent=absent,
        detail=Pods(
            workload=workload,
            kubectl=kubectl,
            under_mpi=_is_under_mpi(where),
            min_hosts=told["min_hosts"],
            queue_timeout_s=queue_s,
            keep=told["keep"],
        ),
    )


def _nodes(told: Mapping[str, Any], kubectl: Kubectl | None) -> tuple[int, tuple[str, ...]]:
    """How many pods hold ranks, and the nodes that are left out, each with the reason."""
    nodes, least, selector = told["nodes"], told["min_hosts"], told["all_nodes"]
    absent: tuple[str, ...] = ()
    if nodes is None and selector:
        parse.selector((selector,), "--all-nodes")
        if kubectl is None:
            raise RequestError(
                "--all-nodes: with --dry-run nobody is asked how many there are; say it with --nodes"
                f" (kubectl get nodes -l {selector[:200]} lists them)."
            )
        nodes, absent = chosen_nodes(kubectl, selector, least)
    nodes = 1 if nodes is None else nodes
    if least is not None and not 1 <= least <= nodes:
        raise RequestError(f"--min-hosts {least}: a number from 1 to {nodes}, the number of nodes, is expected.")
    return nodes, absent


def _trainer_version(told: Mapping[str, Any], patch: Patch, kubectl: Kubectl | None) -> Any:
    """The cluster is asked where it matters: not everybody may read definitions of resources."""
    matters = any(field in (patch.workload.get("spec") or {}) for field in PATCHES.values())
    if told["trainer_version"] is None and kubectl is not None and matters:
        return trainer_version(kubectl)
    return told["trainer_version"] or NEWEST


def _is_under_mpi(where: Where) -> bool:
    return where.target == "mpijob" or where.own.get("runtime") == "mpi"


def _render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    # Here: no other target waits for it.
    from seatrial.kubernetes.text import to_yaml

    feed = Feed(lines=(), content=to_yaml(_objects_of(job)).encode())
    return (Command(argv=_APPLY, env={}, nodes=tuple(range(job.nodes)), feed=feed),)


def _shown(commands: Sequence[Command]) -> list[str]:
    """What is applied, and nothing else."""
    return [command.feed.content.decode().rstrip("\n") for command in commands if command.feed]


def _carry_out(
    job: Processes,
    run: dict[str, Any],
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    hear: Callable[[dict[str, Any]], None],
    caught: Sequence[int],
) -> int:
    """Make the objects, follow the pods to their end, and delete what was made. Returns how many messages were lost."""
    from seatrial.launch.kubernetes_live import Attempt, Limits, TooFewError
    from seatrial.launch.kubernetes_made import Made
    from seatrial.launch.kubernetes_told import Told

    told = Told(run, folder, keep, hear)
    try:
        while True:
            pods: Pods = job.detail
            assert pods.kubectl is not None
            attempt = Attempt(
                kubectl=pods.kubectl,
                made=Made(pods.kubectl, job.target, _objects_of(job)),
                job=job,
                limits=Limits(queue_s=pods.queue_timeout_s),
                told=told,
                folder=folder,
                caught=caught,
            )
            fewer = None
            try:
                attempt.hold()
            except TooFewError as error:
                fewer = error
            finally:
                for words in attempt.end(keep=pods.keep and fewer is None):
                    told.note("warn", words)
            if fewer is None:
                return attempt.lost
            job = _with_fewer(job, fewer.running, fewer.absent)
            told.restart(job)
    finally:
        told.close(job)


def _with_fewer(job: Processes, nodes: int, absent: tuple[str, ...]) -> Processes:
    tell(f"seatrial: going on without {', '.join(absent)} (--min-hosts)")
    detail = replace(job.detail, workload=replace(job.detail.workload, nodes=nodes), min_hosts=None)
    return replace(job, nodes=nodes, absent=(*job.absent, *absent), detail=detail)


def _workload(where: Where, nodes: int) -> Workload:
    told = where.own
    resource = parse.gpu_resource(told["gpu_resource"])
    gpus = told["gpus_per_node"] or 0
    nproc_per_node = where.nproc_per_node
    if nproc_per_node is None:
        nproc_per_node = max(gpus, 1) if resource else _CPU_PROCESSES
    under_mpi = _is_under_mpi(where)
    if where.backend == "mpi" and not (under_mpi and told["image_has_seatrial"]):
        raise RequestError(
            "--backend mpi: mpirun must start the ranks, and the image must have seatrial[mpi]; use --on mpijob or --on"
            " trainjob --runtime mpi, with --image-has-seatrial."
        )
    claims = parse.claims(told["pvc"])
    arguments, files, max_restarts = _arguments(where, claims, nodes)
    placed = f"--nproc-per-node={nproc_per_node}"
    chosen = [f"--device={_device(where, resource)}", *([] if under_mpi else [placed])]
    if where.backend != "auto":
        chosen.append(f"--backend={where.backend}")
    return Workload(
        run=told["name"] or f"seatrial-{secrets.token_hex(3)}",
        namespace=told["namespace"],
        image=told["image"],
        nodes=nodes,
        nproc_per_node=nproc_per_node,
        arguments=(arguments[0], *chosen, *arguments[1:]),
        token=secrets.token_urlsafe(24),
        python=where.python or "python3",
        bundle=None if told["image_has_seatrial"] else _bundle(),
        files=files,
        env=parse.environment(where.env),
        gpu_resource=resource,
        gpus_per_node=gpus,
        resources=_resources(told),
        shm_size=parse.resource_quantity(told["shm_size"], "--shm-size"),
        tolerations=(*([Toleration(key=resource)] if resource else []), *parse.tolerations(told["toleration"])),
        node_selector={
            **parse.selector(told["node_selector"], "--node-selector"),
            **(parse.selector((told["all_nodes"],), "--all-nodes") if told["all_nodes"] else {}),
        },
        spread="required" if told["all_nodes"] else told["spread"],
        host_network=told["host_network"],
        claims=claims,
        pull_secrets=tuple(parse.object_name(name, "--pull-secret") for name in told["pull_secret"]),
        service_account=told["service_account"] and parse.object_name(told["service_account"], "--service-account"),
        supplemental_groups=parse.group_ids(told["supplemental_group"]),
        ttl_s=told["ttl"],
        max_restarts=max_restarts,
        openshift=told["openshift"],
        mpi=told.get("mpi", "openmpi"),
        mpirun=told.get("mpirun", "mpirun"),
        runtime=told.get("runtime", "torch"),
        patch=parse.read_patch(told["patch"]) if told["patch"] else Patch(),
    )


def _resources(told: Mapping[str, Any]) -> dict[str, str]:
    named = {name: told[name] for name in ("cpu", "memory") if told[name] is not None}
    return {
        **{name: parse.resource_quantity(amount, f"--{name}") for name, amount in named.items()},
        **parse.rdma(told["rdma"]),
    }


def _device(where: Where, resource: str | None) -> str:
    found = "cpu" if resource is None else _DEVICES[resource.partition("/")[0]]
    if where.device not in ("auto", found):
        asked = f"--gpu-resource {resource or 'none'}"
        raise RequestError(f"--device {where.device}: {asked} means {found}; leave one out.")
    if where.backend == "nccl" and found == "cpu":
        raise RequestError("--backend nccl: NCCL moves data between GPUs only; leave it out, or say --backend gloo.")
    return found


def _bundle() -> bytes:
    from seatrial.launch.bundle import kept_bundle

    return kept_bundle()


def _more() -> bytes:
    from seatrial.launch.bundle import more

    return more()


# The words for the pods


def _arguments(where: Where, claims: Sequence[Claim], nodes: int) -> tuple[tuple[str, ...], dict[str, bytes], int]:
    """What is typed in the pods, what goes there with it, and how often all pods may start again."""
    command, *words = where.typed
    cut = words.index("--") if "--" in words else len(words)
    named, placed = words[:cut], words[cut:]
    # The first pod of a `launch` has agents in all pods and starts ranks again itself; those of `train` have none.
    restarts = [word.partition("=")[2] for word in named if command == "train" and word.startswith("--max-restarts=")]
    named = [word for word in named if word.partition("=")[0] not in _HERE.get(command, ("--out",))]
    files: dict[str, bytes] = {}
    if command == "run" and placed and not is_level(placed[1]):
        files["plan.json"] = json.dumps(read_file(placed[1]), separators=(",", ":")).encode()
        placed[1] = f"{CODE}/plan.json"
    if command == "train":
        if nodes > 1 and not any(word.startswith("--timeout=") for word in named):
            # The pods do not come at the same time.
            named.append(f"--timeout={JOIN_TIMEOUT_S}")
        _see_that_all_meet(named, claims, nodes)
    return (command, *named, *placed), files, int(restarts[0]) if restarts else 0


def _see_that_all_meet(named: Sequence[str], claims: Sequence[Claim], nodes: int) -> None:
    """Raises RequestError for a file to meet at that is in one pod alone."""
    for word in named:
        if word.startswith("--init=") and nodes == 1:
            raise RequestError(f"{word}: the ranks of a single pod find one another; leave it out.")
        match = re.fullmatch(r"--init=file://(/.*)", word)
        if match and not any(match[1].startswith(f"{claim.path}/") for claim in claims):
            raise RequestError(
                f"{word}: the pods share no such folder; put the file into one that --pvc NAME:PATH brings, and take"
                " another name for each run."
            )


def _target(name: str, text: str, *own: Any) -> Target:
    return Target(
        name=name,
        help=text,
        options=(*COMMON, *own),
        resolve=_resolve,
        render=_render,
        shown=_shown,
        calls_again=True,
        carry_out=_carry_out,
    )


TARGETS = (
    _target("job", "a Job of Kubernetes, nothing installed"),
    _target("jobset", "a JobSet"),
    _target("pytorchjob", "a PyTorchJob of Kubeflow's training-operator"),
    _target("trainjob", "a TrainJob of Kubeflow Trainer", RUNTIME, TRAINER_VERSION, MPIRUN),
    _target("mpijob", "an MPIJob of Kubeflow's mpi-operator", MPI, MPIRUN),
)
