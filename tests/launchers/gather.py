"""Start the agents of many hosts and let them go again; no rank is started. What a test of that shares."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.conductor.actions import Actions
from seatrial.conductor.server import Server
from seatrial.protocol.commands import AgentCommand, Stop, Welcome
from seatrial.protocol.events import Source
from seatrial.protocol.handshake import node_token
from seatrial.targets.job import Processes
from seatrial.targets.registry import TARGETS
from seatrial.targets.target import Placement, Target, TargetRequest


class GatherDouble:
    """A machine that waits for its agents and then stops them."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.here: set[int] = set()
        self.said: list[dict[str, Any]] = []

    def join(self, node: int, now: float, place: str = "") -> Actions:
        self.here.add(node)
        send: list[tuple[int, AgentCommand]] = [(node, Welcome(kind="welcome", run="x"))]
        if len(self.here) == self.nodes:
            send += [(each, Stop(kind="stop")) for each in self.here]
        return Actions(send=send)

    def message(self, node: int, message: dict[str, Any], now: float) -> Actions:
        self.said.append(message)
        return Actions(over=sum(said["kind"] == "end" for said in self.said) == self.nodes)

    def lost(self, node: int, detail: str, now: float) -> Actions:
        if any(said["kind"] == "end" and said["src"] == f"node{node}" for said in self.said):
            return Actions()
        self.said.append({"kind": "lost", "node": node, "detail": detail})
        return Actions(over=True)

    def interrupt(self, by: str, now: float) -> Actions:
        raise AssertionError(by)

    def paused(self, missed_s: float) -> None:
        """Nothing."""

    def tick(self, now: float, read_until: float) -> Actions:
        return Actions()


def where(hosts: str, *, python: str = sys.executable, dry_run: bool = False, **own: Any) -> TargetRequest:
    """The request of ``--on ssh``."""
    values = {"nodes": None, "hostfile": None, "min_hosts": None, "ssh_port": None, "hosts": hosts, **own}
    nproc_per_node = values.pop("nproc_per_node", None)
    shared: dict[str, Any] = {"device": "cpu", "backend": "auto", "env": {}, "own": values}
    return TargetRequest(target="ssh", nproc_per_node=nproc_per_node, dry_run=dry_run, python=python, **shared)


def job_of(target: Target, request: TargetRequest) -> Processes:
    """Resolved, with what the target has found out."""
    place: Placement = target.resolve(request)
    same = ("nodes", "nproc_per_node", "device", "backend", "python", "env", "detail")
    return Processes(run="x", target=target.name, **{name: getattr(place, name) for name in same})


def gathered(target: Target, job: Processes, folder: Path) -> list[dict[str, Any]]:
    """Return the messages of the agents of a job, until all have joined and ended, or one is lost."""
    machine = GatherDouble(job.nodes)
    server = Server("127.0.0.1", partial(node_token, "t"), lambda event: None)
    driver = target.driver(job)
    try:
        commands = target.render(job, control="", token="t", keep="")
        driver.submit(commands, folder, [], server.attach)
        server.serve(machine, job.nodes, Source("x", "conductor"), driver.poll)
    finally:
        server.close()
        assert driver.cleanup() == []
    return machine.said


def main() -> None:
    """``gather.py FOLDER PYTHON HOST,..``: without asking the hosts first."""
    folder, python, hosts = sys.argv[1:]
    ssh = TARGETS["ssh"]
    began = time.monotonic()
    said = gathered(ssh, job_of(ssh, where(hosts, python=python, dry_run=True, nproc_per_node=1)), Path(folder))
    ended = sum(event["kind"] == "end" for event in said)
    print(f"{ended} agents came and ended in {time.monotonic() - began:.1f} s", flush=True)
    print([event for event in said if event["kind"] == "lost"], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
