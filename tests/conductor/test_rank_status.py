"""Frozen, absent, late and stuck ranks, by statuses and times alone."""

from __future__ import annotations

import ast
import importlib.util
import re
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from conductor.simulated_records import BEHIND, INSIDE

import seatrial
from seatrial.conductor.base import take_status
from seatrial.conductor.rank_status import (
    _INSIDE,
    _WAITS,
    Ahead,
    Deadline,
    RankStatus,
    Suspicion,
    all_wait,
    alone_at_deadline,
    at_deadline,
    at_start_deadline,
    dead,
    find_ahead,
    idle,
    outside,
    stopped,
    suspects,
)
from seatrial.protocol.rank_stacks import STEP_LOOP
from seatrial.protocol.timeouts import PATIENCE_S

NOW = 1_000.0
MINUTE = Deadline(allowed_s=60.0)
LONG_AGO = NOW - PATIENCE_S


def _status(
    number: int = 5,
    state: str = "S",
    moved_at: float = LONG_AGO,
    blocked_since: float | None = None,
    entered_at: float = LONG_AGO,
) -> RankStatus:
    return RankStatus(
        state=state,
        number=number,
        phase=f"phase {number}",
        moved_at=moved_at,
        blocked_since=blocked_since,
        entered_at=entered_at,
        seen_at=NOW,
        known_until=NOW,
    )


def _ahead(statuses: dict[int, RankStatus], *, done: bool = False) -> Ahead:
    """Most hosts are as far as the furthest of these ranks."""
    return Ahead(done=done, furthest=max(status.number for status in statuses.values()))


def _on_one_host(asked: Iterable[int]) -> dict[int, str]:
    return dict.fromkeys(asked, "a")


def _named(suspicions: list[Suspicion]) -> list[tuple[str, int | None]]:
    return [(suspicion.how, suspicion.rank) for suspicion in suspicions]


def test_more_than_half_of_the_hosts_say_how_far_the_step_is() -> None:
    """Whatever the number of their ranks: each host has one word, and of two none decides."""

    def found(numbers: list[int], waiting: list[int], hosts: str) -> tuple[bool, int]:
        statuses = {rank: _status(number) for rank, number in enumerate(numbers)}
        ahead = find_ahead(statuses, waiting, dict(enumerate(hosts)), 1e9)
        return ahead.done, ahead.furthest

    assert found([9, 2], [1], "aa") == (True, 9), "ranks of one host trust one another"
    assert found([10**12, 2], [1], "ab") == (False, 2)
    assert found([9, 2, 2, 9], [1, 2], "aabb") == (True, 9), "each of both has a rank that is done"
    assert found([10**12, 2, 3], [1, 2], "abc") == (False, 3)
    assert found([9, 9, 3], [2], "abc") == (True, 9)
    assert found([10**12] * 5 + [2, 3], [5, 6], "aaaaabc") == (False, 3)
    assert found([9, 9, 3, 4], [2, 3], "abcd") == (False, 4), "a half is not most of them"
    assert find_ahead({}, [], {}, 0.0) == Ahead()


def test_a_rank_is_blocked_from_the_first_such_status() -> None:
    status = RankStatus(moved_at=0.0, entered_at=0.0, known_until=0.0)
    for at, state in enumerate("STTDDR", start=1):
        status.update((state, 0.0, 1, "x"), float(at))
        assert status.blocked_since == {"S": None, "T": 2.0, "D": 2.0, "R": None}[state]


def test_cpu_time_moves_a_rank_and_noise_does_not() -> None:
    status = RankStatus(moved_at=0.0, entered_at=0.0, known_until=0.0, number=1, cpu_s=3.0)
    status.update(("S", 3.1, 1, "x"), 10.0)
    assert status.moved_at == 0.0
    status.update(("S", 3.3, 1, "x"), 11.0)
    assert status.moved_at == 11.0
    status.update(("S", 3.3, 2, "y"), 12.0)
    assert (status.moved_at, status.number, status.phase) == (12.0, 2, "y")
    status.update(("S", 9.9, 2, "y"), 13.0)
    assert (status.moved_at, status.entered_at) == (13.0, 12.0)


def test_a_pause_counts_for_nobody() -> None:
    status = _status(state="T", blocked_since=LONG_AGO + 0.01)
    status.shift(60.0)
    for at, found in ((NOW + 60.0, []), (NOW + 60.01, [("frozen", 0)])):
        status.update(("T", 0.0, 5, "x"), at)
        assert _named(suspects({0: status}, [0], Ahead(), at, together=True)) == found


@pytest.mark.parametrize("state", ["T", "D"])
def test_a_single_status_shows_no_rank_blocked_for_long(state: str) -> None:
    """An agent whose connection takes nothing leaves statuses out, while other messages of it are still read."""
    status = _status(state=state, blocked_since=NOW)
    for check in (suspects({0: status}, [0], Ahead(), NOW + 60.0, together=False), stopped({0: status}, [0], NOW + 60)):
        assert check == []
    status.update((state, 0.0, 5, "x"), NOW + 60.0)
    assert _named(suspects({0: status}, [0], Ahead(), NOW + 60.0, together=False)) == [("frozen", 0)]


@pytest.mark.parametrize("state", ["T", "D"])
def test_a_blocked_rank_is_frozen_after_patience(state: str) -> None:
    statuses = {
        0: _status(9),
        1: _status(state=state, blocked_since=LONG_AGO),
        2: _status(state=state, blocked_since=NOW - 14.9),
    }
    for together in (True, False):
        assert _named(suspects(statuses, [0, 1, 2], _ahead(statuses), NOW, together=together)) == [("frozen", 1)]
    assert suspects(statuses, [0, 2], _ahead(statuses), NOW, together=False) == []


def test_a_slow_disk_at_start_is_no_fault_and_a_stop_is() -> None:
    statuses = {0: _status(state="D", blocked_since=LONG_AGO), 1: _status(state="T", blocked_since=LONG_AGO)}
    assert _named(stopped(statuses, [0, 1], NOW)) == [("frozen", 1)]


def test_absent_is_a_quiet_rank_behind_the_others() -> None:
    statuses = {0: _status(6), 1: _status(5), 2: _status(5, moved_at=NOW - 1), 3: _status(7, moved_at=NOW)}
    assert _named(suspects(statuses, list(statuses), _ahead(statuses), NOW, together=True)) == [("absent", 1)]


def test_a_rank_that_waits_is_not_absent() -> None:
    alike = {rank: _status(6) for rank in range(4)}
    assert suspects(alike, list(alike), _ahead(alike), NOW, together=True) == []
    behind_but_alone = {0: _status(6), 1: _status(5)}
    assert suspects(behind_but_alone, [0, 1], _ahead(behind_but_alone), NOW, together=False) == []
    # The one with the fewest still works: nobody else is to blame meanwhile.
    working = {0: _status(7), 1: _status(6), 2: _status(5, moved_at=NOW)}
    assert suspects(working, [0, 1, 2], _ahead(working), NOW, together=True) == []


def test_stacks_name_ranks_outside_if_some_are_inside() -> None:
    statuses = {rank: _status() for rank in range(4)}
    assert _named(outside(statuses, {0: INSIDE, 1: BEHIND, 2: INSIDE, 3: INSIDE}, _on_one_host(statuses), NOW)) == [
        ("absent", 1)
    ]
    assert outside(statuses, dict.fromkeys(statuses, INSIDE), _on_one_host(statuses), NOW) == []
    assert outside(statuses, dict.fromkeys(statuses, BEHIND), _on_one_host(statuses), NOW) == []


def test_idle_ranks_are_quiet_with_the_fewest_phases() -> None:
    statuses = {0: _status(), 1: _status(moved_at=NOW), 2: _status(6)}
    assert idle(statuses, [0, 1, 2], NOW) == [0]
    assert idle(statuses, [1, 2], NOW) == []
    assert idle({**statuses, 2: _status(6, moved_at=NOW, entered_at=NOW)}, [0, 1, 2], NOW) == []
    assert idle(statuses, [], NOW) == []


def _in(place: str) -> str:
    """A stack whose innermost frame is there."""
    return INSIDE.replace("/x/torch/distributed/c10d.py", place)


@pytest.mark.parametrize(
    ("place", "waits"),
    [
        ("/x/seatrial/mpi_backend/group.py", True),
        ("/x/seatrial/mpi_backend/work.py", True),
        ("/x/torch/cuda/__init__.py", True),
        ("/x/seatrial/mpi_backend/staging.py", False),
        # Backward waits for others, or computes: who uses CPU time in it may be the one that is waited for.
        ("/x/torch/autograd/graph.py", False),
    ],
)
def test_a_computing_rank_prevents_suspicion_a_spinning_one_not(place: str, waits: bool) -> None:
    statuses = {0: _status(moved_at=NOW), 1: _status(), 2: _status()}
    stacks = {0: _in(place), 1: BEHIND, 2: INSIDE}
    assert _named(outside(statuses, stacks, _on_one_host(statuses), NOW)) == ([("absent", 1)] if waits else [])


def test_a_rank_asleep_in_backward_waits_for_others() -> None:
    statuses = {0: _status(), 1: _status()}
    assert _named(
        outside(statuses, {0: _in("/x/torch/autograd/graph.py"), 1: BEHIND}, _on_one_host(statuses), NOW)
    ) == [("absent", 1)]


def test_a_stack_without_the_step_loop_names_nobody() -> None:
    statuses = {rank: _status() for rank in range(3)}
    other_thread = 'Thread 0x2 (most recent call first):\n  File "/x/threading.py", line 9 in wait\n'
    assert outside(statuses, {0: INSIDE, 1: "", 2: other_thread}, _on_one_host(statuses), NOW) == []
    assert _named(
        outside(statuses, {0: INSIDE, 1: f"{other_thread}\n{BEHIND}", 2: INSIDE}, _on_one_host(statuses), NOW)
    ) == [("absent", 1)]


@pytest.mark.parametrize("computing", [(), (1,), (0, 1, 2)])
def test_who_computes_while_all_are_stuck_says_so(computing: tuple[int, ...]) -> None:
    """Only where another one does not: over NCCL all of them spin."""
    statuses = {rank: _status(6, moved_at=NOW if rank in computing else LONG_AGO) for rank in range(3)}
    stacks = dict.fromkeys(range(3), INSIDE)
    found = at_deadline(statuses, [0, 1, 2], _ahead(statuses), stacks, _on_one_host(range(3)), NOW, MINUTE)
    details = ["uses CPU time" if computing == (rank,) else "" for rank in range(3)]
    assert [(suspicion.how, suspicion.detail) for suspicion in found] == [("stuck", detail) for detail in details]


def test_at_the_deadline_equals_are_stuck_and_the_last_is_late() -> None:
    alike = {rank: _status(6) for rank in range(3)}
    stuck = [("stuck", 0), ("stuck", 1), ("stuck", 2)]
    assert _named(at_deadline(alike, [0, 1, 2], _ahead(alike), {}, _on_one_host(range(3)), NOW, MINUTE)) == stuck
    behind = {0: _status(6), 1: _status(5), 2: _status(4)}
    assert _named(at_deadline(behind, [0, 1, 2], _ahead(behind), {}, _on_one_host(range(3)), NOW, MINUTE)) == [
        ("late", 2)
    ]
    assert _named(
        at_deadline(
            {0: _status(7), 1: _status(6)}, [1], Ahead(done=True, furthest=7), {}, _on_one_host([1]), NOW, MINUTE
        )
    ) == [("late", 1)]


def test_at_the_deadline_a_rank_inside_is_not_late() -> None:
    behind = {0: _status(7), 1: _status(6), 2: _status(6)}
    assert _named(
        at_deadline(
            behind, [1, 2], _ahead(behind, done=True), {1: INSIDE, 2: INSIDE}, _on_one_host((1, 2)), NOW, MINUTE
        )
    ) == [
        ("stuck", 1),
        ("stuck", 2),
    ]
    assert _named(
        at_deadline(
            behind, [1, 2], _ahead(behind, done=True), {1: INSIDE, 2: BEHIND}, _on_one_host((1, 2)), NOW, MINUTE
        )
    ) == [("late", 2)]


def test_at_the_deadline_ranks_not_asked_for_stacks_are_spared() -> None:
    # Wrong would be to take who was never asked for one that gave no answer.
    statuses, asked = {rank: _status(6) for rank in range(40)}, range(16)
    all_inside = dict.fromkeys(asked, INSIDE)
    assert _named(at_deadline(statuses, range(40), _ahead(statuses), all_inside, _on_one_host(asked), NOW, MINUTE)) == [
        ("stuck", rank) for rank in statuses
    ]
    assert _named(
        at_deadline(statuses, range(40), _ahead(statuses), {**all_inside, 7: BEHIND}, _on_one_host(asked), NOW, MINUTE)
    ) == [("late", 7)]
    silent = {rank: INSIDE for rank in asked if rank != 3}
    assert _named(at_deadline(statuses, range(40), _ahead(statuses), silent, _on_one_host(asked), NOW, MINUTE)) == [
        ("late", 3)
    ]


def test_at_the_deadline_a_moment_in_state_d_is_no_fault() -> None:
    def blocked(state: str, since: float) -> dict[int, RankStatus]:
        return {0: _status(6), 1: _status(6, state=state, blocked_since=since)}

    assert _named(at_deadline(blocked("D", NOW - 1), [0, 1], Ahead(furthest=6), {}, {}, NOW, MINUTE)) == [
        ("stuck", 0),
        ("stuck", 1),
    ]
    assert _named(at_deadline(blocked("D", NOW - 16), [0, 1], Ahead(furthest=6), {}, {}, NOW, MINUTE)) == [
        ("frozen", 1)
    ]
    assert _named(at_deadline(blocked("T", NOW - 1), [0, 1], Ahead(furthest=6), {}, {}, NOW, MINUTE)) == [("frozen", 1)]


def test_state_d_with_progress_is_not_blocked() -> None:
    status = _status(1)
    for second in range(20):
        status.update(("D", float(second), second, "phase"), NOW + second)
    assert suspects({0: status, 1: _status(99)}, [0], Ahead(done=True, furthest=99), NOW + 20, together=True) == []


def test_at_a_deadline_ranks_with_progress_are_working() -> None:
    going = {rank: _status(entered_at=NOW - 4, moved_at=NOW - 1) for rank in range(3)}
    working = [("working", 0), ("working", 1), ("working", 2)]
    for stacks in ({}, {0: INSIDE, 1: BEHIND}, dict.fromkeys(range(3), INSIDE)):
        assert (
            _named(at_deadline(going, range(3), _ahead(going), stacks, _on_one_host(range(3)), NOW, MINUTE)) == working
        )
    stopped_now = {**going, 1: _status(state="T", entered_at=NOW - 4, blocked_since=NOW - 1)}
    assert _named(at_deadline(stopped_now, range(3), _ahead(stopped_now), {}, {}, NOW, MINUTE)) == [("frozen", 1)]


@pytest.mark.parametrize(("allowed_s", "stood_s"), [(60.0, 15.0), (40.0, 10.0), (20.0, 5.0), (8.0, 5.0), (600.0, 15.0)])
@pytest.mark.parametrize("cut_short", [False, True])
def test_a_rank_that_stands_still_is_named_at_any_deadline(allowed_s: float, stood_s: float, cut_short: bool) -> None:
    """15 s, or a quarter of the time allowed, and never so short a time that a healthy rank may have stood still."""

    def named(seconds: float) -> list[tuple[str, int | None]]:
        still = _status(entered_at=NOW - seconds, moved_at=NOW - seconds)
        statuses = {0: _status(entered_at=NOW - 1, moved_at=NOW - 1), 1: still}
        deadline = Deadline(allowed_s=allowed_s, cut_short=cut_short)
        return _named(
            at_deadline(statuses, [0, 1], _ahead(statuses), {0: INSIDE, 1: BEHIND}, _on_one_host((0, 1)), NOW, deadline)
        )

    assert named(stood_s) == [("late", 1)]
    assert named(stood_s - 0.1) == [("working", 0), ("working", 1)]


def test_ranks_that_stand_still_together_are_stuck_at_any_deadline() -> None:
    statuses, inside = {0: _status(), 1: _status()}, {0: INSIDE, 1: INSIDE}
    for cut_short in (False, True):
        deadline = Deadline(allowed_s=54.0, cut_short=cut_short)
        assert _named(at_deadline(statuses, [0, 1], _ahead(statuses), inside, _on_one_host((0, 1)), NOW, deadline)) == [
            ("stuck", 0),
            ("stuck", 1),
        ]
    # One that still makes progress may be all that the other one waits for.
    moving = {0: _status(), 1: _status(entered_at=NOW - 1, moved_at=NOW - 1)}
    for place in (INSIDE, BEHIND):
        assert {
            how
            for how, _ in _named(
                at_deadline(moving, [0, 1], _ahead(moving), {0: INSIDE, 1: place}, _on_one_host((0, 1)), NOW, MINUTE)
            )
        } == {"working"}


def test_a_rank_that_computes_outside_for_long_is_late() -> None:
    """A loop that never lets others have the interpreter uses CPU time, and enters no phase."""
    statuses = {0: _status(), 1: _status(moved_at=NOW)}
    deadline = Deadline(allowed_s=50.0, cut_short=True)
    assert _named(
        at_deadline(statuses, [0, 1], _ahead(statuses), {0: INSIDE, 1: BEHIND}, _on_one_host((0, 1)), NOW, deadline)
    ) == [("late", 1)]
    just_now = {0: _status(), 1: _status(moved_at=NOW, entered_at=NOW - 14)}
    assert _named(
        at_deadline(just_now, [0, 1], _ahead(just_now), {0: INSIDE, 1: BEHIND}, _on_one_host((0, 1)), NOW, deadline)
    ) == [
        ("working", 0),
        ("working", 1),
    ]


def test_a_rank_that_computes_alone_is_no_culprit() -> None:
    computing, asleep = {0: _status(moved_at=NOW)}, {0: _status()}
    own, cut = Deadline(allowed_s=60.0), Deadline(allowed_s=50.0, cut_short=True)
    assert _named(alone_at_deadline(computing, [0], _ahead(computing), NOW, cut)) == [("working", 0)]
    assert _named(alone_at_deadline(computing, [0], _ahead(computing, done=True), NOW, cut)) == [("late", 0)]
    assert _named(alone_at_deadline(computing, [0], _ahead(computing), NOW, own)) == [("late", 0)]
    assert _named(alone_at_deadline(asleep, [0], _ahead(asleep), NOW, cut)) == [("late", 0)]


def test_ranks_ask_their_store_where_a_stack_shows_that_they_wait() -> None:
    """The first rank, which has the store, may keep back the answer to one other."""
    root = Path(seatrial.__file__).parent
    call = re.compile(r"store\.(?:add|set|get|check|wait|compare_set|append|multi_get|multi_set|delete_key)\(")
    waiting = ("groups.py", "gloo_store.py", "page_store.py")
    found = [
        f"{path.relative_to(root)}: {name}"
        for path in sorted([*(root / "checks").rglob("*.py"), *(root / "rank").rglob("*.py")])
        for name, body in _functions(path)
        if call.search(body) and path.name not in waiting and "wait_for_others" not in name
    ]
    assert found == []


def test_ranks_connect_where_a_stack_shows_that_they_wait() -> None:
    """The innermost frame of one in ``socket.create_connection`` is the library's, and the other end may not answer."""
    root = Path(seatrial.__file__).parent
    files = [path for package in ("checks", "rank", "worker") for path in (root / package).rglob("*.py")]
    assert [str(path) for path in files if "create_connection(" in path.read_text()] == []


_COLLECTIVE = re.compile(r"dist\.(?:all_reduce|all_gather|broadcast|reduce|gather|scatter|send|recv)\b")
_READ = re.compile(r"\.(?:item|tolist|cpu)\(|torch\.equal\(")


def test_ranks_read_what_others_send_where_a_stack_shows_that_they_wait() -> None:
    """On a GPU a collective returns at once, and who reads its result waits for the others in a frame of our code."""
    root = Path(seatrial.__file__).parent
    found, num_awaited = [], 0
    for path in sorted(file for package in ("checks", "rank", "training") for file in (root / package).rglob("*.py")):
        for name, body in _functions(path):
            sent = None
            for line in body.splitlines():
                if "synchronize(" in line:
                    num_awaited += sent is not None
                    sent = None
                elif sent and _READ.search(line):
                    found.append(f"{path.relative_to(root)}: {name}: {line.strip()} after {sent}")
                elif _COLLECTIVE.search(line) and "wait_for_others" not in line:
                    sent = line.strip()
    assert found == []
    assert num_awaited >= 5, "the search finds nothing"


def _functions(path: Path) -> Iterator[tuple[str, str]]:
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            yield node.name, ast.get_source_segment(source, node) or ""


def test_each_mark_of_a_waiting_frame_names_a_file() -> None:
    package = Path(seatrial.__file__).parents[1]
    files = [mark for mark in (*_WAITS, STEP_LOOP) if mark.endswith(".py") and "torch" not in mark]
    assert len(files) == 11
    for mark in files:
        assert (package / mark.removeprefix("/")).is_file() or (package / "seatrial" / mark).is_file(), mark
    waits = [path for path in package.rglob("*.py") if re.search(r"def \w*wait_for_others", path.read_text())]
    assert waits, "no function has the name by which a wait in C++ is known"
    for folder in ("torch/distributed", "torch/cuda", "torch/autograd"):
        assert f"/{folder}/" in _INSIDE
        assert importlib.util.find_spec(folder.replace("/", ".")) is not None
    for module in ("torch/_ops", "torch/nn/parallel/distributed"):
        assert f"/{module}.py" in _INSIDE
        assert importlib.util.find_spec(module.replace("/", ".")) is not None


def test_a_sentence_in_place_of_a_state_is_cut_to_its_letter() -> None:
    statuses = {2: _status()}
    take_status(statuses, {"2": ["S, as node n0 is broken", 0.0, 1, "x", 0.0]}, NOW)
    assert statuses[2].state == "S"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_agents_may_be_that_of_a_job_that_ends(number: signal.Signals) -> None:
    """systemd sends SIGTERM and SIGHUP to all processes, and a rank may get either first."""
    for code in (-number, 128 + number):
        assert dead(0, "", code, is_oom=False, num_hosts=1, device_lines=()).stopped_from_outside
    assert not dead(0, "", -signal.SIGSEGV, is_oom=False, num_hosts=1, device_lines=()).stopped_from_outside


def _held(number: int = 3, *, share: float) -> RankStatus:
    """A rank that has used no CPU time since a step began 30 s ago, and could not for this share of the time."""
    status = _status(number, state="R")
    status.begin(NOW)
    for second in range(1, 31):
        take_status({0: status}, {"0": ["R", 0.0, number, "x", share * second]}, NOW + second)
    return status


def test_a_rank_whose_core_others_have_is_neither_quiet_nor_late() -> None:
    """A user of its node may run processes there. It used no CPU time, since it got none."""
    at = NOW + 30.0
    for share, is_named in ((0.99, False), (0.0, True)):
        statuses = {0: _held(share=share), 1: _status(9, moved_at=at, entered_at=at)}
        statuses[1].seen_at = statuses[1].known_until = at
        ahead = _ahead(statuses)
        assert bool(suspects(statuses, [0, 1], ahead, at, together=True)) == is_named
        stacks = {0: BEHIND, 1: INSIDE}
        assert bool(outside(statuses, stacks, _on_one_host(stacks), at)) == is_named


@pytest.mark.parametrize(("share", "how"), [(0.0, "late"), (0.1, "late"), (0.3, "working"), (0.99, "working")])
def test_a_rank_that_a_deadline_ends_without_its_core_was_at_work(share: float, how: str) -> None:
    at = NOW + 30.0
    done = Ahead(done=True, furthest=9)
    statuses = {0: _held(share=share)}
    alone = alone_at_deadline(statuses, [0], done, at, Deadline(allowed_s=30.0))
    together = at_deadline(statuses, [0], done, {}, {0: "a"}, at, Deadline(allowed_s=30.0))
    starting = at_start_deadline(statuses, [0], done, at)
    assert {suspicion.how for suspicion in (*alone, *together, *starting)} == {how}
    if how == "working":
        assert "other processes had its core" in alone[0].detail


@pytest.mark.parametrize(("share", "how"), [(0.0, "stuck"), (0.99, "working")])
def test_one_of_all_that_hang_without_its_core_excuses_communication(share: float, how: str) -> None:
    """All others wait for its message, which its threads cannot send."""
    at = NOW + 30.0
    statuses = {0: _held(share=0.0), 1: _held(share=share), 2: _held(share=0.0)}
    stacks, hosts = dict.fromkeys(statuses, INSIDE), {rank: str(rank) for rank in statuses}
    found = at_deadline(statuses, [0, 1, 2], _ahead(statuses), stacks, hosts, at, Deadline(allowed_s=30.0))
    assert {suspicion.how for suspicion in found} == {how}
    assert [suspicion.rank for suspicion in found if suspicion.detail] == ([1] if how == "working" else [])
    for second in range(31, 100):
        for rank, status in statuses.items():
            status.update(("S", 0.0, 3, "x"), NOW + second, share * second if rank == 1 else 0.0)
    assert bool(all_wait(statuses, [0, 1, 2], stacks, NOW + 99)) == (how == "stuck")
