"""Every link between two devices: GB/s and latency, both directions apart, before any world exists.

Two ranks, or the ranks of one group, meet at the store directly. Which of them measure is worked out round by round
from what was measured so far (``_links_judge``, ``docs/culprits.md``): first who is slow at all, then suspects again,
alone on a quiet fabric with partners known to be good.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from seatrial.checks.base import Check, Held, Stage, held_by_user
from seatrial.probe import own_code, tcp
from seatrial.verdict.circle import circle
from seatrial.verdict.findings import Culprit, Finding, Ruling
from seatrial.verdict.statistics import median

if TYPE_CHECKING:
    from seatrial.verdict.evidence import Evidence
    from seatrial.worker.context import Context

__all__ = ["CHECK", "EFFECTS", "FLOORS_S", "MOST_RESENT", "Params"]

EFFECTS = {"cpu": 0.5, "cuda": 0.10}
"""So much below its healthy peers a link is slow. Between processes on CPUs a factor of two is common."""
FLOORS_S = {"cpu": 1e-3, "cuda": 50e-6}
"""Added to all latencies before they are compared: what a scheduler may add is nobody's fault."""
MOST_RESENT = 0.01
"""Of the segments of TCP, beyond what healthy pairs send again. Alone on a fabric pairs of busy hosts sent less than
0.01 % again; with a host that lost 5 % it was 2.6 to 6.1 % (``docs/culprits.md``)."""

_NO_LINK = Finding(
    severity="info",
    check="links",
    what="nothing was measured: between processes on the CPUs of one node there is no link",
    culprit=Culprit(kind="none", name="nobody"),
)
_NO_SOLVER = (
    "links not measured: what judges them, the file .more that `seatrial bundle` writes, is not beside the file that"
    " travels, or is another version's"
)
_PINGS, _PING_BYTES = 20, 8
_FEWEST = 3
_FEWEST_SEGMENTS = 200
"""Of fewer, one that was sent again would be half of what is allowed. What RDMA carries is none of TCP's."""
_SHARE = 0.5
"""Of the time that a round has; the rest is for a last turn in which all pairs fail."""
_MOST_TOLD = 4
"""Of the exchanges in a group that were not slow so many are told, those of which the most was sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How much to send, for how long, and the limit."""

    cpu_bytes: int = 4_194_304
    """Of one transfer."""
    gpu_bytes: int = 268_435_456
    seconds: float = 1.0
    """One direction of one pair takes about so long at most, in large groups less; the number of its transfers shrinks
    to that, down to 3."""
    pair_timeout_s: float = 5.0
    """After so long without an answer a transfer has failed. Gloo tries about five times so long to meet a peer."""
    min_gbps: float | None = None
    """The user's own limit for pairs of nodes; None: what healthy pairs reach decides."""
    timeout_s: float = 240.0
    """Of one round."""

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for a value that cannot be meant."""
        for key in ("cpu_bytes", "gpu_bytes"):
            if getattr(self, key) < _PING_BYTES:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least {_PING_BYTES}")
        if not 1e-3 <= self.pair_timeout_s < self.timeout_s:  # torch counts in ms; 0 may wait for ever
            raise ValueError(
                f"pair_timeout_s is {self.pair_timeout_s:g}; it must be at least 0.001 and below timeout_s,"
                f" {self.timeout_s:g}"
            )
        for key in ("seconds", "min_gbps"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} is {value}; it must be above 0")


def limits(params: Params) -> tuple[Held, ...]:
    """What bandwidth and latency are held against: the healthy pairs, and a limit of the user's."""
    gbps = None if params.min_gbps is None else f"at least {params.min_gbps:g} GB/s"
    fleet = "fleet: what healthy pairs reach, again alone"
    rows = [held_by_user("gbps, pairs of nodes", gbps, "links.min_gbps")]
    for device, what in (("cpu", "CPU"), ("cuda", "GPU")):
        left = 1 - EFFECTS[device]
        rows.append(Held(what=f"gbps, {what}", limit=f"at least {left:.0%} of it", origin=fleet))
        most = f"at most {1 / left - 1:.0%} and {FLOORS_S[device] * (1 / left - 1) * 1e6:.0f} us more"
        rows.append(Held(what=f"latency_us, {what}", limit=most, origin=fleet))
        resent = f"at most {1 / left - 1:.0%} and {MOST_RESENT:.0%} of all more"
        rows.append(Held(what=f"resent_share, {what}", limit=resent, origin=fleet))
    return tuple(rows)


def measure(context: Context, params: Params) -> None:
    """Open the store, or take part in the rounds that the conductor asks for."""
    from seatrial.worker import groups

    if context.world_size == 1 or context.backend == "mpi":
        why = "1 rank" if context.world_size == 1 else "MPI has no group before the world"
        context.fact("not_checked", why)
        return
    # Our own deadline comes first; the library's is the safety net.
    timeout = timedelta(seconds=context.timeout_s + 30)
    if context.stage == "store":
        context.phase("open the store")
        groups.open_store(context, timeout)
        return
    context.phase("meet at the store")
    groups.join_store(context, timeout)
    for mine in context.given["round"]["parts"]:
        members = sorted({member for group in (mine["groups"] or mine["pairs"]) for member in group})
        if context.rank in members:
            if context.rank == members[0]:
                told = {key: mine[key] for key in ("fabric", "at_once", "repeats", "groups", "tell_below_gbps")}
                context.fact("asked", told)
            _Part(context, params, mine).run()


class _Part:
    """One rank's share of a round on one fabric."""

    def __init__(self, context: Context, params: Params, asked: dict[str, Any]) -> None:
        import torch

        self._context, self._params, self._asked = context, params, asked
        self._timeout = timedelta(seconds=params.pair_timeout_s)
        size = params.cpu_bytes if context.device.type == "cpu" else params.gpu_bytes
        self._payload = torch.ones(size, dtype=torch.uint8, device=context.device.torch)
        self._word = torch.zeros(1, dtype=torch.int64, device=context.device.torch)
        self._name = f"links/{context.stage}/{asked['fabric']}"
        self._late_at = time.monotonic() + _SHARE * context.timeout_s
        self._seconds = params.seconds
        self._resent = dict[int, float]()

    def run(self) -> None:
        """Turn by turn, each beginning when all have ended the one before."""
        for group in self._asked["groups"]:
            if self._context.rank in group:
                self._run_group(group)
                return
        turns, members = self._asked["turns"], {rank for pair in self._asked["pairs"] for rank in pair}
        for turn in range(turns):
            if not self._wait_for_others_to_end(turn, members):
                return
            for a, b in self._asked["pairs"][turn::turns]:
                if self._context.rank in (a, b):
                    self._run_pair(a, b)

    def _run_pair(self, a: int, b: int) -> None:
        peer = b if self._context.rank == a else a
        failed = self._meet(f"{a}-{b}", [a, b])
        try:
            if not failed:
                self._ping(0 if self._context.rank == b else 1, peer)
                self._both_ways(a, b, [a, b])
        except RuntimeError as error:
            failed = _first_line(error)
        self._part()
        if failed:
            self._context.fact("failed", {"peer": peer, "reason": failed})

    def _run_group(self, group: Sequence[int]) -> None:
        """Every two of the group once; who is slow is told by name, of all others only their median."""
        store, rates, is_late = self._context.store, list[float](), False
        assert store is not None  # joined in measure
        exchanges = list(_exchanges(group, self._asked["turns"]))
        self._seconds = min(self._params.seconds, _SHARE * self._context.timeout_s / (4 * len(exchanges)))
        broken = f"{self._name}/broken/{group[0]}"
        failed = self._meet(str(group[0]), group)
        if failed:
            store.set(broken, "")
            self._context.fact("failed", {"reason": failed})
        for turn, pairs in enumerate(exchanges):
            if not self._wait_for_others_to_end(turn, group):
                is_late = True
                self._context.fact("late", {"fabric": self._asked["fabric"], "exchanges": [turn, len(exchanges)]})
                break
            for a, b in pairs:
                if self._context.rank not in (a, b) or store.check([broken]):
                    continue
                try:
                    rates += self._both_ways(a, b, group)
                except RuntimeError as error:
                    store.set(broken, "")
                    peer = b if self._context.rank == a else a
                    self._context.fact("failed", {"peer": peer, "reason": _first_line(error)})
        self._part()
        most = MOST_RESENT + median(list(self._resent.values())) if self._resent else 0.0
        for peer in sorted(self._resent, key=self._resent.__getitem__)[-_MOST_TOLD:]:
            if self._resent[peer] > most:
                self._tell_resent(peer, self._resent[peer])
        if rates and not is_late and not store.check([broken]):
            self._context.figure("group_gbps", median(rates), "GB/s", "high")

    def _meet(self, name: str, ranks: Sequence[int]) -> str:
        """Form the group of those ranks; returns why it could not be formed, or nothing."""
        from seatrial.worker import groups

        try:
            groups.form(self._context, f"{self._name}/{name}", ranks, self._timeout)
        except RuntimeError as error:
            return _first_line(error)
        return ""

    def _part(self) -> None:
        from seatrial.worker import groups

        groups.close_world()

    def _ping(self, peer_index: int, peer: int) -> None:
        """8 bytes there and back; the first of the pair holds the clock."""
        import torch.distributed as dist

        holds_clock, readings = peer_index == 1, list[float]()
        for _ in range(_PINGS + 2):
            started = time.perf_counter()
            for send in (holds_clock, not holds_clock):
                (dist.send if send else dist.recv)(self._word, peer_index)
            self._context.device.synchronize()
            readings.append(time.perf_counter() - started)
        if holds_clock:
            self._context.figure("latency_us", self._of(readings[2:]) / 2 * 1e6, "us", "low", peer=peer)

    def _both_ways(self, a: int, b: int, ranks: Sequence[int]) -> list[float]:
        """From the first to the second, then back; returns what we sent at, in GB/s."""
        rates = []
        for source, target in ((a, b), (b, a)):
            if self._context.rank == target:
                self._receive(ranks.index(source))
                continue
            before = tcp.segments()
            rates.append(self._send(ranks.index(target)))
            sent, again = (now - then for now, then in zip(tcp.segments(), before, strict=True))
            share = again / sent if sent >= _FEWEST_SEGMENTS else None
            below = self._asked["tell_below_gbps"]
            if below is None or rates[-1] < below:
                size = self._payload.numel()
                self._context.figure("gbps", rates[-1], "GB/s", "high", peer=target, size_bytes=size)
                if share is not None:
                    self._tell_resent(target, share)
            elif share is not None:
                self._resent[target] = share
        return rates

    def _tell_resent(self, peer: int, share: float) -> None:
        self._context.figure("resent_share", share, "1", "low", peer=peer, size_bytes=self._payload.numel())

    def _send(self, to: int) -> float:
        import torch.distributed as dist

        once_s = self._transfer_s(to)
        number = max(_FEWEST, min(self._asked["repeats"], int(self._seconds / once_s)))
        self._word.fill_(number)
        dist.send(self._word, to)
        return self._payload.numel() / self._of([self._transfer_s(to) for _ in range(number)]) / 1e9

    def _of(self, readings: Sequence[float]) -> float:
        """Whatever else computes on a CPU slows most transfers down; a cable that is slow, all of them."""
        return min(readings) if self._context.device.type == "cpu" else median(readings)

    def _transfer_s(self, to: int) -> float:
        import torch.distributed as dist

        started = time.perf_counter()
        dist.send(self._payload, to)
        dist.recv(self._word, to)
        self._context.device.synchronize()
        return time.perf_counter() - started

    def _receive(self, source: int) -> None:
        import torch.distributed as dist

        number = 1
        for part in (0, 1):
            for _ in range(number):
                dist.recv(self._payload, source)
                dist.send(self._word, source)
            if part == 0:
                dist.recv(self._word, source)
                number = int(self._word.item())
        # Before the group ends: a GPU may still be sending the last answer.
        self._context.device.synchronize()

    def _wait_for_others_to_end(self, turn: int, members: Collection[int]) -> bool:
        """All of them have come to this turn; False when it is too late for another one.

        A pair that was not measured is asked for again in a round of its own. A small group has fewer turns than a
        large one beside it, so each waits for its own members only.
        """
        store = self._context.store
        assert store is not None  # joined in measure
        self._context.phase(f"{self._asked['fabric']} turn {turn}")
        name = f"{self._name}/{min(members)}/turn {turn}"
        if store.add(name, 1) == len(members):
            store.set(f"{name}/all", "late" if time.monotonic() > self._late_at else "go")
        return bytes(store.get(f"{name}/all")) == b"go"


def _exchanges(group: Sequence[int], turns: int) -> Iterator[list[tuple[int, int]]]:
    for pairs in circle(group):
        for turn in range(min(turns, len(pairs))):
            yield [(a, b) for a, b in pairs[turn :: min(turns, len(pairs))]]


def _first_line(error: Exception) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"\[\S+:\d+\] ?", "", line)[:200]


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Name who is at fault; where the file that travels is alone, without the solver, say that nobody judged."""
    if len(evidence.ranks) == 1:
        return Ruling()
    if evidence.device_type == "cpu" and len({seen.node_rank for seen in evidence.ranks.values()}) == 1:
        return Ruling(findings=(_NO_LINK,))
    if not own_code.is_whole():
        return Ruling(unjudged=(_NO_SOLVER,))
    from seatrial.checks import _links_judge

    return _links_judge.judge(evidence, params)


def next_round(evidence: Evidence, params: Params) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """Which pairs or groups measure next; None: no more."""
    if not own_code.is_whole():
        return None
    from seatrial.checks import _links_judge

    return _links_judge.next_round(evidence, params)


CHECK = Check(
    name="links",
    scope="pairs",
    params=Params,
    measure=measure,
    judge=judge,
    limits=limits,
    next_round=next_round,
    stages=(Stage(name="store", first_only=True),),
)
