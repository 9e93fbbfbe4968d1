"""``--on job``, ``jobset``, ``pytorchjob``, ``trainjob``, ``mpijob``: pods of a cluster of Kubernetes or OpenShift.

Nothing in the cluster reaches this machine: the pods call seatrial again (``Where.typed``), find one another by their
environment, and the first of them conducts (``joined.py``). What is made of them are manifests, which ``kubectl apply``
takes as they are.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seatrial.errors import RequestError
from seatrial.kubernetes import parse
from seatrial.kubernetes.check import see_that_it_can_be
from seatrial.kubernetes.manifest import manifest, to_yaml
from seatrial.kubernetes.workload import CODE, JOIN_TIMEOUT_S, Claim, Patch, Toleration, Workload
from seatrial.launch.command import Command, Feed
from seatrial.launch.job import Job, Processes
from seatrial.launch.kubernetes_options import COMMON, MPI, MPIRUN, RUNTIME
from seatrial.launch.target import Placement, Target, Where
from seatrial.plan.source import is_level, read_file

__all__ = ["TARGETS"]

_APPLY = ("kubectl", "apply", "-f", "-")
_CPU_PROCESSES = 2
_DEVICES = {"nvidia.com": "cuda", "amd.com": "rocm"}
_HERE = {"train": ("--out", "--output", "--max-restarts")}
"""What is for the machine where it is typed, not for the pods."""


def _resolve(where: Where) -> Placement:
    if not where.dry_run:
        raise RequestError(
            f"--on {where.target}: the manifests are printed, and applying them is yours: add --dry-run, and pipe it"
            f" into {' '.join(_APPLY)}."
        )
    workload = _workload(where)
    see_that_it_can_be(where.target, workload)
    return Placement(
        nodes=workload.nodes,
        nproc_per_node=workload.nproc_per_node,
        device=_device(where, workload.gpu_resource),
        backend=where.backend,
        python=workload.python,
        words=f"in {workload.nodes} pods ({where.target})",
        detail=workload,
    )


def _render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    workload: Workload = job.detail
    env = dict(job.env)
    deadline_s = None
    if isinstance(job, Job):
        deadline_s = float(job.plan.deadline_s.value)
        env |= {"SEATRIAL_PLANT": ";".join(job.planted)} if job.planted else {}
    text = to_yaml(manifest(job.target, replace(workload, env=env, deadline_s=deadline_s)))
    return (Command(argv=_APPLY, env={}, nodes=tuple(range(job.nodes)), feed=Feed(lines=(), content=text.encode())),)


def _shown(commands: Sequence[Command]) -> list[str]:
    """What is applied, and nothing else."""
    return [command.feed.content.decode().rstrip("\n") for command in commands if command.feed]


def _workload(where: Where) -> Workload:
    told = where.own
    if told["image"] is None:
        raise RequestError(f"--on {where.target}: --image IMAGE is needed, the image that will train.")
    if told["all_nodes"] and told["nodes"] is None:
        raise RequestError(
            "--all-nodes: how many there are is not asked of the cluster; say it with --nodes"
            f" (kubectl get nodes -l {told['all_nodes'][:200]} lists them)."
        )
    resource = parse.gpu_resource(told["gpu_resource"])
    gpus = told["gpus_per_node"] or 0
    nproc_per_node = where.nproc_per_node
    if nproc_per_node is None:
        nproc_per_node = max(gpus, 1) if resource else _CPU_PROCESSES
    under_mpi = where.target == "mpijob" or told.get("runtime") == "mpi"
    if where.backend == "mpi" and not (under_mpi and told["image_has_seatrial"]):
        raise RequestError(
            "--backend mpi: mpirun must start the ranks, and the image must have seatrial[mpi]; use --on mpijob or --on"
            " trainjob --runtime mpi, with --image-has-seatrial."
        )
    claims = parse.claims(told["pvc"])
    nodes = 1 if told["nodes"] is None else told["nodes"]
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
    )


TARGETS = (
    _target("job", "a Job of Kubernetes, nothing installed"),
    _target("jobset", "a JobSet"),
    _target("pytorchjob", "a PyTorchJob of Kubeflow's training-operator"),
    _target("trainjob", "a TrainJob of Kubeflow Trainer", RUNTIME, MPIRUN),
    _target("mpijob", "an MPIJob of Kubeflow's mpi-operator", MPI, MPIRUN),
)
