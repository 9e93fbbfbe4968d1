"""A fingerprint of everything that decides the bits of a result besides the device model and torch.

Two processes that differ in it may sum in another order, and neither of them is wrong.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_LIBRARIES = re.compile(r"(torch|blas|cudnn|mkl|dnnl|MIOpen|omp|libm[.-])")
"""Loaded libraries that count: those that multiply, and the runtimes that divide a sum among threads."""
_SETTINGS = (
    *("MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_", "ROCBLAS_", "MIOPEN_"),
    *("TORCH_ALLOW_", "TORCH_BLAS_", "TORCH_CUDNN_"),
)
_FEATURES = re.compile(r"(avx|sse|fma|f16c|amx|asimd|sve|sme2?$|bf16|i8mm)")
_CPU = ("cpu family", "model", "CPU implementer", "CPU part")


def arithmetic(units: int, *, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str:
    """Return a text that is equal for processes whose results can be compared bit by bit (with equal device model and
    torch).

    It has ``units`` and the first digits of three digests: the CPU with its instructions and cache sizes, by which
    libraries choose their code; names and sizes of the loaded libraries; the variables that change what these do.

    Args:
        units: Threads or multiprocessors, among which a sum is divided.
        root: Where /proc and /sys are.
        environ: The environment.
    """
    settings = (f"{name}={environ[name]}" for name in environ if name.startswith(_SETTINGS))
    parts = {"cpu": _cpu(root), "libraries": _libraries(root), "settings": settings}
    return ", ".join([f"units {units}", *(f"{name} {_digest(values)}" for name, values in parts.items())])


def _digest(values: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(set(values))).encode(errors="replace")).hexdigest()[:8]


def _cpu(root: Path) -> Iterable[str]:
    for line in _read(root / "proc/cpuinfo").partition("\n\n")[0].splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in _CPU:
            yield f"{name} {value}"
        elif name in ("flags", "Features"):
            yield from (word for word in value.split() if _FEATURES.match(word))
    for cache in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*"):
        yield f"{cache.name} {_read(cache / 'size').strip()}"


def _libraries(root: Path) -> Iterable[str]:
    for line in _read(root / "proc/self/maps").splitlines():
        path = line[line.find("/") :]
        name = os.path.basename(path)
        if ".so" in name and _LIBRARIES.search(name):
            try:
                yield f"{name} {os.stat(path).st_size}"
            except OSError:  # replaced since it was loaded
                yield f"{name} gone"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
