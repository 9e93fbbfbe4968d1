"""The YAML under --patch in docs/kubernetes.md: each block, as a file, given to each kind that it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.schemas import find_schemas, problems
from kubernetes.workloads import templates, workload

from seatrial.errors import RequestError
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.manifest.parse import read_patch
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.validation import validate_workload

_PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
_PARTS = {"pod", "container", "workload", "runtime"}
_BLOCKS = [
    text
    for text in re.findall(r"^```yaml\n(.*?)^```$", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if set(yaml.safe_load(text)) <= _PARTS
]
_COMPONENT = "app.kubernetes.io/component"
_LAUNCHED: list[tuple[str, dict[str, Any]]] = [("mpijob", {}), ("trainjob", {"kind_options": {"runtime": "mpi"}})]
_KINDS = [*((kind, {}) for kind in KINDS if kind != "mpijob"), *_LAUNCHED]


def _differences(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which an object is not as the patch wants it. None: the key is not there."""
    if not isinstance(wanted, Mapping):
        if wanted != found:
            yield path
        return
    for key, value in wanted.items():
        yield from _differences(value, found.get(key) if isinstance(found, Mapping) else None, f"{path}.{key}")


def _without_claims(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = patch.get("spec", {})
    return {**patch, "spec": {key: value for key, value in spec.items() if key != "resourceClaims"}}


def _file(folder: Path, text: str) -> Path:
    file = folder / "patch.yaml"
    file.write_text(text, "utf-8")
    return file


def test_the_page_has_blocks() -> None:
    assert len(_BLOCKS) == 4
    assert {part for text in _BLOCKS for part in yaml.safe_load(text)} == _PARTS


@pytest.mark.parametrize("text", _BLOCKS, ids=range(len(_BLOCKS)))
@pytest.mark.parametrize(("kind", "changes"), _KINDS)
def test_a_block_reaches_what_it_names(kind: str, changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    patch = read_patch(_file(tmp_path, text))
    patched = workload(patch=patch, **changes)
    if patch.runtime and kind != "trainjob":
        with pytest.raises(RequestError, match=r"--patch: runtime is for --on trainjob"):
            validate_workload(kind, patched)
        return
    *others, main = manifest(kind, patched)
    assert list(_differences(patch.workload, main)) == []
    pods = list(templates([*others, main]))
    for pod in pods:
        if pod["metadata"]["labels"][_COMPONENT] == "node":
            assert list(_differences(patch.pod, pod)) == []
            assert list(_differences(patch.container, pod["spec"]["containers"][0])) == []
        else:
            assert list(_differences(_without_claims(patch.pod), pod)) == []
    assert any(pod["metadata"]["labels"][_COMPONENT] == "node" for pod in pods)
    for thing in others:
        if thing["kind"] == "TrainingRuntime":
            assert list(_differences(patch.runtime, thing)) == []
    if find_schemas() is not None:
        for thing in (*others, main):
            if thing["apiVersion"].count(".") and not thing["apiVersion"].startswith("networking.k8s.io"):
                assert problems(thing) == []


@pytest.mark.parametrize(("kind", "changes"), _LAUNCHED)
def test_a_launcher_claims_no_devices(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """A claim of a pod is allocated whether or not a container uses it: eight GPUs for mpirun."""
    (text,) = (text for text in _BLOCKS if "resourceClaims" in text)
    pods = list(templates(manifest(kind, workload(patch=read_patch(_file(tmp_path, text)), **changes))))
    (launcher,) = (pod for pod in pods if pod["metadata"]["labels"][_COMPONENT] == "launcher")
    assert "resourceClaims" not in launcher["spec"]
    assert launcher["spec"]["runtimeClassName"] == "nvidia"
