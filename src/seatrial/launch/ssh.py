"""``--on ssh``: hosts that are reached by the system's ssh. Nothing has to be installed on them but Python and torch.

One ssh a node: it carries the file that travels to a private folder (``ssh_landing.py``), and then the control
connection itself, so that no host needs to reach us. When it ends, for whatever reason, all that it started ends.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from seatrial.errors import RequestError
from seatrial.launch.agents import Agents
from seatrial.launch.command import Command, Feed, pasted, quoted
from seatrial.launch.hosts import HOSTFILE, HOSTS, MIN_HOSTS, Host, Node, hosts_of, nodes_on, processes_of_each
from seatrial.launch.job import Processes
from seatrial.launch.local import VISIBLE
from seatrial.launch.option import NODES, Option
from seatrial.launch.target import Placement, Target, Where

__all__ = ["CONNECT_S", "SSH_PORT", "TARGETS", "feed_of", "ssh_argv"]

CONNECT_S = 10
_ALIVE_S, _ALIVE_COUNT = 5, 3
"""A connection that says nothing for 15 s is lost: as long as a node may be silent (conductor/machine.py)."""
_BOOT = 'import sys; s = open(0, "rb", 0); exec(eval(s.readline())); sys.exit(land(s))'
_DEFAULT_PYTHON = "python3"

SSH_PORT = Option(
    flags=("--ssh-port",),
    name="ssh_port",
    help="The port of sshd, where neither the hostfile nor the ssh configuration says it.",
    type=int,
    metavar="PORT",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A node that takes part."""

    node: Node
    address: str
    """By which the others reach it, as far as is known."""


def ssh_argv(host: Host, python: str) -> tuple[str, ...]:
    """What starts Python on a host. The user's own configuration counts, and host keys are checked as it says."""
    told = {
        "BatchMode": "yes",
        "ConnectTimeout": CONNECT_S,
        "ServerAliveInterval": _ALIVE_S,
        "ServerAliveCountMax": _ALIVE_COUNT,
        "ClearAllForwardings": "yes",
    }
    options = [word for name, value in told.items() for word in ("-o", f"{name}={value}")]
    options += [] if host.port is None else ["-p", str(host.port)]
    name = host.name if host.user is None else f"{host.user}@{host.name}"
    # The other side hands one line to the user's shell.
    return ("ssh", "-T", *options, "--", name, shlex.join(["exec", python, "-uc", _BOOT]))


def feed_of(told: dict[str, object]) -> Feed:
    """What ``ssh_landing.land`` is given. A token stands in there: neither in arguments nor in an environment."""
    from seatrial.launch import ssh_landing

    content = _code()
    return Feed(
        lines=(repr(inspect.getsource(ssh_landing)), json.dumps({"size": len(content), **told})), content=content
    )


@cache
def _code() -> bytes:
    from seatrial.launch.bundle import kept_bundle

    return kept_bundle()


def _render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    reached: Sequence[Reached] = job.detail
    return tuple(_command(job, rank, reached, token) for rank in range(job.nodes))


def _command(job: Processes, node_rank: int, reached: Sequence[Reached], token: str) -> Command:
    own = reached[node_rank]
    env = {"SEATRIAL_TOKEN": token, "SEATRIAL_NODE_RANK": str(node_rank)}
    if own.node.here > 1:
        env["SEATRIAL_NODES_HERE"] = str(own.node.here)
    other = next((each.address for each in reached if each.address != own.address), None)
    if other is not None:
        env["SEATRIAL_PEER"] = other
    told: dict[str, object] = {"env": env, "folder": os.getcwd()}
    if own.node.here > 1 and job.device in VISIBLE:
        first = own.node.index * job.nproc_per_node
        told["devices"] = [VISIBLE[job.device], first, first + job.nproc_per_node]
    return Command(argv=ssh_argv(own.node.host, job.python), env={}, nodes=(node_rank,), feed=feed_of(told))


def _shown(commands: Sequence[Command]) -> list[str]:
    feeds = [command.feed for command in commands if command.feed is not None]
    lines = ["seatrial bundle seatrial.pyz", f"LANDING={quoted(feeds[0].lines[0])}"]
    for command, feed in zip(commands, feeds, strict=True):
        given = f"""(printf '%s\\n' "$LANDING" {quoted(feed.lines[1])}; cat seatrial.pyz; cat)"""
        lines.append(f"{given} | {pasted(command.env, command.argv)}")
    return lines


def _resolve(where: Where) -> Placement:
    from seatrial.launch.ssh_hosts import Answer, ask

    port, least, python = where.own["ssh_port"], where.own["min_hosts"], where.python or _DEFAULT_PYTHON
    if port is not None and not 0 < port < 65536:
        raise RequestError(f"--ssh-port {port}: a number from 1 to 65535 is expected.")
    if least is not None and least < 1:
        raise RequestError(f"--min-hosts {least}: at least one is needed.")
    hosts = [replace(host, port=host.port or port) for host in hosts_of(where.own["hosts"], where.own["hostfile"])]
    nodes = nodes_on(hosts, where.own["nodes"])
    each = processes_of_each(nodes, where.nproc_per_node)
    alone = len({node.host.at for node in nodes}) == 1
    absent: tuple[str, ...] = ()
    if where.dry_run and each is not None and where.device != "auto":
        # All is said, so nobody is asked.
        answers = {node.host.at: Answer.of(node, where, each) for node in nodes}
    else:
        answers, absent = ask(nodes, where, python=python, each=each, alone=alone, least=least)
    came = [node for node in nodes if node.host.at in answers]
    first = answers[came[0].host.at]
    for node in came:
        answer = answers[node.host.at]
        if (answer.device, answer.nproc_per_node) != (first.device, first.nproc_per_node):
            raise RequestError(
                f"{came[0].host.name} has {first.nproc_per_node} processes for {first.device} ({first.because}), and"
                f" {node.host.name} {answer.nproc_per_node} for {answer.device} ({answer.because}); all nodes get the"
                " same: say --device and --nproc-per-node, or leave hosts out."
            )
        # A trial is there to find that out, and names who differs.
        if answer.torch != first.torch and where.typed[:1] != ("run",):
            raise RequestError(
                f"{came[0].host.name} has torch {first.torch}, and {node.host.name} {answer.torch}; the ranks"
                " of one job need the same: install it, or name a Python that has it with --python."
            )
    count = len({node.host.at for node in came})
    nodes_words = "" if count == len(came) else f" as {len(came)} nodes"
    return Placement(
        nodes=len(came),
        nproc_per_node=first.nproc_per_node,
        device=first.device,
        backend=first.backend,
        python=python,
        env=first.env,
        words=f"on {count} {'host' if count == 1 else 'hosts'} by ssh{nodes_words}",
        absent=absent,
        detail=tuple(Reached(node=node, address=answers[node.host.at].address) for node in came),
    )


def _driver(job: Processes) -> Agents:
    from seatrial.launch.ssh_hosts import explained

    hosts = [reached.node.host for reached in job.detail]
    return Agents(words=lambda node, code, said: explained(hosts[node], code, said))


TARGETS = (
    Target(
        name="ssh",
        help="hosts by ssh",
        options=(NODES, HOSTS, HOSTFILE, MIN_HOSTS, SSH_PORT),
        resolve=_resolve,
        render=_render,
        shown=_shown,
        driver=_driver,
    ),
)
