"""The rules of the house that no tool knows."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from seatrial.launch.bundle import travels

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "seatrial"
MAX_LINES = 400


def _files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _travelling() -> list[Path]:
    files = [path for path in _files("src") if travels(PurePosixPath(path.relative_to(SOURCE).as_posix()))]
    assert SOURCE / "plan" / "reader.py" in files
    assert SOURCE / "cli" / "run.py" not in files
    return files


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_file_is_too_long() -> None:
    files = _files("src", "tests", "tools", "bench", "deploy")
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert lengths["tests/test_house.py"] > 0
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


@pytest.mark.parametrize("path", _travelling(), ids=_name)
def test_what_travels_is_python_3_10_and_brings_nothing_along(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    # The last one is optional: it stands behind one module and may be absent.
    allowed = {*sys.stdlib_module_names, "seatrial", "torch", "mpi4py"}
    assert [name for name in _imports(tree) if name.split(".")[0] not in allowed] == []


def test_the_controller_never_loads_torch() -> None:
    modules = [_name(path) for path in _files("src") if path.stem != "__main__"]
    ranks = ("seatrial.worker.", "seatrial.training.", "seatrial.mpi")
    controller = [name for name in modules if not name.startswith(ranks)]
    assert "seatrial.plan.reader" in controller
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, *controller]
    assert subprocess.check_output(command, text=True) == "False\n"


def test_what_others_import_is_listed() -> None:
    """``__all__`` names things that exist, and all that other modules take from it."""
    trees = {_name(path): ast.parse(path.read_text()) for path in _files("src")}
    listed = {module: names for module, tree in trees.items() if (names := _listed(tree)) is not None}
    assert len(listed) > 5
    missing = [
        f"{user}: from {node.module} import {alias.name}"
        for user, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in listed
        for alias in node.names
        if alias.name not in listed[node.module] and f"{node.module}.{alias.name}" not in trees
    ]
    assert not missing, "\n".join(missing)
    unknown = [f"{module}.{name}" for module, names in listed.items() for name in names - _defined(trees[module])]
    assert not unknown, "\n".join(unknown)


def _listed(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and target.id == "__all__":
            assert node.value is not None
            return set(ast.literal_eval(node.value))
    return None


def _defined(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            stored = (name for target in targets for name in ast.walk(target))
            names.update(name.id for name in stored if isinstance(name, ast.Name))
    return names
