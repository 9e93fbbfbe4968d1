"""One generation from step to step: finished ranks, suspicions that become trouble, requests for stacks."""

from __future__ import annotations

import itertools

import pytest
from conductor.simulated_records import BEHIND, INSIDE
from conductor.simulated_statuses import AttendedDetector

from seatrial.conductor.hang_detector import MAX_STACKS, HangDetector
from seatrial.conductor.rank_status import Suspicion, dead
from seatrial.protocol.timeouts import PATIENCE_S


def _on_hosts(ranks: int, hosts: int = 1) -> dict[int, str]:
    """Each rank with its host."""
    return {rank: f"host {rank % hosts}" for rank in range(ranks)}


def _hang_detector(ranks: int = 3, *, hosts: int = 1, until: float = 100.0) -> HangDetector:
    hang_detector = AttendedDetector(_on_hosts(ranks, hosts), until, 0.0)
    hang_detector.begin(range(ranks), until, 0.0, together=True)
    return hang_detector


def test_complete_once_all_ranks_of_the_step_have_finished() -> None:
    hang_detector = _hang_detector(3)
    for rank in (2, 0, 0, 17):
        hang_detector.finished(rank, 0.0)
    assert (hang_detector.complete, hang_detector.waiting()) == (False, [1])
    hang_detector.finished(1, 0.0)
    assert (hang_detector.complete, hang_detector.waiting()) == (True, [])
    hang_detector.begin([1], 100.0, 0.0, together=False)
    assert (hang_detector.complete, hang_detector.waiting()) == (False, [1])


def test_trouble_names_later_suspicions_as_well() -> None:
    hang_detector = _hang_detector()
    hang_detector.suspect(Suspicion(how="error", rank=0, detail="fabric"), 5.0)
    assert hang_detector.poll(5.9) is None
    hang_detector.suspect(Suspicion(how="dead", rank=2), 5.9)
    assert hang_detector.poll(6.0) == "trouble"
    assert hang_detector.guilty() == {2}
    assert [entry["rank"] for entry in hang_detector.trouble_payload(0, 4)["seen"]] == [0, 2]
    assert hang_detector.trouble_payload(0, 4)["waiting"] == [[1, ""]]


def test_what_one_rank_repeats_holds_up_no_end() -> None:
    hang_detector = _hang_detector()
    ended = Suspicion(how="dead", rank=1, detail="exit code -15", stopped_from_outside=True)
    for now in range(1, 100):
        hang_detector.suspect(ended, float(now))
        if hang_detector.poll(float(now)) is not None:
            break
    assert (now, len(hang_detector.suspicions)) == (4, 1)
    hang_detector = _hang_detector(9)
    for now in range(1, 9):
        hang_detector.suspect(Suspicion(how="dead", rank=now, stopped_from_outside=True), float(now))
    assert hang_detector.poll(4.0) == "trouble"


def test_a_fabric_error_is_no_guilt_and_another_error_is() -> None:
    hang_detector = _hang_detector(6)
    for rank, how, detail in ((0, "error", "fabric"), (1, "error", "memory"), (2, "stuck", ""), (3, "late", "")):
        hang_detector.suspect(Suspicion(how=how, rank=rank, detail=detail), 1.0)  # type: ignore[arg-type]
    hang_detector.suspect(Suspicion(how="lost", node=5), 1.0)
    assert hang_detector.guilty() == {1, 3}


def _request_stacks(hang_detector: HangDetector, now: float) -> list[int]:
    """Poll, then request the stacks that are wanted, as the conductor does."""
    assert hang_detector.poll(now) is None
    return hang_detector.stacks_to_request(now)


def test_no_stack_is_requested_while_a_rank_enters_phases() -> None:
    hang_detector = _hang_detector(3)
    hang_detector.statuses[1].update(("R", 9.0, 0, ""), 2.0)
    hang_detector.statuses[2].entered_at = 1.0
    assert _request_stacks(hang_detector, PATIENCE_S) == []
    assert _request_stacks(hang_detector, PATIENCE_S + 1.0) == [0, 2, 1], "quiet ranks come first"
    assert _request_stacks(hang_detector, PATIENCE_S + 1.5) == [], "once, as long as no rank makes progress"


def test_no_stack_is_requested_while_all_use_cpu_time() -> None:
    hang_detector = _hang_detector(2)
    for second in range(60):
        for status in hang_detector.statuses.values():
            status.update(("R", float(second), 0, ""), float(second))
        assert _request_stacks(hang_detector, second + 0.5) == []


def test_stacks_of_computing_ranks_are_requested_again() -> None:
    hang_detector = _hang_detector(2)
    computing, waiting = {0: BEHIND, 1: BEHIND}, {0: INSIDE, 1: BEHIND}
    asked: list[float] = []
    for second in range(1, 60):
        hang_detector.statuses[0].update(("R", float(second), 0, ""), float(second))
        outcome = hang_detector.poll(float(second))
        if outcome is not None:
            assert (outcome, hang_detector.guilty()) == ("trouble", {1})
            break
        if hang_detector.stacks_to_request(float(second)):
            asked.append(second)
            hang_detector.stacks = computing if second < 40 else waiting
    assert asked == [PATIENCE_S, 2 * PATIENCE_S, 3 * PATIENCE_S]
    assert second == 3 * PATIENCE_S + 1


def test_a_rank_that_claims_to_move_has_stacks_requested_a_few_times() -> None:
    """One rank of the same host sleeps, so that stacks are wanted; each request keeps the agents from other work."""
    hang_detector = _hang_detector(6, hosts=3)
    asked: list[float] = []
    for tick in range(1, 4 * 90):
        now = tick / 4
        for rank in range(1, 6):
            hang_detector.statuses[rank].update(("R", now, tick, ""), now)
        assert hang_detector.poll(now) is None
        asked += [now] if hang_detector.stacks_to_request(now) else []
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, *[PATIENCE_S] * (len(pauses) - 4)]
    assert len(pauses) > 4


def test_only_some_stacks_of_many_ranks_are_requested() -> None:
    hang_detector = _hang_detector(100)
    assert _request_stacks(hang_detector, PATIENCE_S) == list(range(MAX_STACKS))
    hang_detector.suspect(Suspicion(how="dead", rank=77), 20.0)
    wanted = hang_detector.stacks_wanted()
    assert (wanted[0], len(wanted)) == (77, MAX_STACKS)


def test_stacks_name_the_rank_that_never_entered() -> None:
    hang_detector = _hang_detector(3)
    _request_stacks(hang_detector, PATIENCE_S)
    hang_detector.stacks = {0: INSIDE, 1: INSIDE}
    assert hang_detector.poll(PATIENCE_S + 1.0) is None
    hang_detector.stacks[2] = BEHIND
    assert hang_detector.poll(PATIENCE_S + 1.0) == "trouble"
    assert hang_detector.guilty() == {2}


@pytest.mark.parametrize(("stacks", "stuck"), [({}, True), ({1: BEHIND}, False), ({1: None}, False)])
def test_ranks_that_all_wait_end_a_step_of_hours(stacks: dict[int, str | None], stuck: bool) -> None:
    """Without a timeout of the library: it could not tell them from ranks that wait for one that computes."""
    hang_detector = _hang_detector(3, until=10_000.0)
    hang_detector.statuses[1].update(("R", 9.0, 0, ""), 40.0 if stacks else 0.0)
    polled, now = list[str | None](), 0.0
    while now < 125.0:
        now += 1.0
        if stacks:
            hang_detector.statuses[1].update(("R", 9.0 + now, 0, ""), now)
        polled.append(hang_detector.poll(now))
        for rank in hang_detector.stacks_to_request(now):
            if (stack := stacks.get(rank, INSIDE)) is not None:
                hang_detector.stacks[rank] = stack
        if polled[-1]:
            break
    assert polled[-1] == ("trouble" if stuck else None)
    assert [suspicion.how for suspicion in hang_detector.suspicions] == (["stuck"] * 3 if stuck else [])
    assert now == (90.0 if stuck else 125.0)


def test_stacks_of_ranks_that_moved_on_are_dropped() -> None:
    hang_detector = _hang_detector(3)
    _request_stacks(hang_detector, PATIENCE_S)
    hang_detector.statuses[2].update(("S", 0.0, 7, "on"), PATIENCE_S + 0.5)
    hang_detector.stacks = {0: INSIDE, 1: INSIDE, 2: BEHIND}
    assert hang_detector.poll(PATIENCE_S + 1.0) is None
    assert hang_detector.stacks == {}
    assert _request_stacks(hang_detector, 2 * PATIENCE_S + 1.0) == [0, 1, 2], (
        "and are requested again when all are quiet again"
    )


def test_a_rank_behind_that_waits_inside_is_not_named() -> None:
    hang_detector = _hang_detector(3)
    hang_detector.statuses[0].number = 9
    hang_detector.finished(0, 0.0)
    assert _request_stacks(hang_detector, PATIENCE_S) == [1, 2]
    hang_detector.stacks = {1: INSIDE, 2: INSIDE}
    assert hang_detector.poll(PATIENCE_S + 1.0) is None
    hang_detector.stacks[2] = BEHIND
    assert hang_detector.poll(PATIENCE_S + 1.0) == "trouble"
    assert hang_detector.guilty() == {2}


def test_a_rank_that_claims_to_be_far_ahead_has_nobody_named() -> None:
    """All others wait for it, more of them than are asked for their stacks."""
    ranks = 2 * MAX_STACKS + 2
    hang_detector = _hang_detector(ranks)
    hang_detector.statuses[0].number = 1_000_000
    asked = _request_stacks(hang_detector, PATIENCE_S)
    hang_detector.stacks = dict.fromkeys(asked, INSIDE)
    assert hang_detector.poll(PATIENCE_S + 1.0) is None
    assert hang_detector.guilty() == set()
    hang_detector.stacks[asked[-1]] = BEHIND
    assert hang_detector.poll(PATIENCE_S + 1.0) == "trouble"
    assert hang_detector.guilty() == {asked[-1]}


def test_of_many_ranks_behind_those_are_named_whose_stacks_were_seen() -> None:
    """The first rank of each host may do what the others of its host wait for."""
    hang_detector = _hang_detector(2 * MAX_STACKS)
    hang_detector.statuses[0].number = 9
    asked = _request_stacks(hang_detector, PATIENCE_S)
    hang_detector.stacks = dict.fromkeys(asked, BEHIND)
    assert hang_detector.poll(PATIENCE_S + 1.0) == "trouble"
    assert hang_detector.guilty() == set(asked)


def test_at_a_deadline_no_rank_is_late_whose_stack_nobody_asked_for() -> None:
    hang_detector = _hang_detector(2 * MAX_STACKS, until=10.0)
    hang_detector.statuses[0].number = 9
    asked = _request_stacks(hang_detector, 10.0)
    hang_detector.stacks = dict.fromkeys(asked, BEHIND)
    assert hang_detector.poll(10.5) == "deadline"
    assert hang_detector.guilty()
    assert hang_detector.guilty() <= set(asked)


@pytest.mark.parametrize(("stack", "guilty"), [(INSIDE, set[int]()), (BEHIND, {1})])
def test_a_stack_that_comes_late_still_counts(stack: str, guilty: set[int]) -> None:
    """Its host may be under load."""
    hang_detector = _hang_detector(3)
    hang_detector.statuses[0].number = 9
    hang_detector.finished(0, 0.0)
    _request_stacks(hang_detector, PATIENCE_S)
    hang_detector.stacks[2] = INSIDE
    assert hang_detector.poll(PATIENCE_S + 3.0) is None
    hang_detector.stacks[1] = stack
    assert hang_detector.poll(PATIENCE_S + 9.0) == ("trouble" if guilty else None)
    assert hang_detector.guilty() == guilty


@pytest.mark.parametrize("spins", [False, True])
def test_a_rank_behind_that_never_shows_its_stack_is_named(spins: bool) -> None:
    hang_detector = _hang_detector(3)
    for rank in (0, 2):
        hang_detector.statuses[rank].number = 9
    hang_detector.finished(0, 0.0)
    for second in range(int(PATIENCE_S) + 10):
        hang_detector.statuses[2].update(("R", 9.0 * second * spins, 9, ""), float(second))
        assert hang_detector.poll(float(second)) is None
        for rank in set(hang_detector.stacks_to_request(float(second))) - {1}:
            hang_detector.stacks[rank] = INSIDE
    assert hang_detector.poll(PATIENCE_S + 10.0) == "trouble"
    assert hang_detector.guilty() == {1}


HALF = 'Thread 0x9 (most recent call first):\n  File "/x/threading.py", line 3 in wait\n'


def _answered(answers: dict[int, list[str]], behind: int | None, *, until: float = 100.0) -> HangDetector:
    """Three ranks of three hosts stand still; agents answer after a second, at last always in the same way."""
    hang_detector = _hang_detector(len(answers), hosts=len(answers), until=until)
    asked, asked_at = list[int](), 0.0
    for tick in range(1, 4 * int(until) + 20):
        now = tick / 4
        for rank in answers:
            hang_detector.statuses[rank].update(("S", 0.0, 3 if rank == behind else 5, "x"), now)
        if hang_detector.poll(now):
            break
        if asked and now - asked_at >= 1.0:
            for rank in asked:
                hang_detector.stacks[rank] = answers[rank].pop(0) if len(answers[rank]) > 1 else answers[rank][0]
            asked = []
        if ranks := hang_detector.stacks_to_request(now):
            asked, asked_at = ranks, now
    return hang_detector


@pytest.mark.parametrize("until", [16.0, 100.0])
@pytest.mark.parametrize("nothing", ["", HALF], ids=["empty", "half"])
@pytest.mark.parametrize("behind", [None, 1])
def test_an_answer_that_shows_no_step_is_asked_for_again(behind: int | None, nothing: str, until: float) -> None:
    """A host under load answers late; its rank waits as all do, for a message that the fabric has lost."""
    answers = {0: [INSIDE], 1: [nothing, INSIDE], 2: [INSIDE]}
    detector = _answered(answers, behind, until=until)
    assert {suspicion.how for suspicion in detector.suspicions} == {"stuck"}
    assert detector.guilty() == set()


@pytest.mark.parametrize("nothing", ["", HALF], ids=["empty", "half"])
def test_a_rank_behind_whose_answers_never_show_it_is_named(nothing: str) -> None:
    assert _answered({0: [INSIDE], 1: [nothing], 2: [INSIDE]}, 1).guilty() == {1}
    assert _answered({0: [INSIDE], 1: [nothing, BEHIND], 2: [INSIDE]}, None).guilty() == {1}


def test_answers_without_a_stack_have_an_agent_asked_seldom() -> None:
    hang_detector = _hang_detector(3, until=200.0)
    asked: list[float] = []
    for tick in range(1, 4 * 90):
        assert hang_detector.poll(tick / 4) is None
        for rank in hang_detector.stacks_to_request(tick / 4):
            hang_detector.stacks[rank] = "" if rank == 1 else INSIDE
            asked += [tick / 4] if rank == 1 else []
    assert [later - earlier for earlier, later in itertools.pairwise(asked)] == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    assert hang_detector.stacks_wanted()[0] == 1, "for the evidence it is asked once more"


def _until_deadline(hang_detector: HangDetector, now: float) -> None:
    """The stacks are asked for once more, and when they have come it is decided."""
    ranks = _request_stacks(hang_detector, now)
    hang_detector.stacks = dict.fromkeys(ranks, INSIDE)
    assert hang_detector.poll(now + 0.5) == "deadline"


def test_a_deadline_with_all_alike_names_nobody() -> None:
    hang_detector = _hang_detector(3, until=10.0)
    assert hang_detector.poll(9.9) is None
    _until_deadline(hang_detector, 10.0)
    assert hang_detector.guilty() == set()
    assert {entry["how"] for entry in hang_detector.trouble_payload(0, 0)["seen"]} == {"stuck"}


def test_a_deadline_is_decided_without_stacks() -> None:
    hang_detector = _hang_detector(2, until=10.0)
    _request_stacks(hang_detector, 10.0)
    for tick in range(40):
        hang_detector.statuses[1].update(("R", 10.0 + tick, 1, "loop"), 10.25 + tick / 4)
        assert hang_detector.poll(10.25 + tick / 4) is (None if tick < 39 else "deadline")


def _at_the_deadline(behind: int | None, stack: str, after_s: float) -> HangDetector:
    """Five ranks of as many hosts spin until the deadline; the stack of rank 2 comes ``after_s`` seconds later."""
    hang_detector = _hang_detector(5, hosts=5, until=60.0)
    for tick in range(1, 4 * 80):
        now = tick / 4
        for rank in range(5):
            hang_detector.statuses[rank].update(("R", now, 5 if rank == behind else 6, "x"), now)
        if hang_detector.poll(now):
            break
        for rank in hang_detector.stacks_to_request(now):
            if rank != 2:
                hang_detector.stacks[rank] = INSIDE
        if now >= 60.0 + after_s:
            hang_detector.stacks[2] = stack
    return hang_detector


@pytest.mark.parametrize("behind", [None, 2, 3])
@pytest.mark.parametrize("after_s", [1.0, 4.0, 9.0])
def test_a_stack_that_comes_late_counts_at_a_deadline(behind: int | None, after_s: float) -> None:
    hang_detector = _at_the_deadline(behind, INSIDE, after_s)
    assert {suspicion.how for suspicion in hang_detector.suspicions} == {"stuck"}
    hang_detector = _at_the_deadline(behind, BEHIND, after_s)
    assert [(suspicion.how, suspicion.rank) for suspicion in hang_detector.suspicions] == [("late", 2)]


@pytest.mark.parametrize("behind", [None, 2])
def test_a_stack_that_never_comes_names_its_rank_at_a_deadline(behind: int | None) -> None:
    hang_detector = _at_the_deadline(behind, INSIDE, 99.0)
    assert [(suspicion.how, suspicion.rank) for suspicion in hang_detector.suspicions] == [("late", 2)]


@pytest.mark.parametrize("computing", [(1,), (1, 2)])
def test_ranks_that_move_while_a_stack_is_awaited_have_nobody_named(computing: tuple[int, ...]) -> None:
    """The step had too little time: most ranks finish some seconds later, and each is in a phase for 15 s."""
    hang_detector = _hang_detector(5, hosts=5, until=60.0)
    for tick in range(1, 4 * 72):
        now = tick / 4
        for rank in range(5):
            phase = int((now + 8.0) // 20)
            hang_detector.statuses[rank].update(("R", now, phase, "x"), now)
        if now >= 66.0:
            for rank in {0, 3, 4} if len(computing) == 2 else {0}:
                hang_detector.finished(rank, now)
        if hang_detector.poll(now):
            break
        for rank in set(hang_detector.stacks_to_request(now)) - {0}:
            hang_detector.stacks[rank] = BEHIND if rank in computing else INSIDE
    assert {suspicion.how for suspicion in hang_detector.suspicions} == {"working"}
    assert hang_detector.guilty() == set()


def test_at_a_deadline_an_agent_is_asked_again_after_pauses() -> None:
    hang_detector = _hang_detector(3, until=10.0)
    asked: list[float] = []
    for tick in range(1, 4 * 30):
        if hang_detector.poll(tick / 4):
            break
        for rank in hang_detector.stacks_to_request(tick / 4):
            hang_detector.stacks[rank] = "" if rank == 1 else INSIDE
            asked += [tick / 4] if rank == 1 else []
    assert asked == [10.0, 11.0, 13.0, 17.0]
    assert tick / 4 == 20.0


def test_a_pause_counts_for_no_wait() -> None:
    """What came meanwhile was not read yet."""
    hang_detector = _hang_detector(3, hosts=3, until=10.0)
    for rank in _request_stacks(hang_detector, 10.0):
        if rank != 2:
            hang_detector.stacks[rank] = INSIDE
    hang_detector.shift(60.0)
    assert hang_detector.poll(71.0) is None
    hang_detector.stacks[2] = INSIDE
    assert hang_detector.poll(72.0) == "deadline"
    assert hang_detector.guilty() == set()
    hang_detector = _hang_detector(3)
    hang_detector.suspect(Suspicion(how="error", rank=0, detail="fabric"), 5.0)
    hang_detector.shift(60.0)
    assert hang_detector.poll(65.9) is None
    hang_detector.suspect(Suspicion(how="dead", rank=2), 65.9)
    assert hang_detector.poll(66.0) == "trouble"
    assert hang_detector.guilty() == {2}


def test_a_pause_extends_the_deadline() -> None:
    hang_detector = _hang_detector(3, until=10.0)
    hang_detector.shift(60.0)
    assert hang_detector.poll(69.9) is None
    _until_deadline(hang_detector, 70.0)


def test_a_rank_that_works_alone_is_late_whatever_its_stack() -> None:
    hang_detector = AttendedDetector(_on_hosts(3), 100.0, 0.0)
    hang_detector.begin(range(3), 10.0, 0.0, together=False)
    hang_detector.finished(0, 0.0)
    hang_detector.stacks = {1: INSIDE, 2: INSIDE}
    assert hang_detector.poll(9.9) is None
    assert hang_detector.stacks_to_request(9.9) == []
    assert hang_detector.poll(10.0) == "deadline"
    assert hang_detector.guilty() == {1, 2}


def test_a_quiet_rank_alone_is_named_once_another_is_done() -> None:
    hang_detector = AttendedDetector(_on_hosts(2), 100.0, 0.0)
    hang_detector.begin(range(2), 60.0, 0.0, together=False)
    assert hang_detector.poll(PATIENCE_S) is None
    hang_detector.statuses[0].number = 2
    hang_detector.finished(0, 0.0)
    assert hang_detector.poll(PATIENCE_S) == "trouble"
    assert hang_detector.guilty() == {1}


def test_a_deadline_while_all_make_progress_blames_nobody() -> None:
    for together in (True, False):
        hang_detector = AttendedDetector(_on_hosts(2), 100.0, 0.0)
        hang_detector.begin(range(2), 60.0, 0.0, together=together)
        hang_detector.attend(57.0)
        for rank in range(2):
            hang_detector.statuses[rank].update(("R", 50.0, 21, "forward"), 58.0)
        hang_detector.poll(60.0)
        for _ in _request_stacks(hang_detector, 60.0) if together else ():
            hang_detector.stacks = {0: BEHIND, 1: INSIDE}
        assert hang_detector.poll(60.5) == "deadline"
        assert {entry["how"] for entry in hang_detector.trouble_payload(0, 0)["seen"]} == {"working"}
        assert hang_detector.guilty() == set()


def test_a_working_rank_is_late_when_another_is_done() -> None:
    hang_detector = AttendedDetector(_on_hosts(2), 100.0, 0.0)
    hang_detector.begin(range(2), 60.0, 0.0, together=False)
    hang_detector.finished(0, 0.0)
    hang_detector.attend(57.0)
    hang_detector.statuses[1].update(("R", 50.0, 21, "gemm"), 58.0)
    assert hang_detector.poll(60.0) == "deadline"
    assert hang_detector.guilty() == {1}


@pytest.mark.parametrize("hosts", [2, 4])
def test_one_host_that_says_done_at_once_has_nobody_named_as_late(hosts: int) -> None:
    """The step is too short for all."""
    hang_detector = AttendedDetector(_on_hosts(hosts, hosts), 100.0, 0.0)
    hang_detector.begin(range(hosts), 60.0, 0.0, together=False)
    hang_detector.finished(0, 0.0)
    hang_detector.attend(57.0)
    for rank in range(1, hosts):
        hang_detector.statuses[rank].update(("R", 50.0, 21, "gemm"), 58.0)
    assert hang_detector.poll(60.0) == "deadline"
    assert {entry["how"] for entry in hang_detector.trouble_payload(0, 0)["seen"]} == {"working"}
    assert hang_detector.guilty() == set()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("hosts", [2, 4])
def test_a_host_that_claims_to_be_far_ahead_has_no_quiet_rank_named(hosts: int, together: bool) -> None:
    hang_detector = AttendedDetector(_on_hosts(2 * hosts, hosts), 100.0, 0.0)
    hang_detector.begin(range(2 * hosts), 600.0, 0.0, together=together)
    for rank in (0, hosts):
        hang_detector.statuses[rank].update(("S", 0.0, 10**12, "x"), 1.0)
        hang_detector.finished(rank, 0.0)
    for second in range(1, 60):
        assert hang_detector.poll(float(second)) is None
        hang_detector.stacks = dict.fromkeys(hang_detector.stacks_to_request(float(second)), BEHIND)


def test_one_host_that_is_ready_at_once_has_nobody_named() -> None:
    hang_detector = AttendedDetector(_on_hosts(3, 3), 10.0, 0.0)
    hang_detector.finished(0, 0.0)
    assert hang_detector.poll(10.0) == "deadline"
    assert hang_detector.guilty() == set()


def test_what_most_hosts_say_names_a_rank() -> None:
    for together in (True, False):
        hang_detector = AttendedDetector(_on_hosts(6, 3), 100.0, 0.0)
        hang_detector.begin(range(6), 60.0, 0.0, together=together)
        for rank in (0, 1, 3, 4):
            hang_detector.statuses[rank].number = 2
            hang_detector.finished(rank, 0.0)
        hang_detector.statuses[2].update(("R", 50.0, 0, ""), 14.0)
        for now in (PATIENCE_S, PATIENCE_S + 1.0):
            outcome = hang_detector.poll(now)
            hang_detector.stacks = dict.fromkeys(hang_detector.stacks_to_request(now), BEHIND)
        assert (outcome, hang_detector.guilty()) == ("trouble", {5})


def _step_of(stacks: dict[int, str | None], hosts: int, *, computing: int | None = None) -> HangDetector:
    """A step of 60 s in which no rank enters a phase, until it ends; their stacks whenever they are asked for."""
    hang_detector = _hang_detector(len(stacks), hosts=hosts, until=60.0)
    for second in range(1, 80):
        if computing is not None:
            hang_detector.statuses[computing].update(("R", float(second), 0, ""), float(second))
        if hang_detector.poll(float(second)):
            break
        for rank in hang_detector.stacks_to_request(float(second)):
            if (stack := stacks[rank]) is not None:
                hang_detector.stacks[rank] = stack
    return hang_detector


@pytest.mark.parametrize("computing", [None, 1])
@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(3, 1), (4, 2), (8, 4), (20, 8)])
def test_one_host_that_claims_to_wait_has_nobody_named(hosts: int, ranks_per_host: int, computing: int | None) -> None:
    """All others stand elsewhere, as they say."""
    stacks: dict[int, str | None] = {rank: BEHIND if rank % hosts else INSIDE for rank in range(hosts * ranks_per_host)}
    assert _step_of(stacks, hosts, computing=computing).guilty() == set()


def test_half_of_four_hosts_that_wait_have_nobody_named() -> None:
    assert _step_of({0: INSIDE, 1: INSIDE, 2: BEHIND, 3: BEHIND}, 4).guilty() == set()
    assert _step_of({0: INSIDE, 1: INSIDE, 2: INSIDE, 3: BEHIND}, 4).guilty() == {3}


def test_of_two_hosts_none_has_a_silent_rank_named() -> None:
    assert _step_of({0: INSIDE, 1: None}, 2).guilty() == set()
    assert _step_of({0: INSIDE, 1: None}, 1).guilty() == {1}, "of one host its other ranks say so"
    assert _step_of({0: INSIDE, 1: None, 2: INSIDE}, 3).guilty() == {1}


@pytest.mark.parametrize("computing", [None, 1])
@pytest.mark.parametrize(("hosts", "ranks"), [(1, 2), (2, 2), (2, 4), (3, 3), (3, 6), (8, 16)])
def test_a_rank_that_says_itself_that_it_stands_elsewhere_is_named(
    hosts: int, ranks: int, computing: int | None
) -> None:
    stacks: dict[int, str | None] = {rank: BEHIND if rank == 1 else INSIDE for rank in range(ranks)}
    hang_detector = _step_of(stacks, hosts, computing=computing)
    assert hang_detector.guilty() == {1}
    assert {suspicion.how for suspicion in hang_detector.suspicions} == {"late" if computing else "absent"}


def test_stacks_of_as_many_hosts_as_possible_are_requested() -> None:
    hang_detector = AttendedDetector({rank: f"host {rank // 8}" for rank in range(8 * MAX_STACKS)}, 100.0, 0.0)
    hang_detector.begin(range(8 * MAX_STACKS), 100.0, 0.0, together=True)
    assert _request_stacks(hang_detector, PATIENCE_S) == list(range(0, 8 * MAX_STACKS, 8))


@pytest.mark.parametrize(
    ("phase", "num_hosts", "line", "guilty"),
    [
        ("bootstrap/meet at the store", 2, "", set()),
        ("bootstrap/meet at the store", 2, "CUDA error: uncorrectable ECC error encountered", {1}),
        ("bootstrap/meet at the store", 2, "no answer of CUDA error: uncorrectable ECC error", set()),
        ("bootstrap/meet at the store", 1, "", {1}),
        ("training/step 1", 2, "", {1}),
    ],
)
def test_a_rank_that_others_may_have_ended_is_not_left_out(
    phase: str, num_hosts: int, line: str, guilty: set[int]
) -> None:
    """Another rank may have sent the bytes that ended it while it connected."""
    detector = AttendedDetector({0: "a", 1: "b"}, 100.0, 0.0)
    detector.suspect(dead(1, phase, -11, is_oom=False, num_hosts=num_hosts, device_lines=[line]), 1.0)
    assert detector.guilty() == guilty
