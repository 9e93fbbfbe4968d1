"""``--on ssh``: hosts that the ssh of this system reaches. They need Python and torch, and nothing else installed.

Each node has one ssh. It carries the bundle to a private folder (``bootstrap.py``), and then the control connection, so
that no host has to reach the controller. When it ends, for any reason, everything that it started ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from seatrial.errors import RequestError
from seatrial.start import mounted_by, trusted_users
from seatrial.targets.hosts import HOSTFILE, HOSTS, MIN_HOSTS, Node, hosts_of, nodes_on, processes_of_each
from seatrial.targets.local_target import VISIBLE_DEVICES
from seatrial.targets.option import NODES, OVERSUBSCRIBE, Option
from seatrial.targets.target import Placement, Target, TargetRequest

if TYPE_CHECKING:
    from seatrial.targets.command import Command
    from seatrial.targets.job import Processes
    from seatrial.targets.processes import Agents

_DEFAULT_PYTHON = "python3"
_MAX_PEERS = 3
"""Other hosts to which a node looks for its route: what one of them says of its address must not decide alone."""

SSH_PORT = Option(
    flags=("--ssh-port",),
    name="ssh_port",
    help="Port of sshd on hosts for which neither the hostfile nor the ssh configuration names one.",
    type=int,
    metavar="PORT",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedNode:
    """A node that takes part in the job."""

    node: Node
    """The node with its host."""
    address: str
    """The address by which the other nodes can probably reach it."""


def _render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    reached: Sequence[ReachedNode] = job.detail
    return tuple(_command(job, rank, reached, token) for rank in range(job.nodes))


def _command(job: Processes, node_rank: int, reached: Sequence[ReachedNode], token: str) -> Command:
    from seatrial.protocol.handshake import node_token
    from seatrial.targets.command import DRY_RUN_TOKEN, Command
    from seatrial.targets.ssh.connection import feed_of, ssh_argv

    this = reached[node_rank]
    # A host that is broken or hostile cannot take the place of another: it never sees the token of the run.
    own_token = token if token == DRY_RUN_TOKEN else node_token(token, node_rank)
    env = {"SEATRIAL_TOKEN": own_token, "SEATRIAL_NODE_RANK": str(node_rank), **job.agent_env}
    if this.node.here > 1:
        env["SEATRIAL_NODES_HERE"] = str(this.node.here)
    others = dict.fromkeys(peer.address for peer in reached if peer.address != this.address)
    if others:
        env |= {"SEATRIAL_PEER": " ".join(islice(others, _MAX_PEERS)), "SEATRIAL_NIC": "route"}
    header: dict[str, object] = {"module": ["seatrial.agent.agent_main"], "env": env, "folder": _folder()}
    if this.node.here > 1 and job.device in VISIBLE_DEVICES:
        first = this.node.index * job.nproc_per_node
        header["devices"] = [list(VISIBLE_DEVICES[job.device]), first, first + job.nproc_per_node]
    return Command(argv=ssh_argv(this.node.host, job.python), env={}, nodes=(node_rank,), feed=feed_of(header))


def _dry_run_lines(commands: Sequence[Command]) -> list[str]:
    from seatrial.targets.command import shell_line, shell_quote

    feeds = [command.feed for command in commands if command.feed is not None]
    lines = ["seatrial bundle seatrial.pyz", f"BOOTSTRAP={shell_quote(feeds[0].lines[0])}"]
    for command, feed in zip(commands, feeds, strict=True):
        send = f"""(printf '%s\\n' "$BOOTSTRAP" {shell_quote(feed.lines[1])}; cat seatrial.pyz; cat)"""
        lines.append(f"{send} | {shell_line(command.env, command.argv)}")
    return lines


def _resolve(target_request: TargetRequest) -> Placement:
    from seatrial.targets.ssh.survey_hosts import HostResources, survey_hosts

    port, min_hosts = target_request.own["ssh_port"], target_request.own["min_hosts"]
    python = target_request.python or _DEFAULT_PYTHON
    if port is not None and not 0 < port < 65536:
        raise RequestError(f"--ssh-port {port}: expected a number from 1 to 65535.")
    if min_hosts is not None and min_hosts < 1:
        raise RequestError(f"--min-hosts {min_hosts}: expected at least 1.")
    hosts = [
        replace(host, port=host.port or port)
        for host in hosts_of(target_request.own["hosts"], target_request.own["hostfile"])
    ]
    nodes = nodes_on(hosts, target_request.own["nodes"])
    if min_hosts is not None and min_hosts > (machines := len({node.host.at for node in nodes})):
        raise RequestError(f"--min-hosts {min_hosts}: only {machines} are named; name more, or ask for fewer.")
    nproc_per_node = processes_of_each(nodes, target_request.nproc_per_node)
    on_one_host = len({node.host.at for node in nodes}) == 1
    absent: tuple[str, ...] = ()
    if target_request.dry_run and nproc_per_node is not None and target_request.device != "auto":
        # The options decide everything, so no host has to be asked.
        answers = {node.host.at: HostResources.as_requested(node, target_request, nproc_per_node) for node in nodes}
    else:
        answers, absent = survey_hosts(
            nodes,
            target_request,
            python=python,
            nproc_per_node=nproc_per_node,
            on_one_host=on_one_host,
            min_hosts=min_hosts,
        )
    ready = [node for node in nodes if node.host.at in answers]
    first = answers[ready[0].host.at]
    for node in ready:
        answer = answers[node.host.at]
        if (answer.device, answer.nproc_per_node) != (first.device, first.nproc_per_node):
            raise RequestError(
                f"{ready[0].host.name} has {first.nproc_per_node} processes for {first.device} ({first.because}), and"
                f" {node.host.name} {answer.nproc_per_node} for {answer.device} ({answer.because}); all nodes need the"
                " same: set --device and --nproc-per-node, or leave hosts out."
            )
        # A trial reports this difference itself, and names the nodes that differ.
        if answer.torch != first.torch and target_request.typed[:1] != ("run",):
            raise RequestError(
                f"{ready[0].host.name} has torch {first.torch}, and {node.host.name} {answer.torch}; the ranks"
                " of one job need the same: install it, or name a Python that has it with --python."
            )
    count = len({node.host.at for node in ready})
    nodes_words = "" if count == len(ready) else f" as {len(ready)} nodes"
    return Placement(
        nodes=len(ready),
        nproc_per_node=first.nproc_per_node,
        device=first.device,
        backend=first.backend,
        python=python,
        env=first.env,
        words=f"on {count} {'host' if count == 1 else 'hosts'} by ssh{nodes_words}",
        absent=absent,
        hosts=tuple(node.host.name for node in ready),
        detail=tuple(ReachedNode(node=node, address=answers[node.host.at].address) for node in ready),
    )


def _folder() -> dict[str, object]:
    """Return the folder in which the user types, and whom the user trusts with it (``bootstrap._enter``)."""
    path = os.getcwd()
    # Not by its path: a folder above it may be closed to us.
    fd = os.open(os.curdir, os.O_PATH | os.O_CLOEXEC)
    try:
        status, mounter = os.fstat(fd), mounted_by(fd)
    finally:
        os.close(fd)
    # The number of this user may be that of somebody else on a host, and so may that as which a container shows root.
    owners, mounters = {status.st_uid} - trusted_users(), {mounter} - {0}
    open_places = [path] if status.st_mode & 0o002 else []
    return {"path": path, "owners": [*owners], "mounters": [*mounters], "open_places": open_places}


def _driver(job: Processes) -> Agents:
    from seatrial.targets.processes import Agents
    from seatrial.targets.ssh.survey_hosts import explain_ssh_exit

    hosts = [reached.node.host for reached in job.detail]
    return Agents(words=lambda node, code, errors: explain_ssh_exit(hosts[node], code, errors, started=True))


TARGETS = (
    Target(
        name="ssh",
        help="hosts by ssh (--hosts, --hostfile)",
        order=1,
        options=(NODES, HOSTS, HOSTFILE, MIN_HOSTS, SSH_PORT, OVERSUBSCRIBE),
        resolve=_resolve,
        render=_render,
        dry_run_lines=_dry_run_lines,
        driver=_driver,
        hides_env=True,
        node_tokens=True,
    ),
)
