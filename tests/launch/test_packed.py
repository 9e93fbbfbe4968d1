"""Modules out of one stream: what the import system, pkgutil and runpy ask of them."""

from __future__ import annotations

import bz2
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.launch.bundle import contents
from seatrial.packed import install

# What one of ours imports must be in the bundle, the standard library or torch. What torch imports is its own affair.
IMPORT_ALL = """
import importlib, sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {*sys.stdlib_module_names, "seatrial", "torch"}:
            return None
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        if frame.f_globals.get("__name__", "").partition(".")[0] == "seatrial":
            raise AssertionError(f"{frame.f_globals['__name__']} imports {name}")

sys.meta_path.insert(0, Refuses())
sys.path.insert(0, sys.argv[1])
import seatrial
assert seatrial.__file__.startswith(sys.argv[1]), seatrial.__file__
torch_is_loaded = []
for name in sys.argv[2:]:
    importlib.import_module(name)
    if "torch" in sys.modules:
        torch_is_loaded.append(name)
strange = [name for name, module in sys.modules.items() if name.startswith("seatrial")
           and not module.__file__.startswith(sys.argv[1])]
assert strange == [], strange
print(*torch_is_loaded)
"""


def modules() -> list[str]:
    """All of the bundle, those of training last: the first of them loads torch, and what torch brings along."""
    paths = [path[:-3].split("/") for path in contents() if path.endswith(".py")]
    names = [".".join(["seatrial", *(parts[:-1] if parts[-1] == "__init__" else parts)]) for parts in paths]
    return sorted(names, key=lambda name: (name.startswith("seatrial.training"), name))


@pytest.mark.slow
def test_every_module_of_the_bundle_needs_torch_and_the_standard_library_only(pyz: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", IMPORT_ALL, str(pyz), *modules()]
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(), "nothing loaded torch, so its import was never tried"
    assert all(name.startswith("seatrial.training") for name in done.stdout.split())


def test_the_guard_of_the_test_above_sees_what_is_not_allowed(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "click.py").touch()
    guilty = tmp_path / "guilty" / "seatrial"
    guilty.mkdir(parents=True)
    (guilty / "__init__.py").write_text("import click\n")
    command = [sys.executable, "-c", IMPORT_ALL, str(guilty.parent), "seatrial"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=55, check=False)
    assert "AssertionError: seatrial imports click" in done.stderr


@pytest.fixture
def package(tmp_path: Path) -> Iterator[str]:
    """A package in a stream; its name."""
    files = {
        "sub/__init__.py": b"WHERE = __file__\n",
        "sub/deep.py": b"def fail():\n    raise KeyError('x')\n",
        "alone.py": b"import sys\nif __name__ == '__main__': print('as a program', sys.argv)\n",
        "sub/data.bin": b"\x00as it is",
    }
    *texts, raw = files.values()
    index = json.dumps([[name, len(content)] for name, content in files.items()]).encode()
    root = tmp_path / "packed_in_a_test"
    root.mkdir()
    (root / "__init__.py").touch()
    hooks = list(sys.path_hooks)
    sys.path.insert(0, str(tmp_path))
    install(str(root), bz2.compress(b"\n" + index + b"\n" + b"".join(texts)) + raw)
    yield root.name
    sys.path.remove(str(tmp_path))
    sys.path_hooks[:] = hooks
    sys.path_importer_cache.clear()
    for name in [name for name in sys.modules if name.startswith(root.name)]:
        del sys.modules[name]


def test_modules_and_packages_are_found_and_no_others(package: str) -> None:
    sub = importlib.import_module(f"{package}.sub")
    assert sub.WHERE.endswith(f"{package}/sub/__init__.py")
    assert [module.name for module in pkgutil.iter_modules(sub.__path__)] == ["deep"]
    top = importlib.import_module(package)
    assert {(module.name, module.ispkg) for module in pkgutil.iter_modules(top.__path__)} == {
        ("sub", True),
        ("alone", False),
    }
    for name in ("nothing", "sub.nothing", "alone.nothing", "data"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"{package}.{name}")
    assert importlib.util.find_spec(f"{package}.nothing") is None


def test_data_is_read_by_pkgutil_and_what_is_not_there_is_an_error(package: str) -> None:
    assert pkgutil.get_data(f"{package}.sub", "data.bin") == b"\x00as it is"
    with pytest.raises(FileNotFoundError):
        pkgutil.get_data(f"{package}.sub", "nothing.bin")


def test_a_traceback_shows_the_line(package: str) -> None:
    import traceback

    deep = importlib.import_module(f"{package}.sub.deep")
    with pytest.raises(KeyError) as caught:
        deep.fail()
    told = "".join(traceback.format_exception(caught.value))
    assert f"{package}/sub/deep.py\", line 2, in fail\n    raise KeyError('x')" in told
