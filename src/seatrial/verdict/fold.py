"""From events to a ``Trial``: pure, total, and the same for every order and number of copies of the events.

Whatever was lost is told in ``Trial.missing``. A message that is not a well-formed event of its kind, from a source
that
may say such a thing, counts as damaged and changes nothing else.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from seatrial.verdict import fields
from seatrial.verdict.evidence import Evidence, RankSeen
from seatrial.verdict.fields import DamageError
from seatrial.verdict.reader import Reader
from seatrial.verdict.trial import GenerationSeen, StepSeen, Trial

__all__ = ["evidence_so_far", "fold"]

_MOST_GENERATIONS = 4


def fold(messages: Iterable[Mapping[str, Any]], *, damaged_lines: int = 0) -> Trial:
    """The trial that the messages tell of. Never raises.

    ``damaged_lines`` is what the decoder counted: lines that began as ours and were not whole. Where the messages hold
    the beginnings of several runs none of them is chosen, because a guess could name somebody of another run.
    """
    damage: Counter[str] = Counter()
    runs: defaultdict[str, dict[tuple[str, int], Mapping[str, Any]]] = defaultdict(dict)
    conflicts: set[tuple[str, str, int]] = set()
    for message in messages:
        try:
            run, src, seq = _identity(message)
        except DamageError as error:
            damage[str(error)] += 1
            continue
        first = runs[run].setdefault((src, seq), message)
        if first is not message and not _same(first, message):
            conflicts.add((run, src, seq))
    begun = sorted(run for run, events in runs.items() if any(event["kind"] == "run" for event in events.values()))
    for run, src, seq in sorted(conflicts):
        # Two different events under one number: neither can be believed.
        del runs[run][src, seq]
        damage[f"{src[:40]}: one number, two events"] += 1

    candidates = begun or sorted(runs)
    run = candidates[0] if len(candidates) == 1 else ""
    reader = Reader(damage)
    events = runs.get(run, {})
    for src, seq in sorted(events):
        reader.take(src, seq, events[src, seq])

    missing = _lost(reader)
    if len(candidates) > 1:
        missing = [f"the events of {len(candidates)} runs are mixed ({', '.join(candidates[:4])})"]
    elif len(runs) > 1:
        missing.append(f"{sum(map(len, runs.values())) - len(events)} events of another run are mixed in")
    if damage:
        told = ", ".join(f"{what} ({count})" for what, count in sorted(damage.items())[:6])
        missing.append(f"{damage.total()} damaged events: {told}")
    if damaged_lines:
        missing.append(f"lines cut or changed on the way: {damaged_lines}")
    return _trial(run, reader, tuple(missing))


def evidence_so_far(check: str, events: Iterable[Mapping[str, Any]]) -> Evidence:
    """What a check has measured while the trial still runs, from the ``rank``, ``figures`` and ``facts`` events."""
    reader = Reader(Counter())
    for event in events:
        reader.take(event["src"], event["seq"], event)
    ranks = {
        rank: _rank(event, rank, event["node_rank"], event["local_rank"], "")
        for (generation, rank), event in sorted(reader.came.items())
        if generation == 0
    }
    device_type, backend = _used(reader)
    return Evidence(
        ranks=ranks,
        asked=tuple(ranks),
        figures=tuple(figure for figure in reader.figures if (figure.check, figure.generation) == (check, 0)),
        facts=tuple(fact for fact in reader.facts if (fact.check, fact.generation) == (check, 0)),
        backend=backend,
        device_type=device_type,
    )


def _identity(message: Any) -> tuple[str, str, int]:
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise DamageError("no event")
    try:
        run, src = fields.text(message, "run"), fields.text(message, "src")
        seq = fields.whole(message, "seq")
        fields.number(message, "t", time=True)
    except DamageError as error:
        raise DamageError(f"no usable {error}") from None
    if not run or not src:
        raise DamageError("no run or no source")
    return run, src, seq


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False


def _lost(reader: Reader) -> list[str]:
    """What cannot have happened as it is told: gaps, sources that never spoke or never said ``end``."""
    lost = [] if reader.run else ["the event that tells plan and job (run)"]
    met = {0} | reader.met | {generation for generation, _ in (*reader.steps, *reader.exits)}
    lost += [
        f"the event that tells the ranks of generation {generation} (generation)"
        for generation in sorted(met - reader.generations.keys())[:_MOST_GENERATIONS]
    ]
    for src, seqs in sorted(reader.seqs.items()):
        gap = max(seqs) + 1 - len(seqs)
        if gap:
            lost.append(f"{gap} events of {src}")
        elif reader.ends.get(src, max(seqs)) != max(seqs):
            lost.append(f"the order of {src}, which spoke after its end")
    last = max(reader.generations, default=0)
    placed = reader.generations.get(last, {})
    sources = {"conductor", *(src for src in reader.seqs if not src.startswith("rank"))}
    sources |= {f"node{node}" for ranks in reader.generations.values() for node, _ in ranks.values()}
    # A node that the conductor saw vanish cannot say more; blame speaks of it.
    sources -= {f"node{trouble.node}" for trouble in reader.troubles if trouble.node is not None}
    if not _broken(reader, last):
        sources |= {f"rank{rank}.{last}" for rank in placed if not _died(reader, last, rank)}
    lost += [
        f"the end of {src}" if src in reader.seqs else f"all events of {src}"
        for src in sorted(sources)
        if src not in reader.ends
    ]
    lost += [
        f"what rank {rank} is (rank)"
        for rank in sorted(reader.generations.get(0, {}))
        if (0, rank) not in reader.came and f"rank{rank}.0" in reader.ends
    ]
    size = reader.run.get("job", {}).get("world_size")
    if isinstance(size, int) and 0 in reader.generations and len(reader.generations[0]) != size:
        lost.append(f"{size - len(reader.generations[0])} of {size} ranks that were asked for")
    return lost


def _broken(reader: Reader, generation: int) -> bool:
    """Whether the conductor ended the generation early: then its ranks are not expected to say ``end``."""
    outcomes = [reader.step_ends.get(key, ("", 0.0))[0] for key in reader.steps if key[0] == generation]
    troubled = any(trouble.generation == generation for trouble in reader.troubles)
    return reader.interrupted is not None or troubled or any(outcome not in ("", "done") for outcome in outcomes)


def _died(reader: Reader, generation: int, rank: int) -> bool:
    """Whether the end of a rank is told by its agent: blame then speaks of it."""
    seen = reader.exits.get((generation, rank))
    return seen is not None and seen.code != 0 and not seen.ours


def _trial(run: str, reader: Reader, missing: tuple[str, ...]) -> Trial:
    hostnames = {node: seen.hostname for node, seen in reader.nodes.items()}
    started = {rank: event for (generation, rank), event in sorted(reader.came.items()) if generation == 0}
    placed = {rank: (event["node_rank"], event["local_rank"]) for rank, event in started.items()}
    # Of an agent for each rank the conductor knows no local rank; a rank that came has told its own.
    ranks = {
        rank: _rank(started.get(rank, {}), rank, node, placed.get(rank, (node, place))[1], hostnames.get(node, ""))
        for rank, (node, place) in sorted({**placed, **reader.generations.get(0, {})}.items())
    }
    device_type, backend = _used(reader)
    interrupted, order = reader.interrupted or (None, None)
    return Trial(
        run=run,
        version=reader.run.get("version") or "",
        conductor_hostname=reader.run.get("hostname") or "",
        created=float(reader.run.get("t", 0.0 if reader.earliest == float("inf") else reader.earliest)),
        plan=reader.run.get("plan", {}),
        job=reader.run.get("job", {}),
        interrupted=interrupted,
        interrupted_order=order,
        ranks=ranks,
        started={
            rank: {key: value for key, value in event.items() if key not in ("kind", "run", "src", "seq", "t", "gen")}
            for rank, event in started.items()
        },
        device_type=device_type,
        backend=backend,
        nodes=tuple(seen for _, seen in sorted(reader.nodes.items())),
        generations=tuple(
            GenerationSeen(
                number=number, ranks=tuple(sorted(placed)), nodes={rank: row[0] for rank, row in placed.items()}
            )
            for number, placed in sorted(reader.generations.items())
        ),
        steps=tuple(_step(reader, key) for key in sorted(reader.steps)),
        figures=tuple(reader.figures),
        facts=tuple(reader.facts),
        errors=tuple(reader.errors),
        troubles=tuple(reader.troubles),
        exits=tuple(seen for _, seen in sorted(reader.exits.items())),
        stacks=tuple(reader.stacks),
        left=tuple(reader.left),
        notes=tuple(reader.notes),
        ended=frozenset(reader.ends),
        missing=missing,
    )


def _rank(event: Mapping[str, Any], rank: int, node: int, local_rank: int, hostname: str) -> RankSeen:
    device = event.get("device") or "device not told"
    return RankSeen(
        rank=rank,
        node=event.get("hostname") or hostname or f"node {node}",
        node_rank=node,
        local_rank=local_rank,
        device=device,
        device_id=event.get("device_id") or "",
        # What never said what it is compares with nobody.
        kind=f"{device}, {event.get('libraries') or ''}" if event else f"rank {rank}",
    )


def _used(reader: Reader) -> tuple[str, str]:
    """Device type and backend of generation 0."""
    events = [event for (generation, _), event in reader.came.items() if generation == 0]
    types = {event.get("device_type") or "" for event in events}
    backends = {event.get("backend") or "" for event in events}
    return "cpu" if len(types) > 1 else "".join(types), " and ".join(sorted(backends - {""}))


def _step(reader: Reader, key: tuple[int, int]) -> StepSeen:
    event = reader.steps[key]
    outcome, seconds = reader.step_ends.get(key, (None, None))
    return StepSeen(
        generation=key[0],
        number=key[1],
        check=event["check"],
        stage=event.get("stage") or "measure",
        ranks=tuple(event["ranks"]),
        timeout_s=fields.number(event, "timeout_s"),
        outcome=outcome,
        seconds=seconds,
        done=tuple(sorted(reader.done.get(key, ()))),
    )
