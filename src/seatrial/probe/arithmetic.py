"""What decides the bits of a result besides the device model and torch.

Two processes that differ in any of this may sum in another order, and neither of them is wrong.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["arithmetic"]

_LIBRARIES = re.compile(r"(torch|blas|cudnn|mkl|dnnl|MIOpen|omp|libm[.-])")
"""Of those that are loaded: what multiplies, and the runtime that divides a sum among threads."""
_SETTINGS = (
    *("MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_", "ROCBLAS_", "MIOPEN_"),
    *("TORCH_ALLOW_", "TORCH_BLAS_", "TORCH_CUDNN_"),
)
_FEATURES = re.compile(r"(avx|sse|fma|f16c|amx|asimd|sve|sme2?$|bf16|i8mm)")
_CPU = ("cpu family", "model", "CPU implementer", "CPU part")


def arithmetic(units: int, *, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str:
    """One text, equal for processes whose results may be compared bit by bit where device model and torch are too.

    ``units``: threads or multiprocessors, among which a sum is divided. The rest is told by the first digits of a
    digest: the CPU with its instructions and the sizes of its caches, by which libraries choose their way; names and
    sizes of the libraries that are loaded; the variables that change what these do. ``root``: where /proc and /sys are.
    """
    settings = (f"{name}={environ[name]}" for name in environ if name.startswith(_SETTINGS))
    parts = {"cpu": _cpu(root), "libraries": _libraries(root), "settings": settings}
    return ", ".join([f"units {units}", *(f"{name} {_digest(told)}" for name, told in parts.items())])


def _digest(told: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(set(told))).encode(errors="replace")).hexdigest()[:8]


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
