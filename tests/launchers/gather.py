"""Start the agents of many hosts and let them go again; no rank is started. What a test of that shares."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from seatrial.conductor.records import Actions
from seatrial.conductor.serve import Server
from seatrial.launch.job import Processes
from seatrial.launch.target import Placement, Target, Where
from seatrial.launch.targets import TARGETS
from seatrial.verdict.events import Source

__all__ = ["gathered", "job_of", "where"]


class GatherDouble:
    """A machine that waits for its agents and then stops them."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.here: set[int] = set()
        self.said: list[dict[str, Any]] = []

    def joined(self, node: int, now: float) -> Actions:
        self.here.add(node)
        send: list[tuple[int, dict[str, Any]]] = [(node, {"kind": "welcome", "run": "x"})]
        if len(self.here) == self.nodes:
            send += [(each, {"kind": "stop"}) for each in self.here]
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

    def tick(self, now: float) -> Actions:
        return Actions()


def where(hosts: str, *, python: str = sys.executable, dry_run: bool = False, **own: Any) -> Where:
    """As if typed after ``--on ssh``."""
    values = {"nodes": None, "hostfile": None, "min_hosts": None, "ssh_port": None, "hosts": hosts, **own}
    nproc_per_node = values.pop("nproc_per_node", None)
    shared: dict[str, Any] = {"device": "cpu", "backend": "auto", "env": {}, "own": values}
    return Where(target="ssh", nproc_per_node=nproc_per_node, dry_run=dry_run, python=python, **shared)


def job_of(target: Target, told: Where) -> Processes:
    """Resolved, with what the target has found out."""
    place: Placement = target.resolve(told)
    same = ("nodes", "nproc_per_node", "device", "backend", "python", "env", "detail")
    return Processes(run="x", target=target.name, **{name: getattr(place, name) for name in same})


def gathered(target: Target, job: Processes, folder: Path) -> list[dict[str, Any]]:
    """What the agents say that are started so, until all have come and ended, or one is lost."""
    machine = GatherDouble(job.nodes)
    server = Server("127.0.0.1", "t", lambda event: None)
    driver = target.driver(job)
    try:
        commands = target.render(job, control="", token="t", keep="")
        driver.start(commands, folder, [], server.adopt)
        server.serve(machine, job.nodes, Source("x", "conductor"), driver.news)
    finally:
        server.close()
        assert driver.end() == []
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
