"""Whom real trials name when something real is wrong, and how fast: links, cables, CPUs, bits, names, clocks, logins.

    sudo python bench/live_faults.py
    sudo python bench/live_faults.py hosts [FOLDER]    two at once, names, clocks, limits, logins, data, odd networks

Hosts made from network namespaces, one rank each, and ranks of one machine for wrong bits; each group of faults with
its clean twin. Writes ``results/live_faults.json``, the second line ``results/host_faults.json``. The first line takes
six minutes, the second one an hour; both want the machine for themselves. Each row of the second line is kept in FOLDER
and is not run again.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import write_result

# In place of this folder, whose training.py hides the package of that name.
sys.path.remove(str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hosts import Hosts, made_hosts
from live import test_cable_pulled as cables
from live import test_links_on_hosts as links
from live import test_network_on_hosts as network
from live import test_odd_hosts as odd_hosts
from live import test_odd_networks as odd_networks
from live import test_starved_host as starved
from live import test_whatever_is_wrong_on_hosts as wrong_hosts
from live import test_wrong_bits as bits
from live.host_faults import HostFault, faults_of, run_fault
from live.host_trials import at_one_rate
from live.trials import trial


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One fault, and what is to come of it."""

    check: str
    planted: str
    run: Callable[[], Mapping[str, Any]]
    """Runs the trial; its report."""
    verdict: str
    named: Sequence[str]
    """What the name of each culprit contains."""
    severity: str = "fail"
    """Of the findings that name it."""


def _on_hosts(count: int, run: Callable[[Hosts], Mapping[str, Any]]) -> Callable[[], Mapping[str, Any]]:
    def made() -> Mapping[str, Any]:
        with made_hosts(count) as hosts:
            return run(hosts)

    return made


def _linked(fault: str) -> Callable[[], Mapping[str, Any]]:
    def run(hosts: Hosts) -> Mapping[str, Any]:
        with links.FAULTS[fault].planted(at_one_rate(hosts, links.FAULTS[fault].rate)):
            return links.links_trial(hosts, fault)

    return _on_hosts(links.FAULTS[fault].hosts, run)


def _networked(fault: str) -> Callable[[], Mapping[str, Any]]:
    def run(hosts: Hosts) -> Mapping[str, Any]:
        network.FAULTS[fault].plant(hosts)
        return network.network_trial(hosts, network.FAULTS[fault])

    return _on_hosts(network.FAULTS[fault].hosts, run)


def _with_bits(plant: str | None) -> Callable[[], Mapping[str, Any]]:
    def run() -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory() as out:
            return trial(Path(out), *bits.ONLY, plant=[plant] if plant else []).report

    return run


def _rows() -> list[_Row]:
    rows = [
        _Row(
            check="links",
            planted=fault,
            run=_linked(fault),
            verdict="FAIL" if made.named else "PASS",
            named=[name for _, name in made.named],
        )
        for fault, made in links.FAULTS.items()
    ]
    rows += [
        _Row(
            check="network",
            planted=fault,
            run=_networked(fault),
            verdict="FAIL" if row.named else "PASS",
            named=[name for _, name in row.named],
        )
        for fault, row in network.FAULTS.items()
    ]
    pulled = "cable of node{} pulled at the switch, during a collective of {} hosts"
    rows += [
        _Row(
            check="collectives",
            planted="cable of node2 of 3 pulled before the start",
            run=_on_hosts(3, lambda hosts: cables.trial_without_cable(hosts, 2)),
            verdict="INCONCLUSIVE",
            named=[],
        ),
        *(
            _Row(
                check="collectives",
                planted=f"none, {count} hosts" if number is None else pulled.format(number, count),
                run=_on_hosts(count, lambda hosts, number=number: cables.trial_that_loses_a_cable(hosts, number)),
                verdict="FAIL" if named else "PASS",
                named=[name for _, name in named],
            )
            for (count, number), named in cables.PULLED.items()
        ),
        _Row(check="training", planted="none", run=_on_hosts(2, starved.clean_trial), verdict="PASS", named=[]),
        _Row(
            check="training",
            planted="node1 may use a quarter of a core (cgroup)",
            run=_on_hosts(2, starved.trial_with_a_quota),
            verdict="FAIL",
            named=["node1"],
        ),
        _Row(
            check="training",
            planted="8 processes on the core of node1",
            run=_on_hosts(2, starved.trial_on_a_shared_core),
            verdict="PASS",
            named=["node1"],
            severity="warn",
        ),
        _Row(check="training", planted="none, 3 ranks of one host", run=_with_bits(None), verdict="PASS", named=[]),
    ]
    rows += [
        _Row(check=check, planted=fault, run=_with_bits(fault), verdict="FAIL", named=[f"rank {fault[-1]} "])
        for fault, check in (
            ("flip@training/look at parameters:2", "training"),
            ("flip@training/step 20 optimizer:0", "training"),
            ("flip-gradient@training:1", "training"),
            ("flip-product@compute:1", "compute"),
        )
    ]
    return rows


def _ran(row: _Row) -> dict[str, Any]:
    started = time.monotonic()
    report = row.run()
    seconds = time.monotonic() - started
    told = [each for each in report["findings"] if each["severity"] == row.severity]
    names = sorted({each["culprit"]["name"] for each in told})
    if row.planted.startswith("node2 of three loses 30 %"):
        is_named = bool(names) and all("node2" in name for name in names)
    else:
        is_named = len(names) == len(row.named) and all(any(part in name for name in names) for part in row.named)
    ran = {
        "check": row.check,
        "planted": row.planted,
        "verdict": report["acceptance"]["status"],
        "named": names,
        "told": [each["what"] for each in told],
        "right": is_named and report["acceptance"]["status"] == row.verdict,
        "seconds": round(seconds, 1),
        "seconds_measuring": round(sum(step["seconds"] for step in report["steps"]), 1),
    }
    print(json.dumps(ran), file=sys.stderr, flush=True)
    return ran


def _ran_on_hosts(fault: str, row: HostFault) -> dict[str, Any]:
    """Run a row of the faults over ssh, of which some keep a trial from beginning."""
    started, load = time.monotonic(), os.getloadavg()[0]
    with made_hosts(row.hosts, row.called) as hosts:
        outcome = run_fault(hosts, row)
    report = outcome.report
    told = [each["what"] for each in report.get("findings", ()) if each["severity"] in ("fail", "error", "warn")]
    faults = faults_of(outcome, row)
    return {
        "check": ", ".join(row.checks),
        "planted": fault,
        "verdict": report["acceptance"]["status"] if report else "no trial",
        "named": outcome.named,
        "told": told if report else outcome.errors.strip().splitlines()[-1:],
        "right": not faults,
        "wrong": faults,
        "seconds": round(time.monotonic() - started, 1),
        "seconds_measuring": round(sum(step["seconds"] for step in report.get("steps", ())), 1),
        "load_1_min": round(load, 1),
    }


def _on_hosts_all(folder: Path) -> list[dict[str, Any]]:
    """Run all rows over ssh that are not in the folder."""
    folder.mkdir(exist_ok=True)
    rows = []
    for fault, row in {**wrong_hosts.FAULTS, **odd_hosts.FAULTS, **odd_networks.FAULTS}.items():
        file = folder / f"{re.sub('[^a-z0-9]+', '-', fault.lower())}.json"
        if not file.exists():
            file.write_text(json.dumps(_ran_on_hosts(fault, row)))
            print(file.read_text(), file=sys.stderr, flush=True)
        rows.append(json.loads(file.read_text()))
    return rows


def main() -> None:
    if sys.argv[1:2] == ["hosts"]:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
        print(write_result("host_faults", "python bench/live_faults.py hosts", {"rows": _on_hosts_all(folder)}))
    else:
        print(write_result("live_faults", "python bench/live_faults.py", {"rows": [_ran(row) for row in _rows()]}))


if __name__ == "__main__":
    main()
