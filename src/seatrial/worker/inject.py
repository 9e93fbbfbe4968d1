"""Faults that were planted on purpose. A run with planted faults says so in its first event and in its report.

A fault is written ``DO@CHECK[/PHASE]:RANK``: do it in that rank when a phase begins whose label starts with PHASE, or
at the start of the check when no phase is given. ``kill``, ``stop`` and ``term`` are the real signals 9, SIGSTOP and
SIGTERM; ``agent-kill`` and ``agent-stop`` send them to the parent; ``flip`` changes a bit in each parameter,
``flip-product`` an element of each matrix product from then on, ``flip-gradient`` one of the gradient of each
parameter from then on, before anything is reduced. ``seatrial train`` has one check, ``train``.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from seatrial.errors import RequestError

__all__ = ["KINDS", "Fault", "parse_fault", "parse_faults", "strike"]

KINDS = (
    *("kill", "stop", "term", "hang", "raise", "exit", "memory", "device", "agent-kill", "agent-stop"),
    *("flip", "flip-product", "flip-gradient"),
)
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
_MEMORY_HEADROOM_BYTES = 64 << 20
_SPOILED_BY = 2**-10
"""So little that a training learns all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planted fault."""

    kind: str
    check: str
    phase: str
    """Empty: at the start of the check."""
    rank: int


def parse_fault(text: str) -> Fault:
    """Read ``DO@CHECK[/PHASE]:RANK``. Raises RequestError."""
    match = re.fullmatch(r"([a-z-]+)@([a-z_]+)(?:/(.+))?:(\d+)", text)
    if match is None or match[1] not in KINDS:
        raise RequestError(f"planted fault {text!r}: expected DO@CHECK[/PHASE]:RANK with DO one of {', '.join(KINDS)}.")
    return Fault(kind=match[1], check=match[2], phase=match[3] or "", rank=int(match[4]))


def parse_faults(texts: Iterable[str], world_size: int, checks: Collection[str]) -> tuple[Fault, ...]:
    """All of them. Raises RequestError also for one that never strikes: a drill would pass for nothing."""
    faults = []
    for text in texts:
        fault = parse_fault(text)
        if fault.rank >= world_size or fault.check not in checks:
            raise RequestError(
                f"planted fault {text!r} (SEATRIAL_PLANT) would never strike: there are ranks 0 to {world_size - 1},"
                f" and what is asked for is {', '.join(checks)}."
            )
        faults.append(fault)
    return tuple(faults)


def strike(faults: Iterable[Fault], rank: int, check: str, phase: str | None) -> None:
    """Do what was planted here. ``phase`` is None at the start of the check."""
    for fault in faults:
        here = phase is None if not fault.phase else (phase or "").startswith(fault.phase)
        if fault.rank == rank and fault.check == check and here:
            _do(fault.kind)


def _do(kind: str) -> None:
    if kind in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[kind])
    elif kind in ("agent-kill", "agent-stop"):
        os.kill(os.getppid(), signal.SIGKILL if kind == "agent-kill" else signal.SIGSTOP)
        time.sleep(3600)
    elif kind == "hang":
        time.sleep(3600)
    elif kind == "raise":
        raise KeyError("planted: an exception of our own")
    elif kind == "device":
        raise RuntimeError("CUDA error: planted, an uncorrectable ECC error was encountered")
    elif kind == "exit":
        os._exit(0)
    elif kind == "memory":
        _exhaust_memory()
    elif kind == "flip":
        _flip_bits()
    elif kind == "flip-product":
        _spoil_products()
    elif kind == "flip-gradient":
        _spoil_gradients()


def _flip_bits() -> None:
    import torch

    for each in _parameters():
        # By its place: filters may lie in memory in another order than their numbers.
        each.data.view(torch.int32)[(0,) * each.dim()] ^= 1 << 20


def _parameters() -> list[Any]:
    import gc

    import torch

    return [each for each in gc.get_objects() if type(each) is torch.nn.Parameter and each.dtype == torch.float32]


@cache
def _spoil_gradients() -> None:
    """Of the parameters that there are, and of those that are made from now on; once in a process, so that it does the
    same each time."""
    from torch.nn.modules.module import register_module_parameter_registration_hook

    def spoiled(gradient: Any) -> Any:
        gradient = gradient.clone()
        gradient[(0,) * gradient.dim()] += _SPOILED_BY
        return gradient

    def spoil(module: Any, name: str, parameter: Any) -> None:
        parameter.register_hook(spoiled)

    for each in _parameters():
        each.register_hook(spoiled)
    register_module_parameter_registration_hook(spoil)


def _spoil_products() -> None:
    import torch

    multiply = torch.mm

    def spoiled(*operands: Any, **settings: Any) -> Any:
        product = multiply(*operands, **settings)
        product[0, 0] += 1
        return product

    torch.mm = spoiled


def _exhaust_memory() -> None:
    """A real allocation that fails under a real limit: of the device where there is one, else of the address space."""
    import resource

    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(0.01)
        torch.empty(torch.cuda.mem_get_info()[1] // 2, dtype=torch.uint8, device="cuda")
        return
    with open("/proc/self/statm", encoding="ascii") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + _MEMORY_HEADROOM_BYTES, resource.RLIM_INFINITY))
    torch.ones(4 * _MEMORY_HEADROOM_BYTES, dtype=torch.uint8)
