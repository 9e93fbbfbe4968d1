"""The hosts that other tests run on are what they say, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Hosts, made_hosts

pytestmark = pytest.mark.hosts


def test_each_is_another_machine_that_the_others_reach(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    done = made[0].run("ssh", "-o", "BatchMode=yes", "node1", "hostname; id -u; cat /etc/hosts; echo $SSH_CONNECTION")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["node1", "10001"]
    assert "10.77.0.10 node0" in lines
    assert lines[-1].split()[0::2] == ["10.77.0.10", "10.77.0.11"]
    done = made[1].run(*made.seatrial("--version"))
    assert done.returncode == 0, done.stderr
    assert made[1].run(str(made.python), "-c", "import torch, seatrial").stderr.endswith("named 'seatrial'\n")


def test_a_cable_can_be_pulled_and_a_rate_limited(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    knock = ("timeout", "5", "bash", "-c", "</dev/tcp/10.77.0.11/2222")
    assert made[0].run(*knock).returncode == 0
    made[1].pull_cable()
    assert made[0].run(*("timeout", "1", *knock[2:])).returncode == 124
    made[1].plug_cable()
    assert made[0].run(*knock).returncode == 0
    made[1].limit("100mbit")
    made[1].unlimit()


def test_nothing_is_left_of_them_when_a_test_fails() -> None:
    folder = Path()

    def fails() -> None:
        nonlocal folder
        with made_hosts(1) as made:
            folder = made.folder
            started.append(subprocess.Popen(made[0].argv("sleep", "50"), start_new_session=True))
            raise RuntimeError("a test that fails")

    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(RuntimeError):
        fails()
    assert started[0].wait(timeout=5) == -signal.SIGKILL
    assert not folder.exists()
    assert (
        folder.name.partition("-")[0]
        not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    )
