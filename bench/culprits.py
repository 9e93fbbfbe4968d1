"""How well the culprit solver names culprits, and in how many rounds.

    nice python bench/culprits.py [NUM_FLEETS [FOLDER]]

Simulated fleets (``culprits_fleet.py``) answer the rounds that the solver requests, and its diagnosis is compared with
the planted faults. Writes ``results/culprits.json``. The counts of every 500 fleets and each row of rounds are kept in
FOLDER and are not computed again.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from culprits_fleet import GBPS, Fault, Fleet
from harness import write_result

from seatrial.checks.links.solver import Diagnosis, LinkLimits, Observations, Suspect, Topology, next_round, solve

SEED = 7
PART = 500
MADS = (0.03, 0.04, 0.05)
LOSSES = (0.10, 0.15, 0.20, 0.30, 0.50, 0.80, 1.00)
"""The shares of the healthy rate that a culprit loses; 1: it is dead."""
COUNTED = 0.20
"""A culprit with at least this loss that is not named counts as missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    fleet: Fleet
    diagnosis: Diagnosis
    rounds: int
    turns: int
    """The number of pair exchanges one after the other."""
    rounds_to_name: int
    """The number of rounds after which every culprit of the final diagnosis was named."""

    def right(self, named: Suspect) -> Fault | None:
        return next((fault for fault in self.fleet.faults if _is(named, fault, self.fleet)), None)

    @property
    def wrong(self) -> list[Suspect]:
        # Naming slow links of a member that is bad towards some members is correct, though not precise.
        parts = {frozenset((*each.members, other)) for each in self.fleet.faults for other in each.towards}
        others = (named for named in self.diagnosis.culprits if self.right(named) is None)
        return [named for named in others if named.kind != "link" or frozenset(named.members) not in parts]

    @property
    def found(self) -> list[Fault]:
        return [fault for named in self.diagnosis.culprits if (fault := self.right(named)) is not None]


def _is(named: Suspect, fault: Fault, fleet: Fleet) -> bool:
    topology = fleet.topology
    if named.inseparable and named.kind == "link":
        return set(fault.members) <= set(named.members) and (
            fault.kind == "link" or fault.members[0] in named.inseparable
        )
    if named.kind == "switch" and fault.kind == "switch":
        rest = set(topology.members) - set(fault.members)
        # With two switches, the measurements do not show whose uplink is slow.
        two = len(set(fleet.switch.values())) == 2
        return set(named.members) == set(fault.members) or (two and set(named.members) in (rest, set(topology.members)))
    if named.kind == "fabric" and fault.kind == "switch":
        # Naming the fabric for many slow links is correct, though not precise.
        return named.members != topology.members
    return named.kind == fault.kind and named.members == fault.members


def play(fleet: Fleet, *, watch: bool = False) -> Played:
    """Measure until the solver requests nothing more. ``watch``: record when the last culprit was named."""
    seen = Observations()
    # Two members alone have no peers, so they are compared with a baseline.
    limits = LinkLimits(gbps=0.9 * GBPS, origin="baseline") if len(fleet.topology.members) == 2 else LinkLimits()
    rounds = turns = 0
    history: list[set[tuple[str, tuple[int, ...]]]] = []
    while (asked := next_round(seen, fleet.topology, limits, seed=len(fleet.topology.members))) is not None:
        pairs, groups = fleet.measure(asked)
        seen = seen.after(tuple(pairs), tuple(groups))
        rounds += 1
        turns += asked.turns * max((len(group) - 1 for group in asked.groups), default=1)
        if watch:
            history.append({(named.kind, named.members) for named in solve(seen, fleet.topology, limits).culprits})
    diagnosis = solve(seen, fleet.topology, limits)
    final = {(named.kind, named.members) for named in diagnosis.culprits}
    to_name = next((index + 1 for index, names in enumerate(history) if final <= names), rounds)
    return Played(fleet=fleet, diagnosis=diagnosis, rounds=rounds, turns=turns, rounds_to_name=to_name)


def draw(rng: random.Random, *, num_members: int | None = None, bursts: bool = False) -> Fleet:
    """Return any fleet: 2 to 4,096 members, none to five culprits, 3 to 5 % noise."""
    # Large ones take seconds each: 60 in 1,000 have more than 64 members, four more than 512.
    place = rng.random()
    least, largest = (512, 4096) if place < 0.004 else (64, 512) if place < 0.06 else (2, 64)
    size = num_members or round(math.exp(rng.uniform(math.log(least), math.log(largest))))
    switch = make_switches(size, rng.choice([per for per in (2, 4, 8, 16, 32) if per >= min(8, size // 2)]))
    most = 1 if size < 5 else min(5, (size - 1) // 3 + 1)
    number = 0 if rng.random() < 0.3 else rng.randint(1, most)
    return make(
        switch,
        rng,
        faults=_faults(switch, number, rng),
        mad=rng.choice(MADS),
        oversubscribed=rng.choice((1, 1, 2, 4)),
        bursts=bursts,
    )


def make_switches(size: int, per_switch: int) -> dict[int, str]:
    """Return member -> its first switch."""
    return {member: f"s{member // per_switch:04d}" for member in range(size)}


def make(
    switch: dict[int, str],
    rng: random.Random,
    *,
    faults: Sequence[Fault],
    mad: float = 0.03,
    oversubscribed: int = 1,
    hints: bool | None = None,
    bursts: bool = False,
) -> Fleet:
    per_switch = Counter(switch.values()).most_common(1)[0][1]
    return Fleet(
        topology=Topology(members=tuple(switch)),
        switch=switch,
        faults=tuple(faults),
        mad=mad,
        uplink=math.inf if oversubscribed == 1 else max(1.0, per_switch / oversubscribed),
        hints=rng.random() < 0.5 if hints is None else hints,
        rng=rng,
        bursts=bursts,
    )


def _faults(switch: dict[int, str], number: int, rng: random.Random) -> list[Fault]:
    """Return nodes, links between good nodes without a common end, or sometimes the uplink of one switch alone."""
    switches = Counter(switch.values())
    full = [name for name, count in switches.items() if count >= 2]
    if number == 1 and len(switches) > 1 and len(full) == len(switches) and rng.random() < 0.15:
        name = rng.choice(full)
        members = tuple(member for member in switch if switch[member] == name)
        return [Fault(kind="switch", members=members, factor=1 - rng.choice(LOSSES[2:6]))]
    free = list(switch)
    rng.shuffle(free)
    faults = []
    for _ in range(number):
        direction = rng.choice(("both", "both", "both", "send", "receive"))
        factor = 1 - rng.choice(LOSSES)
        if rng.random() < 0.6 or len(free) < 4:
            faults.append(Fault(kind="node", members=(free.pop(),), direction=direction, factor=factor))
        else:
            ends = tuple(sorted((free.pop(), free.pop())))
            faults.append(Fault(kind="link", members=ends, direction=direction, factor=factor))
    return faults


def draw_partial(rng: random.Random) -> Fleet:
    """Return a fleet with one member that is bad towards three others or more, and clean with at least two."""
    size = round(math.exp(rng.uniform(math.log(6), math.log(64))))
    member, *others = rng.sample(range(size), size)
    fault = Fault(
        kind="node",
        members=(member,),
        direction=rng.choice(("both", "both", "send", "receive")),
        factor=1 - rng.choice(LOSSES[2:]),
        towards=tuple(others[: rng.randint(3, min(16, size - 3))]),
    )
    return make(make_switches(size, 32), rng, faults=[fault], mad=rng.choice(MADS))


def quality(num_fleets: int, folder: Path, kind: str = "quality") -> dict[str, Any]:
    """Return the counts over fleets 0, 1, ... The counts of every part are kept in ``folder``."""
    count: Counter[str] = Counter()
    for first in range(0, num_fleets, PART):
        last = min(first + PART, num_fleets)
        file = folder / f"{kind}-{first}-{last}.json"
        if not file.exists():
            file.write_text(json.dumps(_part(range(first, last), kind)))
        count.update(json.loads(file.read_text()))
        print(last, dict(count), file=sys.stderr, flush=True)
    by_loss = {
        f"{loss:.0%}": {"planted": count.pop(f"planted {loss:.0%}", 0), "named": count.pop(f"named {loss:.0%}", 0)}
        for loss in LOSSES
    }
    return {
        **dict(sorted(count.items())),
        "wrong_share": count["fleets with somebody wrongly named"] / max(1, count["fleets with culprits"]),
        "missed_share": count["missed"] / max(1, count["culprits to be found"]),
        "false_alarm_share": count["false alarms"] / max(1, count["healthy fleets"]),
        "named_by_loss": by_loss,
    }


DRAWS: dict[str, Callable[[random.Random], Fleet]] = {
    "quality": draw,
    "bursts": lambda rng: draw(rng, num_members=12, bursts=True),
    "partial": draw_partial,
}


def _part(indices: Iterable[int], kind: str) -> Counter[str]:
    count: Counter[str] = Counter()
    for index in indices:
        fleet = DRAWS[kind](random.Random(f"{SEED} {index}"))
        played = play(fleet)
        found = played.found
        sick = bool(fleet.faults)
        count["fleets"] += 1
        count["fleets with culprits" if sick else "healthy fleets"] += 1
        if played.wrong:
            count["fleets with somebody wrongly named" if sick else "false alarms"] += 1
            _tell(index, played, "WRONG")
        open_ends = played.diagnosis.remains or played.diagnosis.unconfirmed
        if open_ends:
            count["sick fleets with open ends" if sick else "healthy fleets not passed"] += 1
        for fault in fleet.faults:
            loss = min(LOSSES, key=lambda each: abs(each - (1 - fault.factor)))
            count[f"planted {loss:.0%}"] += 1
            count[f"named {loss:.0%}"] += fault in found
            count["culprits"] += 1
            if loss >= COUNTED:
                count["culprits to be found"] += 1
                if fault not in found:
                    count["missed"] += 1
                    count["missed without any open end"] += not open_ends
                    _tell(index, played, "MISSED")
        for named in played.diagnosis.culprits:
            fault = played.right(named)
            count["unsharp"] += bool(named.inseparable)
            if (
                fault is not None
                and fault.kind != "switch"
                and named.direction != fault.direction
                and 1 - fault.factor >= COUNTED
            ):
                count["direction wrong"] += 1
    return count


def _tell(index: int, played: Played, what: str) -> None:
    fleet, diagnosis = played.fleet, played.diagnosis
    size = len(fleet.topology.members)
    print(f"{what} fleet {index}: {size} members, mad {fleet.mad}, uplink {fleet.uplink}", file=sys.stderr)
    for fault in fleet.faults:
        print("  planted", fault.kind, fault.members[:2], fault.direction, round(fault.factor, 2), file=sys.stderr)
    for each in diagnosis.culprits:
        print("  named", each.kind, each.members[:4], each.direction, each.ratio, file=sys.stderr)
    open_ends = [(link.source, link.target, round(link.ratio, 3), link.at_once) for link in diagnosis.unconfirmed[:4]]
    print("  open", diagnosis.remains, open_ends, "rounds", played.rounds, file=sys.stderr, flush=True)


def rounds_table(sizes: Iterable[int], repeats: int, folder: Path) -> list[dict[str, Any]]:
    """Return rounds and exchanges for healthy fleets, five bad nodes, and one bad link. Each row is kept."""
    rows = []
    for size in sizes:
        switch = make_switches(size, 16)
        cases = {
            "healthy": [],
            "5 bad nodes": [("node", 1, 0.7)] * 5,
            "5 dead nodes": [("node", 1, 0.0)] * 5,
            "1 slow link": [("link", 2, 0.7)],
            "1 dead link": [("link", 2, 0.0)],
        }
        for case, kinds in cases.items():
            if size < 16 and len(kinds) == 5:
                continue
            number = repeats if size <= 512 else max(2, repeats // 10)
            file = folder / f"rounds-{size}-{case.replace(' ', '-')}-{number}.json"
            if file.exists():
                rows.append(json.loads(file.read_text()))
                continue
            played = []
            for index in range(number):
                rng = random.Random(f"{case} {size} {index}")
                free = rng.sample(tuple(switch), 10) if size >= 10 else list(switch)
                faults = []
                for kind, ends, factor in kinds:
                    members = tuple(sorted(free.pop() for _ in range(ends)))
                    faults.append(Fault(kind=kind, members=members, factor=factor))
                # The hard case: a failed group does not list the exchanges that never ended.
                fleet = make(switch, rng, faults=faults, hints=False)
                played.append(play(fleet, watch=bool(kinds) and size <= 1024))
            rounds = sorted(each.rounds for each in played)
            rows.append(
                {
                    "members": size,
                    "case": case,
                    "fleets": len(played),
                    "right": sum(not each.wrong and len(set(each.found)) == len(each.fleet.faults) for each in played),
                    "rounds_median": rounds[len(rounds) // 2],
                    "rounds_most": rounds[-1],
                    "rounds_to_name_most": max(each.rounds_to_name for each in played),
                    "exchanges_median": sorted(each.turns for each in played)[len(played) // 2],
                    "2_log2_members": round(2 * math.log2(size), 1),
                }
            )
            file.write_text(json.dumps(rows[-1]))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    num_fleets = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    measurements = {
        "seed": SEED,
        "quality": quality(num_fleets, folder),
        "bursts": quality(num_fleets // 20, folder, "bursts"),
        "partial": quality(num_fleets // 20, folder, "partial"),
        "rounds": rounds_table(
            (2, 3, 4, 8, 16, 17, 32, 64, 128, 232, *((512, 1024) if num_fleets >= 3_000 else ())),
            max(10, num_fleets // 100),
            folder,
        ),
    }
    print(write_result("culprits", f"python bench/culprits.py {num_fleets}", measurements))


if __name__ == "__main__":
    main()
