"""Hosts over ssh that are odd in themselves: interpreters, login shells, a rank that holds the GIL, names, clocks.

Each row is one oddity with whom the trial must name, nobody if it does no harm.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Hosts
from live.host_faults import (
    COLLECTIVES,
    TRAINING,
    HostFault,
    both,
    clock,
    clock_of_controller,
    faults_of,
    rc,
    run_fault,
    shell,
    with_module,
)

pytestmark = [pytest.mark.hosts, pytest.mark.nightly, pytest.mark.timeout(200)]

_PYTHON_3_9_DOUBLE = "import sys\nsys.version_info = (3, 9, 18, 'final', 0)\n"
_HELD_GIL = """
import re, sys, threading, time

def hold():
    while {module!r} not in sys.modules:
        time.sleep(0.1)
    time.sleep(2)
    re.match("(a+)+$", "a" * 64 + "b")

if "worker_main" in " ".join(sys.orig_argv):
    threading.Thread(target=hold, daemon=True).start()
"""
"""Some seconds into a check, a thread of the rank begins a search that never ends, and never lets go of the GIL."""


def _login_shell(name: str) -> Callable[[Hosts], None]:
    def plant(hosts: Hosts) -> None:
        path = shutil.which(name, path="/usr/bin:/bin")
        if path is None:
            pytest.skip(f"no {name}")
        shell(path)(hosts)

    return plant


def _cshrc_prints(hosts: Hosts) -> None:
    Path(hosts[0].home, ".cshrc").write_text("echo Welcome\n")


def _holds_gil(module: str) -> Callable[[Hosts], None]:
    return with_module(2, _HELD_GIL.format(module=module))


FAULTS: dict[str, HostFault] = {
    # Interpreters and logins.
    "Python 3.9 on node2 (a double)": HostFault(
        plant=with_module(2, _PYTHON_3_9_DOUBLE), verdict="", words=["node2", "3.9", "3.10"]
    ),
    "login shell is tcsh": HostFault(plant=_login_shell("tcsh"), verdict="PASS"),
    "login shell is tcsh, which prints": HostFault(plant=both(_login_shell("tcsh"), _cshrc_prints), verdict="PASS"),
    "login shell is zsh": HostFault(plant=_login_shell("zsh"), verdict="PASS"),
    "login shell is fish": HostFault(plant=_login_shell("fish"), verdict="PASS"),
    "rc file sleeps 8 s": HostFault(plant=rc("sleep 8"), verdict="PASS"),
    "rc file sleeps 25 s": HostFault(plant=rc("sleep 25"), verdict="PASS"),
    # A rank that lets none of its own threads run.
    "rank 2 holds the GIL in collectives": HostFault(
        plant=_holds_gil("seatrial.checks.collectives.measure"), named=["rank 2"]
    ),
    "rank 2 holds the GIL in training": HostFault(
        plant=_holds_gil("seatrial.training.trainer"), checks=TRAINING, named=["rank 2"]
    ),
    # Its main thread stands outside the operation by then, or inside, by chance.
    # Longer than the 90 s after which gloo once gave up.
    "rank 2 holds the GIL, and the trial's time ends first": HostFault(
        plant=_holds_gil("seatrial.training.trainer"),
        checks=TRAINING,
        named=["rank 2|communication between"],
        words=["rank 2 "],
        training_timeout_s=120,
        deadline_s=110,
    ),
    # Two faults of which the second never strikes.
    "rank 1 is stopped, and rank 3 would be killed later": HostFault(
        planted="stop@collectives:1;kill@training:3", checks=TRAINING, named=["rank 1"], hosts=4
    ),
    # Names.
    "node2 calls itself node1": HostFault(called={2: "node1"}, verdict="PASS", checks=("network", *COLLECTIVES)),
    "node2 calls itself node1, and rank 2 is killed": HostFault(
        called={2: "node1"}, planted="kill@collectives:2", named=["rank 2"], words=["on node node2"]
    ),
    "node2 calls itself GPU_Node-A": HostFault(
        called={2: "GPU_Node-A"}, verdict="PASS", checks=("network", *COLLECTIVES)
    ),
    # Clocks of the first host and of the controller.
    "clock of node0 400 days behind": HostFault(plant=clock(0, -34_560_000.0), verdict="PASS", words=["node0"]),
    "clock of node0 jumps 2 hours ahead": HostFault(plant=clock(0, 7_200, 8), verdict="PASS", checks=TRAINING),
    "clock of node0 jumps 2 hours back": HostFault(plant=clock(0, -7_200, 8), verdict="PASS", checks=TRAINING),
    "clock of the controller jumps 2 hours ahead": HostFault(
        plant=clock_of_controller(7_200, 8), verdict="PASS", checks=TRAINING
    ),
    "clock of the controller jumps 2 hours back": HostFault(
        plant=clock_of_controller(-7_200, 8), verdict="PASS", checks=TRAINING
    ),
}
"""By what is planted. The twins without a fault are in ``test_whatever_is_wrong_on_hosts.py``."""


@pytest.mark.parametrize("fault", FAULTS)
def test_whoever_is_at_fault_is_named(hosts: Callable[..., Hosts], fault: str) -> None:
    row = FAULTS[fault]
    outcome = run_fault(hosts(row.hosts, row.called), row)
    assert faults_of(outcome, row) == [], (outcome.named, outcome.said)
