"""The images on a base with the oldest Python that is supported: they build, and what travels runs there.

SEATRIAL_TEST_BASE_IMAGE names a Debian image that podman has (tools/make_base_image.sh), SEATRIAL_TEST_PYTHON_310 an
installation of Python 3.10, which comes to where python:3.10 has its own, before that of Debian (default: pyenv's), and
SEATRIAL_TEST_TORCH_310 a folder of packages with torch for it.
"""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from images.containers import NO_RIGHTS, podman
from passes import passes

_ROOT = Path(__file__).parents[2]
_BASE = os.environ.get("SEATRIAL_TEST_BASE_IMAGE", "")
_PYENV = sorted(Path.home().glob(".pyenv/versions/3.10.*"))
_TORCH = os.environ.get("SEATRIAL_TEST_TORCH_310", "")
_PYTHON = os.environ.get("SEATRIAL_TEST_PYTHON_310") or (str(_PYENV[-1]) if _PYENV else "")
pytestmark = [
    pytest.mark.podman,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not _BASE, reason="SEATRIAL_TEST_BASE_IMAGE names no image (tools/make_base_image.sh makes it)"),
    pytest.mark.skipif(not _PYTHON, reason="SEATRIAL_TEST_PYTHON_310 names no installation of Python 3.10"),
]
_DOCKERFILE = r"""
ARG BASE
FROM ${BASE}
RUN cp -a /python/bin /python/lib /usr/local/ && rm -rf /usr/local/lib/python3.10/site-packages/* \
    && ldconfig && python3 -c 'import ctypes, ensurepip, ssl, venv'
"""
_ALONE = [*NO_RIGHTS, "--network", "none"]


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, _ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What the names of `worker` and `mpi` begin with; they are removed afterwards."""
    folder = tmp_path_factory.mktemp("python-310")
    pip = _tool("build_images").pip_volumes(folder / "pip.conf")
    name = f"localhost/trial-{uuid.uuid4().hex[:10]}"
    (folder / "Dockerfile").write_text(_DOCKERFILE)

    def build(target: str, *words: str) -> None:
        done = podman("build", "-q", "--pull-never", *words, "-t", f"{name}-{target}", str(_ROOT), timeout_s=400)
        assert done.code == 0, done.output[-3000:]

    # Not torch itself, which is gigabytes here; but all that it needs, in the versions for this Python.
    chosen = [f"--build-arg=BASE_IMAGE={name}-base", "--build-arg=TORCH=typing_extensions"]
    try:
        build("base", f"--volume={_PYTHON}:/python:ro", f"--build-arg=BASE={_BASE}", "-f", str(folder / "Dockerfile"))
        for target in ("worker", "mpi"):
            build(target, *pip, *chosen, f"--target={target}", "-f", "deploy/images/Dockerfile")
        yield name
    finally:
        podman("rmi", "-f", *(f"{name}-{target}" for target in ("mpi", "worker", "base")), timeout_s=60)


def test_the_program_runs_on_it_and_names_what_the_base_lacks(images: str) -> None:
    ended = podman("run", "--rm", *_ALONE, f"{images}-worker", "run", "smoke", timeout_s=60)
    assert ended.code == 2, ended.output
    assert "torch is not installed for /opt/trial-venv/bin/python (Python 3.10." in ended.output


def test_the_image_for_mpi_has_its_parts(images: str) -> None:
    script = "mpirun --version && python3 -c 'import mpi4py.MPI, sys; print(sys.version_info[:2])'"
    ended = podman("run", "--rm", *_ALONE, "--entrypoint", "sh", f"{images}-mpi", "-c", script, timeout_s=60)
    assert ended.code == 0, ended.output
    assert ended.output.endswith("(3, 10)\n"), ended.output


@pytest.mark.skipif(not _TORCH, reason="SEATRIAL_TEST_TORCH_310 names no folder with torch for Python 3.10")
def test_a_trial_passes_on_it(images: str) -> None:
    torch = [f"--volume={_TORCH}:/packages:ro", "--env=PYTHONPATH=/packages", "--shm-size=1g"]
    ended = podman("run", "--rm", *_ALONE, *torch, f"{images}-worker", "run", "smoke", timeout_s=200)
    assert ended.code == 0, ended.output
    assert passes(ended.output), ended.output
