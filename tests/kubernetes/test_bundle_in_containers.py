"""The start script of a container, really run: it joins the parts of the bundle and compares the digest."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kubernetes.double.volumes import contents_of
from kubernetes.workloads import container_of, templates, workload, workload_object

from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.workload import CODE, COPY, Object
from seatrial.targets.kubernetes.ssh_key import new_ssh_key


def bundle_double() -> bytes:
    """Return a zip of three parts that prints its arguments."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("filling", os.urandom(400_000))
        archive.writestr("__main__.py", "import sys; print(*sys.argv)")
    return written.getvalue()


class Containers:
    """The containers of a kind as processes, with folders in place of their mounted volumes."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.bundle = bundle_double()
        self.key = new_ssh_key(kind) if kind == "mpijob" else ""
        files = {"plan.json": b'{"checks": []}'}
        made = workload(bundle=self.bundle, files=files, python=sys.executable, arguments=("run", "$x"))
        self.objects = manifest(kind, made)
        self.code, self.copy = folder / "code", folder / "copy"
        self.code.mkdir()
        for thing in self.objects:
            if thing["kind"] == "ConfigMap":
                for name, content in contents_of(thing).items():
                    (self.code / name).write_bytes(content)
        # A stub of sshd says that it was started.
        (folder / "sshd").write_text("#!/bin/sh\necho sshd runs\n")
        (folder / "sshd").chmod(0o755)
        self.places = {
            CODE: str(self.code),
            COPY: str(self.copy),
            "/usr/sbin/sshd": str(folder / "sshd"),
            **{f"/tmp/{name}": str(folder / name) for name in ("known_hosts", "authorized_keys", "ssh_key")},
        }

    def run(self, component: str) -> subprocess.CompletedProcess[str]:
        """The command of the pods of that component, as the kubelet puts it together."""
        (container,) = (
            container_of(pod)
            for pod in templates(workload_object(self.objects))
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
        )
        words = [self._placed(word).replace("$$", "$") for word in container["command"]]
        environ = {**os.environ, "SEATRIAL_SSH_KEY": self.key}
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False, env=environ)

    def _placed(self, word: str) -> str:
        for before, after in self.places.items():
            word = word.replace(before, after)
        return word


def changed(containers: Containers) -> None:
    part = containers.code / "seatrial.pyz.2"
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes(content)


def swapped(containers: Containers) -> None:
    first, second = (containers.code / f"seatrial.pyz.{number}" for number in (2, 3))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def opened(containers: Containers) -> None:
    containers.copy.mkdir()
    containers.copy.chmod(0o777)


def exchanged(containers: Containers) -> None:
    """A neighbor has deleted our ConfigMap and made his own of the same name."""
    script = containers.code / "start.py"
    script.write_text(f"print('stolen')\n{script.read_text()}")


def exchanged_on_the_way_to_sshd(containers: Containers) -> None:
    for name in ("plan.json", "sshd_config"):
        if (containers.code / name).exists():
            (containers.code / name).write_text("{}")


def missing(containers: Containers) -> None:
    (containers.code / "seatrial.pyz.3").unlink()


def test_a_pod_joins_the_parts_and_starts_them(tmp_path: Path) -> None:
    pods = Containers("job", tmp_path)
    assert len([thing for thing in pods.objects if thing["kind"] == "ConfigMap"]) == 3
    done = pods.run("node")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{pods.copy}/seatrial.pyz run $x\n")
    assert (pods.copy / "seatrial.pyz").read_bytes() == pods.bundle
    # What is read later is the copy that was compared, whatever becomes of the ConfigMap.
    assert (pods.copy / "plan.json").read_bytes() == b'{"checks": []}'
    assert pods.copy.stat().st_mode & 0o777 == 0o700


def test_a_worker_of_mpi_joins_the_parts_before_sshd_runs(tmp_path: Path) -> None:
    pods = Containers("mpijob", tmp_path)
    done = pods.run("node")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "sshd runs\n")
    assert (pods.copy / "seatrial.pyz").read_bytes() == pods.bundle
    launcher: Object = pods.objects[-1]["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
    assert container_of(launcher)["command"][-4:] == [sys.executable, f"{COPY}/seatrial.pyz", "run", "$$x"]


@pytest.mark.parametrize("kind", ["job", "mpijob"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (changed, "they are not those of this manifest: somebody has changed a ConfigMap"),
        (swapped, "they are not those of this manifest"),
        (exchanged, "they are not those of this manifest"),
        (exchanged_on_the_way_to_sshd, "they are not those of this manifest"),
        (missing, "No such file or directory"),
        (opened, "only user"),
    ],
)
def test_what_is_not_the_bundle_starts_nothing(kind: str, spoil: object, words: str, tmp_path: Path) -> None:
    assert callable(spoil)
    pods = Containers(kind, tmp_path)
    spoil(pods)
    done = pods.run("node")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(("Error: the bundle ", "Error: this pod cannot start from the files in "))
    assert words in done.stderr
