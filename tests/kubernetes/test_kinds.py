"""A kind of workload is one file: no other file names it, and a new one needs no other."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.workloads import workload

import seatrial
from seatrial.targets.kubernetes import kinds
from seatrial.targets.kubernetes.kind import Kind
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.manifest.render import manifest

_PACKAGE = Path(seatrial.__file__).parent
_KINDS = Path(kinds.__file__).parent
_OF_KUBERNETES = re.compile(r"(?:[a-z]+|[a-z.]+\.k8s\.io)(?<!\.x-k8s\.io)")
"""The API groups that come with Kubernetes itself."""
_MAY_NAME_KINDS = {
    "environment/identity.py": "reads on a node which launcher has started it, by the variables that the operators set",
}

# As somebody would add it who has read the other files. Its workload is called Job, like Kubernetes' own.
_TOY = '''
"""``--on volcanojob``: batch.volcano.sh/v1alpha1."""

from seatrial.targets.kubernetes.kind import Kind, Operator
from seatrial.targets.kubernetes.manifest.nodes import node_template
from seatrial.targets.kubernetes.manifest.objects import metadata
from seatrial.targets.option import Option


def _render(workload):
    template = node_template(workload, container="seatrial", number="VC_TASK_INDEX")
    spec = {
        "queue": workload.kind_options["queue"],
        "minAvailable": workload.nodes,
        "tasks": [{"name": "node", "replicas": workload.nodes, "template": template}],
    }
    return [{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata(workload), "spec": spec}]


KIND = Kind(
    name="volcanojob",
    order=60,
    help="a Job of Volcano",
    operator=Operator(release="Volcano 1.8 or newer", api_kinds=("Job",), instead="--on job, which needs none"),
    index_label="volcano.sh/task-index",
    render=_render,
    longest_name=lambda workload: f"{workload.run}-node-{workload.nodes - 1}",
    restart_label="example.com/restart",
    options=(Option(flags=("--queue",), name="queue", help="The queue of Volcano.", default="default"),),
)
'''

_USES = """
import json, sys
from seatrial.targets.kubernetes.manifest.validation import validate_workload
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.pods import first_pod, pods_of
from seatrial.targets.kubernetes.kubectl import CallResult, Kubectl
from seatrial.targets.kubernetes.refusals import refusal
from seatrial.errors import RequestError
from seatrial.targets.kubernetes.manifest.workload import Workload
from seatrial.bundle import write_bundle
from pathlib import Path

items = [
    {"metadata": {"name": f"v-node-{number}", "labels": {"volcano.sh/task-index": str(number)}}} for number in (1, 0)
]
pods = pods_of({"items": items}, KINDS["volcanojob"])
one = Workload(
    run="v", namespace=None, image="i", nodes=1, nproc_per_node=1, arguments=("run",), token="t", max_restarts=1
)
try:
    validate_workload("job", one)
except RequestError as error:
    told = str(error)
kubectl = Kubectl(program="kubectl", namespace=None)
validate_workload("volcanojob", one)
write_bundle(Path(sys.argv[1]))
print(json.dumps({
    "refused": [
        str(refusal("volcanojob", kubectl, CallResult(code=1, out="", err=line)))
        for line in sys.stdin.read().splitlines()
    ],
    "numbers": {pod.name: pod.number for pod in pods},
    "first": first_pod(pods, nodes=2, under_mpi=False).name,
    "restarts": told,
}))
"""


class Copy:
    """A copy of the package, with one more file in it, and its bundle."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        shutil.copytree(_PACKAGE, self.source / "seatrial", ignore=shutil.ignore_patterns("__pycache__"))
        (self.source / "seatrial" / _KINDS.relative_to(_PACKAGE) / "volcanojob.py").write_text(_TOY)
        self.folder = folder
        self.bundle = folder / "seatrial.pyz"
        self._environ = {**os.environ, "PYTHONPATH": str(self.source), "COLUMNS": "200"}

    def python(self, *words: str, feed: str = "") -> str:
        """What it prints, from the copy."""
        return self._run([sys.executable, *words], self._environ, feed)

    def pyz(self, *words: str) -> str:
        """What the bundle prints, which finds nothing but itself."""
        return self._run([sys.executable, str(self.bundle), *words], {**self._environ, "PYTHONPATH": ""}, "")

    def _run(self, argv: Sequence[str], environ: dict[str, str], feed: str) -> str:
        place: dict[str, Any] = {"env": environ, "cwd": self.folder}
        done = subprocess.run(argv, input=feed, capture_output=True, text=True, check=False, **place)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def used(copy: Copy) -> dict[str, Any]:
    """What its functions make of the toy, after the bundle was written."""
    missing = 'no matches for kind "Job" in version "batch.volcano.sh/v1alpha1"'
    lines = [f'error: unable to recognize "STDIN": {missing}', 'error: the server doesn\'t have a resource type "jobs"']
    found: dict[str, Any] = json.loads(copy.python("-c", _USES, str(copy.bundle), feed="\n".join(lines)))
    return found


_DRY_RUN = ("run", "smoke", "--on=volcanojob", "--queue=ml", "--nodes=2", "--gpu-resource=none", "--image=example/t:1")
_WITHOUT_BUNDLE = ("--image-has-seatrial", "--dry-run")


def test_a_new_kind_is_rendered_with_its_own_option(copy: Copy, used: dict[str, Any]) -> None:
    for printed in (
        copy.python("-m", "seatrial", *_DRY_RUN, *_WITHOUT_BUNDLE),
        copy.pyz(*_DRY_RUN, *_WITHOUT_BUNDLE),
    ):
        *_, made = yaml.safe_load_all(printed)
        assert (made["apiVersion"], made["kind"]) == ("batch.volcano.sh/v1alpha1", "Job")
        assert made["spec"]["queue"] == "ml"
        (task,) = made["spec"]["tasks"]
        (container,) = task["template"]["spec"]["containers"]
        assert "SEATRIAL_NODE_RANK=$(VC_TASK_INDEX)" in container["command"]
        assert not any("queue" in word for word in container["command"])


def test_a_new_kind_is_in_help(copy: Copy, used: dict[str, Any]) -> None:
    for start in (partial(copy.python, "-m", "seatrial"), copy.pyz):
        targets = " ".join(start("run", "--help").split())
        assert "volcanojob a Job of Volcano" in targets
        options = " ".join(start("run", "--on", "volcanojob", "--help").split())
        assert "--queue" in options
        assert "The queue of Volcano." in options


def test_a_missing_operator_of_a_new_kind_is_named(used: dict[str, Any]) -> None:
    assert (
        used["refused"]
        == [
            "--on volcanojob: this cluster has no Job; install Volcano 1.8 or newer, or use --on job, which needs none."
        ]
        * 2
    )


def test_pods_of_a_new_kind_are_numbered_by_its_label(used: dict[str, Any]) -> None:
    assert used["numbers"] == {"v-node-0": 0, "v-node-1": 1}
    assert used["first"] == "v-node-0"


def test_a_new_kind_with_restarts_is_suggested(used: dict[str, Any]) -> None:
    assert used["restarts"].endswith("use --on jobset or --on volcanojob.")


def test_a_kind_requires_an_operator_and_a_label() -> None:
    needed = {each.name for each in dataclasses.fields(Kind) if each.default is each.default_factory}
    assert needed == {"name", "order", "help", "operator", "index_label", "render", "longest_name"}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_in_the_file_of_its_name(name: str) -> None:
    assert KINDS[name].name == name
    assert (_KINDS / f"{name}.py").is_file()


def test_kinds_are_shown_in_their_order() -> None:
    orders = [kind.order for kind in KINDS.values()]
    assert orders == sorted(set(orders))


@pytest.mark.parametrize("name", KINDS)
def test_kinds_outside_kubernetes_name_their_operator(name: str) -> None:
    objects = manifest(name, workload(bundle=None))
    groups = {thing["kind"]: thing["apiVersion"].rpartition("/")[0] for thing in objects}
    foreign = {kind for kind, group in groups.items() if group and not _OF_KUBERNETES.fullmatch(group)}
    operator = KINDS[name].operator
    assert foreign == set(operator.api_kinds if operator else ())
    if operator:
        assert operator.api_kinds[0] == objects[-1]["kind"]


def _namings(text: str, path: str) -> list[str]:
    """The lines that name a kind. ``job`` is a word of everybody's, so it counts where a value is compared with it."""
    names = [name for name in KINDS if name != "job"]
    pattern = re.compile("|".join(names) + r"|--on job\b", re.IGNORECASE)
    lines = [line.strip() for line in text.splitlines() if pattern.search(line)]
    for node in ast.walk(ast.parse(text)) if path.endswith(".py") else ():
        parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        parts += [
            element for part in parts if isinstance(part, ast.Tuple | ast.List | ast.Set) for element in part.elts
        ]
        lines += [ast.unparse(node) for part in parts if isinstance(part, ast.Constant) and part.value == "job"]
    return lines


def test_no_other_file_names_a_kind() -> None:
    texts = {
        path.relative_to(_PACKAGE).as_posix(): path.read_text(errors="replace")
        for path in _PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.parent != _KINDS
    }
    found = {path: lines for path, text in texts.items() if (lines := _namings(text, path))}
    assert not {path: lines for path, lines in found.items() if path not in _MAY_NAME_KINDS}
    assert set(found) == set(_MAY_NAME_KINDS)


@pytest.mark.parametrize(
    "line",
    ['if target == "job":', 'if target in ("job", "other"):', "# Of a TrainJob.", 'raise ValueError("use --on job")'],
)
def test_a_line_that_names_a_kind_is_found(line: str) -> None:
    assert _namings(line if line.startswith("#") else line + "\n    pass" * line.endswith(":"), "a.py")
