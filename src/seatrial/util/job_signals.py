"""The signals that a launcher, or systemd, sends to all processes of a job."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
"""The usual "save now", which launchers send to all that they have started: it is for the script of a user, and ends
no process of ours."""
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
JOINING = (signal.SIGTERM, signal.SIGINT, *FOR_RANKS)
"""Signals that are held back until an agent handles them: the first two end it at once while it joins a run."""
_TOGETHER_S = 1.0
"""Different signals that come within this time are one: systemd sends SIGHUP with its SIGTERM."""

Handler = Callable[[int, FrameType | None], None]


def for_ranks() -> tuple[signal.Signals, ...]:
    """Return the signals for ranks but for those that a C library has handled since before Python started, as DMTCP
    handles SIGUSR2: they end no process, and the library needs them."""
    return tuple(number for number in FOR_RANKS if signal.getsignal(number) is not None)


def ignore_those_for_ranks() -> None:
    """Ignore the signals for ranks, also those that were held back. What this process starts ignores them as well."""
    for number in for_ranks():
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_RANKS)


@contextlib.contextmanager
def those_for_ranks_held_back() -> Iterator[None]:
    """Have them held back in a process that is started meanwhile, until it ignores them: it may take seconds to start,
    and the default ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_RANKS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unless_ignored(numbers: Sequence[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Return the signals without an ignored SIGHUP, which is the wish of nohup. A shell ignores SIGINT for its
    background jobs, which is not a wish."""
    is_wish = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in numbers if not (is_wish and number == signal.SIGHUP))


def collector(signals: list[int]) -> Handler:
    """Return a handler that appends each signal to a list, and those that come together once."""
    first_at = 0.0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal first_at
        # A person who hurries types the same signal twice.
        if signals and number != signals[0] and time.monotonic() - first_at < _TOGETHER_S:
            return
        first_at = first_at or time.monotonic()
        signals.append(number)

    return on_signal


@contextlib.contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[Callable[[], None]]:
    """Have these signals handled, then restore the former handlers, but for those of C libraries, which Python cannot
    restore. Yields the function that restores them."""
    before = {number: signal.signal(number, handler) for number in numbers}

    def restore() -> None:
        for number, former in before.items():
            if former is not None:
                signal.signal(number, former)

    try:
        yield restore
    finally:
        restore()
