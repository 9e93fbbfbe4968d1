"""``--on local``: this machine, as one node or as several with a share of the devices each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from seatrial.errors import RequestError
from seatrial.launch import place
from seatrial.launch.command import Command
from seatrial.launch.job import Processes
from seatrial.launch.option import NODES
from seatrial.launch.target import Placement, Target, Where
from seatrial.probe import own_code

__all__ = ["TARGETS", "VISIBLE", "render"]

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    """An agent a node, as children of the controller."""
    env = {
        "SEATRIAL_CONTROL": control,
        "SEATRIAL_TOKEN": token,
        "SEATRIAL_KEEP": keep,
        **({"SEATRIAL_NODES_HERE": str(job.nodes)} if job.nodes > 1 else {}),
        **own_code.environ_for(os.environ),
    }
    argv = own_code.module_argv(job.python, "seatrial.agent.main")
    return tuple(
        Command(argv=argv, env={**env, "SEATRIAL_NODE_RANK": str(node), **_devices(job, node)}, nodes=(node,))
        for node in range(job.nodes)
    )


def _devices(job: Processes, node: int) -> Mapping[str, str]:
    """Which devices a node sees that shares this machine with others."""
    name = VISIBLE.get(job.device)
    if name is None or job.nodes == 1:
        return {}
    first, last = node * job.nproc_per_node, (node + 1) * job.nproc_per_node
    seen = os.environ.get(name)
    known = seen.split(",") if seen else [str(index) for index in range(last)]
    return {name: ",".join(known[first:last])}


def _resolve(where: Where) -> Placement:
    nodes = 1 if where.own["nodes"] is None else where.own["nodes"]
    if nodes < 1:
        raise RequestError(f"--nodes {nodes}: at least one is needed.")
    each = where.nproc_per_node
    python = where.python or sys.executable
    here = place.choose(
        device=where.device,
        backend=where.backend,
        nproc_per_node=each if each is None or each < 1 else each * nodes,
        python=python,
    )
    per_node = each or (2 if here.device == "cpu" else here.nproc_per_node // nodes)
    if per_node < 1:
        raise RequestError(f"--nodes {nodes}: this machine shows {here.nproc_per_node} accelerators ({here.because}).")
    return Placement(
        nodes=nodes,
        nproc_per_node=per_node,
        device=here.device,
        backend=here.backend,
        python=python,
        env=here.env,
        words="on this machine" if nodes == 1 else f"on this machine as {nodes} nodes",
    )


TARGETS = (Target(name="local", help="this machine", options=(NODES,), resolve=_resolve, render=render),)
