"""The choice of the MPI library, the errors without one, and its declared device support. No MPI is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from seatrial.errors import RequestError
from seatrial.mpi_backend import library
from seatrial.mpi_backend.library import device_aware, library_of_launcher


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_import_registers_and_a_missing_mpi4py_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text('raise ImportError("none here")')
    code = (
        "import sys, torch.distributed as dist, seatrial.mpi\n"
        "assert 'mpi4py' not in sys.modules and dist.Backend.SEATRIAL_MPI == seatrial.mpi.BACKEND == 'seatrial_mpi'\n"
        "assert seatrial.mpi.transport() == 'host memory'\n"
        "try: dist.init_process_group(seatrial.mpi.BACKEND, init_method='mpi://')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = python(code, PYTHONPATH=path)
    expected = "the MPI backend needs mpi4py (none here); install seatrial[mpi], or mpi4py and an MPI library."
    assert done.stdout == f"RequestError {expected}\n", done.stderr


def processes(folder: Path, *executables: str) -> Path:
    """A /proc with our ancestors: these programs, the nearest first."""
    pid = os.getppid()
    for number, executable in enumerate(executables):
        own = folder / "proc" / str(pid)
        own.mkdir(parents=True)
        pid = 100_000_000 + number
        (own / "stat").write_text(f"1 (a) b) S {pid} 0 0")
        (own / "exe").symlink_to(executable)
    return folder / "proc"


def test_the_library_next_to_our_launcher_is_found(tmp_path: Path) -> None:
    lib = tmp_path / "mpi" / "lib"
    lib.mkdir(parents=True)
    (lib / "libmpi.so.40").write_text("libmpi.so")  # a wheel's stand-in for a link
    (lib / "libmpi.so").write_bytes(b"\x7fELF...")
    launcher = str(tmp_path / "mpi" / "bin" / "prterun")
    proc = processes(tmp_path, "/usr/bin/python3", str(tmp_path / "mpi" / "bin" / "prted"), launcher)
    assert library_of_launcher(proc) == lib / "libmpi.so"


def test_without_a_launchers_library_mpi4py_searches(tmp_path: Path) -> None:
    assert library_of_launcher(processes(tmp_path / "a", "/usr/bin/python3", "/bin/bash")) is None
    assert library_of_launcher(processes(tmp_path / "b", str(tmp_path / "nothing" / "mpirun"))) is None


class MpiDouble(SimpleNamespace):
    """Stands in for ``mpi4py.MPI`` of a library that says these things of itself."""

    class Exception(RuntimeError):  # noqa: A001, N818
        """As mpi4py calls its own."""

    def __init__(self, *, kinds: str | None, version: str = "MPICH", size: int = 2) -> None:
        info = SimpleNamespace(Get=lambda key: {"mpi_memory_alloc_kinds": kinds}.get(key))
        world = SimpleNamespace(Get_info=lambda: info, size=size)
        super().__init__(COMM_WORLD=world, Get_library_version=lambda: version)


@pytest.mark.parametrize(
    ("kinds", "environ", "version", "aware"),
    [
        ("mpi,system,cuda", {}, "MPICH", True),
        ("mpi,system,cuda:device", {}, "MPICH", True),
        ("mpi,system,rocm", {}, "MPICH", False),
        (None, {}, "MPICH", False),
        (None, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, "MPICH", False),
        (None, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, "MPI VERSION : CRAY MPICH version 8.1", True),
        (None, {"MPICH_GPU_SUPPORT_ENABLED": "0"}, "MPI VERSION : CRAY MPICH version 8.1", False),
    ],
)
def test_device_memory_is_given_only_to_an_mpi_that_says_it_takes_it(
    monkeypatch: pytest.MonkeyPatch, kinds: str | None, environ: dict[str, str], version: str, aware: bool
) -> None:
    monkeypatch.setattr(library, "LOADED", [MpiDouble(kinds=kinds, version=version)])
    monkeypatch.delenv("MPICH_GPU_SUPPORT_ENABLED", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert device_aware("cuda") is aware


def test_another_mpi_than_that_of_the_launcher_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(
        RequestError,
        match=r"OMPI_COMM_WORLD_SIZE=4, but MPICH Version: 5 sees 1 rank: it is not the MPI that started",
    ):
        library._require_launchers_mpi(MpiDouble(kinds=None, version="MPICH Version: 5\nDate", size=1))  # type: ignore[arg-type]


def test_ending_without_mpi_does_nothing() -> None:
    done = python(
        "from seatrial.mpi_backend import finalize, library; library.end_mpi(); print('said'); finalize.leave(3)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n", "")
