"""mpi4py, and the MPI library that belongs to the launcher of this process.

The only module of seatrial that imports mpi4py. All others call ``load_mpi``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from seatrial.errors import RequestError
from seatrial.mpi_backend.finalize import LOADED

_LAUNCHERS = ("mpirun", "mpiexec", "prte", "orte", "orted", "hydra")
"""Prefixes of the names of processes that start ranks: Open MPI 4 and 5, MPICH, and hydra."""
_FILES = ("libmpi.so.40", "libmpi.so.12", "libmpi.so")
"""Names of the library: Open MPI, MPICH and Intel MPI, and others."""
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MPIX = {"cuda": "MPIX_Query_cuda_support", "rocm": "MPIX_Query_rocm_support"}


def load_mpi() -> Any:
    """Return the ``mpi4py.MPI`` module, with MPI initialized, for several threads where it supports them.

    Raises RequestError when mpi4py or an MPI library is missing, or when the library does not belong to the launcher,
    so that each rank would see itself alone.
    """
    if LOADED:
        return LOADED[0]
    if "mpi4py.MPI" not in sys.modules:
        _prepare()
    try:
        with warnings.catch_warnings():
            # mpi4py only warns about an MPI that is not the launcher's; below that is an error.
            warnings.simplefilter("ignore", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RequestError(
            f"mpi4py finds no usable MPI library ({reason}); install seatrial[mpi], or name the library in"
            " MPI4PY_LIBMPI."
        ) from error
    if not MPI.Is_initialized():
        MPI.Init_thread()
    _require_launchers_mpi(MPI)
    LOADED.append(MPI)
    return MPI


def _prepare() -> None:
    """Choose the library before mpi4py initializes MPI, and disable mpi4py's own finalization."""
    try:
        import mpi4py
    except ImportError as error:
        raise RequestError(
            f"the MPI backend needs mpi4py ({error}); install seatrial[mpi], or mpi4py and an MPI library."
        ) from error
    library = library_of_launcher()
    if library is not None and not {"MPI4PY_LIBMPI", "MPI4PY_MPIABI"} & os.environ.keys():
        os.environ["MPI4PY_LIBMPI"] = str(library)
    # After an exception, MPI_Finalize would wait for ranks that wait for this one.
    mpi4py.rc.finalize = False


def _require_launchers_mpi(MPI: ModuleType) -> None:  # noqa: N803 (mpi4py's own name)
    """Raise RequestError when MPI's world size differs from the launcher's."""
    variable = next((name for name in _SIZES if name in os.environ), None)
    if variable is None:
        return
    size = MPI.COMM_WORLD.size
    if os.environ[variable] != str(size):
        name = str(MPI.Get_library_version()).split(",")[0].split("\n")[0].strip()
        raise RequestError(
            f"the launcher says {variable}={os.environ[variable]}, but {name} sees {size} rank: it is not the MPI that"
            " started this process; name the launcher's libmpi.so in MPI4PY_LIBMPI."
        )


def library_of_launcher(proc: Path = Path("/proc")) -> Path | None:
    """Return the libmpi.so next to the launcher that is an ancestor of this process; None where there is none."""
    for executable in _ancestors(proc):
        if not executable.name.startswith(_LAUNCHERS):
            continue
        # For a distribution's mpirun nothing is found here; the loader knows where its library is.
        folder = executable.parent.parent / "lib"
        return next((path for path in (folder / name for name in _FILES) if _is_library(path)), None)
    return None


def _is_library(path: Path) -> bool:
    """Return whether the file is a library. Wheels cannot contain links, so a name may be a text file with the other
    name."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _ancestors(proc: Path) -> Iterator[Path]:
    pid = os.getppid()
    while pid > 0:
        try:
            stat = (proc / str(pid) / "stat").read_text(errors="replace")
            executable = Path(os.readlink(proc / str(pid) / "exe"))
        except OSError:
            return
        yield executable
        pid = int(stat.rpartition(")")[2].split()[1])


def device_aware(vendor: str) -> bool:
    """Return whether MPI declares that it takes device addresses of this vendor (``cuda`` or ``rocm``).

    It declares so by MPI 4.1's ``mpi_memory_alloc_kinds``, Open MPI's extension, or Cray's variable; nothing is
    assumed.
    """
    MPI = load_mpi()  # noqa: N806
    kinds = ""
    with contextlib.suppress(NotImplementedError, MPI.Exception):
        kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") or ""
    if any(kind.split(":")[0].strip() == vendor for kind in kinds.split(",")):
        return True
    if os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1" and "CRAY" in MPI.Get_library_version():
        return True
    path = _loaded_library()
    if path is None:
        return False
    query = getattr(ctypes.CDLL(path), _MPIX[vendor], None)
    return query is not None and bool(query())


def _loaded_library() -> str | None:
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line[line.index("/") :] for line in lines if "/libmpi.so" in line), None)


def end_mpi() -> None:
    """Finalize MPI if it was initialized in this process. This waits for all ranks, so call it only where all of them
    do."""
    if LOADED:
        if not LOADED[0].Is_finalized():
            LOADED[0].Finalize()
        return
    # A torch that was built with MPI finalizes it in an exit handler, which our ranks skip.
    path = _loaded_library()
    if path is None:
        return
    library, begun, ended = ctypes.CDLL(path), ctypes.c_int(0), ctypes.c_int(0)
    library.MPI_Initialized(ctypes.byref(begun))
    library.MPI_Finalized(ctypes.byref(ended))
    if begun.value and not ended.value:
        library.MPI_Finalize()
