"""Machines that start as those of EC2 do, as containers: systemd, cloud-init and what Terraform tells them.

    you --------- public network --------- launcher --------- private network --------- worker-0, worker-1
                                              |
                                       the way out of all

Only the launcher has a way out of its own, and the workers have theirs through it. /shared is a folder of this machine:
the NFS server that the launcher is on EC2 needs a kernel that has one.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from terraform.modules import ROOT, Applied, resources, user_data

__all__ = ["Machines", "started", "torch_index_urls"]

_HERE = Path(__file__).parent
_IMAGE = "localhost/seatrial-test-ec2-machine"
_TAG = f"stc{os.getpid()}"
_PIP_KEYS = ("cert", "extra-index-url", "find-links", "index-url", "trusted-host")


def _pip_config() -> dict[str, str]:
    listed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    told = dict(re.findall(r"^[\w:]+\.([\w-]+)=(.*)$", listed, re.MULTILINE))
    return {key: str(ast.literal_eval(told[key])) for key in _PIP_KEYS if key in told}


def torch_index_urls() -> dict[str, str]:
    """Return where the containers find torch: where pip finds that for CPUs on this machine."""
    asked = re.search(r"--index-url[ =](\S+)", os.environ.get("TORCH_PIP_ARGS", ""))
    # With a folder of wheels no index has to have it, and this one has nothing.
    at_hand = "file:///nothing" if "find-links" in _pip_config() else "https://download.pytorch.org/whl/cpu"
    return dict.fromkeys(("cpu", "nvidia", "amd"), asked[1] if asked else at_hand)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The cluster, and your own machine in front of it."""

    folder: Path
    """``seeds`` has, by name, what each one is told, and its console."""
    _stack: contextlib.ExitStack

    def on(self, name: str, *command: str, timeout_s: float = 50.0) -> subprocess.CompletedProcess[str]:
        """Run a command on one of them as root, without its being asked: ``you``, ``launcher``, ``worker-0``."""
        words = ["podman", "exec", f"{_TAG}-{name}", *command]
        return subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)

    def typed(self, line: str, *, timeout_s: float, aws: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a line that you type in the folder of the module, with or without the command aws."""
        path = "/usr/local/bin:/usr/bin:/bin" if aws else "/usr/bin:/bin"
        words = [
            "podman",
            "exec",
            "-w",
            "/clone/deploy/terraform/ec2",
            "-e",
            f"PATH={path}",
            f"{_TAG}-you",
            "sh",
            "-c",
            line,
        ]
        return subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)

    def start_late(self, name: str) -> None:
        """Start one more machine, which is told what worker-1 is told, long after its first start."""
        first_start = self.folder / "stop-at"
        first_start.write_text("1\n")
        seed = self.folder / "seeds" / "worker-1"
        self._stack.callback(_podman_quietly, "rm", "-f", "-t", "0", f"{_TAG}-{name}")
        _podman(
            *("run", "-d", "--name", f"{_TAG}-{name}", "--systemd=always", "--network", "none"),
            *("--volume", f"{seed}:/var/lib/cloud/seed/nocloud:ro", "--volume", f"{first_start}:/etc/seatrial/stop-at"),
            *(_IMAGE, "/sbin/init"),
        )

    def runs(self, name: str) -> bool:
        """Whether a machine is up."""
        return _podman("inspect", "-f", "{{.State.Running}}", f"{_TAG}-{name}").strip() == "true"

    def told(self, name: str) -> str:
        """What a machine has said so far; for who reads that a test has failed."""
        return self.on(name, "tail", "-n", "20", "/var/log/cloud-init-output.log").stdout


@contextlib.contextmanager
def started(cluster: Applied, folder: Path) -> Iterator[Machines]:
    """Start the machines of what is applied, a launcher and two workers; they end with the block."""
    image = _built()
    network = {"public": f"{_TAG}-public", "private": f"{_TAG}-private", "out": f"{_TAG}-out"}
    instances = {_name_of(values): values for values in resources(cluster.values, "aws_instance").values()}
    public_ip = cluster.outputs["head_address"]
    begin_launcher = (
        f"ip addr add {public_ip}/32 dev lo;"
        # On EC2 it has one interface with this address; here it has one more in the private network.
        " ip route replace 10.77.1.0/24 dev \"$(ip -o -4 addr | awk '/10.77.1.2/ { print $2 }')\" src 10.77.0.10"
    )
    shared = folder / "shared"
    shared.mkdir()
    with contextlib.ExitStack() as stack:
        for kind, words in {
            "public": ["--internal", "--subnet", "10.77.0.0/24"],
            "private": ["--internal", "--subnet", "10.77.1.0/24"],
            "out": [],
        }.items():
            stack.callback(_podman_quietly, "network", "rm", "-f", network[kind])
            _podman("network", "create", *words, network[kind])
        consoles: list[str] = []
        for name, instance in instances.items():
            seed = folder / "seeds" / name
            seed.mkdir(parents=True)
            (seed / "user-data").write_text(user_data(instance))
            (seed / "meta-data").write_text(f"instance-id: {instance['id']}\n")
            (seed / "console").touch()
            consoles += ["--volume", f"{seed}/console:/consoles/{instance['id']}:ro"]
            where = {
                "launcher": [
                    *("--network", f"{network['public']}:ip=10.77.0.10"),
                    *("--network", f"{network['private']}:ip=10.77.1.2", "--network", network["out"]),
                    *("--sysctl", "net.ipv4.ip_forward=1"),
                ]
            }.get(name, ["--network", f"{network['private']}:ip={cluster.outputs['private_ips'][name]}"])
            begin = begin_launcher if name == "launcher" else "ip route replace default via 10.77.1.2"
            stack.callback(_podman_quietly, "rm", "-f", "-t", "0", f"{_TAG}-{name}")
            _podman(
                *("run", "-d", "--name", f"{_TAG}-{name}", "--hostname", name, "--systemd=always"),
                *("--cap-add", "NET_ADMIN", "--shm-size", "1g", *where, *_pip_volumes(folder)),
                *("--volume", f"{seed}:/var/lib/cloud/seed/nocloud:ro", "--volume", f"{seed}/console:/dev/console"),
                *("--volume", f"{shared}:/shared", image, "sh", "-c", f"{begin}; exec /sbin/init"),
            )
        (cluster.folder / "connect.sh").write_text(cluster.outputs["connect"])
        stack.callback(_podman_quietly, "rm", "-f", "-t", "0", f"{_TAG}-you")
        _podman(
            *("run", "-d", "--name", f"{_TAG}-you", "--network", network["public"], "--cap-add", "NET_ADMIN"),
            *(
                "--volume",
                f"{cluster.folder.parents[2]}:/clone",
                "--volume",
                f"{_HERE}/aws_double:/usr/local/bin/aws:ro",
            ),
            *(word for each in _SOURCE for word in ("--volume", f"{ROOT / each}:/clone/{each}:ro")),
            *(*consoles, image, "sh", "-c", f"ip route add {public_ip} via 10.77.0.10; exec sleep 1200"),
        )
        yield Machines(folder=folder, _stack=stack)


_SOURCE = ("LICENSE", "README.md", "constraints.txt", "pyproject.toml", "requirements", "src")


def _name_of(instance: dict[str, object]) -> str:
    found = re.search(r"^hostname: (\S+)$", user_data(instance), re.MULTILINE)
    assert found
    return found[1]


def _built() -> str:
    base = os.environ.get("SEATRIAL_TEST_BASE_IMAGE")
    if base is None:
        pytest.skip("SEATRIAL_TEST_BASE_IMAGE names no image")
    if os.geteuid() != 0:
        pytest.skip("needs root: the machines have networks and systemd of their own")
    words = ["-f", str(_HERE / "machine.Dockerfile"), "--build-arg", f"BASE_IMAGE={base}", "-t", _IMAGE, str(_HERE)]
    _podman("build", "--pull-never", "-q", *words, timeout_s=160)
    return _IMAGE


def _pip_volumes(folder: Path) -> list[str]:
    """What pip needs of this machine, as options of podman."""
    values = _pip_config()
    words = " ".join(values.values()).split()
    indexes = [Path(word.removeprefix("file://")).parent for word in words if word.startswith("file://")]
    seen = {path: path for path in (*indexes, *map(Path, words)) if path.is_absolute() and path.exists()}
    if "cert" in values:
        seen[Path(values["cert"])] = Path("/etc/pip-cert.pem")
        values["cert"] = "/etc/pip-cert.pem"
    file = folder / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
    seen[file] = Path("/etc/pip.conf")
    return [f"--volume={path}:{place}:ro" for path, place in sorted(seen.items())]


def _podman(*words: str, timeout_s: float = 50.0) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _podman_quietly(*words: str) -> None:
    subprocess.run(["podman", *words], capture_output=True, timeout=50, check=False)
