"""The double of a cluster: one process that holds all objects, runs controllers, scheduler and kubelet, and listens
at a socket in its folder for ``kubectl_double.py``. It ends, with all that it started, when its standard input does.

    python server.py FOLDER     with FOLDER/config.json
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from kubernetes.double.api import Api
from kubernetes.double.arguments import RefusedError, parse
from kubernetes.double.controllers import CONTROLLERS
from kubernetes.double.dns import DnsServer, Names, zone_of
from kubernetes.double.faults import Faults
from kubernetes.double.hosts_sandbox import HostsSandbox
from kubernetes.double.kubelet import Kubelet
from kubernetes.double.networks import Networks
from kubernetes.double.openshift import ranges
from kubernetes.double.podman_sandbox import PodmanSandbox
from kubernetes.double.pods import World, provision_accounts
from kubernetes.double.sandbox import Sandbox
from kubernetes.double.scheduler import schedule
from kubernetes.double.store import Object, Store
from kubernetes.schemas import find_schemas

CONFIG = "config.json"
SOCKET = "api.sock"
_TICK_S = 0.1
_LATENCIES_S = (0.05, 0.15, 0.1, 0.25)
"""Without plug-ins a call of kubectl takes 50 to 300 ms: its start, TLS, the login, the answer; with them up to 1 s
(kubernetes-review.md, B), which the fault ``slow`` is for. Calls of the tests themselves take none."""
_CARRIED = ("SEATRIAL_TEST_RUN",)
"""So that what a test leaves running is found."""


def main(folder: Path) -> None:
    """Returns when standard input has ended."""
    config = json.loads((folder / CONFIG).read_text())
    lock, world = threading.Lock(), World(store=Store(), faults=Faults(folder), openshift=config["openshift"])
    _fill(world.store, config)
    networks = Networks(config["tag"])
    names = Names(denial_s=config["dns_denial_s"])
    dns = DnsServer(networks.switch, names)
    sandbox = _sandbox(config, networks)
    environ = {name: os.environ[name] for name in _CARRIED if name in os.environ}
    kubelet = Kubelet(world, sandbox, networks, folder, environ, owner=os.geteuid() == 0)
    api = Api(world, folder, lock, config["namespace"])
    stopped = threading.Event()
    threading.Thread(target=_await_end, args=(stopped,), daemon=True).start()
    server = _Server(str(folder / SOCKET), _Handler)
    server.api, server.faults, server.calls = api, world.faults, folder / "calls.jsonl"
    server.latencies_s = itertools.cycle(_LATENCIES_S)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        # In this thread: what it starts is killed when the thread that started it ends.
        while not stopped.wait(_TICK_S):
            with lock:
                _look(world)
                kubelet.tick()
                names.zone = zone_of(world)
                world.store.collect_garbage()
    finally:
        server.shutdown()
        kubelet.end()
        sandbox.end()
        dns.end()
        networks.end()


def _look(world: World) -> None:
    for kind, reconcile in CONTROLLERS.items():
        if not (world.faults.any("crd-absent", kind=kind) or world.faults.any("no-operator", kind=kind)):
            for thing in world.store.each(kind):
                reconcile(world, thing)
    if world.openshift:
        provision_accounts(world)
    schedule(world)


def _await_end(stopped: threading.Event) -> None:
    while sys.stdin.buffer.read(1):
        pass
    stopped.set()


def _sandbox(config: Object, networks: Networks) -> Sandbox:
    packages = Path(config["packages"])
    if config["image"] is not None:
        return PodmanSandbox(config["tag"], networks, config["image"], None if config["image_has_torch"] else packages)
    return HostsSandbox(networks, config["python"], packages)


def _fill(store: Store, config: Object) -> None:
    for name in ("default", "ml", "kube-system"):
        marks = {"annotations": ranges()} if config["openshift"] else {}
        store.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **marks}}, "")
    for name, node in config["nodes"].items():
        labels = {"kubernetes.io/hostname": name, **node.get("labels", {})}
        allocatable = {"cpu": "64", "memory": "256Gi", **node.get("allocatable", {})}
        made = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": node.get("taints", [])},
            "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        store.add(made, "")
    schemas = find_schemas()
    for path in schemas.glob("*.yaml") if schemas else ():
        crd = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        store.add(crd, "")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64
    api: Api
    faults: Faults
    calls: Path
    latencies_s: Iterator[float]


class _Handler(socketserver.StreamRequestHandler):
    """One line of JSON in (argv, stdin), lines of JSON out: [stream, text], and at the end ["code", number]."""

    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            asked = json.loads(self.rfile.readline())
            with open(self.server.calls, "a") as calls:
                calls.write(json.dumps(asked["argv"]) + "\n")
            self._await_voice(asked["argv"])
            self._be_slow(asked)
            try:
                for stream, text in self.server.api.answer(asked["argv"], asked["stdin"]):
                    self._await_voice(asked["argv"])
                    self._say(stream, text)
                self._say("code", 0)
            except RefusedError as refusal:
                self._say("err", f"{refusal}\n" if str(refusal) else "")
                self._say("code", 1)

    def _await_voice(self, words: list[str]) -> None:
        """An API server that says nothing, in a stream neither: the caller gives up, or the fault goes."""
        while self._is_silent(words):
            time.sleep(_TICK_S)

    def _be_slow(self, asked: Object) -> None:
        """kubectl takes 0.1 to 1 s a call where plug-ins log in or a VPN is between (kubernetes-real.md, B7)."""
        if not asked.get("at_once"):
            time.sleep(next(self.server.latencies_s))
        with contextlib.suppress(RefusedError):
            told = parse(asked["argv"])
            for fault in self.server.faults.all("slow", calls=" ".join([told.verb, *told.words])):
                time.sleep(float(fault["seconds"]))

    def _is_silent(self, words: list[str]) -> bool:
        try:
            told = parse(words)
        except RefusedError:
            return False
        return self.server.faults.any("api-silent", calls=" ".join([told.verb, *told.words]))

    def _say(self, stream: str, text: str | int) -> None:
        self.wfile.write(json.dumps([stream, text]).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(Path(sys.argv[1]))
