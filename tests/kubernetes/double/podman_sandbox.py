"""Containers of podman, as root, in the networks of the double of a cluster: a container runtime enforces the limits.

All images are one: that which the double is given, with torch in it, or a Debian with our Python, into which torch is
mounted. LimitRow beyond what ``hosts_sandbox.py`` holds: limits of memory, seccomp as podman has it.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from kubernetes.double.networks import Networks
from kubernetes.double.sandbox import PACKAGES, PATH, Container, programs

_PYTHON = "/usr/bin/python3"
_SHM = "/dev/shm"
_CALL_S = 20.0


class PodmanSandbox:
    """One container of podman each."""

    image_uid = 0

    def __init__(self, tag: str, networks: Networks, image: str, packages: Path | None) -> None:
        """``tag``: all names of its containers begin so. ``packages``: where torch is; None: the image has it."""
        self._tag, self._networks, self._image, self._packages = tag, networks, image, packages
        self._names: dict[int, str] = {}
        """By the number of the process that stands for a container."""

    def start(self, container: Container) -> subprocess.Popen[bytes]:
        name = f"{self._tag}-{container.pod['metadata']['uid']}-{container.name}-{len(self._names)}"
        user = "" if container.uid is None else str(container.uid)
        group = f":{0 if container.gid is None else container.gid}" if user else ""
        words = ["podman", "run", "--name", name, "--label", f"double={self._tag}", "--pull", "never"]
        words += ["--network", f"ns:{self._networks.file(container.pod)}"]
        if not container.pod["spec"].get("hostNetwork"):
            words += ["--hostname", container.hostname]
        words += ["--user", f"{user}{group}"] if user else []
        words += [f"--group-add={number}" for number in container.groups]
        words += ["--cap-drop", "ALL"] if container.drops_capabilities else []
        words += [] if container.may_escalate else ["--security-opt", "no-new-privileges"]
        words += ["--read-only", "--read-only-tmpfs=false"] if container.read_only_root else []
        words += [] if container.memory_bytes is None else [f"--memory={container.memory_bytes}"]
        words += [f"--env={variable}={value}" for variable, value in container.environ.items()]
        words += ["--workdir", container.folder, *self._torch(container), *self._mounts(container)]
        words += ["--entrypoint", "", self._image, *container.command]
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._names[process.pid] = name
        return process

    def _torch(self, container: Container) -> list[str]:
        if self._packages is None:
            return []
        commands = container.scratch / "bin"
        commands.mkdir(exist_ok=True)
        for name, text in programs(_PYTHON).items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        volumes = [f"{commands}:/double/bin:ro", f"{self._packages}:{PACKAGES}:ro"]
        return [f"--env=PATH={PATH}", *(f"--volume={volume}" for volume in volumes)]

    @staticmethod
    def _mounts(container: Container) -> list[str]:
        resolv_conf = container.scratch / "resolv.conf"
        resolv_conf.write_text(container.resolv_conf)
        resolv_conf.chmod(0o644)
        words = [f"--volume={container.hosts_file}:/etc/hosts", f"--volume={resolv_conf}:/etc/resolv.conf:ro"]
        for mount in container.mounts:
            if mount.memory_bytes is None:
                words.append(f"--volume={mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}")
            elif mount.target == _SHM:
                words.append(f"--shm-size={mount.memory_bytes}")
            else:
                words.append(f"--tmpfs={mount.target}:size={mount.memory_bytes},mode=1777")
        return words

    def terminate(self, process: subprocess.Popen[bytes]) -> None:
        self._signal(process, "TERM")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        if not self._signal(process, "KILL"):
            process.kill()

    def _signal(self, process: subprocess.Popen[bytes], name: str) -> bool:
        return _podman("kill", "--signal", name, self._names[process.pid]).returncode == 0

    def was_out_of_memory(self, process: subprocess.Popen[bytes]) -> bool:
        told = _podman("inspect", "--format", "{{.State.OOMKilled}}", self._names[process.pid])
        return process.returncode == 137 and told.stdout.strip() == "true"

    def end(self) -> None:
        remove_containers(self._tag)


def remove_containers(tag: str) -> None:
    """All that a double with this tag has started."""
    with contextlib.suppress(FileNotFoundError):
        names = _podman("ps", "--all", "--quiet", "--filter", f"label=double={tag}").stdout.split()
        if names:
            _podman("rm", "--force", "--time", "0", *names)


def _podman(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *words], capture_output=True, text=True, check=False, timeout=_CALL_S)
