"""Where the ranks of a training meet: an address that was searched for, and no name that torch would ask for."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from worker import ranks_behind_dns

import seatrial
from seatrial.probe import address_search
from seatrial.protocol.own_errors import lack_in
from seatrial.rank.meeting import MeetingError
from seatrial.worker import meeting_address
from seatrial.worker.meeting_address import in_numbers


@pytest.mark.root
@pytest.mark.timeout(150)
def test_ranks_in_pods_meet_at_the_pod_and_at_no_service_of_a_stranger(tmp_path: Path) -> None:
    """While the name of the first pod is unknown the search path leads to the namespace of the name of the run."""
    tmp_path.chmod(0o755)
    words = ["unshare", "--net", "--mount", "--kill-child", sys.executable, ranks_behind_dns.__file__, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(Path(seatrial.__file__).parents[1])}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["visits"], found["codes"]) == (0, [0, 0]), found
    assert found["early"]
    # torch asks for the name of each address that it connects to.
    assert {name for name in found["asked"] if not name.endswith(".arpa")} == {ranks_behind_dns.NAME}


class Host:
    """A host whose names lead to loopback addresses: no name is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: Sequence[str] = ()
        self.asked: list[str] = []
        monkeypatch.setattr(meeting_address, "resolve_in_thread", self._resolve)
        monkeypatch.setattr(address_search, "_FIRST_QUERY_S", 0.0)
        monkeypatch.setattr(address_search, "_SPREAD_S", 0.0)
        for name in ("KUBERNETES_SERVICE_HOST", "TORCHELASTIC_USE_AGENT_STORE"):
            monkeypatch.delenv(name, raising=False)

    def _resolve(self, name: str, *, timeout_s: float) -> Sequence[str]:
        assert timeout_s > 0
        self.asked.append(name)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.addresses


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def soon() -> float:
    return time.monotonic() + 0.2


@pytest.mark.parametrize("pod", [False, True])
def test_the_rank_that_keeps_the_store_asks_nobody(host: Host, monkeypatch: pytest.MonkeyPatch, pod: bool) -> None:
    if pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("MASTER_ADDR", "trial-0.trial")
    monkeypatch.setenv("MASTER_PORT", "22200")
    assert in_numbers("env://", rank=0, until=soon()) == "tcp://127.0.0.1:22200"
    assert in_numbers("tcp://gpu-01:22200", rank=0, until=soon()) == "tcp://127.0.0.1:22200"
    assert host.asked == []


@pytest.mark.parametrize(
    "init",
    [
        *("tcp://10.0.0.7:22200", "tcp://[fd00::7]:22200", "file:///shared/meet", "mpi://"),
        # torch refuses these, by sentences of its own.
        *("tcp://gpu-01:99999", "tcp://:22200"),
    ],
)
def test_what_holds_no_name_stays(host: Host, init: str) -> None:
    for rank in (0, 1):
        assert in_numbers(init, rank=rank, until=soon()) == init
    assert host.asked == []


@pytest.mark.parametrize(
    "environ", [{}, {"MASTER_ADDR": "gpu-01"}, {"MASTER_PORT": "22200"}, {"MASTER_ADDR": "gpu-01", "MASTER_PORT": "x"}]
)
def test_what_the_environment_lacks_is_said_by_torch(
    host: Host, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert in_numbers("env://", rank=1, until=soon()) == "env://"
    assert host.asked == []


@pytest.mark.parametrize(("rank", "agent_store"), [(1, False), (0, True), (1, True)])
def test_the_first_address_where_somebody_listens_is_taken(
    host: Host, monkeypatch: pytest.MonkeyPatch, rank: int, agent_store: bool
) -> None:
    if agent_store:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    host.addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        found = in_numbers(f"tcp://gpu-01:{port}", rank=rank, until=time.monotonic() + 20)
    assert found == f"tcp://127.0.0.2:{port}"
    assert host.asked == ["gpu-01"]


def test_an_address_of_ipv6_has_brackets(host: Host) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6")
    host.addresses = ["::1"]
    with listener:
        port = listener.getsockname()[1]
        assert in_numbers(f"tcp://gpu-01:{port}", rank=1, until=time.monotonic() + 20) == f"tcp://[::1]:{port}"


def test_a_failed_search_says_what_was_asked_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeetingError, match=r"^asked for gpu-01: Name or service not known; see whether rank 0 runs"):
        in_numbers("tcp://gpu-01:22200", rank=1, until=soon())
    resolv_conf = "search team.svc.cluster.local svc.cluster.local cluster.local\n"
    monkeypatch.setattr(address_search, "_read", lambda path: resolv_conf if "resolv" in path else "")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with pytest.raises(MeetingError, match=r"^asked for trial-0\.trial\.team\.svc\.cluster\.local\.: Name .*a dot$"):
        in_numbers("tcp://trial-0.trial:22200", rank=1, until=soon())
    assert {*host.asked} == {"gpu-01", "trial-0.trial.team.svc.cluster.local."}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        host.addresses = ["127.0.0.1"]
        with pytest.raises(MeetingError, match=r": nobody answers at 127\.0\.0\.1: Connection refused; read the log"):
            in_numbers(f"tcp://trial-0.trial:{closed.getsockname()[1]}", rank=1, until=soon())


@pytest.mark.parametrize("is_port", [True, False])
def test_a_rank_without_a_port_says_so(host: Host, monkeypatch: pytest.MonkeyPatch, is_port: bool) -> None:
    """Without IPv6 the system says the same, and its host lacks no port."""

    def connect(*_: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(meeting_address, "is_without_address", lambda *_: not is_port)
    host.addresses = ["::1"]
    with pytest.raises(MeetingError, match=r": (no connection to|nobody answers at) ::1: Cannot assign") as raised:
        in_numbers("tcp://gpu-01:22200", rank=1, until=soon())
    assert getattr(lack_in(str(raised.value)), "name", "") == ("port" if is_port else "")
