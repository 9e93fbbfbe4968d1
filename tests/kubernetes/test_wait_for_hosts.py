"""The first program of a launcher pod: names asked for in full, bounded patience, an end at SIGTERM."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seatrial.targets.kubernetes.manifest import wait_for_hosts
from seatrial.targets.kubernetes.manifest.wait_for_hosts import full_name, hosts_in

_OF_A_POD = "nameserver 10.96.0.10\nsearch ml.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        # mpi-operator and Trainer write these into their host files.
        ("t-worker-0.t.ml.svc", "t-worker-0.t.ml.svc.cluster.local."),
        ("t-node-0-0.t", "t-node-0-0.t.ml.svc.cluster.local."),
        ("10.1.2.3", "10.1.2.3"),
        ("fd00::7", "fd00::7"),
        ("there.example.com.", "there.example.com."),
    ],
)
def test_a_name_is_asked_for_in_full(host: str, name: str) -> None:
    assert full_name(host, _OF_A_POD) == name
    assert full_name(host, "nameserver 10.0.0.1\nsearch example.com\n") == host


def test_the_domain_of_a_cluster_may_have_any_name() -> None:
    search = "search mpi.example.com ml.svc.k8s.example.com svc.k8s.example.com k8s.example.com example.com\n"
    assert full_name("t-worker-0.t.ml.svc", search) == "t-worker-0.t.ml.svc.k8s.example.com."
    assert full_name("t-node-0-0.t", search) == "t-node-0-0.t.ml.svc.k8s.example.com."


def test_hosts_are_read_from_both_forms() -> None:
    assert hosts_in("a.t slots=8\nb.t slots=8\n\n") == ["a.t", "b.t"]
    assert hosts_in("a.t:8\nb.t:8\na.t:8\n") == ["a.t", "b.t"]


def _waiting(folder: Path, port: int, timeout_s: float) -> subprocess.Popen[str]:
    (folder / "hostfile").write_text("127.0.0.1 slots=2\n")
    words = [str(folder / "hostfile"), str(port), str(timeout_s), "echo", "mpirun was here"]
    return subprocess.Popen(
        [sys.executable, wait_for_hosts.__file__, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_becomes_the_command_once_a_late_host_answers(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        process = _waiting(tmp_path, listener.getsockname()[1], 40.0)
        time.sleep(0.5)
        listener.listen()
        out, _ = process.communicate(timeout=50)
    assert (process.returncode, out) == (0, "mpirun was here\n")


def test_it_names_a_host_that_never_answers(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        _, err = (process := _waiting(tmp_path, listener.getsockname()[1], 0.2)).communicate(timeout=50)
    assert process.returncode == 3
    assert "Error: 1 of 1 nodes do not answer on port" in err
    assert "127.0.0.1 (Connection refused)" in err


def test_sigterm_ends_the_wait(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        process = _waiting(tmp_path, listener.getsockname()[1], 40.0)
        assert process.stderr is not None
        # Again after each try, and not once.
        for _ in range(2):
            line = process.stderr.readline()
            assert re.fullmatch(r"seatrial: waiting for 127\.0\.0\.1 \(Connection refused\), for \d+ s\n", line), line
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=50)
    assert process.returncode == 128 + signal.SIGTERM
