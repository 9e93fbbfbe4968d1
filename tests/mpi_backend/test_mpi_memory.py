"""Freed memory that stays with the process, seen in the page faults of a process that allocates it again. No MPI is
needed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from seatrial.mpi_backend import memory
from seatrial.mpi_backend.memory import keep_freed_memory

FAULTS = """
import ctypes, resource
from seatrial.mpi_backend.memory import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def faults():
    block = ctypes.c_void_p(libc.malloc(64 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    libc.memset(block, 1, 64 << 20)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    libc.free(block)
    return after - before

faults()
returned = faults()
configured = keep_freed_memory()
faults()
print(configured, returned, faults())
"""
OF_THE_USER = [
    {"MALLOC_MMAP_THRESHOLD_": "131072"},
    {"MALLOC_TRIM_THRESHOLD_": "131072"},
    {"GLIBC_TUNABLES": "glibc.rtld.nns=4:glibc.malloc.mmap_threshold=131072"},
]


def configured_and_faults(**environ: str) -> tuple[str, int, int]:
    """Return whether malloc was configured, and the page faults of 64 MiB before and after."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    configured, before, after = done.stdout.split()
    return configured, int(before), int(after)


def test_a_block_that_was_freed_is_taken_again_without_page_faults() -> None:
    configured, before, after = configured_and_faults()
    # With pages of 2 MiB there are 32 of them.
    assert configured == "True"
    assert after < 8 < 32 <= before


@pytest.mark.parametrize("environ", OF_THE_USER, ids=lambda environ: next(iter(environ)))
def test_what_the_user_has_set_is_left_alone(environ: dict[str, str]) -> None:
    configured, before, after = configured_and_faults(**environ)
    assert configured == "False"
    assert min(before, after) >= 32


class LibcDouble(SimpleNamespace):
    """Stands in for a libc."""


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("unset")
def test_a_libc_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: LibcDouble())
    assert keep_freed_memory() is False


@pytest.mark.usefixtures("unset")
def test_a_glibc_that_refuses_so_large_a_block_goes_on_adapting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(name: int, value: int) -> int:
        asked.append(name)
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: LibcDouble(mallopt=refuse))
    assert keep_freed_memory() is False
    assert asked == [memory._M_MMAP_THRESHOLD]
