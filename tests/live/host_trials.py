"""Trials on hosts made from network namespaces: one rank a host, each started by hand as a launcher would."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from hosts import Host, Hosts
from live.trials import events_in

_PORT = 29512


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of some hosts before a trial begins, and the culprits that the trial must name."""

    plant: Callable[[Hosts], AbstractContextManager[None] | None] = lambda hosts: None
    named: Sequence[tuple[str, str]] = ()
    """Kind and name of each culprit."""
    hosts: int = 4
    rate: str = "1gbit"
    """What each host sends and receives at most."""

    def planted(self, hosts: Hosts) -> AbstractContextManager[None]:
        """Plant the fault while the block lasts."""
        return self.plant(hosts) or nullcontext()


class HostTrial:
    """A running trial. The words of ``before(host)`` precede the command of the rank on that host."""

    def __init__(
        self,
        hosts: Hosts,
        plan: str,
        *,
        env: Mapping[str, str] | None = None,
        before: Callable[[Host], Sequence[str]] = lambda host: (),
    ) -> None:
        file = hosts.folder / "host_trial.toml"
        file.write_text(plan)
        self._out = hosts[0].home / "out0"
        self._ranks = [
            subprocess.Popen(
                [
                    *before(host),
                    *host.argv(
                        "env",
                        *_identity(host, hosts, env or {}),
                        *hosts.seatrial("run", str(file), "--json", "--out", str(host.home / f"out{host.number}")),
                    ),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for host in hosts
        ]

    def until(self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float = 40.0) -> dict[str, Any]:
        """Return the first event that matches, as soon as rank 0 has written it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._ranks[0].poll() is None:
            for folder in self._out.glob("*/"):
                for event in events_in(folder):
                    if wanted(event):
                        return event
            time.sleep(0.02)  # what is to strike then may come too late for a fast machine
        raise AssertionError("the event never came")

    def report(self, timeout_s: float = 58.0) -> dict[str, Any]:
        """Return the report of rank 0 when it has ended, without waiting for the others."""
        try:
            text, errors = self._ranks[0].communicate(timeout=timeout_s)
        finally:
            self.end()
        assert text, errors
        report: dict[str, Any] = json.loads(text)
        return report

    def end(self) -> None:
        """End the ranks that still run."""
        for process in self._ranks:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def _identity(host: Host, hosts: Hosts, env: Mapping[str, str]) -> list[str]:
    known: dict[str, object] = {"RANK": host.number, "WORLD_SIZE": len(hosts.each), "LOCAL_RANK": 0}
    known |= {"LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": hosts[0].address, "MASTER_PORT": _PORT}
    known |= {"SEATRIAL_TOKEN": "the secret of these hosts", "GLOO_SOCKET_IFNAME": "eth0", **env}
    return [f"{name}={value}" for name, value in known.items()]


def limit_both_ways(host: Host, rate: str) -> None:
    """Limit the rate at which a host sends, and at the switch the rate at which it receives."""
    host.limit(rate)
    words = f"qdisc replace dev {host.cable} root tbf rate {rate} burst 128kb latency 100ms"
    subprocess.run(["tc", "-n", host.switch, *words.split()], check=True, capture_output=True)


def at_one_rate(hosts: Hosts, rate: str = "1gbit") -> Hosts:
    """What this machine's virtual cables reach depends on its cores; this rate they all reach."""
    for host in hosts:
        limit_both_ways(host, rate)
    return hosts


def named(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return kind and name of each culprit of the report."""
    return [(f["culprit"]["kind"], f["culprit"]["name"]) for f in report["findings"] if f["severity"] == "fail"]
