"""Containers made of namespaces of this machine, in which the double of a cluster runs pods, as root.

Each pod has a network of its own, each container its processes, host name, mounts and a root that is this machine's,
read-only under a layer of its own: there are no images. LimitRow as in a cluster: addresses and names, user, groups,
capabilities, no escalation, read-only root, volumes, signals to process 1, /dev/shm of 64 MiB. Not held: seccomp,
limits of CPU and memory.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from pathlib import Path

from kubernetes.double.networks import Networks
from kubernetes.double.sandbox import PATH, Container, programs

_IMAGE_USER = 10001
"""As in our images; it has a line in /etc/passwd."""
_HOME = "/home/seatrial"


class HostsSandbox:
    """Namespaces of this machine."""

    image_uid = _IMAGE_USER

    def __init__(self, networks: Networks, python: str, packages: Path) -> None:
        """``packages``: where torch is, for that Python."""
        self._networks, self._python, self._packages = networks, python, packages

    def start(self, container: Container) -> subprocess.Popen[bytes]:
        root = container.scratch / "root"
        root.mkdir(exist_ok=True)
        script = container.scratch / "enter.sh"
        script.write_text(self._script(container, root))
        user = _IMAGE_USER if container.uid is None else container.uid
        group = container.gid if container.gid is not None else 0
        drop = ["setpriv", "--reuid", str(user), "--regid", str(group)]
        drop += ["--groups", ",".join(map(str, container.groups))] if container.groups else ["--clear-groups"]
        drop += ["--bounding-set=-all", "--inh-caps=-all"] if container.drops_capabilities else []
        drop += [] if container.may_escalate else ["--no-new-privs"]
        words = [*drop, "--", "env", "-C", container.folder, "--", *container.command]
        enter = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self._networks.file(container.pod)}"]
        # Process 1 is the first child of a shell, since what `unshare --fork` makes of a signal is lost (2.38).
        enter += ["unshare", "--mount", "--uts", "--ipc", "--pid", "sh", "-c", 'sh "$0" "$@"; exit $?', str(script)]
        return subprocess.Popen(
            [*enter, str(root), *words],
            env=self._environ(container),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    @staticmethod
    def _environ(container: Container) -> dict[str, str]:
        return {"PATH": PATH, **container.environ}

    def _script(self, container: Container, root: Path) -> str:
        """What root does in the new namespaces before it gives its rights away; in the order of mounting."""
        skeleton, new = f"{root}/skeleton", f"{root}/new"
        targets = sorted(container.mounts, key=lambda mount: mount.target.count("/"))
        folders = [f"{skeleton}{mount.target}" for mount in targets] + [f"{skeleton}{container.folder}"]
        folders += [f"{skeleton}/{path}" for path in ("double/bin", "double/packages", "etc")]
        folders += [f"{root}/up", f"{root}/work"]
        upper = "" if container.read_only_root else f",upperdir={root}/up,workdir={root}/work"
        lines = [
            "set -e",
            "root=$1; shift",
            'mount -t tmpfs tmpfs "$root"',
            shlex.join(["mkdir", "-p", new, *folders]),
            *(_written(f"{skeleton}/{path}", text) for path, text in self._files(container).items()),
            f"chmod 755 {shlex.quote(skeleton)}/double/bin/*",
            shlex.join(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={skeleton}:/{upper}", new]),
            f"mount --rbind /dev {shlex.quote(new)}/dev",
            f"mount -t tmpfs -o size=64m,mode=1777 tmpfs {shlex.quote(new)}/dev/shm",
            f"mount -t proc proc {shlex.quote(new)}/proc",
            f"mount --rbind /sys {shlex.quote(new)}/sys",
        ]
        binds = []
        for mount in targets:
            if mount.memory_bytes is None:
                binds.append((str(mount.source), mount.target, mount.read_only))
            else:
                size = f"size={mount.memory_bytes},mode=1777"
                lines.append(shlex.join(["mount", "-t", "tmpfs", "-o", size, "tmpfs", f"{new}{mount.target}"]))
        binds += [(str(self._packages), "/double/packages", True), (str(container.hosts_file), "/etc/hosts", False)]
        for source, target, read_only in binds:
            lines.append(shlex.join(["mount", "--bind", source, f"{new}{target}"]))
            if read_only:
                lines.append(shlex.join(["mount", "-o", "remount,bind,ro", f"{new}{target}"]))
        lines.append(shlex.join(["hostname", container.hostname]))
        lines.append(f'exec chroot {shlex.quote(new)} "$@"')
        return "\n".join(lines) + "\n"

    def _files(self, container: Container) -> dict[str, str]:
        """What an image has."""
        return {
            **{f"double/bin/{name}": text for name, text in programs(self._python).items()},
            "etc/hostname": f"{container.hostname}\n",
            "etc/resolv.conf": container.resolv_conf,
            "etc/passwd": f"root:x:0:0::/root:/bin/sh\nseatrial:x:{_IMAGE_USER}:0::{_HOME}:/bin/bash\n"
            "sshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n",
            "etc/group": "root:x:0:\nnogroup:x:65534:\n",
        }

    def terminate(self, process: subprocess.Popen[bytes]) -> None:
        _signal_first(process, signal.SIGTERM)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        # With process 1 of the container go all others.
        if not _signal_first(process, signal.SIGKILL):
            process.kill()

    def was_out_of_memory(self, process: subprocess.Popen[bytes]) -> bool:
        return False

    def end(self) -> None:
        """All namespaces went with their processes."""


def _signal_first(process: subprocess.Popen[bytes], number: int) -> bool:
    """To process 1 of a container. False where there is none."""
    children: list[str] = []
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), number)
    return bool(children)


def _written(path: str, text: str) -> str:
    return f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"
