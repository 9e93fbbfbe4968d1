"""Planted faults, for drills. A run with planted faults says so in its first event and in its report.

A fault is written ``KIND@CHECK[/PHASE]:RANK``: it strikes in that rank when a phase begins whose label starts with
PHASE, or at the start of the check when no phase is given. ``seatrial train`` has one check, ``train``. Kinds:

- ``kill``, ``stop``, ``term``: the real signals SIGKILL, SIGSTOP, SIGTERM; ``agent-kill``, ``agent-stop``: the same,
  sent to the parent;
- ``hang``, ``raise``, ``exit``, ``memory``, ``device``: sleep, an exception of our code, a silent exit, a real
  out-of-memory error, a CUDA error;
- ``flip``: changes a bit in each parameter; ``flip-product``: changes an element of each matrix product from then on;
  ``flip-gradient``: changes an element of each parameter's gradient from then on, before the reduction;
- ``slow-product``: computes each matrix product 10 times from then on, so that the rank is a straggler.
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

KINDS = (
    *("kill", "stop", "term", "hang", "raise", "exit", "memory", "device", "agent-kill", "agent-stop"),
    *("flip", "flip-product", "flip-gradient", "slow-product"),
)
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
_MEMORY_HEADROOM_BYTES = 64 << 20
_GRADIENT_ERROR = 2**-10
"""Added to a gradient; small enough that a training still learns."""
_SLOWDOWN = 10
"""Times that a slow rank computes each matrix product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planted fault."""

    kind: str
    """One of ``KINDS``."""
    check: str
    phase: str
    """Beginning of a phase label; empty: the start of the check."""
    rank: int


def parse_fault(text: str) -> Fault:
    """Parse ``KIND@CHECK[/PHASE]:RANK``. Raises RequestError."""
    match = re.fullmatch(r"([a-z-]+)@([a-z_]+)(?:/(.+))?:(\d+)", text)
    if match is None or match[1] not in KINDS:
        raise RequestError(
            f"planted fault {text!r}: expected KIND@CHECK[/PHASE]:RANK with KIND one of {', '.join(KINDS)}."
        )
    return Fault(kind=match[1], check=match[2], phase=match[3] or "", rank=int(match[4]))


def parse_faults(texts: Iterable[str], world_size: int, checks: Collection[str]) -> tuple[Fault, ...]:
    """Parse all faults. Raises RequestError also for a fault that never strikes: the drill would prove nothing.

    ``checks``: the requested checks that ranks carry out, as a fault strikes in a rank.
    """
    faults = []
    for text in texts:
        fault = parse_fault(text)
        if fault.rank >= world_size or fault.check not in checks:
            raise RequestError(
                f"planted fault {text!r} (SEATRIAL_PLANT) would never strike: there are ranks 0 to {world_size - 1},"
                f" and the requested checks of ranks are {', '.join(checks) or 'none'}."
            )
        faults.append(fault)
    return tuple(faults)


def strike(faults: Iterable[Fault], rank: int, check: str, phase: str | None) -> None:
    """Carry out the faults planted here. ``phase`` is None at the start of the check."""
    for fault in faults:
        matches = phase is None if not fault.phase else (phase or "").startswith(fault.phase)
        if fault.rank == rank and fault.check == check and matches:
            _carry_out(fault.kind)


def _carry_out(kind: str) -> None:
    if kind in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[kind])
    elif kind in ("agent-kill", "agent-stop"):
        os.kill(os.getppid(), signal.SIGKILL if kind == "agent-kill" else signal.SIGSTOP)
        time.sleep(3600)
    elif kind == "hang":
        time.sleep(3600)
    elif kind == "raise":
        raise KeyError("planted: an exception in seatrial")
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
    elif kind == "slow-product":
        _slow_products()


def _flip_bits() -> None:
    import torch

    for parameter in _parameters():
        # By index: with channels_last, the first element in memory may be another one.
        parameter.data.view(torch.int32)[(0,) * parameter.dim()] ^= 1 << 20


def _parameters() -> list[Any]:
    import gc

    import torch

    objects = gc.get_objects()
    return [value for value in objects if type(value) is torch.nn.Parameter and value.dtype == torch.float32]


@cache
def _spoil_gradients() -> None:
    """Register hooks on all existing and future parameters; cached, so that a process does it only once."""
    from torch.nn.modules.module import register_module_parameter_registration_hook

    def spoiled(gradient: Any) -> Any:
        gradient = gradient.clone()
        gradient[(0,) * gradient.dim()] += _GRADIENT_ERROR
        return gradient

    def spoil(module: Any, name: str, parameter: Any) -> None:
        parameter.register_hook(spoiled)

    for parameter in _parameters():
        parameter.register_hook(spoiled)
    register_module_parameter_registration_hook(spoil)


def _spoil_products() -> None:
    import torch

    multiply = torch.mm

    def spoiled(*operands: Any, **settings: Any) -> Any:
        product = multiply(*operands, **settings)
        product[0, 0] += 1
        return product

    torch.mm = spoiled


@cache
def _slow_products() -> None:
    """Repeat the work instead of sleeping: a rank that sleeps looks like one whose CPU another process uses.

    Cached, so that a process does it only once: the check begins again where a rank repeats it alone.
    """
    import torch

    multiply = torch.mm

    def slow(*operands: Any, **settings: Any) -> Any:
        for _ in range(_SLOWDOWN - 1):
            multiply(*operands, **settings)
        return multiply(*operands, **settings)

    torch.mm = slow


def _exhaust_memory() -> None:
    """Fail a real allocation under a real limit: of the device if there is one, else of the address space."""
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
