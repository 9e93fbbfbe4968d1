"""Faults of hosts over ssh: what is planted, the trial that a user types, and whether it named the right one."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, Hosts
from live.host_trials import at_one_rate

COLLECTIVES = ("inventory", "host", "bootstrap", "collectives")
TRAINING = (*COLLECTIVES, "training")
_TRAINING_STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFault:
    """What is wrong, and what must come of it."""

    plant: Callable[[Hosts], object] = lambda hosts: None
    planted: str = ""
    """SEATRIAL_PLANT of the trial."""
    checks: Sequence[str] = COLLECTIVES
    verdict: str = "FAIL"
    """Empty: no trial begins."""
    named: Sequence[str] = ()
    """The beginning of each culprit's name, in any order; ``|`` between those of which either is right."""
    words: Sequence[str] = ()
    """Parts of the sentences, of warnings too; of the errors where no trial begins."""
    hosts: int = 3
    called: str | Mapping[int, str] = ""
    """What all hosts call themselves, or some, by number."""
    first: int = 0
    """The first host with a rank; node0 types the command."""
    options: Sequence[str] = ()
    at_1_gbit: bool = False
    training_timeout_s: float = 0.0
    """The deadline of the training, if not its own."""
    deadline_s: int = 120
    """The deadline of the trial."""


def at_start(host: Host, python: Path, *lines: str) -> None:
    """The interpreter of the ranks on this host runs these lines of shell first."""
    text = python.read_text()
    own = host.etc / "python"
    own.write_text(text.replace("#!/bin/sh\n", "\n".join(("#!/bin/sh", *lines, "")), 1))
    own.chmod(0o755)


def both(*plants: Callable[[Hosts], object]) -> Callable[[Hosts], None]:
    """Several faults at once."""

    def plant(hosts: Hosts) -> None:
        for each in plants:
            each(hosts)

    return plant


def on(number: int, *lines: str) -> Callable[[Hosts], None]:
    return lambda hosts: at_start(hosts[number], hosts.python, *lines)


def clock(number: int, offset_s: float, jump_s: float = 0.0) -> Callable[[Hosts], None]:
    """The clock of a host is wrong, from some seconds after the start of each process on."""
    return lambda hosts: at_start(hosts[number], hosts.python, _wrong_clock(hosts, offset_s, jump_s))


def clock_of_controller(offset_s: float, jump_s: float = 0.0) -> Callable[[Hosts], None]:
    """The clock of the process that conducts is wrong, and that of no rank."""

    def plant(hosts: Hosts) -> None:
        command = hosts.folder / "bin" / "seatrial"
        lines = command.read_text().split("\n", 1)
        command.write_text("\n".join([lines[0], _wrong_clock(hosts, offset_s, jump_s), lines[1]]))

    return plant


def _wrong_clock(hosts: Hosts, offset_s: float, jump_s: float) -> str:
    """Return a line of shell."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = hosts.folder / "clock.so"
    source = Path(__file__).with_name("wrong_clock.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return f"export LD_PRELOAD={library} CLOCK_OFFSET_S={offset_s} CLOCK_JUMP_S={jump_s}"


def with_module(number: int, sitecustomize: str) -> Callable[[Hosts], None]:
    """Each interpreter of a host executes this first."""

    def plant(hosts: Hosts) -> None:
        folder = hosts.folder / f"site{number}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(sitecustomize)
        at_start(hosts[number], hosts.python, f"PYTHONPATH={folder}; export PYTHONPATH")

    return plant


def rc(*lines: str) -> Callable[[Hosts], None]:
    """What bash reads for ssh on node2; all hosts share the home."""

    def plant(hosts: Hosts) -> None:
        text = "\n".join(['if [ "$(hostname)" = node2 ]; then', *lines, "fi", ""])
        (hosts[0].home / ".bashrc").write_text(text)

    return plant


def shell(path: str) -> Callable[[Hosts], None]:
    """The login shell of node2's user."""

    def plant(hosts: Hosts) -> None:
        file = hosts[2].etc / "passwd"
        file.write_text(file.read_text().replace("/bin/bash", path))

    return plant


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    report: Mapping[str, Any]
    """Empty where no trial began."""
    errors: str

    @property
    def said(self) -> str:
        """All sentences."""
        findings = self.report.get("findings", ())
        return " ".join(
            [self.errors, *(f"{each['culprit']['name']} {each['what']} {each['action']}" for each in findings)]
        )

    @property
    def named(self) -> list[str]:
        """Names of the culprits of errors."""
        grave = (each for each in self.report.get("findings", ()) if each["severity"] in ("fail", "error"))
        return sorted({each["culprit"]["name"] for each in grave})


def outcome_of(hosts: Hosts, fault: HostFault) -> Outcome:
    """Run the trial that a user types on node0."""
    for host in hosts:
        if not (host.etc / "python").exists():
            at_start(host, hosts.python)
    plan = [f"deadline_s = {fault.deadline_s}\nchecks = {json.dumps(list(fault.checks))}"]
    if "links" in fault.checks:
        plan.append("[links]\ncpu_bytes = 1_048_576\nseconds = 0.3\npair_timeout_s = 2.0")
    if "compute" in fault.checks:
        plan.append("[compute]\nseconds = 0.1\nrounds = 1\ncpu_size = 512")
    if "training" in fault.checks:
        data = '\nworkload = "mnist"\nmodel = "mlp"' if fault.options else ""
        timeout = f"\ntimeout_s = {fault.training_timeout_s}" if fault.training_timeout_s else ""
        plan.append(f"[training]\nmax_steps = {_TRAINING_STEPS}{timeout}{data}")
    file = hosts.folder / "plan.toml"
    file.write_text("\n".join([*plan, ""]))
    names = ",".join(host.name for host in hosts.each[fault.first :])
    where = ("--on", "ssh", "--hosts", names, "--nproc-per-node", "1", "--device", "cpu", "--python", "/etc/python")
    argv = hosts.seatrial("run", str(file), *where, *fault.options, "--json")
    done = hosts[0].run("env", f"SEATRIAL_PLANT={fault.planted}", *argv, timeout_s=160.0)
    return Outcome(report=json.loads(done.stdout) if done.stdout.startswith("{") else {}, errors=done.stderr)


def run_fault(made: Hosts, fault: HostFault) -> Outcome:
    """Plant it and run the trial."""
    if fault.at_1_gbit:
        at_one_rate(made)
    fault.plant(made)
    return outcome_of(made, fault)


def faults_of(outcome: Outcome, fault: HostFault) -> list[str]:
    """Return in what the outcome is not the right one."""
    verdict = outcome.report["acceptance"]["status"] if outcome.report else ""
    wrong = [] if verdict == fault.verdict else [f"the verdict is {verdict or 'none'}"]
    left = list(outcome.named) if outcome.report else []
    for start in fault.named:
        match = next((name for name in left if name.startswith(tuple(start.split("|")))), None)
        if match is None:
            wrong.append(f"{start} is not named")
        else:
            left.remove(match)
    wrong += [f"{name} is named" for name in left]
    wrong += [f"{words!r} is not said" for words in fault.words if words not in outcome.said]
    return [*wrong, *(["a traceback"] if "Traceback" in outcome.errors else [])]
