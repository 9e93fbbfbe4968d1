"""Pods of a Kubernetes or OpenShift cluster: one target for each kind of workload in ``kubernetes/kinds``.

Nothing in the cluster connects to this machine. The pods run the same command again (``TargetRequest.typed``), find one
another by their environment, and the first of them conducts (``run/external_launcher.py``); the controller reads the
events of the run from the log of that pod (``follower.py``). ``--dry-run`` prints the same manifests, for
``kubectl apply``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.environment.script_variables import CARRIED, CONDUCT
from seatrial.errors import RequestError
from seatrial.targets.hidden_values import find_secret_argument
from seatrial.targets.hosts import queue_timeout_s
from seatrial.targets.kubernetes.kind import Kind
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.options import COMMON
from seatrial.targets.target import Placement, Target, TargetRequest
from seatrial.util.streams import print_status

if TYPE_CHECKING:
    from seatrial.targets.command import Command
    from seatrial.targets.job import Processes
    from seatrial.targets.kubernetes.carried_script import CarriedScript
    from seatrial.targets.kubernetes.kubectl import Kubectl
    from seatrial.targets.kubernetes.manifest.workload import Claim, Object, Workload

_APPLY = ("kubectl", "apply", "-f", "-")
_CPU_PROCESSES = 2
_DEVICES = {"nvidia.com": "cuda", "amd.com": "rocm"}
_CONTROLLER_OPTIONS = {"train": ("--out", "--output", "--max-restarts")}
"""Command -> its options that are for the controller's machine, not for the pods. All other commands: ``--out``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsDetail:
    """``Processes.detail`` of these targets."""

    workload: Workload
    """The workload to render, without what only the job knows (environment, deadline)."""
    kubectl: Kubectl | None
    """None in a dry run, which asks no cluster."""
    under_mpi: bool
    """Whether mpirun starts the ranks, in a launcher pod."""
    min_hosts: int | None
    """The number of nodes with which the run may start (``--min-hosts``); None: all."""
    queue_timeout_s: float
    keep: bool
    """Whether the objects stay after the run (``--keep``)."""


def _objects_of(job: Processes) -> list[Object]:
    """Return the objects of a job, in the order in which they are applied or printed."""
    from seatrial.report.report_line import VARIABLE
    from seatrial.targets.job import Job
    from seatrial.targets.kubernetes.manifest.render import manifest

    workload: Workload = job.detail.workload
    env = dict(job.rank_env)
    deadline_s = None
    if isinstance(job, Job):
        deadline_s = float(job.plan.deadline_s.value)
        if job.detail.kubectl is None:
            # Nobody follows the run, and the files of a pod are lost with it.
            env[VARIABLE] = "1"
    live = None if job.detail.kubectl is None else job.run
    return manifest(job.target, replace(workload, env=env, deadline_s=deadline_s, live=live))


def _resolve(target_request: TargetRequest) -> Placement:
    if target_request.own["image"] is None:
        raise RequestError(f"--on {target_request.target}: --image IMAGE is required, the image that will train.")
    script, said = _carried(target_request)
    placement = _placement(target_request, script)
    if said:
        print_status(f"seatrial: {said}.")
    return placement


def _placement(target_request: TargetRequest, script: CarriedScript | None) -> Placement:
    """Return the placement. ``script``: what goes along with the pods."""
    from seatrial.targets.kubernetes.kubectl import Kubectl, find_kubectl
    from seatrial.targets.kubernetes.manifest.render import manifest
    from seatrial.targets.kubernetes.manifest.validation import validate_workload
    from seatrial.targets.kubernetes.permissions import require_permission, spec_fields

    options = target_request.own
    kubectl = None
    if not target_request.dry_run:
        kubectl = Kubectl(program=find_kubectl(options["kubectl"]), namespace=options["namespace"])
        try:
            kubectl = kubectl.in_present_context()
        except RequestError:
            if options["all_nodes"] is None:  # which only the cluster knows
                _placement(replace(target_request, dry_run=True), script)  # a mistyped option is the first error
            raise
    nodes, absent = _nodes(options, kubectl)
    kind = KINDS[target_request.target]
    env = _script_variables(target_request, kind, script)
    fields = None if kubectl is None else partial(spec_fields, kubectl)
    workload = kind.resolve(_workload(target_request, kind, nodes, script), fields)
    validate_workload(kind.name, workload)
    workload = _with_ssh_key(workload, kind.name)
    queue_s = queue_timeout_s(options)
    if kubectl is not None:
        require_permission(kubectl, target_request.target, manifest(target_request.target, workload))
    return Placement(
        nodes=workload.nodes,
        nproc_per_node=workload.nproc_per_node,
        device=_device(target_request, workload.gpu_resource),
        backend=target_request.backend,
        python=workload.python,
        env=env,
        words=f"in {workload.nodes} {'pod' if workload.nodes == 1 else 'pods'} ({target_request.target})",
        absent=absent,
        detail=PodsDetail(
            workload=workload,
            kubectl=kubectl,
            under_mpi=kind.under_mpi(options),
            min_hosts=options["min_hosts"],
            queue_timeout_s=queue_s,
            keep=options["keep"],
        ),
    )


def _is_conducted_script(target_request: TargetRequest, kind: Kind) -> bool:
    """Return whether mpirun starts the ranks of a script: without agents nobody would hear how they end."""
    return kind.under_mpi(target_request.own) and target_request.typed[:1] == ("launch",)


def _script_variables(target_request: TargetRequest, kind: Kind, script: CarriedScript | None) -> dict[str, str]:
    """Return the variables by which the pods start a script otherwise than on a machine of the user."""
    from seatrial.targets.kubernetes.manifest.workload import COPY

    conducted = {CONDUCT: "1"} if _is_conducted_script(target_request, kind) else {}
    return conducted | ({} if script is None else {CARRIED: f"{COPY}/{script.name}"})


def _carried(target_request: TargetRequest) -> tuple[CarriedScript | None, str]:
    """Return the script of this machine that goes along with the pods, None if there is none; and what to say of it."""
    from seatrial.targets.kubernetes.carried_script import carried_script
    from seatrial.targets.kubernetes.manifest import parse

    command, *words = target_request.typed
    if command != "launch":
        return None, ""
    end = words.index("--")
    if "-m" in words[:end]:
        return None, ""
    return carried_script(
        words[end + 1],
        is_python="--no-python" not in words[:end],
        claims=parse.claims(target_request.own["pvc"]),
        may_be_there=target_request.dry_run or target_request.own["patch"] is not None,
    )


def _nodes(options: Mapping[str, Any], kubectl: Kubectl | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of pods that hold ranks, and the nodes that are left out, each with its reason."""
    from seatrial.targets.kubernetes.manifest import parse
    from seatrial.targets.kubernetes.permissions import chosen_nodes

    nodes, least, selector = options["nodes"], options["min_hosts"], options["all_nodes"]
    absent: tuple[str, ...] = ()
    if nodes is None and selector:
        parse.selector((selector,), "--all-nodes")
        if kubectl is None:
            raise RequestError(
                "--all-nodes: --dry-run does not ask the cluster for the number of nodes; give it with --nodes"
                f" (kubectl get nodes -l {selector[:200]} lists them)."
            )
        nodes, absent = chosen_nodes(kubectl, selector, least)
    nodes = 1 if nodes is None else nodes
    if least is not None and not 1 <= least <= nodes:
        raise RequestError(f"--min-hosts {least}: expected a number from 1 to {nodes}, the number of nodes.")
    return nodes, absent


def _render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    from seatrial.targets.command import Command, Feed
    from seatrial.targets.kubernetes.manifest.yaml_text import to_yaml

    feed = Feed(lines=(), content=(_report_comment(job) + to_yaml(_objects_of(job))).encode())
    return (Command(argv=_APPLY, env={}, nodes=tuple(range(job.nodes)), feed=feed),)


def _report_comment(job: Processes) -> str:
    """Return the command that gets the report of a trial from the logs, as a comment; empty for other programs."""
    from seatrial.report.report_line import PREFIX
    from seatrial.targets.job import Job
    from seatrial.targets.kubernetes.pods import first_pod_labels

    if not isinstance(job, Job):
        return ""
    workload: Workload = job.detail.workload
    namespace = "" if workload.namespace is None else f" -n {workload.namespace}"
    # Other hosts, and ranks before the end, may print such a line too.
    first = first_pod_labels(KINDS[job.target], nodes=job.nodes, under_mpi=job.detail.under_mpi)
    labels = {"app.kubernetes.io/instance": workload.run, **first}
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    # Proxies may stand before our container.
    logs = f"logs -l {selector} --all-containers --ignore-errors --tail=-1"
    return (
        f"# The report as JSON, when the trial has ended: kubectl{namespace} {logs}"
        f" | sed -n 's/^{PREFIX}//p' | tail -n 1 > {workload.run}.json\n"
    )


def _dry_run(commands: Sequence[Command]) -> list[str]:
    """Return the manifests, and nothing that ``kubectl apply`` does not take."""
    return [command.feed.content.decode().rstrip("\n") for command in commands if command.feed]


def _submit_and_follow(
    job: Processes,
    run: dict[str, Any],
    folder: Path,
    on_event: Callable[[dict[str, Any]], None],
    on_message: Callable[[dict[str, Any]], None],
    signals: Sequence[int],
) -> int:
    """Create the objects, follow the pods to their end, and delete the objects.

    Returns how many messages of the first pod were lost or damaged. Raises SeatrialError for a run that cannot come to
    its end.
    """
    from seatrial.targets.kubernetes.applied_objects import AppliedObjects
    from seatrial.targets.kubernetes.attempt import Attempt
    from seatrial.targets.kubernetes.run_log import RunLog
    from seatrial.targets.kubernetes.run_progress import TooFewNodesError
    from seatrial.targets.kubernetes.wait_limits import WaitLimits

    run_log = RunLog(run, folder, on_event, on_message)
    try:
        while True:
            detail: PodsDetail = job.detail
            assert detail.kubectl is not None
            attempt = Attempt(
                objects=AppliedObjects(detail.kubectl, job.target, _objects_of(job)),
                job=job,
                limits=WaitLimits(queue_s=detail.queue_timeout_s),
                run_log=run_log,
                folder=folder,
                signals=signals,
            )
            too_few = None
            try:
                attempt.run()
            except TooFewNodesError as error:
                too_few = error
            finally:
                for left in attempt.cleanup(keep=detail.keep and too_few is None):
                    run_log.note("warn", left)
            if too_few is None:
                return attempt.lost + run_log.damaged
            job = _with_fewer_nodes(job, too_few.running, too_few.absent)
            run_log.restart(job)
    finally:
        run_log.close(job)


def _with_fewer_nodes(job: Processes, nodes: int, absent: tuple[str, ...]) -> Processes:
    print_status(f"seatrial: starting again without {', '.join(absent)} (--min-hosts)")
    # A pod of before that is not gone yet knows the last one.
    workload = _with_ssh_key(replace(job.detail.workload, nodes=nodes, token=_new_token()), job.target)
    detail = replace(job.detail, workload=workload, min_hosts=None)
    return replace(job, nodes=nodes, absent=(*job.absent, *absent), detail=detail)


def _new_token() -> str:
    import secrets

    return secrets.token_urlsafe(24)


def _with_ssh_key(workload: Workload, target: str) -> Workload:
    """Return the workload with a new key, where its pods reach one another by ssh."""
    from seatrial.targets.kubernetes.ssh_key import new_ssh_key

    if not KINDS[target].under_mpi(workload.kind_options):
        return workload
    return replace(workload, ssh_key=new_ssh_key(target))


def _workload(target_request: TargetRequest, kind: Kind, nodes: int, script: CarriedScript | None) -> Workload:
    import secrets

    from seatrial.targets.kubernetes.manifest import parse
    from seatrial.targets.kubernetes.manifest.workload import Patch, Toleration, Workload
    from seatrial.targets.remote_defaults import require_count

    options = target_request.own
    resource = parse.gpu_resource(options["gpu_resource"])
    gpus = options["gpus_per_node"] or 0
    require_count(target_request)
    nproc_per_node = target_request.nproc_per_node
    if nproc_per_node is None:
        nproc_per_node = max(gpus, 1) if resource else _CPU_PROCESSES
    under_mpi = kind.under_mpi(options)
    if target_request.backend == "mpi" and not (under_mpi and options["image_has_seatrial"]):
        raise RequestError(
            "--backend mpi: mpirun must start the ranks, and the image must have seatrial[mpi]; use"
            f" {' or '.join(sorted(other.mpi_options for other in KINDS.values() if other.mpi_options))}, with"
            " --image-has-seatrial."
        )
    claims = parse.claims(options["pvc"])
    arguments, files, max_restarts = _arguments(target_request, claims, nodes, script)
    if target_request.typed[:1] == ("train",) and not options["image_has_seatrial"]:
        _require_data(target_request.typed, claims)
    if _is_conducted_script(target_request, kind) and "--per-node" in arguments[: arguments.index("--")]:
        raise RequestError(
            f"--per-node with --on {kind.name}: mpirun starts each rank; use a target without MPI, or leave it out."
        )
    chosen = [f"--device={_device(target_request, resource)}"]
    if not under_mpi:
        chosen.append(f"--nproc-per-node={nproc_per_node}")
    if target_request.backend != "auto":
        chosen.append(f"--backend={target_request.backend}")
    return Workload(
        run=options["name"] or f"seatrial-{secrets.token_hex(3)}",
        namespace=options["namespace"],
        image=options["image"],
        nodes=nodes,
        nproc_per_node=nproc_per_node,
        arguments=(arguments[0], *chosen, *arguments[1:]),
        token=_new_token(),
        python=target_request.python or "python3",
        bundle=None if options["image_has_seatrial"] else _bundle(),
        files=files,
        env=parse.environment(target_request.env),
        gpu_resource=resource,
        gpus_per_node=gpus,
        resources=_resources(options),
        shm_size=parse.resource_quantity(options["shm_size"], "--shm-size"),
        tolerations=(*([Toleration(key=resource)] if resource else []), *parse.tolerations(options["toleration"])),
        node_selector={
            **parse.selector(options["node_selector"], "--node-selector"),
            **(parse.selector((options["all_nodes"],), "--all-nodes") if options["all_nodes"] else {}),
        },
        spread="required" if options["all_nodes"] else options["spread"],
        host_network=options["host_network"],
        allow_egress=options["allow_egress"],
        claims=claims,
        pull_secrets=tuple(parse.object_name(name, "--pull-secret") for name in options["pull_secret"]),
        service_account=options["service_account"]
        and parse.object_name(options["service_account"], "--service-account"),
        supplemental_groups=parse.group_ids(options["supplemental_group"]),
        ttl_s=None if options["ttl"] is None else int(options["ttl"]),
        max_restarts=max_restarts,
        openshift=options["openshift"],
        kind_options={option.name: options[option.name] for option in kind.options},
        patch=parse.read_patch(options["patch"]) if options["patch"] else Patch(),
    )


def _resources(options: Mapping[str, Any]) -> dict[str, str]:
    from seatrial.targets.kubernetes.manifest import parse

    amounts = {name: options[name] for name in ("cpu", "memory") if options[name] is not None}
    return {
        **{name: parse.resource_quantity(amount, f"--{name}") for name, amount in amounts.items()},
        **parse.rdma(options["rdma"]),
    }


def _device(target_request: TargetRequest, resource: str | None) -> str:
    device = "cpu" if resource is None else _DEVICES[resource.partition("/")[0]]
    if target_request.device not in ("auto", device):
        origin = f"--gpu-resource {resource or 'none'}"
        raise RequestError(f"--device {target_request.device}: {origin} means {device}; leave one of them out.")
    if target_request.backend == "nccl" and device == "cpu":
        raise RequestError("--backend nccl: NCCL moves data between GPUs only; leave it out, or use --backend gloo.")
    return device


def _bundle() -> bytes:
    from seatrial.bundle import bundle

    return bundle()


# The command line of the pods


def _arguments(
    target_request: TargetRequest, claims: Sequence[Claim], nodes: int, script: CarriedScript | None
) -> tuple[tuple[str, ...], dict[str, bytes], int]:
    """Return the arguments of seatrial in the pods, the files that they need, and how often all pods may restart."""
    from seatrial.targets.kubernetes.manifest.workload import COPY, JOIN_TIMEOUT_S

    command, *words = target_request.typed
    end = words.index("--") if "--" in words else len(words)
    options, positional = words[:end], words[end:]
    # In a `launch` the first pod has agents in all pods and restarts ranks itself. In a `train` there are no agents.
    restarts = [word.partition("=")[2] for word in options if command == "train" and word.startswith("--max-restarts=")]
    options = [word for word in options if word.partition("=")[0] not in _CONTROLLER_OPTIONS.get(command, ("--out",))]
    files: dict[str, bytes] = {}
    if target_request.plan is not None:
        files["plan.json"] = json.dumps(target_request.plan, separators=(",", ":")).encode()
        positional[1] = f"{COPY}/plan.json"
    if script is not None:
        files[script.name] = script.content
    if command == "launch" and (secret := find_secret_argument(positional)):
        raise RequestError(
            f"{secret}: this argument would be readable in the manifest; put it into a Secret, name that with --patch"
            " (container: {envFrom: [{secretRef: {name: ...}}]}), and let the script read the variable."
        )
    if command == "train":
        if nodes > 1 and not any(word.startswith("--timeout=") for word in options):
            # The pods do not start at the same time.
            options.append(f"--timeout={JOIN_TIMEOUT_S}")
        _require_shared_init(options, claims, nodes)
    return (command, *options, *positional), files, int(restarts[0]) if restarts else 0


def _require_data(typed: Sequence[str], claims: Sequence[Claim]) -> None:
    """Raise RequestError for a data set with files that the pods do not have; the image has none of ours."""
    from seatrial.training.data.datasets import DATASETS

    end = typed.index("--") if "--" in typed else len(typed)
    name = next(iter(typed[end + 1 :]), "")
    folder = next((word.partition("=")[2] for word in typed[:end] if word.startswith("--data=")), None)
    if name not in DATASETS or any(f"{folder}/".startswith(f"{claim.path}/") for claim in claims):
        return
    where = "" if folder is None else f" --data {folder}"
    raise RequestError(
        f"train {name}{where}: the pods do not have the files of this data set; put them on a claim (seatrial data"
        f" fetch {name}) and add --pvc NAME:/data --data /data."
    )


def _require_shared_init(options: Sequence[str], claims: Sequence[Claim], nodes: int) -> None:
    """Raise RequestError for a rendezvous (``--init``) at a file that the pods do not share."""
    for word in options:
        if word.startswith("--init=") and nodes == 1:
            raise RequestError(f"{word}: the ranks of a single pod find one another without it; leave it out.")
        match = re.fullmatch(r"--init=file://(/.*)", word)
        if match and not any(match[1].startswith(f"{claim.path}/") for claim in claims):
            raise RequestError(
                f"{word}: the pods do not share this folder; use a file in a folder that --pvc NAME:PATH mounts, with a"
                " new name for each run."
            )


def _target(kind: Kind) -> Target:
    return Target(
        name=kind.name,
        help=kind.help,
        order=kind.order,
        options=(*COMMON, *kind.options),
        resolve=_resolve,
        render=_render,
        dry_run_lines=_dry_run,
        prints_token=True,
        conducts_remotely=True,
        submit_and_follow=_submit_and_follow,
    )


TARGETS = tuple(_target(kind) for kind in KINDS.values())
