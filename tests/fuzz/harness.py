"""Shared parts of all fuzz targets: inputs that are counted, a watchdog that shows the input, what a sentence is.

A target is a pair: a strategy that makes inputs, and a function that takes one and fails if a promise is broken.
``explore`` runs it. SEATRIAL_TEST_FUZZ_SEED repeats a run whose seed was printed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Generic, TypeVar

from hypothesis import given, seed, settings
from hypothesis.strategies import SearchStrategy

Input = TypeVar("Input")

COUNTED: Counter[str] = Counter()
"""Target -> inputs that it was really given, counted as each one was."""
_LONGEST_SENTENCE = 500
_CPU_S = 20.0
"""CPU time that one input may cost, a hundred times what the dearest one needs; what else runs here is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Generic[Input]):
    """A function under test and the strategy that makes its inputs."""

    name: str
    inputs: SearchStrategy[Input]
    check: Callable[[Input], None]
    least: int = field(default=0)
    """How many inputs the run with ``--marked`` gives it at least."""


class HangError(Exception):
    """One input kept the processor busy for too long."""


def explore(target: Target[Input], examples: int) -> None:
    """Give the target this number of different inputs, from a seed that is printed."""
    chosen = int(os.environ.get("SEATRIAL_TEST_FUZZ_SEED") or random.SystemRandom().getrandbits(32))
    print(f"fuzz {target.name}: SEATRIAL_TEST_FUZZ_SEED={chosen}")

    @seed(chosen)
    @settings(max_examples=examples)
    @given(target.inputs)
    def each(value: Input) -> None:
        with watched(value):
            target.check(value)

    each()


def count(target: str) -> None:
    """One more input was really given to the target. The check itself calls it, at the place where it feeds it."""
    COUNTED[target] += 1


@contextlib.contextmanager
def watched(value: Any) -> Iterator[None]:
    """Fail with the input that costs too much CPU time. The timeout of the test ends a target that blocks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def too_long(number: int, frame: FrameType | None) -> None:
        raise HangError(f"{_CPU_S:.0f} s of CPU time for {repr(value)[:2_000]}")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, _CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def assert_sentence(text: str) -> None:
    """Assert that an error message is one printable line of readable length, without Python's words."""
    assert text
    assert text.isprintable(), repr(text)
    assert len(text) < _LONGEST_SENTENCE, f"{len(text)} characters: {text[:600]!r}"
    assert "Traceback" not in text
    assert not re.search(r"<[a-z_.]+ object at 0x|<class '", text), text
