"""Parameters of the links check."""

from __future__ import annotations

from dataclasses import dataclass

PING_BYTES = 8
"""Bytes of a message by which the latency is measured: one 64-bit word."""

_MOST_TIMEOUTS = 8
"""The time for both directions of a pair, as a number of transfers that just do not fail, besides ``Params.seconds``.
An end that answers each of its messages late would otherwise keep all others until the round is over."""
_CONNECT_TIMES = 5
"""The time for a connection and for each word of a peer that is there, in ``Params.pair_timeout_s``: Gloo tries to
connect for about as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How much to send, for how long, and the limit."""

    cpu_bytes: int = 4_194_304
    """Bytes of one transfer between CPUs."""
    gpu_bytes: int = 268_435_456
    """Bytes of one transfer between GPUs."""
    seconds: float = 1.0
    """The longest time for one direction of one pair, less in large groups. The number of transfers shrinks to fit,
    down to 3."""
    pair_timeout_s: float = 5.0
    """Seconds without an answer after which a transfer has failed. Gloo tries to connect for about five times as
    long."""
    min_gbps: float | None = None
    """The user's limit in GB/s for pairs of nodes; None: what healthy pairs reach decides."""
    timeout_s: float = 240.0
    """Seconds for each round."""

    def __post_init__(self) -> None:
        """Raise ValueError with a sentence for a value out of range."""
        for key in ("cpu_bytes", "gpu_bytes"):
            if getattr(self, key) < PING_BYTES:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least {PING_BYTES}")
        if not 1e-3 <= self.pair_timeout_s < self.timeout_s:  # torch counts in ms; 0 may wait for ever
            raise ValueError(
                f"pair_timeout_s is {self.pair_timeout_s:g}; it must be at least 0.001 and below timeout_s,"
                f" {self.timeout_s:g}"
            )
        for key in ("seconds", "min_gbps"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} is {value}; it must be above 0")

    def patience_s(self) -> float:
        """Return the time for a connection, and for each word of a peer that is there."""
        return _CONNECT_TIMES * self.pair_timeout_s

    def exchange_s(self) -> float:
        """Return the time for both directions of a pair."""
        return 2 * self.seconds + _MOST_TIMEOUTS * self.pair_timeout_s

    def most_wait_s(self) -> float:
        """Return the time for a turn in which two ranks hardly meet, and then hardly exchange anything."""
        return 2 * self.patience_s() + self.exchange_s()
