"""mpi4py, and the MPI library that belongs to the launcher which started this process.

The one module of ours that imports mpi4py. Everything else asks ``load_mpi``.
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
from seatrial.worker.mpi_end import LOADED

__all__ = ["device_aware", "end_mpi", "library_of_launcher", "load_mpi"]

_LAUNCHERS = ("mpirun", "mpiexec", "prte", "orte", "orted", "hydra")
"""How the names of the processes begin that start ranks: Open MPI 4 and 5, MPICH and Intel's hydra."""
_FILES = ("libmpi.so.40", "libmpi.so.12", "libmpi.so")
"""As Open MPI, MPICH with Intel MPI, and others call it."""
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MPIX = {"cuda": "MPIX_Query_cuda_support", "rocm": "MPIX_Query_rocm_support"}


def load_mpi() -> Any:
    """The ``mpi4py.MPI`` module, with MPI initialised for several threads where it can be.

    Raises RequestError, one sentence, when mpi4py or an MPI library is missing, or when the library is not the one of
    the launcher, so that each rank believes to be alone.
    """
    if LOADED:
        return LOADED[0]
    if "mpi4py.MPI" not in sys.modules:
        _prepare()
    try:
        with warnings.catch_warnings():
            # Another MPI than the launcher's is an error here, below, and not only suspicious.
            warnings.simplefilter("ignore", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RequestError(
            f"mpi4py finds no MPI library it can use ({reason}); install seatrial[mpi], or name the library in"
            " MPI4PY_LIBMPI."
        ) from error
    if not MPI.Is_initialized():
        MPI.Init_thread()
    _see_that_it_is_the_launchers(MPI)
    LOADED.append(MPI)
    return MPI


def _prepare() -> None:
    """Before mpi4py initialises MPI: which library, and that it is ours to finalize."""
    try:
        import mpi4py
    except ImportError as error:
        raise RequestError(
            f"the MPI backend needs mpi4py ({error}); install seatrial[mpi], or mpi4py and an MPI library."
        ) from error
    library = library_of_launcher()
    if library is not None and not {"MPI4PY_LIBMPI", "MPI4PY_MPIABI"} & os.environ.keys():
        os.environ["MPI4PY_LIBMPI"] = str(library)
    # After an exception MPI_Finalize would wait for ranks that wait for us.
    mpi4py.rc.finalize = False


def _see_that_it_is_the_launchers(MPI: ModuleType) -> None:  # noqa: N803 (mpi4py's own name)
    told = next((name for name in _SIZES if name in os.environ), None)
    if told is None:
        return
    size = MPI.COMM_WORLD.size
    if os.environ[told] != str(size):
        name = str(MPI.Get_library_version()).split(",")[0].split("\n")[0].strip()
        raise RequestError(
            f"the launcher says {told}={os.environ[told]}, but {name} knows {size} rank: it is another MPI than the one"
            " that started this process; name the launcher's libmpi.so in MPI4PY_LIBMPI."
        )


def library_of_launcher(proc: Path = Path("/proc")) -> Path | None:
    """libmpi.so beside the launcher that is an ancestor of this process; None where there is none to be found."""
    for executable in _ancestors(proc):
        if not executable.name.startswith(_LAUNCHERS):
            continue
        # Of a distribution's mpirun none is found: the loader knows where it keeps its library.
        folder = executable.parent.parent / "lib"
        return next((path for path in (folder / name for name in _FILES) if _is_library(path)), None)
    return None


def _is_library(path: Path) -> bool:
    """Wheels cannot hold links, so one of the names may be a text with the name of the other."""
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
    """Whether MPI says of itself that it takes device addresses of this vendor (``cuda`` or ``rocm``).

    Asked by MPI 4.1's ``mpi_memory_alloc_kinds``, Open MPI's extension, and Cray's variable; nothing is assumed.
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
    return next((line.split()[-1] for line in lines if "/libmpi.so" in line), None)


def end_mpi() -> None:
    """Finalize MPI if it was initialised in this process. It waits for all ranks, so only where all of them come."""
    if LOADED:
        if not LOADED[0].Is_finalized():
            LOADED[0].Finalize()
        return
    # A torch that was built with MPI finalizes it in an exit handler, which a rank of ours does not come to.
    path = _loaded_library()
    if path is None:
        return
    library, begun, ended = ctypes.CDLL(path), ctypes.c_int(0), ctypes.c_int(0)
    library.MPI_Initialized(ctypes.byref(begun))
    library.MPI_Finalized(ctypes.byref(ended))
    if begun.value and not ended.value:
        library.MPI_Finalize()
