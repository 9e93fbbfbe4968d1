"""The command of each pod, with the variables of the operators, really run on this machine: two pods.

No cluster, no images and no names of pods: `localhost` stands in for the name of the first pod.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from kubernetes.double.volumes import contents_of
from kubernetes.operators import INJECTED, started
from kubernetes.runs import SUM
from kubernetes.workloads import container_of, templates, workload, workload_object

from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.workload import CODE, COPY, HOME, Object

pytestmark = pytest.mark.slow
_SECRET = uuid.uuid4().hex


def _containers(kind: str, arguments: tuple[str, ...], nproc_per_node: int, pyz: Path, code: Path) -> list[Object]:
    """Of the two pods. ``code``: the folder that gets what the ConfigMaps hold."""
    name = f"t{uuid.uuid4().hex[:12]}"
    objects = manifest(
        kind,
        workload(
            run=name,
            gpu_resource=None,
            gpus_per_node=0,
            nproc_per_node=nproc_per_node,
            arguments=arguments,
            token=_SECRET,
            deadline_s=60.0,
            bundle=pyz.read_bytes(),
        ),
    )
    code.mkdir()
    for thing in objects:
        if thing["kind"] == "ConfigMap":
            for name, content in contents_of(thing).items():
                (code / name).write_bytes(content)
    things = objects[-2:] if kind == "trainjob" else [workload_object(objects)]
    found = [container_of(pod) for thing in things for pod in templates(thing)]
    return found if len(found) == 2 else found * 2


class Pods:
    """Two pods: processes of this machine."""

    def __init__(
        self, kind: str, arguments: tuple[str, ...], folder: Path, pyz: Path, *, without: str = "", ranks: int = 2
    ) -> None:
        self.processes = []
        for number, container in enumerate(_containers(kind, arguments, ranks, pyz, folder / "code")):
            added = INJECTED[kind](number, 2, ranks)
            if number == 1:
                added.pop(without, None)
            command, environ = started(container, added, {"token": _SECRET})
            home = folder / f"home{number}"
            home.mkdir()
            here = {"MASTER_ADDR": "localhost"} if "MASTER_ADDR" in environ else {}
            environ = {
                **{name: os.environ[name] for name in ("PATH", "SEATRIAL_TEST_RUN") if name in os.environ},
                **{name: value.replace(HOME, str(home)) for name, value in environ.items()},
                **here,
                "SEATRIAL_JOIN_TIMEOUT_S": "20",
            }
            words = [
                word.replace(CODE, str(folder / "code")).replace(COPY, str(home / "copy"))
                if word != "python3"
                else sys.executable
                for word in command
            ]
            words = ["MASTER_ADDR=localhost" if word.startswith("MASTER_ADDR=") else word for word in words]
            self.processes.append(
                subprocess.Popen(
                    words, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )

    def ends(self) -> list[tuple[int, str]]:
        """(exit code, output) of each."""
        found = []
        try:
            for process in self.processes:
                output, _ = process.communicate(timeout=50)
                found.append((process.returncode, output))
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
        return found


@pytest.mark.parametrize("kind", INJECTED)
def test_a_trial_passes(kind: str, tmp_path: Path, pyz: Path) -> None:
    typed = ("run", "--device=cpu", "--nproc-per-node=2", "--only=inventory,collectives", "--", "smoke")
    (first, output), (second, other) = Pods(kind, typed, tmp_path, pyz).ends()
    assert (first, second) == (0, 0), output + other
    assert "FINAL ACCEPTANCE: PASS" in output
    assert "4 processes as seatrial started them" in output
    assert "FINAL ACCEPTANCE" not in other


@pytest.mark.parametrize(
    ("kind", "variable", "word"),
    [
        ("job", "JOB_COMPLETION_INDEX", "SEATRIAL_NODE_RANK"),
        ("jobset", "JOB_COMPLETION_INDEX", "SEATRIAL_NODE_RANK"),
        ("pytorchjob", "RANK", "SEATRIAL_NODE_RANK"),
        ("pytorchjob", "MASTER_ADDR", "MASTER_ADDR"),
        ("trainjob", "PET_NODE_RANK", "SEATRIAL_NODE_RANK"),
        ("trainjob", "PET_MASTER_PORT", "MASTER_PORT"),
    ],
)
def test_a_missing_variable_of_the_operator_is_named(
    kind: str, variable: str, word: str, tmp_path: Path, pyz: Path
) -> None:
    typed = ("run", "--device=cpu", "--nproc-per-node=2", "--only=inventory", "--deadline=10", "--", "smoke")
    pods = Pods(kind, typed, tmp_path, pyz, without=variable)
    pods.processes[0].terminate()
    _, (code, output) = pods.ends()
    assert code == 2
    assert word in output


@pytest.mark.parametrize("init", ["env", "tcp", "file"])
def test_a_training_uses_the_given_rendezvous(init: str, tmp_path: Path, pyz: Path) -> None:
    from seatrial.util.ports import free_port

    where = {"env": "env", "tcp": f"tcp://localhost:{free_port()}", "file": f"file://{tmp_path}/meet"}[init]
    typed = (
        "train",
        "--device=cpu",
        "--nproc-per-node=1",
        "--max-steps=3",
        f"--init={where}",
        "--timeout=40",
        "--",
        "digits",
    )
    (first, output), (second, other) = Pods("pytorchjob", typed, tmp_path, pyz, ranks=1).ends()
    assert (first, second) == (0, 0), output + other


def test_a_script_is_launched(tmp_path: Path, pyz: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{SUM}dist.destroy_process_group()\n")
    typed = ("launch", "--device=cpu", "--nproc-per-node=1", "--", str(script))
    (first, output), (second, other) = Pods("job", typed, tmp_path, pyz, ranks=1).ends()
    assert (first, second) == (0, 0), output + other
    assert "nodes 11" in output
