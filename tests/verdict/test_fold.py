"""The fold: nothing that is lost, cut, copied or mixed in makes a verdict better or names somebody else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from event_streams import RUN, SCENES, Stream, healthy, lines_of
from fake_checks import CHECKS, fake_load
from hypothesis import given
from hypothesis import strategies as st

from seatrial.conductor.conclude import Conclusion, conclude
from seatrial.verdict.fold import evidence_so_far, fold
from seatrial.verdict.wire import Decoder

scenes = st.sampled_from(sorted(SCENES))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def judged(events: list[dict[str, Any]], damaged: int = 0) -> Conclusion:
    return conclude(events, damaged=damaged, load=fake_load)


def culprits(conclusion: Conclusion) -> set[tuple[str, object]]:
    """Who is blamed; without what was lost of how they are called (``gpu-1`` may become ``node 1``)."""
    return {
        (finding.culprit.kind, finding.culprit.name[-1] if finding.culprit.kind == "node" else finding.culprit.ranks)
        for finding in conclusion.findings
        if finding.severity == "fail" and finding.culprit.kind != "none"
    }


def assert_no_better(before: Conclusion, after: Conclusion) -> None:
    assert before.verdict.status == "PASS" or after.verdict.status != "PASS"
    assert culprits(after) <= culprits(before)


def test_a_healthy_trial_is_told_whole() -> None:
    trial = fold(healthy(4, nodes=2).events)
    assert trial.run == RUN
    assert trial.missing == ()
    assert sorted(trial.ranks) == [0, 1, 2, 3]
    assert trial.ranks[3].label() == "rank 3 (Test CPU, local rank 1 on gpu-1)"
    assert trial.ranks[0].kind == trial.ranks[3].kind == "Test CPU, torch 2.13.0"
    assert [step.check for step in trial.steps] == list(CHECKS)
    assert all(step.complete() for step in trial.steps)
    assert len(trial.figures) == len(trial.facts) == 16
    assert (trial.device_type, trial.backend, trial.world_size()) == ("cpu", "gloo", 4)


@given(scenes, st.randoms(use_true_random=False))
def test_order_and_copies_do_not_matter(name: str, chance: random.Random) -> None:
    events = SCENES[name]().events
    mixed = events + chance.sample(events, len(events) // 2)
    chance.shuffle(mixed)
    assert fold(mixed) == fold(events)


@given(scenes, st.data())
def test_lost_events_make_nothing_better(name: str, data: st.DataObject) -> None:
    events = SCENES[name]().events
    lost = data.draw(st.sets(st.integers(0, len(events) - 1), min_size=1, max_size=6))
    after = judged([event for number, event in enumerate(events) if number not in lost])
    assert_no_better(judged(events), after)
    assert after.verdict.status != "PASS"


@given(scenes, st.data())
def test_the_loss_of_whole_sources_makes_nothing_better(name: str, data: st.DataObject) -> None:
    events = SCENES[name]().events
    lost = data.draw(st.sets(st.sampled_from(sorted({event["src"] for event in events})), min_size=1))
    after = judged([event for event in events if event["src"] not in lost])
    assert_no_better(judged(events), after)
    assert after.verdict.status != "PASS"


@given(scenes, st.data())
def test_the_loss_of_an_end_makes_nothing_better(name: str, data: st.DataObject) -> None:
    events = SCENES[name]().events
    kept = data.draw(st.integers(0, len(events) - 1))
    after = judged(events[:kept])
    assert_no_better(judged(events), after)
    assert after.verdict.status != "PASS"


@given(scenes, scenes, st.data())
def test_events_of_another_run_make_nothing_better(name: str, other: str, data: st.DataObject) -> None:
    events = SCENES[name]().events
    foreign = [{**event, "run": "another"} for event in SCENES[other]().events]
    some = data.draw(st.lists(st.sampled_from(foreign), min_size=1, max_size=12))
    after = judged([*some, *events])
    assert_no_better(judged(events), after)
    assert after.verdict.status != "PASS"


@given(scenes, st.data())
def test_flipped_cut_and_foreign_bytes_make_nothing_better(name: str, data: st.DataObject) -> None:
    events = SCENES[name]().events
    text = bytearray(b"".join(lines_of(events)))
    for at in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=4)):
        text[at] ^= data.draw(st.integers(1, 255))
    at = data.draw(st.integers(0, len(text)))
    mixed = bytes(text[:at]) + data.draw(st.binary(max_size=20)) + bytes(text[at:])
    decoder = Decoder()
    came = list(decoder.lines(mixed[: data.draw(st.integers(0, len(mixed)))]))
    assert_no_better(judged(events), judged(came, decoder.damaged))


@given(scenes, st.data())
def test_fields_of_any_kind_are_taken_in_any_order(name: str, data: st.DataObject) -> None:
    """No accident, as checksums catch those: somebody writes what we never would."""
    events = [dict(event) for event in SCENES[name]().events]
    for _ in range(data.draw(st.integers(1, 4))):
        event = data.draw(st.sampled_from(events))
        event[data.draw(st.sampled_from(sorted(event)))] = data.draw(json_values)
    conclusion = judged(events)
    assert conclusion.verdict == judged(events[::-1]).verdict
    assert not (conclusion.trial.missing and conclusion.verdict.status == "PASS")


@given(st.lists(st.dictionaries(st.sampled_from(["kind", "run", "src", "seq", "t", "gen", "seen"]), json_values)))
def test_any_dictionaries_are_taken(messages: list[dict[str, Any]]) -> None:
    trial = fold(messages)
    assert trial.missing
    assert judged(messages).verdict.status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("src", "kind"), [("rank1.0", "trouble"), ("node0", "step_end"), ("conductor", "done"), ("rank0.0", "exit")]
)
def test_a_source_speaks_only_of_what_it_may_know(src: str, kind: str) -> None:
    stream = healthy()
    stream.events = [event for event in stream.events if event["kind"] != "end" or event["src"] != src]
    stream.say(src, kind, gen=0, step=0, rank=0, code=-9, ours=False, outcome="done", seconds=1.0, seen=[])
    trial = fold(stream.events)
    assert any("not from such a source" in what for what in trial.missing)
    assert not trial.troubles


def test_two_different_events_of_one_number_are_damage_in_either_order() -> None:
    events = healthy().events
    twin = {**next(event for event in events if event["kind"] == "done"), "seconds": 9.0}
    one, other = fold([*events, twin]), fold([twin, *events])
    assert one == other
    assert any("one number, two events" in what for what in one.missing)


def test_a_rank_speaks_for_itself_only() -> None:
    stream = Stream().until("compute")
    stream.tell("compute", 1, rank=0)
    trial = fold(stream.events)
    assert not trial.figures
    assert any("another source" in what for what in trial.missing)


def test_numbers_that_are_none_come_back_as_such() -> None:
    stream = Stream().until("compute")
    stream.tell("compute", 0, "inf")  # type: ignore[arg-type]  # as the wire tells it
    assert [figure.value for figure in fold(stream.events).figures] == [float("inf")]


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (lambda event: event["kind"] == "run", "plan and job"),
        (lambda event: event["src"] == "conductor" and event["kind"] == "end", "the end of conductor"),
        (lambda event: event["src"] == "rank1.0" and event["kind"] == "end", "the end of rank1.0"),
        (lambda event: event["src"] == "node0", "all events of node0"),
        (lambda event: event["kind"] == "facts" and event["src"] == "rank0.0", "4 events of rank0.0"),
    ],
)
def test_what_was_lost_is_named(lost: Any, words: str) -> None:
    trial = fold([event for event in healthy().events if not lost(event)])
    assert any(words in what for what in trial.missing), trial.missing


def test_a_rank_with_an_agent_of_its_own_is_called_by_the_local_rank_that_it_told() -> None:
    """Under torchrun, mpirun or srun the conductor knows of every rank as the first one of its agent."""
    events = healthy(4, nodes=2).events
    for event in events:
        if event["kind"] == "generation":
            event["ranks"] = [[rank, rank, 0] for rank, _, _ in event["ranks"]]
    assert [seen.local_rank for seen in fold(events).ranks.values()] == [0, 1, 0, 1]


def test_fewer_ranks_than_asked_for_are_lost() -> None:
    stream = healthy()
    stream.events[0]["job"]["world_size"] = 4
    assert "2 of 4 ranks that were asked for" in fold(stream.events).missing


def test_two_runs_are_not_guessed_between() -> None:
    other = [{**event, "run": "other"} for event in SCENES["killed"]().events]
    conclusion = judged([*healthy().events, *other])
    assert conclusion.trial.run == ""
    assert not culprits(conclusion)
    assert "2 runs" in conclusion.trial.missing[0]


def test_evidence_so_far_is_what_the_judge_will_see() -> None:
    stream = Stream().until("compute")
    stream.tell("compute", 0)
    stream.tell("compute", 1)
    kinds = ("rank", "figures", "facts")
    evidence = evidence_so_far("compute", [event for event in stream.events if event["kind"] in kinds])
    trial = fold(stream.events)
    assert evidence.ranks == trial.ranks
    assert evidence.figures == trial.figures
    assert evidence.asked == (0, 1)
    assert evidence.device_type == "cpu"
