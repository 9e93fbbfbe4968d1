"""A real kubectl reads what a cluster may make as large as it likes, and holds none of it. The API server is a double.

``kubectl logs`` would hold each line until its end, and ``kubectl get -o json`` a list.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kubernetes.test_pods import pod

from seatrial.errors import RequestError
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.log_copies import LogCopies
from seatrial.targets.kubernetes.log_reader import PodLog
from seatrial.targets.kubernetes.pods import pods_of

_SENT_MIB = 200
_MOST_MIB = 150
"""A kubectl that holds nothing takes 45 MiB."""
_STAMP = b"2026-01-01T00:00:00.5Z "


class _ApiServer(BaseHTTPRequestHandler):
    """An API server with one pod in the namespace ``ml``, which has sent one line without an end, and many Events."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        lists = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": _RESOURCES},
            "/api/v1/namespaces/ml/pods/run-0": pod("run-0", apiVersion="v1", kind="Pod"),
        }
        if path == "/api/v1/namespaces/ml/pods/run-0/log":
            self._stream(_STAMP, b"x", b"\n" + _STAMP + b"its last words\n")
        elif path == "/api/v1/namespaces/ml/events":
            begin = b'{"kind":"EventList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"a"},"message":"'
            self._stream(begin, b"x", b'"}]}')
        elif path in lists:
            self._answer(200, lists[path])
        else:
            name = path.removesuffix("/log").rpartition("/")[2]
            failure = {"status": "Failure", "reason": "NotFound", "code": 404, "message": f'pods "{name}" not found'}
            self._answer(404, {"kind": "Status", "apiVersion": "v1", "metadata": {}, **failure})

    def _answer(self, code: int, content: object) -> None:
        text = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, begin: bytes, filling: bytes, end: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if begin[:1] == b"{" else "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in (begin, *[filling * (1 << 20)] * _SENT_MIB, end, b""):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        except OSError:  # its reader has enough
            self.close_connection = True


_RESOURCES = [
    {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
    for name, kind in (("pods", "Pod"), ("pods/log", "Pod"), ("events", "Event"))
]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubectl]:
    program = shutil.which("kubectl") or shutil.which("oc")
    if program is None:
        pytest.skip("there is no kubectl and no oc")
    with ThreadingHTTPServer(("127.0.0.1", 0), _ApiServer) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        config = {
            "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": ""}}],
            "current-context": "a",
        }
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.setenv("HOME", str(tmp_path))
        yield Kubectl(program=program, namespace="ml")
        server.shutdown()


def test_without_a_context_nothing_is_asked(kubectl: Kubectl, tmp_path: Path) -> None:
    assert kubectl.in_present_context().context == ("--context=a",)
    config = json.loads((tmp_path / "config").read_text())
    (tmp_path / "config").write_text(json.dumps({**config, "current-context": ""}))
    with pytest.raises(RequestError, match="would ask http://localhost:8080"):
        kubectl.in_present_context()
    (tmp_path / "config").unlink()
    with pytest.raises(RequestError, match="would ask http://localhost:8080"):
        kubectl.in_present_context()


def _log_of(name: str, kubectl: Kubectl, folder: Path, on_text: Callable[[list[str]], None]) -> PodLog:
    (its_pod,) = pods_of({"items": [pod(name, status__phase="Failed")]}, KINDS["job"])
    return PodLog(kubectl, its_pod, None, LogCopies(folder), on_text)


@pytest.mark.parametrize("home", [None, ""], ids=str)
@pytest.mark.parametrize("by", ["a call", "a log"])
def test_no_login_plug_in_of_another_user_is_executed(
    by: str, home: str | None, kubectl: Kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without HOME kubectl reads .kube/config of its working folder."""
    (typed := tmp_path / "typed").mkdir()
    typed.chmod(0o777)
    (typed / ".kube").mkdir()
    plug_in = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "interactiveMode": "Never"}
    config = json.loads((tmp_path / "config").read_text())
    config["users"] = [{"name": "a", "user": {"exec": {**plug_in, "args": [str(tmp_path / "executed")]}}}]
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    config["contexts"][0]["context"]["user"] = "a"
    (typed / ".kube" / "config").write_text(json.dumps(config))
    monkeypatch.chdir(typed)
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    if by == "a call":
        assert kubectl.call("get", "--raw", "/api").code != 0
    else:
        log = _log_of("run-0", kubectl, tmp_path, lambda lines: None)
        list(log.read(container_ended=True))
        assert log._process is not None
        log._process.wait(20)
        log.close()
        assert list(log._copies.finish(lambda: False)) == []
    assert not (tmp_path / "executed").exists()


def _peak_mib(pid: int) -> int:
    """Return the most memory that a process has had; 0 where it has ended."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")), 0)


def test_a_line_without_an_end_fills_no_memory(kubectl: Kubectl, tmp_path: Path) -> None:
    texts: list[str] = []
    log, peak_mib = _log_of("run-0", kubectl, tmp_path, texts.extend), 0
    until = time.monotonic() + 50
    try:
        while "its last words" not in texts:
            assert time.monotonic() < until
            list(log.read(container_ended=True))
            if log._process is not None:
                peak_mib = max(peak_mib, _peak_mib(log._process.pid))
    finally:
        log.close()
        assert list(log._copies.finish(lambda: False)) == []
    long, last = texts
    assert long == "x" * ((1 << 20) - len(_STAMP)) + " (seatrial: this line is cut here, after 1048576 bytes)"
    assert (tmp_path / "run-0.log").read_text() == f"{long}\n{last}\n"
    assert 0 < peak_mib < _MOST_MIB


def test_a_list_without_an_end_fills_no_memory(kubectl: Kubectl) -> None:
    call, result, peak_mib = kubectl.start(*kubectl.raw("ml", "events"), most_bytes=16 << 20), None, 0
    while result is None:
        peak_mib = max(peak_mib, _peak_mib(call._process.pid))
        result = call.poll()
    assert "an answer of more than 16 MiB" in result.complaint
    assert 0 < peak_mib < _MOST_MIB


def test_a_pod_that_is_gone_is_told_from_others(kubectl: Kubectl, tmp_path: Path) -> None:
    log = _log_of("gone", kubectl, tmp_path, lambda lines: None)
    until = time.monotonic() + 20
    while not log.is_settled:
        assert time.monotonic() < until
        list(log.read(container_ended=True))
    assert (log.gone, log.complete) == (True, False)
    log.close()
    assert list(log._copies.finish(lambda: False)) == []
