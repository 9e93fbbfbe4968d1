"""Bisection of a failed group: halve its members until few pairs of each are left, and measure these by themselves.

The two halves of a group are tried side by side, and a half that fails is split again. If both pass, the fault lies
between them; then each half is split in two and crossed with the halves of the other. Every round halves the blocks
between which a faulty link can lie, whether a group fails or not. Once each member has at most 16 partners left, one
round measures all pairs that are left, in as many turns: with n members a faulty link is found after log2 n - 3 rounds.
Where simultaneous pairs slow one another down, as behind a narrow uplink, hundreds of slow pairs would only raise more
questions. There the halving goes on until a member has two partners left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

from seatrial.checks.links.solver.rates import MOST_REPEATS
from seatrial.checks.links.solver.records import FAILURES, Round
from seatrial.checks.links.solver.solver_state import SolverState
from seatrial.checks.links.solver.together import Together, disjoint, holds_one, of_sources, together, without_parts
from seatrial.util.round_robin import Pair, round_robin

_MOST_TURNS, _CROWDED_TURNS = 16, 2
"""The largest number of partners that a member meets one after the other in one round of pairs. A turn takes about two
seconds; halving 16 partners down to one takes four rounds of groups, each of them longer."""
_MOST_AGAIN = 64
"""The largest number of directions of pairs that failed once and are measured again."""
_CROWDED = 0.05
"""The share of simultaneous pairs that may be slow in a fabric without contention: some bad members and noise."""
Members = tuple[int, ...]
Block = tuple[Members, Members]
Turns = tuple[tuple[Pair, ...], ...]
"""Pairs to measure in turns; those of one turn have no member in common."""


def trace(state: SolverState) -> Round | None:
    """Return the next groups or pairs to try for failed groups; None if each is traced or cannot be split further."""
    groups, rates, repeats = state.rates.groups, state.rates, state.rates.repeats
    passed = {frozenset(group.members): group.gbps is not None for group in groups}
    # A repetition that passed outweighs a failure.
    passed |= {frozenset(group.members): True for group in groups if group.gbps is not None}
    most_turns = _CROWDED_TURNS if _is_crowded(state) else _MOST_TURNS
    turns: list[tuple[list[Pair], set[int]]] = []
    tried: list[Members] = []
    for members in without_parts(_unexplained(state, together(rates))):
        for wish in _inside(tuple(sorted(members)), passed, most_turns):
            if isinstance(wish, frozenset):
                tried.append(tuple(sorted(wish)))
            else:
                _join(turns, wish, known=rates.links)
    if chosen := disjoint(tried):
        return Round(groups=chosen, repeats=repeats)
    return in_turns((pairs for pairs, _ in turns), repeats)


def failed_once_more(state: SolverState) -> Round | None:
    """Return what failed once and came through otherwise, to measure it again: pairs, then groups.

    A pause of one member fails a pair or a group, too, and is over in the second round. A group came through otherwise
    if all its pairs are clean.
    """
    alone = Counter((pair.source, pair.target) for pair in state.observations.pairs if pair.at_once == 1)
    opened = [(key, link) for key, link in sorted(state.rates.links.items()) if link.is_open]
    # Many that failed once have a common cause, and stay open questions.
    pairs = {
        frozenset(key): (min(key), max(key))
        for key, link in opened[:_MOST_AGAIN]
        if (alone[key] < FAILURES or link.rounds <= FAILURES) and not any(map(state.endpoints.bad, key))
    }
    if pairs:
        return Round(pairs=tuple(pairs.values()), turns=len(pairs), repeats=MOST_REPEATS)
    groups = together(state.rates)
    again = [
        tuple(sorted(members))
        for members in without_parts(filter(groups.all_clean, _unexplained(state, groups)))
        # What stopped without a report accuses nobody, and stays an open question.
        if [result.is_unreported for result in groups.failed[members]] == [False]
    ]
    chosen = disjoint(again)
    return Round(groups=chosen, repeats=state.rates.repeats) if chosen else None


def _unexplained(state: SolverState, groups: Together) -> list[frozenset[int]]:
    """Return the groups that failed, never passed, and have no dead member or link, repeated or not, that explains
    it."""
    dead = of_sources(link for link in state.rates.links.values() if link.failed and not link.is_open)
    return [
        members
        for members in groups.failed
        if not (groups.has_passed(members) or any(map(state.endpoints.dead, members)) or holds_one(members, dead))
    ]


def _join(turns: list[tuple[list[Pair], set[int]]], wish: Turns, *, known: Container[Pair]) -> None:
    """Add the pairs of a wish that are not measured yet to the turns, if their members are still free there.

    ``turns``: the pairs of each, and their members.
    """
    for index, pairs in enumerate(wish):
        if index == len(turns):
            turns.append(([], set()))
        chosen, busy = turns[index]
        free = [pair for pair in pairs if pair not in known and busy.isdisjoint(pair)]
        chosen += free
        busy.update(end for pair in free for end in pair)


def in_turns(turns: Iterable[list[Pair]], repeats: int) -> Round | None:
    """Return a round with as many of these pairs as can be dealt out: pair i belongs to turn i % number of turns.

    The turns of a round differ by one pair at most, so what is too much for that waits for the next round.
    """
    longest_first = sorted(filter(None, turns), key=len, reverse=True)
    if not longest_first:
        return None

    def dealt(number: int) -> list[list[Pair]]:
        most = len(longest_first[number - 1]) + 1
        return [pairs[:most] for pairs in longest_first[:number]]

    best = max(map(dealt, range(1, len(longest_first) + 1)), key=lambda each: sum(map(len, each)))
    rows = range(len(best[0]))
    pairs = tuple(of_turn[row] for row in rows for of_turn in best if row < len(of_turn))
    return Round(pairs=pairs, turns=len(best), repeats=repeats)


def _is_crowded(state: SolverState) -> bool:
    """Return True if more of the simultaneous pairs were slow than bad members and noise explain."""
    rates = state.rates
    simultaneous = [pair.gbps for pair in state.observations.pairs if pair.at_once > 2 and pair.gbps is not None]
    slow = [gbps for gbps in simultaneous if rates.reference is not None and gbps < rates.limit * rates.reference]
    return len(slow) > _CROWDED * len(simultaneous)


def _inside(members: Members, passed: dict[frozenset[int], bool], most_turns: int) -> Iterator[frozenset[int] | Turns]:
    """Yield what to try next for a failed group: smaller groups first, pairs in the end."""
    if len(members) <= most_turns:
        yield round_robin(members)
        return
    half = (len(members) + 1) // 2
    near, far = members[:half], members[half:]
    halves = [part for part in (near, far) if len(part) > 1]
    unknown = [frozenset(part) for part in halves if frozenset(part) not in passed]
    if unknown:
        yield from unknown
        return
    failed = [part for part in halves if not passed[frozenset(part)]]
    if failed:
        for part in failed:
            yield from _inside(part, passed, most_turns)
        return
    yield from _between([(near, far)], passed, most_turns)


def _between(
    blocks: Sequence[Block], passed: dict[frozenset[int], bool], most_turns: int
) -> Iterator[frozenset[int] | Turns]:
    """Yield what to try next if the fault lies between the two parts of one block, and everything else is clean."""
    widest = max((len(part) for block in blocks for part in block), default=0)
    if widest <= most_turns:
        yield _crossed(blocks, widest)
        return
    split = [(_halve(near), _halve(far)) for near, far in blocks]
    sets = [frozenset(m for near, far in split for m in near[half] + far[half]) for half in (0, 1)]
    # Without members of both parts there is no link between them to try.
    crossing = [any(near[half] and far[half] for near, far in split) for half in (0, 1)]
    unknown = [sets[half] for half in (0, 1) if crossing[half] and sets[half] not in passed]
    if unknown:
        yield from unknown
        return
    failed = [half for half in (0, 1) if crossing[half] and not passed[sets[half]]]
    for half in failed:
        inside = [(near[half], far[half]) for near, far in split]
        yield from _between([block for block in inside if block[0] and block[1]], passed, most_turns)
    if not failed:
        crossed = [(near[half], far[1 - half]) for near, far in split for half in (0, 1)]
        yield from _between([block for block in crossed if block[0] and block[1]], passed, most_turns)


def _crossed(blocks: Sequence[Block], widest: int) -> Turns:
    """Return all pairs across each block in ``widest`` turns.

    A block with both parts narrower than that has one pair more in one turn than in the others. Each such block begins
    one turn later than the one before it, which keeps the turns equally long.
    """
    turns: list[list[Pair]] = [[] for _ in range(widest)]
    narrow = 0
    for near, far in blocks:
        for index, a in enumerate(near):
            for place, b in enumerate(far):
                turns[(place - index + narrow) % widest].append((a, b))
        narrow += max(len(near), len(far)) < widest
    return tuple(map(tuple, turns))


def _halve(members: Members) -> tuple[Members, Members]:
    """Return the first half, which is the larger one, and the second."""
    half = (len(members) + 1) // 2
    return members[:half], members[half:]
