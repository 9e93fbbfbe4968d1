"""Measurement of links: GB/s and latency of every link between two devices, each direction by itself.

This comes before any world exists. Two ranks meet by the pages of words that each of them keeps, at addresses that the
conductor passes on, and so do the ranks of a group; the store of the first rank only orders their turns. The conductor
asks for one round after the other, each derived from all results so far (``round_request.py``, ``docs/culprits.md``).
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from seatrial.checks.links.fabrics import MAX_RESENT
from seatrial.checks.links.params import PING_BYTES, Params
from seatrial.evidence.statistics import median
from seatrial.probe import contention, tcp
from seatrial.protocol.own_errors import lack_of_host
from seatrial.rank import groups
from seatrial.rank.context import Context
from seatrial.rank.meeting import UnmetError
from seatrial.rank.word_page import PeerPage, WordPage
from seatrial.util.round_robin import round_robin

if TYPE_CHECKING:
    from seatrial.rank.page_store import PageStore

_PINGS = 10
"""The pings that each end of a pair begins."""
_LEAST_TRANSFERS = 3
_LEAST_SEGMENTS = 200
"""The least number of TCP segments for a share: with fewer, a single one would be half of ``MAX_RESENT``. RDMA sends no
TCP segments."""
_MOST_MARKS = 64
"""Random numbers in a payload; a library may send its parts over several connections at once."""
_LATE = 0.8
"""The share of ``Params.pair_timeout_s`` from which on a peer may have given up a rank that came late."""
_BUDGET = 0.5
"""The share of a round's time after which no turn begins; the rest is for a last turn in which all pairs fail."""
_TURN, _NO_TURN = 1, 1 << 32
"""The word of the rank that comes last: the turn begins, or the round has no time left for it."""
_LONGEST_REASON = 200
"""Characters of a reason."""
_MOST_REPORTED = 4
"""The largest number of peers for which a rank reports ``resent_share`` of exchanges that were not slow."""


def measure(context: Context, params: Params) -> None:
    """Open a page of words, open the store, or take part in a round."""
    if context.world_size == 1 or context.backend == "mpi":
        reason = "1 rank" if context.world_size == 1 else "MPI has no group before the world"
        context.fact("not_checked", reason)
        return
    # Our deadline comes first; the library's is the safety net.
    timeout = timedelta(seconds=context.timeout_s + 30)
    if context.stage == "page":
        context.phase("open a page of words")
        _open_page(context)
        return
    if context.stage == "store":
        context.phase("open the store")
        groups.open_store(context, timeout)
        return
    context.phase("rendezvous at the store")
    # The conductor keeps the newest facts of each rank.
    _open_page(context)
    page: WordPage = context.kept["page"]
    page.open()
    try:
        groups.join_store(context, timeout, connect_timeout_s=params.pair_timeout_s)
        for part in context.given["round"]["parts"]:
            members = sorted({member for group in (part["groups"] or part["pairs"]) for member in group})
            if context.rank in members:
                if context.rank == members[0]:
                    context.fact("asked", {"fabric": part["fabric"]})
                _RoundOnFabric(context, params, part).run()
    finally:
        page.shut()


def _open_page(context: Context) -> None:
    """Open the page of this rank, and report its address: a rank without one is asked for no round."""
    try:
        page: WordPage = context.kept.get("page") or WordPage(context.address)
    except OSError as error:
        context.fact("no_page", {"reason": str(error)})
        return
    context.kept["page"] = page
    context.fact("page", {"host": context.address, "port": page.port})


class _RoundOnFabric:
    """One rank's share of a round on one fabric."""

    def __init__(self, context: Context, params: Params, request: dict[str, Any]) -> None:
        import torch

        self._context, self._params, self._request = context, params, request
        self._timeout = timedelta(seconds=params.pair_timeout_s)
        size_bytes = params.cpu_bytes if context.device.type == "cpu" else params.gpu_bytes
        self._payload = torch.ones(size_bytes, dtype=torch.uint8, device=context.device.torch)
        self._word = torch.zeros(PING_BYTES // 8, dtype=torch.int64, device=context.device.torch)
        """The ping, the answer to a transfer, and the number of transfers to come."""
        words = self._payload[: size_bytes // 8 * 8].view(torch.int64)
        step = -(-len(words) // _MOST_MARKS)
        self._marks = words[(len(words) - 1) % step :: step]
        """Numbers in the payload, the last one at its end. Their sum is the answer, so none can come earlier."""
        self._name = f"links/{context.stage}/{request['fabric']}"
        self._last_start = time.monotonic() + _BUDGET * context.timeout_s
        self._page: WordPage = context.kept["page"]
        self._seconds = params.seconds
        self._allowed_s = params.exchange_s()
        self._patience_s = params.patience_s()
        # A peer may be held up for a turn; a turn and the wait for it must end before the round does.
        most_s = (1 - _BUDGET) * context.timeout_s - self._allowed_s
        self._wait_s = min(self._allowed_s, max(self._patience_s, most_s))
        self._ends_at = 0.0
        """The time at which the exchange with the present peer has failed."""
        self._others = tcp.sockets()
        """The sockets that are not of the group, such as those of strangers who read the store over bad cables."""
        self._resent = dict[int, float]()
        """Peer -> share of the segments that TCP sent again, for exchanges that were not slow."""

    def run(self) -> None:
        """Measure turn by turn; each turn begins when the turn before has ended for all members."""
        for group in self._request["groups"]:
            if self._context.rank in group:
                self._run_group(group)
                return
        turns, members = self._request["turns"], {rank for pair in self._request["pairs"] for rank in pair}
        for turn in range(turns):
            if not self._begin_turn(turn, members):
                return
            mine = [pair for pair in self._request["pairs"][turn::turns] if self._context.rank in pair]
            for a, b in mine:
                self._run_pair(turn, a, b)
            if not mine:
                self._begin_transfers(turn)

    def _run_pair(self, turn: int, a: int, b: int) -> None:
        peer = b if self._context.rank == a else a
        try:
            meeting = self._meet(f"{self._name}/{turn}/", [a, b])
        except UnmetError as error:
            self._report_unmet(peer, error)
            self._begin_transfers(turn)
            return
        self._ends_at = time.monotonic() + self._allowed_s
        self._page.watch()
        # Nobody else reads the two pages: one that is not crowded and cannot be read is a matter of the two.
        try:
            failed = self._form_group([a, b], meeting)
        except UnmetError as error:
            failed = _first_line(error)
        self._begin_transfers(turn)
        # Without a group nothing is measured, and no time has passed by which a share could be divided.
        has_answered, before = False, {} if failed else contention.counters()
        try:
            if not failed:
                self._ping(0 if self._context.rank == b else 1, peer)
                has_answered = True
                self._exchange(a, b, [a, b])
        except RuntimeError as error:
            failed = _first_line(error)
        # Also after a failure: one direction may have been measured by then.
        self._report_cpu_share(peer, before)
        # A peer that has answered had not given up.
        late_s, is_crowded = (0.0, False) if has_answered else (meeting.held_s, self._page.is_crowded)
        unmet = self._late(late_s, failed, is_crowded=is_crowded)
        self._close_group()
        if unmet:
            self._report_unmet(peer, UnmetError(unmet))
        elif failed:
            self._context.fact("failed", {"peer": peer, "reason": failed})

    def _meet(self, name: str, pair: Sequence[int]) -> PageStore:
        """Return the store for the group of a pair, as soon as both have read that the other one is there.

        Raises UnmetError: a third rank may have kept it away. Only after this a failure is a matter of the two.
        """
        name += "-".join(map(str, pair)) + "/"
        (other,) = (peer for peer in self._peers(pair) if peer is not None)
        self._page.begin()
        now = time.monotonic()
        family = socket.AF_INET6 if ":" in self._context.address else socket.AF_INET
        try:
            port = socket.create_server(("", 0), family=family)
        except OSError as error:
            raise UnmetError(f"this host has no port to listen on: {error.strerror or error}") from error
        # Other processes of this host may take the last ports: this one is kept until the group takes one.
        with port:
            self._page.say(f"{name}ready", b"")
            other.word(f"{name}ready", now + self._wait_s, reached_until=now + self._patience_s)
            self._page.say(f"{name}go", b"")
            other.word(f"{name}go", time.monotonic() + self._patience_s)
        return self._meeting(name, pair)

    def _peers(self, ranks: Sequence[int]) -> list[PeerPage | None]:
        """Return the pages of these ranks; None in the place of this one. Raises UnmetError."""
        addresses, peers = self._context.given["round"]["addresses"], list[PeerPage | None]()
        for rank in ranks:
            if str(rank) not in addresses:
                raise UnmetError(f"rank {rank} has not said where its page is")
            host, port = addresses[str(rank)]
            peers.append(None if rank == self._context.rank else PeerPage(rank, (host, port)))
        return peers

    def _meeting(self, name: str, ranks: Sequence[int]) -> PageStore:
        from seatrial.rank.page_store import PageStore

        return PageStore(self._page, self._peers(ranks), name, self._patience_s)

    def _late(self, late_s: float, failed: str, *, is_crowded: bool = False) -> str:
        """Return why a failure accuses nobody: one of the two may have come so late that the other one gave it up.

        A page that many read answers late, and a machine may stand still. Other processes of a host may have taken its
        last port, its memory or its last thread. ``late_s``: how late this rank read that the peer had begun.
        ``is_crowded``: others may have kept the peer from reading the page of this rank. Empty for ranks that were in
        time, and without a failure.
        """
        late_s += self._page.stood_still_s
        why = "others read the page of this rank all the time" if is_crowded else ""
        if lack_of_host(failed):
            why = "this host lacks a port, memory or a thread"
        if late_s > _LATE * self._params.pair_timeout_s:
            why = f"this rank was {late_s:.1f} s late"
        return f"{why}: {failed}"[:_LONGEST_REASON] if failed and why else ""

    def _report_unmet(self, peer: int, error: UnmetError) -> None:
        """Report that this rank and its peer did not meet, and that none could connect if that is why.

        Where many others read this page, that one may not have come through to it, nor this one to another such page.
        """
        is_unreachable = error.unreachable and not self._page.is_crowded
        self._page.begin()
        self._context.fact("unreachable" if is_unreachable else "unmet", {"peer": peer, "reason": _first_line(error)})

    def _report_cpu_share(self, peer: int, before: Mapping[str, float]) -> None:
        """Report which part of the time since ``before`` the threads of this rank had a core when they needed one."""
        after = contention.counters()
        # Processes on CPUs move the bytes themselves; the kernel may not count the waits.
        if self._context.device.type == "cpu" and "waited_s" in before.keys() & after.keys():
            waited_s, wall_s = (after[key] - before[key] for key in ("waited_s", "wall_s"))
            self._context.measurement("cpu_share", min(1.0, max(0.0, 1 - waited_s / wall_s)), "1", peer=peer)

    def _run_group(self, group: Sequence[int]) -> None:
        """Exchange once with every member; report slow exchanges one by one, and the median of all."""
        rates, is_late = list[float](), False
        steps = list(_group_steps(group, self._request["turns"]))
        self._seconds = min(self._params.seconds, _BUDGET * self._context.timeout_s / (4 * len(steps)))
        broken, name = f"{self._name}/broken/{group[0]}", f"{self._name}/{group[0]}/"
        self._page.begin()
        self._page.watch()
        try:
            meeting = self._meeting(name, group)
            failed = self._form_group(group, meeting)
            unmet = meeting.unmet or self._late(meeting.late_s, failed)
        except UnmetError as error:
            failed = unmet = _first_line(error)
        if failed:
            groups.add_to_key(self._context, broken)
            self._context.fact("unmet" if unmet else "failed", {"reason": unmet or failed})
        for step, pairs in enumerate(steps):
            if not self._begin_turn(step, group):
                is_late = True
                self._context.fact("late", {"fabric": self._request["fabric"], "exchanges": [step, len(steps)]})
                break
            self._begin_transfers(step)
            for a, b in pairs:
                if self._context.rank not in (a, b) or failed or groups.has_key(self._context, broken):
                    continue
                peer = b if self._context.rank == a else a
                late_s = 0.0
                self._page.watch()
                try:
                    late_s = self._begin_exchange(name, step, peer)
                    self._ends_at = time.monotonic() + self._allowed_s
                    rates += self._exchange(a, b, group)
                except RuntimeError as error:
                    # The store may hide that the group is broken, and one failure closes all connections of this rank.
                    failed = _first_line(error)
                    unmet = failed if isinstance(error, UnmetError) else self._late(late_s, failed)
                    groups.add_to_key(self._context, broken)
                    self._context.fact("unmet" if unmet else "failed", {"peer": peer, "reason": unmet or failed})
        self._close_group()
        limit = MAX_RESENT + median(list(self._resent.values())) if self._resent else 0.0
        for peer in sorted(self._resent, key=self._resent.__getitem__)[-_MOST_REPORTED:]:
            if self._resent[peer] > limit:
                self._report_resent(peer, self._resent[peer])
        if rates and not is_late and not groups.has_key(self._context, broken):
            self._context.measurement("group_gbps", median(rates), "GB/s", "high")

    def _begin_exchange(self, name: str, step: int, peer: int) -> float:
        """Wait until the peer is at this step, too: the common store may have let one of the two begin without it.

        Returns how late this rank may be, in seconds. Raises UnmetError.
        """
        at, number = f"{name}at", str(step).encode()
        (other,) = (page for page in self._peers([peer]) if page is not None)
        self._page.say(at, number)
        other.word(at, time.monotonic() + self._patience_s, value=number)
        return other.late_s

    def _form_group(self, ranks: Sequence[int], meeting: PageStore) -> str:
        """Form the group of these ranks. Returns the reason if that failed, else an empty string. Raises UnmetError."""
        self._others = tcp.sockets()
        try:
            groups.form(self._context, meeting, ranks, self._timeout)
        except UnmetError:
            raise
        except RuntimeError as error:
            return _first_line(error)
        return ""

    def _close_group(self) -> None:
        groups.close_world()

    def _ping(self, peer_index: int, peer: int) -> None:
        """Send 8 bytes there and back. Each rank begins half of the pings and times those.

        The other one sends back what came. So none can claim to be faster than it is, or answer before it was asked.
        """
        import torch.distributed as dist

        readings = list[float]()
        for is_mine in (peer_index == 1, peer_index != 1):
            for _ in range(_PINGS + 2):
                self._require_time()
                number = secrets.randbits(62)
                if is_mine:
                    self._word.fill_(number)
                    self._context.device.synchronize()
                started = time.perf_counter()
                for is_sending in (is_mine, not is_mine):
                    (dist.send if is_sending else dist.recv)(self._word, peer_index)
                self._context.device.synchronize()
                if is_mine:
                    readings.append(time.perf_counter() - started)
                    if self._word.item() != number:
                        raise RuntimeError(f"rank {peer} sent back other bytes than it was sent")
        self._context.measurement("latency_us", self._typical(readings[2:]) / 2 * 1e6, "us", "low", peer=peer)

    def _exchange(self, a: int, b: int, ranks: Sequence[int]) -> list[float]:
        """Transfer from ``a`` to ``b``, then back. Returns the rate at which this rank sent, in GB/s."""
        rates = []
        for source, target in ((a, b), (b, a)):
            if self._context.rank == target:
                self._receive(ranks.index(source))
                continue
            before = tcp.sockets(besides=self._others)
            rates.append(self._send(ranks.index(target)))
            sent, resent = tcp.segments_between(before, tcp.sockets(besides=self._others))
            share = resent / sent if sent >= _LEAST_SEGMENTS else None
            list_below_gbps = self._request["list_below_gbps"]
            if list_below_gbps is None or rates[-1] < list_below_gbps:
                size_bytes = self._payload.numel()
                self._context.measurement("gbps", rates[-1], "GB/s", "high", peer=target, size_bytes=size_bytes)
                if share is not None:
                    self._report_resent(target, share)
            elif share is not None:
                self._resent[target] = share
        return rates

    def _report_resent(self, peer: int, share: float) -> None:
        self._context.measurement("resent_share", share, "1", "low", peer=peer, size_bytes=self._payload.numel())

    def _send(self, target_index: int) -> float:
        """Send the payload several times. Returns the typical rate in GB/s."""
        import torch.distributed as dist

        once_s = self._transfer_s(target_index)
        number = max(_LEAST_TRANSFERS, min(self._request["repeats"], int(self._seconds / once_s)))
        self._word.fill_(number)
        dist.send(self._word, target_index)
        return self._payload.numel() / self._typical([self._transfer_s(target_index) for _ in range(number)]) / 1e9

    def _typical(self, readings: Sequence[float]) -> float:
        """Return the median; between CPUs the minimum: other processes slow most transfers, a slow cable slows all."""
        return min(readings) if self._context.device.type == "cpu" else median(readings)

    def _transfer_s(self, target_index: int) -> float:
        import torch
        import torch.distributed as dist

        self._require_time()
        numbers = torch.frombuffer(bytearray(secrets.token_bytes(8 * len(self._marks))), dtype=torch.int64)
        self._marks.copy_(numbers)
        self._context.device.synchronize()
        started = time.perf_counter()
        dist.send(self._payload, target_index)
        dist.recv(self._word, target_index)
        self._context.device.synchronize()
        took_s = time.perf_counter() - started
        if self._word.item() != numbers.sum().item():
            raise RuntimeError("the answer to a transfer was not made of what had been sent")
        return took_s

    def _receive(self, source_index: int) -> None:
        """Receive one transfer, the number of those to come, and these; answer each transfer."""
        import torch
        import torch.distributed as dist

        number = 1
        for is_last in (False, True):
            for _ in range(number):
                self._require_time()
                dist.recv(self._payload, source_index)
                torch.sum(self._marks, dim=0, keepdim=True, out=self._word)
                dist.send(self._word, source_index)
            if not is_last:
                dist.recv(self._word, source_index)
                self._context.device.synchronize()
                number = int(self._word.item())
                if not _LEAST_TRANSFERS <= number <= max(_LEAST_TRANSFERS, self._request["repeats"]):
                    raise RuntimeError(f"{number} transfers were announced, which nobody asked for")
        # A GPU may still be sending the last answer when the group ends.
        self._context.device.synchronize()

    def _require_time(self) -> None:
        """Raise RuntimeError once the exchange with the present peer takes too long."""
        if time.monotonic() > self._ends_at:
            raise RuntimeError(f"it had not ended after {self._allowed_s:g} s")

    def _begin_turn(self, turn: int, members: Collection[int]) -> bool:
        """Wait until all members are ready for this turn. Returns False if it is too late to begin another turn.

        The solver then requests the missing pairs in a separate round. A small group has fewer turns than a large one
        at the same time, so each rank waits for its members only.
        """
        self._context.phase(f"{self._request['fabric']} turn {turn}")
        name = f"{self._name}/{min(members)}/turn {turn}"
        # Where a stranger counts as well, several members are the last one, so the sum has several answers.
        if groups.add_to_key(self._context, name) >= len(members):
            groups.add_to_key(self._context, f"{name}/all", _NO_TURN if time.monotonic() > self._last_start else _TURN)
        return groups.wait_for_number(self._context, f"{name}/all") < _NO_TURN

    def _begin_transfers(self, turn: int) -> None:
        """Say that this rank connects no more in this turn; all ranks do, since all pass the same phases."""
        self._context.phase(f"{self._request['fabric']} turn {turn} transfers")


def _group_steps(group: Sequence[int], turns: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the disjoint pairs of each step, which together are all pairs of the group."""
    for pairs in round_robin(group):
        for turn in range(min(turns, len(pairs))):
            yield [(a, b) for a, b in pairs[turn :: min(turns, len(pairs))]]


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without the addresses of Gloo's source files, at most 200 characters.

    NCCL says in its last line what the host lacked: that comes first then.
    """
    line = (str(error).splitlines() or [type(error).__name__])[0]
    lack = lack_of_host(str(error))
    line = line if lack in line else f"{lack}: {line}"
    return re.sub(r"\[[^\s\[\]]+\.(?:cc|h|cpp):\d+\] ?", "", line)[:_LONGEST_REASON]
