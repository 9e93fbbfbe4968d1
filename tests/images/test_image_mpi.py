"""The pods of an MPIJob as containers of the image `mpi`: sshd on 2222 without any right, and mpirun between them.

The commands are those of the manifest. The host file, which the operator makes, is made here; a bridge of podman stands
in for the network of a cluster.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_network
from pathlib import Path

import pytest
from images.containers import MARKS, NO_RIGHTS, image, podman, started
from kubernetes.operators import started as as_kubelet
from kubernetes.workloads import container_of, templates, workload, workload_object
from passes import passes

from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.workload import CODE, Workload
from seatrial.targets.kubernetes.ssh_key import new_ssh_key

pytestmark = MARKS
# As the operator names them: the host name of a pod, then the service of its job.
_WORKERS = ("trial-1-worker-0", "trial-1-worker-1")
_SERVICE = "trial-1"


@pytest.fixture
def network() -> Iterator[tuple[str, dict[str, str]]]:
    """The name of a bridge, and the address of each pod on it.

    It has no DNS server: podman's may outlive its network.
    """
    name = f"trial-{uuid.uuid4().hex[:10]}"
    made = podman("network", "create", "--disable-dns", name)
    assert made.code == 0, made.output
    try:
        subnet = ip_network(json.loads(podman("network", "inspect", name).output)[0]["subnets"][0]["subnet"])
        addresses = {pod: str(subnet[number]) for number, pod in enumerate((*_WORKERS, "launcher"), start=10)}
        yield name, addresses
    finally:
        podman("network", "rm", "-f", name)


@pytest.fixture
def brought(tmp_path: Path) -> list[str]:
    """What is mounted, as options; it belongs to root, as there. The key of the operator is read nowhere."""
    code = tmp_path / "code"
    code.mkdir()
    for name, content in KINDS["mpijob"].files(_job()).items():
        (code / name).write_bytes(content)
    (tmp_path / "hostfile").write_text("".join(f"{name}.{_SERVICE} slots=1\n" for name in _WORKERS))
    places = {code: CODE, tmp_path / "hostfile": "/etc/mpi/hostfile"}
    return [word for path, place in places.items() for word in ("--volume", f"{path}:{place}:ro")]


def _job() -> Workload:
    return workload(
        image="unused",
        gpu_resource=None,
        gpus_per_node=0,
        nproc_per_node=1,
        bundle=None,
        token="t" * 32,
        # Over mpi4py, which the image has, too.
        arguments=("run", "--device=cpu", "--backend=mpi", "--", "smoke"),
    )


def _pod(component: str, key: str) -> tuple[list[str], list[str]]:
    """Options of ``podman run`` and the words after the image, for the container of such a pod."""
    (container,) = (
        container_of(pod)
        for pod in templates(workload_object(manifest("mpijob", _job())))
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    (program, *words), environ = as_kubelet(container, {}, {"token": _job().token, "ssh-privatekey": key})
    env_options = [word for name, value in environ.items() for word in ("--env", f"{name}={value}")]
    return [*NO_RIGHTS, "--user", "10001:10001", "--shm-size", "1g", *env_options, "--entrypoint", program], words


@pytest.mark.timeout(170)
def test_a_trial_passes_between_containers(network: tuple[str, dict[str, str]], brought: list[str]) -> None:
    bridge, addresses = network
    names = [
        word
        for pod, address in addresses.items()
        for name in (pod, f"{pod}.{_SERVICE}")
        for word in ("--add-host", f"{name}:{address}")
    ]
    key = new_ssh_key("mpijob")
    with ExitStack() as stack:

        def start(name: str, component: str) -> str:
            options, words = _pod(component, key)
            place = ["--network", bridge, "--ip", addresses[name], "--hostname", name, *names]
            return stack.enter_context(started("mpi", *words, options=[*options, *place, *brought]))

        # The operator waits for the readiness probe.
        until = time.monotonic() + 10
        for worker in [start(name, "node") for name in _WORKERS]:
            while podman("exec", worker, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/2222").code:
                assert time.monotonic() < until, podman("logs", worker).output
                time.sleep(0.2)
        launcher = start("launcher", "launcher")
        ended = podman("wait", launcher, timeout_s=120).output
        output = podman("logs", launcher).output
        assert ended == "0\n", output
        assert passes(output), output
        assert "Communication (mpi): PASS" in output
        assert "2 processes as openmpi started them" in output


def test_no_host_key_lies_in_it() -> None:
    found = podman("run", "--rm", "--entrypoint", "find", image("mpi"), "/etc/ssh", "-name", "ssh_host_*")
    assert (found.code, found.output) == (0, "")
