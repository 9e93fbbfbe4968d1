"""A record of twice the size takes about twice the steps and makes reports of about twice the size, whatever it says.

What is counted are the lines of seatrial's code that are executed, each round of a loop once, so the machine does not
matter. What the interpreter does at once, such as comparing two sets, is not seen: ``test_many_kinds.py`` has records
of thousands of ranks for that.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from types import FrameType
from typing import Any, TypeVar

import pytest
from checks.simulated_network import network_evidence
from checks.simulated_training import SMOKE, trained
from checks.test_check_compute import evidence as computed
from checks.test_facts_lack_fields import _SCENES as ONE_OF_EACH_FACT
from checks.test_storage_judge import NAMED
from checks.test_storage_judge import fleet as stored
from event_streams import SCENES, Event, Stream
from fuzz.test_fuzz_judges import Scene
from report.check_scenes import formed

from seatrial.checks import registry
from seatrial.checks.inventory.params import Params as InventoryParams
from seatrial.checks.network.observations import ROLES
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.judge.conclude import conclude
from seatrial.protocol.events import KINDS
from seatrial.report import console, formats
from seatrial.report.view import View

pytestmark = pytest.mark.fuzz
_COPIES, _MOST = (16, 32), 2.5
"""Copies of a scene, and how many times the steps and bytes may be of twice as many."""
_LEAST_STEPS, _LEAST_BYTES = 20_000, 20_000
"""Fewer grow by what does not depend on the copies."""
_MINORITY = 0.4
"""A share of the copies: the others are a majority."""
_OF_PROGRAMS = {"epoch", "result", "outcome", "recorder"}
Answer = TypeVar("Answer")


def _steps(function: Callable[[], Answer]) -> tuple[int, Answer]:
    """Return how many lines of seatrial a call executes, and what it returns."""
    steps = 0

    def line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal steps
        steps += 1
        return line

    def call(frame: FrameType, event: str, arg: object) -> Any:
        return line(frame, event, arg) if "/seatrial/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        answer = function()
    finally:
        sys.settrace(before)
    return steps, answer


def _assert_alike(what: object, sizes: Mapping[str, tuple[int, int]]) -> None:
    """``sizes``: of a record and of one of twice its size."""
    grown = {
        name: (once, twice)
        for name, (once, twice) in sizes.items()
        if twice > (_LEAST_STEPS if name.startswith("steps") else _LEAST_BYTES) and twice > _MOST * once
    }
    assert not grown, (what, grown)


def _changed(value: Any, number: int) -> Any:
    """The value as another rank says it; of the same form."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value + number
    if isinstance(value, str):
        return f"{value} {number}"
    if isinstance(value, list):
        return [_changed(entry, number) for entry in value]
    return {key: _changed(entry, number) for key, entry in value.items()} if isinstance(value, dict) else value


def _grown(evidence: Evidence, copies: int, name: str, share: float, *, together: bool) -> Evidence:
    """Copies of all ranks and nodes; a share of them says something else each in the facts or measurements of a name.

    ``together``: all ranks are on one node.
    """
    size = max(evidence.ranks, default=-1) + 1
    num_nodes = max([*evidence.nodes, *(record.node_rank for record in evidence.ranks.values())], default=0) + 1
    ranks, facts, measurements = dict[int, RankRecord](), [], []
    for number in range(copies):
        is_other = number >= copies * (1 - share)

        def place(rank: int | None, each: int = size, number: int = number) -> Any:
            return None if rank is None else rank + number * each

        for rank, record in evidence.ranks.items():
            node = 0 if together else place(record.node_rank, num_nodes)
            local = place(rank) if together else record.local_rank
            moved = replace(record, rank=place(rank), node=f"n{node}", node_rank=node, local_rank=local)
            ranks[moved.rank] = moved
        for fact in evidence.facts:
            value = _changed(fact.value, number) if is_other and fact.name == name else fact.value
            facts.append(replace(fact, value=value, rank=place(fact.rank), node_rank=place(fact.node_rank, num_nodes)))
        for entry in evidence.measurements:
            worse = (entry.value or 1.0) * (0.5 - number / copies / 9)
            value = worse if is_other and entry.name == name else entry.value
            measurements.append(replace(entry, value=value, rank=place(entry.rank), peer=place(entry.peer)))
    nodes = {
        node + number * num_nodes: f"{at}.{number}" for number in range(copies) for node, at in evidence.nodes.items()
    }
    return replace(evidence, ranks=ranks, asked=(*ranks,), measurements=(*measurements,), facts=(*facts,), nodes=nodes)


def _storage(shared: str) -> Scene:
    """Each node sees its own files, and reads something else back than it wrote."""
    evidence = stored([[1.0, 1.0]] * 2, own=(0, 1), views={rank: [[rank, rank]] for rank in range(4)})
    return Scene(check="storage", params=replace(NAMED, shared=shared), evidence=evidence)


def _again() -> Scene:
    alone = dict.fromkeys(range(4), 0.01) | {3: 0.05}
    return Scene(check="training", params=SMOKE, evidence=trained(4, compute_s={3: 0.05}, alone_s=alone))


_SCENES: Mapping[str, Callable[[], Scene]] = {
    **ONE_OF_EACH_FACT,
    "compute": lambda: Scene(
        check="compute", params=None, evidence=computed([700.0] * 4, dict.fromkeys(range(4), 700.0), device_type="cuda")
    ),
    "bootstrap": lambda: Scene(
        check="bootstrap",
        params=None,
        evidence=replace(computed([700.0] * 4), facts=(), measurements=formed(4).measurements),
    ),
    "training, again": _again,
    "storage, one folder": lambda: _storage("yes"),
    "storage, own folders": lambda: _storage("no"),
    "inventory, requested": lambda: replace(
        ONE_OF_EACH_FACT["inventory"](), params=InventoryParams(driver="1", torch="2", cores=3)
    ),
}
_OF_NODES = ("inventory", "storage", "storage, own folders", "diagnostics", "host", "compute", "memory")
"""Scenes that are judged with all ranks on one node, too."""
_scene = cache(lambda name: _SCENES[name]())


def test_there_is_a_scene_of_each_check() -> None:
    assert {_scene(name).check for name in _SCENES} == {*registry.names()}


@pytest.mark.parametrize(
    ("name", "together"), [*((name, False) for name in _SCENES), *((name, True) for name in _OF_NODES)]
)
def test_twice_the_ranks_take_a_judge_twice_the_steps(name: str, *, together: bool) -> None:
    scene = _scene(name)
    check = registry.load(scene.check)
    params = scene.params or check.params()

    def asked(evidence: Evidence) -> int:
        for ask in (check.suspects, check.next_round):
            if ask is not None:
                ask(evidence, params)
        return len(str(check.judge(evidence, params)))

    names = [fact.name for fact in scene.evidence.facts] + [entry.name for entry in scene.evidence.measurements]
    for what in dict.fromkeys(names):
        for share in (_MINORITY,) if together else (_MINORITY, 1.0):
            once, twice = (_grown(scene.evidence, copies, what, share, together=together) for copies in _COPIES)
            (steps, size), (more_steps, more) = _steps(partial(asked, once)), _steps(partial(asked, twice))
            _assert_alike((what, share), {"steps": (steps, more_steps), "ruling": (size, more)})


def _examples() -> dict[str, Event]:
    """One event of each kind, out of all scenes."""
    return {event["kind"]: event for make in SCENES.values() for event in make().events}


@cache
def _example(kind: str) -> Event:
    return _examples()[kind]


def test_there_is_an_event_of_each_kind() -> None:
    assert KINDS - _OF_PROGRAMS - _examples().keys() <= {"handed", "interface", "left", "node_done", "slurm_nodes"}


def _of_all(kind: str, copies: int, *, together: bool) -> list[Event]:
    """A trial in which each node or rank, or the conductor for each of them, adds an event of this kind."""
    stream = Stream(copies, nodes=1 if together else copies)
    stream.begin("compute")
    example = _example(kind)
    who = example["src"].rstrip("0123456789.")
    for number in range(copies):
        source = {"rank": f"rank{number}.0", "node": f"node{0 if together else number}"}.get(who, str(example["src"]))
        fields = {key: value for key, value in example.items() if key not in ("kind", "src", "seq", "t", "run")}
        for key, value in fields.items():
            fields[key] = _changed(copy.deepcopy(value), number)
        places = {"rank": number, "node": number, "gen": 0, "step": number if kind == "step" else 0}
        fields |= {key: place for key, place in places.items() if key in fields}
        for entry in fields.get("seen", ()):
            entry.update({key: number for key in ("rank", "node") if key in entry})
        if kind in ("measurements", "facts"):
            for entry in fields[kind]:
                entry |= {"check": "compute", "stage": "measure", "rank": number}
                entry.pop("generation", None)
        for key in ("ranks", "waiting"):
            if key in fields:
                fields[key] = example[key]
        stream.send(source, kind, **{key: value for key, value in fields.items() if value is not None})
    return stream.close().events


def _reports(events: list[Event]) -> dict[str, int]:
    """Return the size of each report."""
    conclusion = conclude(events)
    sizes = {name: len(each.text(conclusion)) for name, each in formats.load().items()}
    views = {"console": View(), "verbose": View(is_verbose=True), "quiet": View(is_quiet=True)}
    return sizes | {name: sum(map(len, console.lines(conclusion, view=view))) for name, view in views.items()}


@pytest.mark.parametrize("kind", sorted(KINDS & _examples().keys()))
def test_twice_the_events_make_reports_of_twice_the_size(kind: str) -> None:
    for together in (False, True):
        made = []
        for copies in _COPIES:
            events = _of_all(kind, copies, together=together)
            steps, sizes = _steps(partial(_reports, events))
            made.append({"steps": steps, **sizes})
        once, twice = made
        _assert_alike((kind, together), {name: (once[name], twice[name]) for name in once})


def _all_to_all(count: int, role: str) -> Evidence:
    """Each node says of all others in one range that it does not reach them where they listen in this role."""
    made = network_evidence(count)
    failed = {"role": role, "how": "no answer", "passes_bytes": None, "nodes": [[0, count - 1]]}
    facts = [
        replace(fact, value={**fact.value, "failed": [failed]})
        if fact.name == "connections"
        else replace(fact, value={**fact.value, "places": _everywhere(fact.node_rank or 0)})
        for fact in made.facts
    ]
    return replace(made, facts=tuple(facts))


def _everywhere(node: int) -> list[list[Any]]:
    return [[role, f"10.0.0.{node}", 40_000 + port] for port, role in enumerate(ROLES)]


@pytest.mark.parametrize("role", ROLES)
def test_ranges_of_nodes_take_no_step_for_each_pair(role: str) -> None:
    check = registry.load("network")
    once, twice = (_steps(partial(check.judge, _all_to_all(count, role), check.params()))[0] for count in (60, 120))
    _assert_alike(role, {"steps": (once, twice)})
