"""One event after the other into plain tables: every field checked, and whether its source may say such a thing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from seatrial.verdict import fields
from seatrial.verdict.events import SCHEMA
from seatrial.verdict.fields import DamageError
from seatrial.verdict.figures import Fact, Figure
from seatrial.verdict.trial import (
    ErrorTold,
    ExitSeen,
    LeftProcess,
    NodeSeen,
    Note,
    StackSeen,
    TroubleSeen,
)

__all__ = ["Reader"]

_RANK = re.compile(r"rank(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})")
_NODE = re.compile(r"node(0|[1-9]\d{0,8})")
_OUTCOMES = ("done", "trouble", "deadline", "interrupted")
_CAUSES = ("memory", "device", "fabric", "request", "own")
_HOWS = ("dead", "error", "frozen", "absent", "stuck", "lost", "silent", "late", "working")
_SEVERITIES = ("error", "warn", "info")

Event = Mapping[str, Any]


class Reader:
    """Takes the events of one run in the order of (source, number)."""

    def __init__(self, damage: Counter[str]) -> None:
        self.damage = damage
        """What was wrong with an event -> how often."""
        self.seqs: defaultdict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, int] = {}
        self.earliest = float("inf")
        self.run: Event = {}
        self.interrupted: tuple[str, int] | None = None
        self.nodes: dict[int, NodeSeen] = {}
        self.met: set[int] = set()
        """Generations that ranks spoke from."""
        self.generations: dict[int, dict[int, tuple[int, int]]] = {}
        """Generation -> trial rank -> (node rank, local rank)."""
        self.came: dict[tuple[int, int], Event] = {}
        """(generation, rank) -> its ``rank`` event."""
        self.steps: dict[tuple[int, int], Event] = {}
        """(generation, step) -> its ``step`` event."""
        self.step_ends: dict[tuple[int, int], tuple[str, float]] = {}
        self.done: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self.figures: list[Figure] = []
        self.facts: list[Fact] = []
        self.errors: list[ErrorTold] = []
        self.troubles: list[TroubleSeen] = []
        self.exits: dict[tuple[int, int], ExitSeen] = {}
        self.stacks: list[StackSeen] = []
        self.left: list[LeftProcess] = []
        self.notes: list[Note] = []

    def take(self, src: str, seq: int, event: Event) -> None:
        """Keep one event, or count it as damaged."""
        self.seqs[src].append(seq)
        self.earliest = min(self.earliest, event["t"])
        kind = event["kind"]
        rank, node = _RANK.fullmatch(src), _NODE.fullmatch(src)
        if rank:
            self.met.add(int(rank[2]))
        try:
            if kind == "end":
                self.ends.setdefault(src, seq)  # the first: whatever comes after it came too late
            elif kind == "note":
                severity = _one_of(event, "severity", _SEVERITIES)
                text = fields.text(event, "text")
                if not text.strip():
                    raise DamageError("text")
                self.notes.append(Note(src=src, severity=severity, text=text))
            elif kind in ("rank", "figures", "facts", "done", "error") and rank:
                self._from_rank(kind, int(rank[1]), int(rank[2]), event)
            elif kind in ("exit", "stack", "left", "node") and node:
                self._from_node(kind, int(node[1]), event)
            elif kind == "interrupted" and src == "controller":
                # It sees more than the conductor; ``order``: before which of the conductor's events.
                by = fields.text(event, "by") or "unknown"
                self.interrupted = self.interrupted or (by, fields.whole(event, "order"))
            elif kind in ("step", "step_end") and src == "conductor":
                self._step(kind, event)
            elif kind in ("run", "generation", "trouble", "interrupted") and src == "conductor":
                self._from_conductor(kind, seq, event)
            else:
                raise DamageError("not known, or not from such a source")
        except DamageError as error:
            self.damage[f"{kind[:40]}: {error}"] += 1

    def _from_rank(self, kind: str, rank: int, generation: int, event: Event) -> None:
        if fields.whole(event, "gen") != generation or fields.integer(event, "rank") not in (rank, None):
            raise DamageError("rank or gen of another source")
        # What the conductor says comes first in the order of sources.
        if rank not in self.generations.get(generation, {rank: None}):
            raise DamageError("from a rank that is not in its generation")
        if kind == "rank":
            if (generation, rank) in self.came:
                raise DamageError("told twice")
            for key in ("hostname", "device", "device_id", "device_type", "libraries", "torch", "python", "backend"):
                fields.text(event, key)
            for key in ("pid", "threads"):
                fields.integer(event, key)
            fields.whole(event, "node_rank"), fields.whole(event, "local_rank")
            self.came[generation, rank] = event
        elif kind == "done":
            fields.number(event, "seconds")
            self.done[generation, fields.whole(event, "step")].add(rank)
        elif kind == "error":
            self.errors.append(
                ErrorTold(
                    generation=generation,
                    step=fields.integer(event, "step"),
                    rank=rank,
                    cause=_one_of(event, "cause", _CAUSES),
                    type=fields.text(event, "type"),
                    message=fields.text(event, "message"),
                    stack=fields.text(event, "stack"),
                    phase=fields.text(event, "phase"),
                )
            )
        else:
            told = event.get(kind)
            if not isinstance(told, list):
                raise DamageError(kind)
            # All of an event or nothing: half of a list would look like a whole one.
            if kind == "figures":
                self.figures += [_figure(entry, rank, generation) for entry in told]
            else:
                self.facts += [_fact(entry, rank, generation) for entry in told]

    def _from_node(self, kind: str, node: int, event: Event) -> None:
        if kind == "node":
            if fields.whole(event, "node") != node or node in self.nodes:
                raise DamageError("told twice" if node in self.nodes else "node of another source")
            self.nodes[node] = NodeSeen(
                node=node,
                hostname=fields.text(event, "hostname"),
                address=fields.text(event, "address"),
                pid=fields.integer(event, "pid"),
                cores=fields.integer(event, "cores"),
            )
            return
        generation, rank = fields.whole(event, "gen"), fields.whole(event, "rank")
        if self.generations.get(generation, {}).get(rank, (node, 0))[0] != node:
            raise DamageError("of a rank of another node")
        if kind == "exit":
            code = fields.integer(event, "code")
            if code is None or (generation, rank) in self.exits:
                raise DamageError("code" if code is None else "told twice")
            self.exits[generation, rank] = ExitSeen(
                generation=generation,
                rank=rank,
                code=code,
                ours=fields.flag(event, "ours"),
                phase=fields.text(event, "phase"),
                last_lines=fields.texts(event, "last_lines"),
            )
        elif kind == "stack":
            self.stacks.append(
                StackSeen(
                    generation=generation,
                    rank=rank,
                    state=fields.text(event, "state"),
                    wchan=fields.text(event, "wchan"),
                    text=fields.text(event, "text"),
                )
            )
        else:
            state, pid = fields.text(event, "state"), fields.integer(event, "pid")
            self.left.append(LeftProcess(generation=generation, rank=rank, node=node, pid=pid, state=state))

    def _step(self, kind: str, event: Event) -> None:
        key = (fields.whole(event, "gen"), fields.whole(event, "step"))
        if key in (self.steps if kind == "step" else self.step_ends):
            raise DamageError("told twice")
        if kind == "step_end":
            self.step_ends[key] = (_one_of(event, "outcome", _OUTCOMES), fields.number(event, "seconds"))
            return
        fields.integers(event, "ranks"), fields.number(event, "timeout_s"), fields.text(event, "stage")
        if not fields.text(event, "check"):
            raise DamageError("check")
        self.steps[key] = event

    def _from_conductor(self, kind: str, seq: int, event: Event) -> None:
        if kind == "run":
            self._run(event)
        elif kind == "interrupted":
            self.interrupted = self.interrupted or (fields.text(event, "by") or "unknown", seq)
        elif kind == "generation":
            rows = event.get("ranks")
            if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 3 for row in rows):
                raise DamageError("ranks")
            placed = [tuple(fields.whole({"ranks": entry}, "ranks") for entry in row) for row in rows]
            generation = fields.whole(event, "gen")
            if len({row[0] for row in placed}) < len(placed) or generation in self.generations:
                raise DamageError("told twice")
            self.generations[generation] = {row[0]: (row[1], row[2]) for row in placed}
        else:
            seen = event.get("seen")
            if not isinstance(seen, list) or not all(isinstance(entry, dict) for entry in seen):
                raise DamageError("seen")
            generation, step = fields.whole(event, "gen"), fields.integer(event, "step")
            waiting = event.get("waiting") or []
            if not isinstance(waiting, list):
                raise DamageError("waiting")
            waited = tuple(_waiting(row) for row in waiting)
            self.troubles += [
                TroubleSeen(
                    generation=generation,
                    step=step,
                    rank=fields.integer(entry, "rank"),
                    node=fields.integer(entry, "node"),
                    how=_one_of(entry, "how", _HOWS),
                    phase=fields.text(entry, "phase"),
                    waited_s=None if entry.get("waited_s") is None else fields.number(entry, "waited_s"),
                    detail=fields.text(entry, "detail"),
                    waiting=waited,
                    order=seq,
                )
                for entry in seen
            ]

    def _run(self, event: Event) -> None:
        plan = fields.mapping(event, "plan")
        fields.integer(fields.mapping(event, "job"), "world_size")
        fields.text(event, "version"), fields.text(event, "hostname")
        if fields.integer(event, "schema") != SCHEMA:
            raise DamageError(f"schema {str(event.get('schema'))[:20]}, and this seatrial reads {SCHEMA}")
        fields.texts({"checks": plan.get("checks", [])}, "checks")
        taken_out = fields.mapping(plan, "not_asked")
        if not plan.get("checks") or isinstance(plan["checks"], str):
            raise DamageError("plan.checks")
        if not all(isinstance(why, str) for why in taken_out.values()):
            raise DamageError("plan.not_asked")
        if self.run:
            raise DamageError("told twice")
        self.run = event


def _one_of(event: Event, key: str, words: tuple[str, ...]) -> str:
    word = fields.text(event, key)
    if word not in words:
        raise DamageError(key)
    return word


def _waiting(row: Any) -> tuple[int, str]:
    if not isinstance(row, list) or len(row) != 2:
        raise DamageError("waiting")
    return fields.whole({"waiting": row[0]}, "waiting"), fields.text({"waiting": row[1]}, "waiting")


def _figure(entry: Any, rank: int, generation: int) -> Figure:
    check, name, stage = _place(entry, rank, generation)
    better = fields.text(entry, "better") or None
    if better not in (None, "high", "low"):
        raise DamageError("better")
    return Figure(
        check=check,
        name=name,
        value=fields.number(entry, "value"),
        unit=fields.text(entry, "unit"),
        better=better,  # type: ignore[arg-type]  # one of the three, as just seen
        rank=fields.integer(entry, "rank"),
        peer=fields.integer(entry, "peer"),
        variant=fields.text(entry, "variant"),
        size_bytes=fields.integer(entry, "size_bytes"),
        step=fields.integer(entry, "step"),
        device=fields.text(entry, "device") or None,
        node=fields.text(entry, "node") or None,
        generation=generation,
        stage=stage,
    )


def _fact(entry: Any, rank: int, generation: int) -> Fact:
    check, name, stage = _place(entry, rank, generation)
    if not fields.plain(entry.get("value")):
        raise DamageError("value")
    told = fields.integer(entry, "rank")
    return Fact(check=check, name=name, value=entry.get("value"), rank=told, generation=generation, stage=stage)


def _place(entry: Any, rank: int, generation: int) -> tuple[str, str, str]:
    """Check, name and stage; a rank speaks of itself only."""
    if not isinstance(entry, dict):
        raise DamageError("no record")
    if fields.integer(entry, "rank") not in (rank, None) or entry.get("generation", 0) != generation:
        raise DamageError("rank or generation of another source")
    check, name = fields.text(entry, "check"), fields.text(entry, "name")
    if not check or not name:
        raise DamageError("check or name")
    return check, name, fields.text(entry, "stage") or "measure"
