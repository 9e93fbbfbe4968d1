"""``--on local``: this machine, as one node or as several with a share of the devices each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from seatrial.environment import self_location
from seatrial.errors import RequestError
from seatrial.targets.option import NODES, OVERSUBSCRIBE
from seatrial.targets.ssh.bootstrap import share_of_devices
from seatrial.targets.target import Placement, Target, TargetRequest

if TYPE_CHECKING:
    from seatrial.targets.command import Command
    from seatrial.targets.job import Processes

VISIBLE_DEVICES = {"cuda": ("CUDA_VISIBLE_DEVICES",), "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}
"""The variables that limit the visible accelerators, by device; the first that is set counts."""


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    """Return one agent for each node, as children of the controller."""
    from seatrial.targets.command import Command

    env = {
        "SEATRIAL_CONTROL": control,
        "SEATRIAL_TOKEN": token,
        "SEATRIAL_KEEP": keep,
        **job.agent_env,
        **({"SEATRIAL_NODES_HERE": str(job.nodes)} if job.nodes > 1 else {}),
        **self_location.import_variables(os.environ),
    }
    argv = self_location.module_argv(job.python, "seatrial.agent.agent_main")
    return tuple(
        Command(
            argv=argv,
            env={**env, "SEATRIAL_NODE_RANK": str(node), **_devices(job, node)},
            nodes=(node,),
            is_agent=True,
        )
        for node in range(job.nodes)
    )


def _devices(job: Processes, node: int) -> Mapping[str, str]:
    """Return the variable that gives a node its share of the devices; empty where it gets all of them."""
    names = VISIBLE_DEVICES.get(job.device)
    if names is None or job.nodes == 1:
        return {}
    return share_of_devices((names, node * job.nproc_per_node, (node + 1) * job.nproc_per_node), os.environ)


def _resolve(target_request: TargetRequest) -> Placement:
    from seatrial.probe.capacity import refuse_too_many
    from seatrial.probe.torch_install import interpreter
    from seatrial.targets import resources

    nodes = 1 if target_request.own["nodes"] is None else target_request.own["nodes"]
    if nodes < 1:
        raise RequestError(f"--nodes {nodes}: expected at least 1.")
    requested = target_request.nproc_per_node
    python = interpreter(target_request.python or sys.executable)
    local = resources.local_resources(
        device=target_request.device,
        backend=target_request.backend,
        nproc_per_node=requested if requested is None or requested < 1 else requested * nodes,
        processes_by=target_request.processes_by,
        python=python,
    )
    if requested is None and local.device == "cpu":
        per_node = max(1, local.nproc_per_node // nodes) if target_request.processes_by else local.nproc_per_node
    else:
        per_node = requested or local.nproc_per_node // nodes
    if local.device == "cpu" and not target_request.own.get("oversubscribe"):
        words = f"--nproc-per-node {per_node}" + (f" --nodes {nodes}" if nodes > 1 else "")
        refuse_too_many(per_node * nodes, words, of_torch=target_request.typed[:1] != ("launch",))
    if per_node < 1:
        raise RequestError(
            f"--nodes {nodes}: this machine shows {local.nproc_per_node} accelerators ({local.because})."
        )
    return Placement(
        nodes=nodes,
        nproc_per_node=per_node,
        device=local.device,
        backend=local.backend,
        python=python,
        env=local.env,
        words="on this machine" if nodes == 1 else f"on this machine as {nodes} nodes",
    )


TARGETS = (
    Target(
        name="local",
        help="this machine, as one node or several (--nodes)",
        order=0,
        options=(NODES, OVERSUBSCRIBE),
        resolve=_resolve,
        render=render,
        hides_env=True,
    ),
)
