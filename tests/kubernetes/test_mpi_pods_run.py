"""Launcher and workers of an MPIJob, really run: hosts stand in for pods, and their user has as few rights.

Told apart from a cluster by: the port (the hosts have an sshd already), the folders, and one /tmp for all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import UID, Host, Hosts
from kubernetes.double.recorded import mpi_launcher_environment
from kubernetes.double.volumes import contents_of
from kubernetes.operators import started
from kubernetes.workloads import container_of, templates, workload, workload_object

from seatrial.targets.kubernetes.manifest.objects import code_digest
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.workload import CODE, COPY, Workload
from seatrial.targets.kubernetes.ssh_key import new_ssh_key

pytestmark = [pytest.mark.hosts, pytest.mark.mpi]
_MPIRUNS = [path for path in os.environ.get("SEATRIAL_TEST_MPIRUNS", "").split(":") if path] or ["none"]
_WORDS = {"Open MPI": "openmpi", "Intel(R) MPI": "intel", "": "mpich"}
"""What ``--version`` says."""
_OF_OPERATOR = {"openmpi": "OpenMPI", "intel": "Intel", "mpich": "MPICH"}
_PORT = "2223"


def _may_start(mpirun: str) -> bool:
    drop = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
    return subprocess.run([*drop, mpirun, "--version"], capture_output=True, check=False).returncode == 0


def _job(mpirun: str, pyz: Path) -> Workload:
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    return workload(
        gpu_resource=None,
        gpus_per_node=0,
        nproc_per_node=2,
        token="t" * 32,
        ssh_key=new_ssh_key("mpijob"),
        bundle=pyz.read_bytes(),
        arguments=("run", "--device=cpu", "--only=inventory,collectives", "--", "smoke"),
        kind_options={"mpi": next(name for word, name in _WORDS.items() if word in said), "mpirun": mpirun},
    )


class Pod:
    """The container's command on a host, as the operator would have it started there."""

    def __init__(self, hosts: Hosts, host: Host, made: Workload, component: str) -> None:
        objects = manifest("mpijob", made)
        (container,) = (
            container_of(pod)
            for pod in templates(workload_object(objects))
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
        )
        added = {}
        if component == "launcher":
            how = _OF_OPERATOR[made.kind_options["mpi"]]
            added = {each["name"]: each["value"] for each in mpi_launcher_environment(how, 2, role=True)}
        secret = {"token": made.token, "ssh-privatekey": made.ssh_key}
        command, environ = started(container, added, secret, host.address)
        places = {
            # mpirun names the same path on all hosts, which share their home.
            COPY: f"{host.home}/copy",
            "python3": str(hosts.python),
            CODE: f"{hosts.folder}/code{host.number}",
            "/tmp/known_hosts": f"{host.home}/known{host.number}",
            "/tmp/ssh_key": f"{host.home}/key{host.number}",
            "/tmp/authorized_keys": f"{host.home}/authorized{host.number}",
            "/tmp/hosts": f"{host.home}/hosts",
        }
        code = hosts.folder / f"code{host.number}"
        code.mkdir()
        held = [contents_of(thing) for thing in objects if thing["kind"] == "ConfigMap"]
        meant = {name: content for each in held for name, content in each.items()}
        here = dict(meant)
        for name, content in meant.items():
            if name.endswith("_config"):
                here[name] = _put(content.decode(), places).replace("Port 2222", f"Port {_PORT}").encode()
            (code / name).write_bytes(here[name])
        command[command.index(code_digest(meant))] = code_digest(here)
        environ = {**environ, **host.environ, "SEATRIAL_JOIN_TIMEOUT_S": "30"}
        words = [_put(word, places) for word in command]
        self.process = subprocess.Popen(
            host.argv("env", *(f"{name}={value}" for name, value in environ.items()), *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=10)


def _put(text: str, places: dict[str, str]) -> str:
    for before, after in places.items():
        text = text.replace(before, after)
    return text


@pytest.mark.parametrize(
    "mpirun", [_MPIRUNS[0], *(pytest.param(path, marks=pytest.mark.nightly) for path in _MPIRUNS[1:])]
)
def test_a_trial_passes(mpirun: str, hosts: Callable[[int], Hosts], pyz: Path) -> None:
    if not _may_start(mpirun):
        pytest.skip(f"the user of the hosts may not start {mpirun}")
    three = hosts(3)
    made = _job(mpirun, pyz)
    is_open = made.kind_options["mpi"] == "openmpi"
    names = [f"{made.run}-worker-{number}.{made.run}" for number in range(2)]
    # What the operator brings. Its key is read nowhere.
    (three[0].etc / "mpi").mkdir()
    lines = (f"{name}{' slots=' if is_open else ':'}2\n" for name in names)
    (three[0].etc / "mpi" / "hostfile").write_text("".join(lines))
    for host in three:
        known = (host.etc / "hosts").read_text()
        if host is not three[0]:
            # In a pod the name of the launcher may lead to a stranger.
            known = known.replace(f"{three[0].address} ", "127.0.0.2 ")
        added = (f"{three[number + 1].address} {name}\n" for number, name in enumerate(names))
        (host.etc / "hosts").write_text(known + "".join(added))
    # The sshd that each host has already lets nobody in: only those of the pods do.
    (three[0].home / ".ssh" / "authorized_keys").unlink()
    workers: list[Pod] = []
    launcher = None
    try:
        for number in (1, 2):
            # One after the other, since they share the folder that each pod has alone. The operator waits for the
            # readiness probe, too.
            workers.append(Pod(three, three[number], made, "node"))
            _await_port(three, number)
        launcher = Pod(three, three[0], made, "launcher")
        output, _ = launcher.process.communicate(timeout=45)
        assert launcher.process.returncode == 0, output
        assert "FINAL ACCEPTANCE: PASS" in output
        assert f"4 processes as {'openmpi' if is_open else 'hydra'} started them" in output
        assert "any user of these machines" not in output
        assert made.token not in output
    finally:
        for pod in [*workers, *([launcher] if launcher else [])]:
            pod.end()


def _await_port(hosts: Hosts, number: int) -> None:
    until = time.monotonic() + 10
    probe = hosts[0].argv("bash", "-c", f"exec 3<>/dev/tcp/{hosts[number].name}/{_PORT}")
    while subprocess.run(probe, capture_output=True, check=False).returncode:
        assert time.monotonic() < until, f"{hosts[number].name}: sshd does not answer"
        time.sleep(0.2)
