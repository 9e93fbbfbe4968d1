"""From events to a ``Trial``: pure, never raises, and independent of the order and the copies of the events.

``Trial.missing`` lists what is missing from the record. A message that is not a well-formed event of its kind, from a
source that may send it, counts as damaged and changes nothing else.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from seatrial.evidence.evidence import Evidence, RankRecord, short_names
from seatrial.evidence.measurement import Measurement
from seatrial.judge.event_reader import Reader
from seatrial.judge.host_names import HostName, false_names, host_names
from seatrial.judge.trial import GenerationRecord, NodeRecord, Note, StepRecord, Trial
from seatrial.protocol import fields
from seatrial.protocol.fields import DamageError
from seatrial.util.text import as_name, cleaned, in_label, named_ranks

_MOST_GENERATIONS = 4
_MOST_GAPS = 1_000
"""Gaps that are listed: whoever lies can make any number of sources with gaps."""


def fold(messages: Iterable[Mapping[str, Any]], *, damaged_lines: int = 0) -> Trial:
    """Return the trial that the messages describe. Never raises.

    ``damaged_lines``: the number of incomplete, changed or foreign lines that the reader has found. Where the messages
    have ``run`` events of several runs, none of them is chosen, because a guess could name a rank of another run.
    """
    damage: Counter[str] = Counter()
    runs: defaultdict[str, dict[tuple[str, int], Mapping[str, Any]]] = defaultdict(dict)
    conflicts: set[tuple[str, str, int]] = set()
    for message in messages:
        try:
            run, src, seq = identity(message)
        except DamageError as error:
            damage[str(error)] += 1
            continue
        first = runs[run].setdefault((src, seq), message)
        if first is not message and not is_same(first, message):
            conflicts.add((run, src, seq))
    begun = sorted(run for run, events in runs.items() if any(event["kind"] == "run" for event in events.values()))
    for run, src, seq in sorted(conflicts):
        # Two different events with one number: neither can be trusted.
        del runs[run][src, seq]
        damage[f"{src[:40]}: one number, two events"] += 1

    candidates = begun or sorted(runs)
    run = candidates[0] if len(candidates) == 1 else ""
    reader = Reader(damage)
    events = runs.get(run, {})
    for src, seq in sorted(events):
        reader.add(src, seq, events[src, seq])

    missing = _missing(reader)
    if len(missing) > _MOST_GAPS:
        missing = [*missing[:_MOST_GAPS], f"and {len(missing) - _MOST_GAPS} more gaps"]
    if len(candidates) > 1:
        missing = [f"the events of {len(candidates)} runs are mixed ({', '.join(candidates[:4])})"]
    elif len(runs) > 1:
        missing.append(f"{sum(map(len, runs.values())) - len(events)} events of another run are mixed in")
    if damage:
        reasons = ", ".join(f"{what} ({count})" for what, count in sorted(damage.items())[:6])
        missing.append(f"{damage.total()} damaged events: {reasons}")
    missing += [mixed for mixed in (_device_types(reader), _backends(reader), _unlike_inventory(reader)) if mixed]
    if damaged_lines:
        missing.append(f"{damaged_lines} lines were cut or changed, or stand in a file that may not say so")
    return _trial(run, reader, tuple(missing))


def evidence_so_far(check: str, events: Iterable[Mapping[str, Any]]) -> Evidence:
    """Return what a check has measured while the trial still runs.

    ``events``: those of the kinds ``rank``, ``measurements`` and ``facts``; of the conductor those of the kinds
    ``generation``, ``step`` and ``interface``, without header.
    """
    reader = Reader(Counter())
    for event in events:
        if event["kind"] == "step":
            reader.add_step("step", event)
        elif event["kind"] == "generation":
            reader.add_generation(event)
        elif event["kind"] == "interface":
            reader.add_interface(event)
        else:
            reader.add(event["src"], event["seq"], event)
    nodes = reader.generations.get(0, {})
    ranks = {
        # The conductor knows the node of a rank, whatever the rank says.
        rank: _rank(event, rank, nodes.get(rank, (event["node_rank"], 0))[0], event["local_rank"], None, None)
        for (generation, rank), event in sorted(reader.started.items())
        if generation == 0
    }
    device_type, backend = _device_type_and_backend(reader)
    return Evidence(
        ranks=ranks,
        asked=tuple(ranks),
        measurements=tuple(
            measurement
            for measurement in _measurements(reader, ranks)
            if (measurement.check, measurement.generation) == (check, 0)
        ),
        facts=tuple(fact for fact in reader.facts if (fact.check, fact.generation) == (check, 0)),
        backend=backend,
        device_type=device_type,
        nodes={fact.node_rank: f"node {fact.node_rank}" for fact in reader.facts if fact.node_rank is not None},
        rounds=_rounds(reader).get(check, {}),
        interface=reader.interfaces.get(check, ""),
        places_of_nodes=reader.places_of_nodes,
    )


def identity(message: Any) -> tuple[str, str, int]:
    """Return the run, the source, and the number there of an event. Raises DamageError."""
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise DamageError("not an event")
    try:
        run, src = fields.text(message, "run"), fields.text(message, "src")
        seq = fields.whole(message, "seq")
        fields.number(message, "t", time=True)
    except DamageError as error:
        raise DamageError(f"no usable {error}") from None
    if not run or not src:
        raise DamageError("no run or no source")
    return run, src, seq


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two events with one identity are copies."""
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False


def _missing(reader: Reader) -> list[str]:
    """Return gaps in the numbers of each source, sources without events, and sources without ``end``."""
    if _never_began(reader):
        return []
    missing = [] if reader.run else ["the `run` event, which has the plan and the job, is missing"]
    known = {0} | reader.generations_of_ranks | {generation for generation, _ in (*reader.steps, *reader.exits)}
    missing += [
        f"the `generation` event of attempt {generation} is missing"
        for generation in sorted(known - reader.generations.keys())[:_MOST_GENERATIONS]
    ]
    for src, seqs in sorted(reader.seqs.items()):
        gap = max(seqs) + 1 - len(seqs)
        if gap:
            missing.append(f"{gap} events of {src} are missing")
        elif reader.ends.get(src, max(seqs)) != max(seqs):
            missing.append(f"{src} sent events after its `end` event")
    last = max(reader.generations, default=0)
    ranks = reader.generations.get(last, {})
    sources = {
        "conductor",
        *(reader.run.get("sources") or ()),
        *(src for src in reader.seqs if not src.startswith("rank")),
    }
    sources |= {f"node{node}" for rows in reader.generations.values() for node, _ in rows.values()}
    # A node that the conductor lost cannot send more; blame has a finding for it.
    sources -= {f"node{trouble.node}" for trouble in reader.troubles if trouble.node is not None}
    if not (_ended_early(reader, last) or _only_agents(reader, last)):
        sources |= {f"rank{rank}.{last}" for rank in ranks if not _died(reader, last, rank)}
    missing += [
        f"the `end` event of {src} is missing" if src in reader.seqs else f"all events of {src} are missing"
        for src in sorted(sources)
        if src not in reader.ends
    ]
    # A node without a name could have another one blamed, or hide that it is another machine.
    with_ranks = {node for rows in reader.generations.values() for node, _ in rows.values()}
    heard = sources & reader.seqs.keys()
    missing += [
        f"the `node` event of node {node} is missing or has no host name"
        for node in sorted(with_ranks)
        if f"node{node}" in heard and not (node in reader.nodes and reader.nodes[node].hostname)
    ]
    missing += [
        f"the `rank` event of rank {rank} is missing"
        for rank in sorted(reader.generations.get(0, {}))
        if (0, rank) not in reader.started and f"rank{rank}.0" in reader.ends
    ]
    size = reader.run.get("job", {}).get("world_size")
    if isinstance(size, int) and 0 in reader.generations and len(reader.generations[0]) != size:
        missing.append(f"{size - len(reader.generations[0])} of {size} requested ranks are missing")
    return missing


def _never_began(reader: Reader) -> bool:
    """Return whether the conductor has only announced the run and made notes, and somebody else says why: then nothing
    is missing."""
    is_explained = bool(reader.troubles) or any(note.severity == "error" for note in reader.notes)
    has_ranks = any(src.startswith("rank") for src in reader.seqs)
    numbers = reader.seqs.get("conductor", [])
    began = bool(reader.generations or reader.steps) or "conductor" in reader.ends
    is_announced = bool(reader.run) and sorted(numbers) == list(range(len(numbers)))
    return is_announced and not (began or has_ranks) and is_explained


def _ended_early(reader: Reader, generation: int) -> bool:
    """Return whether the conductor ended the generation early: then its ranks are not expected to send ``end``."""
    outcomes = [reader.step_ends.get(key, ("", 0.0))[0] for key in reader.steps if key[0] == generation]
    troubled = any(trouble.generation == generation for trouble in reader.troubles)
    return reader.interrupted is not None or troubled or any(outcome not in ("", "done") for outcome in outcomes)


def _only_agents(reader: Reader, generation: int) -> bool:
    """Return whether the generation had steps, and none that ranks were started for."""
    steps = [event for (of, _), event in reader.steps.items() if of == generation]
    return bool(steps) and all(event.get("nodes") for event in steps)


def _died(reader: Reader, generation: int, rank: int) -> bool:
    """Return whether its agent reported the death of a rank: then blame has a finding for it."""
    ending = reader.exits.get((generation, rank))
    return ending is not None and ending.code != 0 and not ending.ours


def _trial(run: str, reader: Reader, missing: tuple[str, ...]) -> Trial:
    names = host_names(reader.run.get("job", {}), reader.nodes, reader.places_of_nodes, reader.slurm_nodes)
    started = {rank: event for (generation, rank), event in sorted(reader.started.items()) if generation == 0}
    locations = {rank: (event["node_rank"], event["local_rank"]) for rank, event in started.items()}
    # With an agent for each rank the conductor knows no local ranks, but each rank knows its own.
    ranks = {
        rank: _rank(
            started.get(rank, {}),
            rank,
            node,
            locations.get(rank, (node, local_rank))[1],
            reader.nodes.get(node),
            names.get(node),
        )
        for rank, (node, local_rank) in sorted({**locations, **reader.generations.get(0, {})}.items())
    }
    device_type, backend = _device_type_and_backend(reader)
    interrupted, order = reader.interrupted or (None, None)
    return Trial(
        run=run,
        version=reader.run.get("version") or "",
        conductor_hostname=reader.run.get("hostname") or "",
        conductor_in_container=reader.run.get("in_container", False),
        created=float(reader.run.get("t", 0.0 if reader.earliest == float("inf") else reader.earliest)),
        seconds=max(0.0, reader.conductor_latest - float(reader.run["t"])) if reader.run else None,
        plan=reader.run.get("plan", {}),
        job=reader.run.get("job", {}),
        interrupted=interrupted,
        interrupted_order=order,
        ranks=ranks,
        named=short_names(ranks),
        started={
            rank: {key: value for key, value in event.items() if key not in ("kind", "run", "src", "seq", "t", "gen")}
            for rank, event in started.items()
        },
        pids={key: event["pid"] for key, event in sorted(reader.started.items()) if event.get("pid") is not None},
        device_type=device_type,
        backend=backend,
        nodes=tuple(
            replace(entry, name=names[node].name, calls_itself=names[node].calls_itself) if node in names else entry
            for node, entry in sorted(reader.nodes.items())
        ),
        host_names={node: entry.name for node, entry in sorted(names.items())},
        generations=tuple(
            GenerationRecord(
                number=number, ranks=tuple(sorted(rows)), nodes={rank: row[0] for rank, row in rows.items()}
            )
            for number, rows in sorted(reader.generations.items())
        ),
        steps=tuple(_step(reader, key) for key in sorted(reader.steps)),
        rounds=_rounds(reader),
        interfaces=reader.interfaces,
        places_of_nodes=reader.places_of_nodes,
        measurements=_measurements(reader, ranks),
        facts=tuple(reader.facts),
        errors=tuple(reader.errors),
        node_failures=tuple(reader.node_failures),
        troubles=tuple(reader.troubles),
        exits=tuple(ending for _, ending in sorted(reader.exits.items())),
        agent_ends=tuple(ending for _, ending in sorted(reader.agent_ends.items())),
        stacks=tuple(reader.stacks),
        left=tuple(reader.left.values()),
        notes=(
            *reader.notes,
            *(
                Note(severity="error", text=text, untrusted=(node,))
                for node, text in false_names(reader.nodes, reader.slurm_nodes).items()
            ),
        ),
        ended=frozenset(reader.ends),
        missing=missing,
    )


def _rank(
    event: Mapping[str, Any], rank: int, node: int, local_rank: int, host: NodeRecord | None, name: HostName | None
) -> RankRecord:
    """Return a rank. ``host``: what its agent says about its node; ``name``: the name of that in findings."""
    own = host.hostname if host else ""
    device = in_label(event.get("device") or "unknown device")
    return RankRecord(
        rank=rank,
        # Never the word of a rank: it could be the name of an honest node.
        node=name.name if name else f"node {node}",
        hostname=cleaned(own or event.get("hostname") or ""),
        calls_itself=name.calls_itself if name else "",
        node_rank=node,
        local_rank=local_rank,
        device=device,
        device_id=in_label(event.get("device_id") or ""),
        # A rank without a `rank` event is compared with no other.
        kind=f"{device}, {event.get('libraries') or ''}" if event else f"rank {rank}",
    )


def _measurements(reader: Reader, ranks: Mapping[int, RankRecord]) -> tuple[Measurement, ...]:
    """Return the measurements with the name that findings use for the node of each rank, whatever the rank calls it."""
    return tuple(
        entry if entry.rank is None or entry.rank not in ranks else replace(entry, node=ranks[entry.rank].node)
        for entry in reader.measurements
    )


def _device_types(reader: Reader) -> str:
    """Return what is wrong if ranks of one trial say that their devices are of several types; empty if they do not.

    The limits of GPUs are not those of CPUs. A rank that says something else would loosen those of all the others.
    """
    types = _ranks_by_word(reader, "device_type")
    if len(types) < 2:
        return ""
    return f"one type of devices on all ranks, without which no limit fits all of them: {_words_with_ranks(types)}"


def _backends(reader: Reader) -> str:
    """Return what is wrong if ranks of one trial say that they use several backends; empty if they do not.

    The rules of one backend are not those of another. A rank that says something else would change those of all.
    """
    backends = _ranks_by_word(reader, "backend")
    backends.pop("", None)
    if len(backends) < 2:
        return ""
    return f"one backend on all ranks, without which no rule fits all of them: {_words_with_ranks(backends)}"


def _unlike_inventory(reader: Reader) -> str:
    """Return what is wrong if ranks say another device or torch at their start than in `inventory`; empty if not.

    Both are read from one process. A rank is compared bit for bit with those of its kind only, which is what it says
    at its start, so that one that says something else would be compared with none.
    """
    unlike = set[int]()
    for fact in reader.facts:
        event = reader.started.get((0, fact.rank)) if fact.rank is not None else None
        is_inventory = (fact.check, fact.name, fact.generation) == ("inventory", "inventory", 0)
        if fact.rank is None or not event or not is_inventory or not isinstance(fact.value, dict):
            continue
        read = f"torch {fact.value.get('torch')} "
        if event.get("device_type") == "cuda":
            read += f"{fact.value.get('toolkit')} "
        is_same = f"{event.get('libraries') or ''} ".startswith(read)
        if not is_same or event.get("device") != fact.value.get("device"):
            unlike.add(fact.rank)
    if not unlike:
        return ""
    ranks = named_ranks(sorted(unlike))
    return f"one device and one torch of {ranks}: at its start it says another one than in `inventory`"


def _ranks_by_word(reader: Reader, field: str) -> dict[str, list[int]]:
    """Return the ranks of generation 0 by what they say in that field of their ``rank`` event."""
    ranks: dict[str, list[int]] = {}
    for (generation, rank), event in sorted(reader.started.items()):
        if generation == 0:
            ranks.setdefault(event.get(field) or "", []).append(rank)
    return ranks


def _words_with_ranks(ranks: Mapping[str, list[int]]) -> str:
    few = sorted(ranks, key=lambda word: (len(ranks[word]), word))[:4]
    return ", ".join(
        f"{as_name(word or 'none')} on {len(ranks[word])} ranks (rank {ranks[word][0]} first)" for word in few
    )


def _device_type_and_backend(reader: Reader) -> tuple[str, str]:
    """Return device type and backend of generation 0. Where ranks contradict one another the backend is the one that
    was asked for; empty where none was."""
    events = [event for (generation, _), event in reader.started.items() if generation == 0]
    types = {event.get("device_type") or "" for event in events}
    backends = {event.get("backend") or "" for event in events} - {""}
    if len(backends) > 1:
        asked = reader.run.get("job", {}).get("backend")
        backends = {asked} if isinstance(asked, str) and asked != "auto" else set()
    return "cpu" if len(types) > 1 else "".join(types), "".join(backends)


def _rounds(reader: Reader) -> dict[str, dict[str, Any]]:
    """Return by check and stage what the conductor asked for in the further rounds of generation 0."""
    rounds: dict[str, dict[str, Any]] = {}
    for (generation, _), event in sorted(reader.steps.items()):
        if generation == 0 and event.get("round") is not None:
            rounds.setdefault(event["check"], {})[event.get("stage") or "measure"] = event["round"]
    return rounds


def _step(reader: Reader, key: tuple[int, int]) -> StepRecord:
    event = reader.steps[key]
    outcome, seconds = reader.step_ends.get(key, (None, None))
    return StepRecord(
        generation=key[0],
        number=key[1],
        check=event["check"],
        stage=event.get("stage") or "measure",
        ranks=tuple(event["ranks"]),
        timeout_s=fields.number(event, "timeout_s"),
        outcome=outcome,
        seconds=seconds,
        done=tuple(sorted(reader.done.get(key, ()))),
        nodes=tuple(event.get("nodes", ())),
        nodes_done=tuple(sorted(reader.nodes_done.get(key, ()))),
    )
