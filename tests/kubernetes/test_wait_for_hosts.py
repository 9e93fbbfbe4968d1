"""The first program of a launcher pod: names asked for in full, bounded patience, an end at SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatrial.targets.kubernetes.manifest import wait_for_hosts
from seatrial.targets.kubernetes.manifest.wait_for_hosts import domain_of, hosts_in

_OF_A_POD = "nameserver 10.96.0.10\nsearch ml.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
_DOMAIN = "ml.svc.cluster.local"


@pytest.mark.parametrize(
    ("configuration", "domain"),
    [
        (_OF_A_POD, _DOMAIN),
        ("nameserver 10.0.0.1\nsearch example.com\n", ""),
        ("", ""),
        # The domain of a cluster may have any name, and a patch of the pods may add others.
        (
            "search mpi.example.com t.ml.svc.k8s.example.com ml.svc.k8s.example.com svc.k8s.example.com example.com\n",
            "ml.svc.k8s.example.com",
        ),
    ],
)
def test_the_domain_of_the_namespace_is_read(configuration: str, domain: str) -> None:
    assert domain_of(configuration) == domain


def _hosts(text: str, slots: str = " slots=8", domain: str = _DOMAIN) -> list[str]:
    return hosts_in(text, "t-worker-{}.t", slots, 2, domain)


@pytest.mark.parametrize(
    ("end", "slots"),
    [(".ml.svc", " slots=8"), (".ml.svc", ":8"), ("", " slots=8"), (".ml.svc.cluster.local", ":8"), (".ml", ":8")],
)
def test_the_hosts_of_each_form_are_read(end: str, slots: str) -> None:
    hosts = [f"t-worker-{node}.t{end}" for node in range(2)]
    for last in ("\n", ""):
        assert _hosts(f"{slots}\n".join(hosts) + slots + last, slots) == hosts


_GOOD = "t-worker-0.t.ml.svc slots=8\n"


@pytest.mark.parametrize(
    "second",
    [
        *("", "\n", _GOOD, "t-worker-0.t slots=8", "t-worker-2.t.ml.svc slots=8", "t-worker-1.t.ml.svc slots=4"),
        *("t-worker-1.t.ml.svc", "t-worker-1.t.ml.svc:8", "t-worker-1.t.ml.svc slots=8 max_slots=9"),
        *("t-worker-1.t.other.svc slots=8", "t-worker-1.t.ml.svc.example.com slots=8", "t-worker-1 slots=8"),
        *("t-worker-1.u.ml.svc slots=8", "10.1.2.3 slots=8", "localhost slots=8", "u@t-worker-1.t.ml.svc slots=8"),
        *(":-oProxyCommand=/bin/sh", "-oProxyCommand=x slots=8", "# a comment", "t-worker-1.t.ml.svc slots=8 # or so"),
        *("t-worker-1.t.ml.svc  slots=8", "t-worker-1.t.ml.svc slots=8\r", "t-worker-1.t.ml.svc slots=8\u2028"),
        "t-worker-1.t.ml.svc slots=8\nt-worker-1.t.ml.svc slots=8",
        "t-worker-1.t.ml.svc slots=8\nelsewhere slots=8",
    ],
)
def test_a_host_file_with_anything_else_is_refused(second: str) -> None:
    with pytest.raises(ValueError, match=r"its line \d is '|it has 1"):
        _hosts(_GOOD + second)


def test_a_domain_that_is_not_known_is_none_of_a_name() -> None:
    assert _hosts("t-worker-0.t slots=8\nt-worker-1.t slots=8\n", domain="") == ["t-worker-0.t", "t-worker-1.t"]
    with pytest.raises(ValueError, match=r"its line 1 is 't-worker-0\.t\.ml\.svc slots=8'"):
        _hosts(_GOOD, domain="")


_SAYS = "import os; print(os.environ['MASTER_ADDR'], os.environ['OMPI_MCA_orte_default_hostfile'])"


def _waiting(folder: Path, port: int, timeout_s: float, said: str = "127.0.0.1 slots=2\n") -> subprocess.Popen[str]:
    (folder / "hosts").write_text(said)
    words = ["/etc/mpi/hostfile", str(folder / "hosts"), "127.0.0.1", " slots=2", "1", str(port), str(timeout_s)]
    return subprocess.Popen(
        [sys.executable, wait_for_hosts.__file__, *words, "openmpi", sys.executable, "-c", _SAYS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MASTER_ADDR": "elsewhere", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},
    )


def test_a_changed_host_file_starts_nothing(tmp_path: Path) -> None:
    out, err = _waiting(tmp_path, 1, 0.2, "127.0.0.1 slots=2\n:-oProxyCommand=/bin/sh\n").communicate(timeout=50)
    assert out == ""
    assert err.startswith("Error: /etc/mpi/hostfile must have the 1 nodes of this run, from 127.0.0.1 slots=2 on")
    assert "on, and its line 2 is ':-oProxyCommand=/bin/sh'; see whether" in err


def test_it_becomes_the_command_once_a_late_host_answers(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        process = _waiting(tmp_path, listener.getsockname()[1], 40.0)
        time.sleep(0.5)
        listener.listen()
        out, _ = process.communicate(timeout=50)
    assert (process.returncode, out) == (0, f"127.0.0.1 {tmp_path / 'hosts'}\n")


def test_ranks_get_the_name_that_no_search_path_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sshd starts them without the variables of a pod, so they ask for the name as it stands."""
    seen: list[str] = []

    def wait(hosts: Sequence[str], port: int, timeout_s: float) -> dict[str, str]:
        seen.extend(hosts)
        return {}

    (tmp_path / "hosts").write_text(_GOOD)
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    monkeypatch.setattr(wait_for_hosts, "wait", wait)
    monkeypatch.setattr(os, "execvp", lambda *command: seen.append(os.environ["MASTER_ADDR"]))
    words = [str(tmp_path / "hosts"), str(tmp_path / "hosts"), "t-worker-{}.t", " slots=8", "1", "2222", "1", "openmpi"]
    for domain, name in ((_DOMAIN, f"t-worker-0.t.{_DOMAIN}."), ("", "t-worker-0.t")):
        if not domain:
            (tmp_path / "hosts").write_text("t-worker-0.t slots=8\n")
        monkeypatch.setattr(wait_for_hosts, "domain_of", lambda text, domain=domain: domain)
        wait_for_hosts.main([*words, "mpirun"])
        assert seen == [name, name]
        seen.clear()


@pytest.mark.parametrize(
    ("mpi", "address", "chosen", "interface"),
    [
        *(("intel", "127.0.0.1", "", "lo"), ("intel", "127.0.0.1", "net1", "net1"), ("mpich", "10.9.9.9", "", "")),
        # Of pods, it is the first address of their network; hydra knows interfaces by their first one.
        ("intel", "10.9.9.9", "", "Error: no network interface has 10.9.9.9 as its first address, by which"),
        ("intel", "fd00::9", "", "Error: the address of this pod is fd00::9, and MPICH and Intel MPI start ranks by"),
        ("mpich", "fd00::9", "", "Error: the address of this pod is fd00::9, and MPICH and Intel MPI start ranks by"),
        ("mpich", "", "", "Error: the address of this pod is unknown, and MPICH and Intel MPI start ranks by IPv4"),
    ],
)
def test_hydra_gets_a_number_for_its_name(mpi: str, address: str, chosen: str, interface: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1:2\n")
    says = "import os; print(os.environ.get('I_MPI_HYDRA_IFACE', ''))"
    environ = {**os.environ, "SEATRIAL_POD_IP": address, **({"I_MPI_HYDRA_IFACE": chosen} if chosen else {})}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        words = ["/etc/mpi/hostfile", str(tmp_path / "hosts"), "127.0.0.1", ":2", "1", port, "1", mpi]
        command = [sys.executable, wait_for_hosts.__file__, *words, sys.executable, "-c", says]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=50, check=False)
    is_error = interface.startswith("Error: ")
    assert ended.returncode == (3 if is_error else 0)
    assert (ended.stderr.startswith(interface) and not ended.stdout) if is_error else ended.stdout == f"{interface}\n"


def test_it_names_a_host_that_never_answers(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        _, err = (process := _waiting(tmp_path, listener.getsockname()[1], 0.2)).communicate(timeout=50)
    assert process.returncode == 3
    assert "Error: 1 of 1 nodes do not answer on port" in err
    assert "127.0.0.1 (Connection refused)" in err


@pytest.mark.parametrize(("timeout_s", "num_attempts"), [(600.0, 8), (12.0, 3), (4.0, 1)])
def test_silent_addresses_of_a_host_share_the_time_of_the_wait(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, num_attempts: int
) -> None:
    """Who answers for the DNS server says how many there are."""
    now, attempts = 1_000.0, list[float]()

    def connect(self: socket.socket, place: object) -> None:
        nonlocal now
        attempts.append(now)
        now += self.gettimeout() or 0.0
        raise TimeoutError("timed out")

    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.9.0.{number}", 22)) for number in range(200)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(socket.socket, "connect", connect)
    assert wait_for_hosts.problem_of("t-worker-0.t", 22, 1_000.0 + timeout_s) == "timed out"
    assert len(attempts) == num_attempts


def test_no_host_is_asked_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One name after the other, a DNS server that drops all would keep thousands of them waiting for half an hour."""
    asked: list[str] = []

    def unknown(host: str, port: int, **_: object) -> None:
        asked.append(host)
        ended.wait(50)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(wait_for_hosts, "_LAST_ROUND_S", 0.1)
    hosts = [f"t-worker-{number}" for number in range(4_096)]
    problems = wait_for_hosts.wait(hosts, 22, 0.1)
    ended.set()
    assert [*problems] == hosts
    assert 0 < len(asked) < 100
    assert {*problems.values()} == {"its name server has not answered for 0 s", "there was no time to ask it"}


def test_a_round_without_time_keeps_what_the_last_one_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[float] = []

    def problem_of(host: str, port: int, until: float) -> str | None:
        rounds.append(until)
        return "Connection refused" if len(rounds) == 1 else None

    monkeypatch.setattr(wait_for_hosts, "problem_of", problem_of)
    assert wait_for_hosts.wait(["t-worker-0"], 22, 0.1) == {"t-worker-0": "Connection refused"}
    assert len(rounds) == 2


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
