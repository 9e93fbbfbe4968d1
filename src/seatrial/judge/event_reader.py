"""Events sorted into tables. Every field is checked, and whether the source may send such an event."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from seatrial.evidence.findings import Severity
from seatrial.evidence.measurement import HANDED, Better, Fact, Measurement
from seatrial.judge.trial import (
    AgentEnd,
    ErrorRecord,
    ExitRecord,
    How,
    LeftProcess,
    NodeFailure,
    NodeRecord,
    Note,
    Outcome,
    StackRecord,
    TroubleRecord,
)
from seatrial.protocol import fields
from seatrial.protocol.events import SCHEMA, Cause
from seatrial.protocol.fields import DamageError
from seatrial.util.text import as_name, quoted

_RANK = re.compile(r"rank(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_NODE = re.compile(r"node(0|[1-9][0-9]{0,8})")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_RECORDER = re.compile(r"recorder[1-9][0-9]{0,8}")
_KNOWING = ("conductor", "hosts", "controller")
"""The sources that know where nodes are."""
_HANDED = re.compile(r"handed\.[0-9a-f]{12}")
"""The source of a file that a person handed over."""
_OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_CAUSES: tuple[Cause, ...] = get_args(Cause)
_HOWS: tuple[How, ...] = get_args(How)
_NOTE_SEVERITIES: tuple[Severity, ...] = ("error", "warn", "info")
_BETTER: tuple[Better, ...] = get_args(Better)

_MOST_CHECKS = 100
"""Checks of a plan: each is looked for among all steps and findings."""
_MOST_NOTES = 16
"""Notes that one rank or node may add: an agent has one or two."""
_MOST_CHARS = {"type": 200, "message": 2_000, "stack": 6_000, "phase": 300, "wchan": 100, "text": 1 << 16}
"""Characters of the texts of ranks and nodes that findings show; ours are shorter."""
_MOST_NAME_CHARS = 40
"""Characters of a source or kind that is none of ours."""
_MOST_LINES = 40
"""Last lines of the output of a rank."""
_NOT_ASKED = "of a step that its source was not asked for"
_DEVICE_TYPES = ("", "cpu", "cuda")
"""The words of torch: a GPU is ``cuda``, with ROCm too."""

Event = Mapping[str, Any]
Generations = Mapping[int, Mapping[int, tuple[int, int]]]
"""Generation -> rank -> (node rank, local rank)."""
Word = TypeVar("Word", bound=str)


def may_have_rank(generations: Generations, generation: int, rank: int, node: int | None = None) -> bool:
    """Return whether a generation may have a rank, and if ``node`` is given, there, by the conductor's events.

    Where its event of the generation is lost, that of the first one counts, which had all ranks: a rank keeps its node.
    Where that is lost, too, nobody knows which ranks there were; such a run has no PASS.
    """
    rows = generations.get(generation, generations.get(0))
    if rows is not None and rank not in rows:
        return False
    known = (rows,) if rows is not None else generations.values()
    return node is None or all(placed[rank][0] == node for placed in known if rank in placed)


class Reader:
    """The tables of one run. Its events are added in the order of (source, number)."""

    def __init__(self, damage: Counter[str]) -> None:
        self.damage = damage
        """Reason why an event was refused -> number of such events."""
        self.seqs: defaultdict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, int] = {}
        self.earliest = float("inf")
        self.conductor_latest = float("-inf")
        """Time of the conductor's last event, by its clock."""
        self._conductor_last = -1
        """The largest number of the conductor's events. Asked for with each event, which may be many."""
        self.run: Event = {}
        self.interrupted: tuple[str, int] | None = None
        self.nodes: dict[int, NodeRecord] = {}
        self.generations_of_ranks: set[int] = set()
        """Generations that ranks sent events from."""
        self.generations: dict[int, dict[int, tuple[int, int]]] = {}
        self.places_of_nodes: dict[int, str] = {}
        """Number of a node -> its place, as the conductor knows it."""
        self.slurm_nodes: dict[int, str] = {}
        """Number of a node -> its name in Slurm's layout."""
        self.started: dict[tuple[int, int], Event] = {}
        """(generation, rank) -> its ``rank`` event."""
        self.steps: dict[tuple[int, int], Event] = {}
        """(generation, step) -> its ``step`` event."""
        self._asked: dict[tuple[int, int], dict[str, frozenset[int]]] = {}
        """The ``ranks`` and ``nodes`` that were asked for each step."""
        self.step_ends: dict[tuple[int, int], tuple[Outcome, float]] = {}
        self.interfaces: dict[str, str] = {}
        """Check of agents -> the network interface that the conductor had the ranks use by it."""
        self.done: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self.nodes_done: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        """(generation, step) -> nodes that carried it out."""
        self._nodes_failed: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        """The same for nodes that could not."""
        self.node_failures: list[NodeFailure] = []
        self.measurements: list[Measurement] = []
        self.facts: list[Fact] = []
        self.errors: list[ErrorRecord] = []
        self.troubles: list[TroubleRecord] = []
        self.exits: dict[tuple[int, int], ExitRecord] = {}
        self.agent_ends: dict[tuple[int, int], AgentEnd] = {}
        """(generation, node) -> the end of its ranks by an agent that was not asked to."""
        self._last_words: dict[int, tuple[str, float]] = {}
        """Node -> the last error of its agent, and when: with one it gives up, ends its ranks, and says no more."""
        self.stacks: list[StackRecord] = []
        self.left: dict[tuple[int, int], LeftProcess] = {}
        self.notes: list[Note] = []
        self._num_notes: Counter[str] = Counter()
        """Notes of each rank and node: each one is a finding."""

    def add(self, src: str, seq: int, event: Event) -> None:
        """Add one event, or count it as damaged."""
        self.seqs[src].append(seq)
        self.earliest = min(self.earliest, event["t"])
        if src == "conductor":
            self.conductor_latest = max(self.conductor_latest, event["t"])
            self._conductor_last = max(self._conductor_last, seq)
        kind = event["kind"]
        rank, node = _RANK.fullmatch(src), _NODE.fullmatch(src)
        try:
            if rank:
                # In the order of sources the conductor's events come first.
                self._require_rank(int(rank[2]), int(rank[1]))
                self.generations_of_ranks.add(int(rank[2]))
            if kind == "end":
                self.ends.setdefault(src, seq)  # the first one; events after it are an error
            elif kind == "note":
                severity = _one_of(event, "severity", _NOTE_SEVERITIES)
                text = _cut(event, "text")
                if not text.strip():
                    raise DamageError("text")
                if rank or node:
                    self._num_notes[src] += 1
                    if self._num_notes[src] > _MOST_NOTES:
                        raise DamageError(f"more than {_MOST_NOTES} of one source")
                whose_rank, whose_node = (int(found[1]) if found else None for found in (rank, node))
                if whose_node is not None and severity == "error":
                    self._last_words[whose_node] = text, event["t"]
                # Nobody else may call a request wrong in the name of the controller.
                is_request = _RECORDER.fullmatch(src) is not None and event.get("cause") == "request"
                untrusted = fields.integers(event, "untrusted") if src in _KNOWING and "untrusted" in event else ()
                self.notes.append(
                    Note(
                        severity=severity,
                        text=text,
                        rank=whose_rank,
                        node=whose_node,
                        is_request=is_request,
                        untrusted=untrusted,
                    )
                )
            elif kind in ("rank", "measurements", "facts", "done", "error") and rank:
                self._from_rank(kind, int(rank[1]), int(rank[2]), event)
            elif kind in ("exit", "stack", "left", "node") and node:
                self._from_node(kind, int(node[1]), event)
            elif kind in ("facts", "node_done") and node:
                self._from_step_of_agents(kind, int(node[1]), event)
            elif kind == "handed" and _HANDED.fullmatch(src):
                check, name = HANDED
                if not fields.plain(event.get("file")):
                    raise DamageError("file")
                self.facts.append(Fact(check=check, name=name, value=fields.mapping(event, "file")))
            elif kind == "slurm_nodes" and src == "hosts":
                self.slurm_nodes = _by_node(event, "names")
            elif kind == "interrupted" and src == "controller":
                # Not only the conductor can be interrupted. ``order``: the next sequence number of the conductor.
                by = fields.text(event, "by") or "unknown"
                self.interrupted = self.interrupted or (by, fields.whole(event, "order"))
            elif kind == "trouble" and src == "controller":
                # The cluster knows how a pod ended, and has stopped the conductor before that missed it.
                self._trouble(fields.whole(event, "order"), event)
            elif kind in ("step", "step_end") and src == "conductor":
                self.add_step(kind, event)
            elif kind in ("run", "generation", "interface", "trouble", "interrupted") and src == "conductor":
                self._from_conductor(kind, seq, event)
            else:
                raise DamageError("unknown kind, or not allowed from this source")
        except DamageError as error:
            source = f"rank {rank[1]}" if rank else f"node {node[1]}" if node else quoted(src, _MOST_NAME_CHARS)
            known = kind if kind.isidentifier() and len(kind) <= _MOST_NAME_CHARS else quoted(kind, _MOST_NAME_CHARS)
            self.damage[f"{known}: {error}, from {source}"] += 1

    def _from_rank(self, kind: str, rank: int, generation: int, event: Event) -> None:
        if fields.generation(event) != generation or fields.integer(event, "rank") not in (rank, None):
            raise DamageError("rank or gen of another source")
        if kind == "rank":
            if (generation, rank) in self.started:
                raise DamageError("sent twice")
            for key in ("hostname", "device", "device_id", "device_type", "libraries", "torch", "python", "backend"):
                fields.text(event, key)
            if event.get("device_type", "") not in _DEVICE_TYPES:
                raise DamageError("device_type")
            for key in ("pid", "threads"):
                fields.integer(event, key)
            fields.whole(event, "node_rank"), fields.whole(event, "local_rank")
            self.started[generation, rank] = event
        elif kind == "done":
            fields.number(event, "seconds")
            self.done[generation, fields.whole(event, "step")].add(rank)
        elif kind == "error":
            self.errors.append(
                ErrorRecord(
                    generation=generation,
                    step=fields.integer(event, "step"),
                    rank=rank,
                    cause=_one_of(event, "cause", _CAUSES),
                    type=_cut(event, "type"),
                    message=_cut(event, "message"),
                    stack=_cut(event, "stack"),
                    phase=_cut(event, "phase"),
                    at=event["t"],
                )
            )
        else:
            entries = _entries(event, kind)
            self._require_asked(event, entries, "ranks", rank)
            # The whole event or nothing: half of a list would look like a whole one.
            if kind == "measurements":
                self.measurements += [_measurement(entry, rank, generation) for entry in entries]
            else:
                self.facts += [_fact(entry, rank, generation) for entry in entries]

    def _step_asked_for(self, event: Event, field: str, number: int) -> Event | None:
        """Return the step that an event is of; None where the conductor's event of it may be lost.

        ``field``: ``ranks`` or ``nodes``, with the number of the source. Raises DamageError for a step that was not
        begun, or that the conductor did not ask this source for.
        """
        key = (fields.generation(event), fields.whole(event, "step"))
        step = self.steps.get(key)
        if step is None and self._has_all_of_conductor():
            raise DamageError("of a step that was not begun")
        if step is not None and number not in self._asked[key][field]:
            raise DamageError(_NOT_ASKED)
        return step

    def _require_asked(self, event: Event, entries: list[Any], field: str, number: int) -> None:
        """Raise DamageError for entries that are not of the check and stage of their step. Arguments as above."""
        if not all(isinstance(entry, dict) for entry in entries):
            raise DamageError("not a record")
        if not entries:
            return
        step = self._step_asked_for(event, field, number)
        key = (fields.generation(event), fields.whole(event, "step"))
        # What an agent watches goes on after its step.
        if field == "ranks" and number in self.done[key]:
            # By then others may have measured again, and it would choose with whom these are compared.
            raise DamageError("of a step that its source had ended")
        of_step = step and (step["check"], step.get("stage", "measure"))
        if of_step and any((entry.get("check"), entry.get("stage", "measure")) != of_step for entry in entries):
            raise DamageError(_NOT_ASKED)

    def _require_rank(self, generation: int, rank: int, node: int | None = None) -> None:
        """Raise DamageError for a rank that its generation does not have, or that is on another node than ``node``.

        So it is for a generation that the conductor has surely not begun. Its last events may be lost.
        """
        # Asked for every event of a rank: most are of a generation that is known.
        is_known = generation in self.generations or not self.generations
        if not is_known and generation > max(self.generations) + (not self._has_all_of_conductor()):
            raise DamageError("of a generation that was not begun")
        if not may_have_rank(self.generations, generation, rank, node):
            is_there = node is not None and may_have_rank(self.generations, generation, rank)
            raise DamageError("of a rank of another node" if is_there else "of a rank that its attempt does not have")

    def _has_all_of_conductor(self) -> bool:
        return "conductor" in self.ends and self._conductor_last + 1 == len(self.seqs["conductor"])

    def _from_node(self, kind: str, node: int, event: Event) -> None:
        if kind == "node":
            if fields.whole(event, "node") != node or node in self.nodes:
                raise DamageError("sent twice" if node in self.nodes else "node of another source")
            self.nodes[node] = NodeRecord(
                node=node,
                hostname=fields.text(event, "hostname"),
                address=fields.text(event, "address"),
                pid=fields.integer(event, "pid"),
                cores=fields.integer(event, "cores"),
                slurm_name=fields.text(event, "slurm_name") if "slurm_name" in event else "",
            )
            return
        generation, rank = fields.generation(event), fields.whole(event, "rank")
        self._require_rank(generation, rank, node)
        if kind == "exit":
            code, last_lines = fields.exit_code(event), fields.texts(event, "last_lines")
            if (generation, rank) in self.exits:
                raise DamageError("sent twice")
            self.exits[generation, rank] = ExitRecord(
                generation=generation,
                rank=rank,
                code=code,
                ours=fields.flag(event, "ours"),
                oom="oom_limit_bytes" in event,
                oom_limit_bytes=fields.integer(event, "oom_limit_bytes"),
                phase=_cut(event, "phase"),
                last_lines=tuple(line[: _MOST_CHARS["message"]] for line in last_lines[-_MOST_LINES:]),
            )
            if self.exits[generation, rank].ours and node in self._last_words:
                why, at = self._last_words[node]
                self.agent_ends[generation, node] = AgentEnd(generation=generation, node=node, why=why, at=at)
        elif kind == "stack":
            self.stacks.append(
                StackRecord(
                    generation=generation,
                    rank=rank,
                    state=fields.text(event, "state")[:1],
                    wchan=_cut(event, "wchan"),
                    text=_cut(event, "text"),
                )
            )
        else:
            state, pid = fields.text(event, "state")[:1], fields.integer(event, "pid")
            if (generation, rank) in self.left:
                raise DamageError("sent twice")
            self.left[generation, rank] = LeftProcess(generation=generation, rank=rank, node=node, pid=pid, state=state)

    def _from_step_of_agents(self, kind: str, node: int, event: Event) -> None:
        key = (fields.whole(event, "gen"), fields.whole(event, "step"))
        if kind == "facts":
            entries = _entries(event, "facts")
            self._require_asked(event, entries, "nodes", node)
            self.facts += [_fact_of_node(entry, node, key[0]) for entry in entries]
            return
        self._step_asked_for(event, "nodes", node)
        fields.number(event, "seconds")
        if node in self.nodes_done[key] or node in self._nodes_failed[key]:
            raise DamageError("sent twice")
        if error := fields.text(event, "error"):
            self._nodes_failed[key].add(node)
            self.node_failures.append(NodeFailure(generation=key[0], step=key[1], node=node, error=error[:300]))
        else:
            self.nodes_done[key].add(node)

    def add_step(self, kind: str, event: Event) -> None:
        """Add the beginning or the end of a step. Raises DamageError."""
        key = (fields.generation(event), fields.whole(event, "step"))
        if key in (self.steps if kind == "step" else self.step_ends):
            raise DamageError("sent twice")
        if kind == "step_end":
            self.step_ends[key] = (_one_of(event, "outcome", _OUTCOMES), fields.number(event, "seconds"))
            return
        fields.number(event, "timeout_s")
        ranks, nodes = fields.integers(event, "ranks"), fields.integers({"nodes": event.get("nodes", [])}, "nodes")
        for name, form in (("check", fields.CHECK_NAME), ("stage", fields.STAGE_NAME)):
            if not form.fullmatch(fields.text(event, name)):
                raise DamageError(name)
        if not fields.plain(event.get("round")):
            raise DamageError("round")
        self.steps[key] = event
        # One source may send a hundred thousand entries.
        self._asked[key] = {"ranks": frozenset(ranks), "nodes": frozenset(nodes)}

    def _from_conductor(self, kind: str, seq: int, event: Event) -> None:
        if kind == "run":
            self._run(event)
        elif kind == "interrupted":
            self.interrupted = self.interrupted or (fields.text(event, "by") or "unknown", seq)
        elif kind == "generation":
            self.add_generation(event)
        elif kind == "interface":
            self.add_interface(event)
        else:
            self._trouble(seq, event)

    def add_generation(self, event: Event) -> None:
        """Add the beginning of a generation. Raises DamageError."""
        rows, places = event.get("ranks"), _by_node({"places_of_nodes": {}, **event}, "places_of_nodes")
        if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 3 for row in rows):
            raise DamageError("ranks")
        placed = [tuple(fields.whole({"ranks": entry}, "ranks") for entry in row) for row in rows]
        generation = fields.generation(event)
        if len({row[0] for row in placed}) < len(placed) or generation in self.generations:
            raise DamageError("sent twice")
        self.generations[generation] = {row[0]: (row[1], row[2]) for row in placed}
        self.places_of_nodes = places

    def add_interface(self, event: Event) -> None:
        """Add what a check had the ranks use. Raises DamageError."""
        fields.generation(event)
        check, name = fields.text(event, "check"), fields.text(event, "name")
        if not fields.CHECK_NAME.fullmatch(check) or not fields.INTERFACE_NAME.fullmatch(name):
            raise DamageError("check or name")
        self.interfaces[check] = name

    def _trouble(self, order: int, event: Event) -> None:
        entries = event.get("seen")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DamageError("seen")
        generation, step = fields.generation(event), fields.integer(event, "step")
        waiting = event.get("waiting") or []
        if not isinstance(waiting, list):
            raise DamageError("waiting")
        waiting_ranks = tuple(_waiting(row) for row in waiting)
        self.troubles += [
            TroubleRecord(
                generation=generation,
                step=step,
                rank=fields.integer(entry, "rank"),
                node=fields.integer(entry, "node"),
                how=_one_of(entry, "how", _HOWS),
                phase=fields.text(entry, "phase"),
                waited_s=None if entry.get("waited_s") is None else fields.number(entry, "waited_s"),
                detail=fields.text(entry, "detail"),
                waiting=waiting_ranks,
                order=order,
            )
            for entry in entries
        ]

    def _run(self, event: Event) -> None:
        plan = fields.mapping(event, "plan")
        fields.integer(fields.mapping(event, "job"), "world_size")
        fields.text(event, "version"), fields.text(event, "hostname")
        fields.flag({"in_container": False, **event}, "in_container")
        if fields.integer(event, "schema") != SCHEMA:
            raise DamageError(f"schema {str(event.get('schema'))[:20]}, but this seatrial reads schema {SCHEMA}")
        checks = fields.texts({"checks": plan.get("checks", [])}, "checks")
        taken_out = fields.mapping(plan, "not_asked")
        if not plan.get("checks") or isinstance(plan["checks"], str):
            raise DamageError("plan.checks")
        for key, names in (("checks", checks), ("not_asked", tuple(taken_out))):
            if len(names) > _MOST_CHECKS or not all(map(fields.CHECK_NAME.fullmatch, names)):
                raise DamageError(f"plan.{key}")
        if not all(isinstance(why, str) for why in taken_out.values()):
            raise DamageError("plan.not_asked")
        if not set(fields.texts({"sources": event.get("sources", [])}, "sources")) <= {*_KNOWING}:
            raise DamageError("sources")
        if self.run:
            raise DamageError("sent twice")
        self.run = event


def _cut(event: Event, key: str) -> str:
    return fields.text(event, key)[: _MOST_CHARS[key]]


def _by_node(event: Event, key: str) -> dict[int, str]:
    """Return a required dictionary of texts by the number of the node."""
    texts = fields.mapping(event, key)
    if not all(_NUMBER.fullmatch(node) and isinstance(text, str) for node, text in texts.items()):
        raise DamageError(key)
    return {int(node): text for node, text in texts.items()}


def _entries(event: Event, key: str) -> list[Any]:
    entries = event.get(key)
    if not isinstance(entries, list):
        raise DamageError(key)
    return entries


def _one_of(event: Event, key: str, words: tuple[Word, ...]) -> Word:
    text = fields.text(event, key)
    for word in words:
        if word == text:
            return word
    raise DamageError(key)


def _waiting(row: Any) -> tuple[int, str]:
    if not isinstance(row, list) or len(row) != 2:
        raise DamageError("waiting")
    return fields.whole({"waiting": row[0]}, "waiting"), fields.text({"waiting": row[1]}, "waiting")


def _measurement(entry: Any, rank: int, generation: int) -> Measurement:
    check, name, stage = _check_name_stage(entry, rank, generation)
    return Measurement(
        check=check,
        name=name,
        value=fields.number(entry, "value"),
        unit=(unit := fields.text(entry, "unit")) and as_name(unit),
        better=_one_of(entry, "better", _BETTER) if fields.text(entry, "better") else None,
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
    check, name, stage = _check_name_stage(entry, rank, generation)
    if not fields.plain(entry.get("value")):
        raise DamageError("value")
    of_rank = fields.integer(entry, "rank")
    return Fact(check=check, name=name, value=entry.get("value"), rank=of_rank, generation=generation, stage=stage)


def _fact_of_node(entry: Any, node: int, generation: int) -> Fact:
    check, name, stage = _check_name_stage(entry, None, generation)
    if fields.integer(entry, "node_rank") != node or not fields.plain(entry.get("value")):
        raise DamageError("node or value")
    return Fact(check=check, name=name, value=entry.get("value"), node_rank=node, generation=generation, stage=stage)


def _check_name_stage(entry: Any, rank: int | None, generation: int) -> tuple[str, str, str]:
    """Return check, name and stage of an entry. Raises DamageError where it is not about the rank that sent it."""
    if fields.integer(entry, "rank") != rank or entry.get("generation", 0) != generation:
        raise DamageError("rank or generation of another source")
    check, name = fields.text(entry, "check"), fields.text(entry, "name")
    if not check or not name:
        raise DamageError("check or name")
    if (check, name) == HANDED:
        raise DamageError("only a person hands over a file")
    return check, name, fields.text(entry, "stage") or "measure"
