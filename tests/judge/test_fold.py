"""The fold: events that are lost, cut, copied or mixed in never improve a verdict or name another culprit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from event_streams import RUN, SCENES, Stream, died, healthy, lines_of
from fake_checks import CHECKS, fake_load
from fuzz.harness import watched
from hypothesis import given
from hypothesis import strategies as st

from seatrial.evidence.measurement import Fact
from seatrial.judge.blame import blame
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.judge.fold import evidence_so_far, fold
from seatrial.protocol.wire import Decoder
from seatrial.report.console import lines
from seatrial.report.formats.junit import text
from seatrial.report.view import View

scenes = st.sampled_from(sorted(SCENES))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def judged(events: list[dict[str, Any]], damaged: int = 0) -> Conclusion:
    return conclude(events, damaged=damaged, load=fake_load)


def culprits(conclusion: Conclusion) -> set[tuple[str, object]]:
    """Return the culprits, with the number of a node only: ``gpu-1`` may become ``node 1`` in an incomplete record."""
    return {
        (finding.culprit.kind, finding.culprit.name[-1] if finding.culprit.kind == "node" else finding.culprit.ranks)
        for finding in conclusion.findings
        if finding.severity == "fail" and finding.culprit.kind != "none"
    }


def assert_no_better(before: Conclusion, after: Conclusion) -> None:
    assert before.verdict.status == "PASS" or after.verdict.status != "PASS"
    assert culprits(after) <= culprits(before)


def test_a_healthy_trial_has_a_whole_record() -> None:
    trial = fold(healthy(4, nodes=2).events)
    assert trial.run == RUN
    assert trial.missing == ()
    assert sorted(trial.ranks) == [0, 1, 2, 3]
    assert trial.ranks[3].label() == "rank 3 (Test CPU, local rank 1 on node gpu-1)"
    assert trial.ranks[0].kind == trial.ranks[3].kind == "Test CPU, torch 2.13.0"
    assert [step.check for step in trial.steps] == list(CHECKS)
    assert all(step.complete() for step in trial.steps)
    assert len(trial.measurements) == len(trial.facts) == 16
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
    """Checksums catch accidents; these are events that seatrial never writes."""
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
    ("src", "kind"),
    [
        ("a", "trouble"),
        ("z", "trouble"),
        ("a", "step_end"),
        ("rank1.0", "trouble"),
        ("node0", "step_end"),
        ("conductor", "done"),
        ("rank0.0", "exit"),
        # Digits of another script are none.
        ("rank1\u0661.0", "done"),
        ("node1\u0661", "node"),
    ],
)
def test_a_source_sends_only_its_own_kinds(src: str, kind: str) -> None:
    stream = healthy()
    stream.events = [event for event in stream.events if event["kind"] != "end" or event["src"] != src]
    stream.send(src, kind, gen=0, step=0, rank=0, code=-9, ours=False, outcome="done", seconds=1.0, seen=[])
    trial = fold(stream.events)
    assert any("not allowed from this source" in what for what in trial.missing)
    assert not trial.troubles


def test_two_events_with_one_number_are_damage() -> None:
    events = healthy().events
    twin = {**next(event for event in events if event["kind"] == "done"), "seconds": 9.0}
    one, other = fold([*events, twin]), fold([twin, *events])
    assert one == other
    assert any("one number, two events" in what for what in one.missing)


def test_a_rank_measures_only_for_itself() -> None:
    stream = Stream().until("compute")
    stream.measure("compute", 1, rank=0)
    trial = fold(stream.events)
    assert not trial.measurements
    assert any("another source" in what for what in trial.missing)


@pytest.mark.parametrize(("number", "is_read"), [(2**64 - 1, True), (2**64, False), (-(2**1022), False)])
def test_an_integer_of_a_fact_has_64_bits(number: int, is_read: bool) -> None:
    """Sums of larger ones are no floats: each judge would fail, and name nobody."""
    stream = healthy(2)
    event = next(event for event in stream.events if event["kind"] == "facts")
    event["facts"][0]["value"] = {"bytes": [number]}
    trial = fold(stream.events)
    assert (trial.missing == ()) == is_read


def test_a_measurement_of_no_rank_is_damage() -> None:
    stream = Stream().until("compute")
    stream.measure("compute", 0, rank=None, node="store-1")
    stream.measure("compute", 0, node="store-1")
    trial = fold(stream.events)
    assert [measurement.node for measurement in trial.measurements] == ["gpu-0"]
    assert any("another source" in what for what in trial.missing)


@pytest.mark.parametrize(
    "change", [{"check": "training"}, {"stage": "repeat"}, {"name": "handed", "check": "diagnostics"}]
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_rank_speaks_only_of_the_step_that_it_was_asked_for(change: dict[str, str], is_whole: bool) -> None:
    """A rank that lies could speak of a check in which nobody expects it, and accuse others there."""
    stream = Stream().until("compute")
    fact = {"check": "compute", "name": "made up", "value": 1, "rank": 1, **change}
    stream.send("rank1.0", "facts", gen=0, step=stream._step, facts=[fact])
    trial = fold(stream.close().events if is_whole else stream.events)
    assert not [entry for entry in trial.facts if entry.name in ("made up", "handed")]
    assert any("damaged events: facts" in what for what in trial.missing)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_step_that_nobody_began_is_damage(is_whole: bool) -> None:
    """Where events of the conductor are lost, so may be the one with which the step began."""
    stream = Stream().until("compute")
    fact = {"check": "training", "name": "made up", "value": 1, "rank": 1}
    stream.send("rank1.0", "facts", gen=0, step=77, facts=[fact])
    trial = fold(stream.close().events if is_whole else stream.events)
    assert [entry.name for entry in trial.facts] == ([] if is_whole else ["made up"])
    assert any("a step that was not begun" in what for what in trial.missing) == is_whole


def test_a_rank_that_was_not_asked_is_not_heard() -> None:
    stream = Stream(3)
    stream.alive = (0, 1)
    stream.begin("compute")
    stream.measure("compute", 0)
    stream.measure("compute", 2)
    trial = fold(stream.events)
    assert {entry.rank for entry in trial.facts} == {entry.rank for entry in trial.measurements} == {0}
    assert any("not asked for" in what for what in trial.missing)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_generation_that_never_was_is_damage(is_whole: bool) -> None:
    """Each one costs time: a thousand of them, with many stacks, cost a quarter of an hour."""
    stream = Stream().until("compute")
    for generation in (7, 999):
        stream.generation = generation
        stream.error(1, "device", "ECC", "compute/step 1")
        stream.exit(1, 1, ours=False)
        stream.send("node0", "stack", gen=generation, rank=1, state="S", wchan="", text="made up")
    stream.generation = 0
    trial = fold(stream.close().events if is_whole else stream.events)
    assert (trial.errors, trial.stacks) == ((), ())
    assert {ending.generation for ending in trial.exits} <= {0}
    assert any("a generation that was not begun" in what for what in trial.missing)


@pytest.mark.parametrize("word", ["x", "rocm", "CPU"])
def test_a_device_of_no_type_is_damage(word: str) -> None:
    events = healthy().events
    for event in events:
        if event["src"] == "rank1.0" and event["kind"] == "rank":
            event["device_type"] = word
    trial = fold(events)
    assert trial.device_type == "cpu"
    assert any("device_type" in what for what in trial.missing)


@pytest.mark.parametrize(
    ("device_type", "changes", "differs"),
    [
        ("cpu", {}, False),
        ("cpu", {"toolkit": "CUDA 12.9"}, False),
        ("cpu", {"torch": "2.13.0+cu129"}, True),
        ("cpu", {"device": "Other CPU"}, True),
        ("cuda", {"toolkit": "CUDA 12.9"}, False),
        ("cuda", {"toolkit": "CUDA 12.8"}, True),
    ],
)
def test_a_rank_has_one_word_on_its_kind(device_type: str, changes: dict[str, str], differs: bool) -> None:
    """It is compared bit for bit with ranks of its kind only: with another word it is compared with none."""
    value = {"device": "Test CPU", "torch": "2.13.0", "toolkit": None, **changes}
    stream = Stream()
    step = stream.begin("inventory")
    fact = Fact(check="inventory", name="inventory", value=value, rank=1)
    stream.send("rank1.0", "facts", gen=0, step=step, facts=[fact.to_json()] * 3)  # named once, however often
    for event in stream.events:
        if event["kind"] == "rank":
            event["device_type"] = device_type
            event["libraries"] = "torch 2.13.0 AVX2" if device_type == "cpu" else "torch 2.13.0 CUDA 12.9"
    told = [what for what in fold(stream.events).missing if "one device and one torch" in what]
    assert [what.partition(":")[0] for what in told] == ["one device and one torch of rank 1"] * differs


def test_numbers_that_are_not_finite() -> None:
    stream = Stream().until("compute")
    stream.measure("compute", 0, "inf")  # type: ignore[arg-type]  # as on the wire
    assert [measurement.value for measurement in fold(stream.events).measurements] == [float("inf")]


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (lambda event: event["kind"] == "run", "the `run` event"),
        (
            lambda event: event["src"] == "conductor" and event["kind"] == "end",
            "the `end` event of conductor",
        ),
        (lambda event: event["src"] == "rank1.0" and event["kind"] == "end", "the `end` event of rank1.0 is missing"),
        (lambda event: event["src"] == "node0", "all events of node0 are missing"),
        (lambda event: event["kind"] == "facts" and event["src"] == "rank0.0", "4 events of rank0.0 are missing"),
    ],
)
def test_missing_events_are_named(lost: Any, words: str) -> None:
    trial = fold([event for event in healthy().events if not lost(event)])
    assert any(words in what for what in trial.missing), trial.missing


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_record_that_ends_before_addresses_are_compared_is_no_pass(sent: int) -> None:
    stream = healthy(nodes=2)
    stream.events[0]["sources"] = ["hosts"]
    kept = len(stream.events)
    stream.send("hosts", "note", severity="info", text="node 1 joined from an address that the launcher does not give")
    stream.send("hosts", "end")
    assert judged(stream.events[: kept + sent]).verdict.status == ("PASS" if sent == 2 else "INCONCLUSIVE")


@pytest.mark.parametrize("sources", [["hosts", 1], "hosts", ["anybody"], {"hosts": 1}, 7])
def test_sources_that_are_none_are_damage(sources: object) -> None:
    stream = healthy()
    stream.events[0]["sources"] = sources
    assert judged(stream.events).verdict.status == "INCONCLUSIVE"


def test_a_rank_reports_its_own_local_rank() -> None:
    """Under torchrun, mpirun or srun each rank has an agent, so the conductor knows no local ranks."""
    events = healthy(4, nodes=2).events
    for event in events:
        if event["kind"] == "generation":
            event["ranks"] = [[rank, rank, 0] for rank, _, _ in event["ranks"]]
    assert [record.local_rank for record in fold(events).ranks.values()] == [0, 1, 0, 1]


def test_fewer_ranks_than_requested() -> None:
    stream = healthy()
    stream.events[0]["job"]["world_size"] = 4
    assert "2 of 4 requested ranks are missing" in fold(stream.events).missing


@pytest.mark.parametrize("size", [None, True])
def test_without_a_requested_size_the_known_ranks_count(size: object) -> None:
    stream = healthy()
    stream.events[0]["job"] |= {"world_size": size}
    assert fold(stream.events).world_size() == 2


def test_events_of_two_runs_name_nobody() -> None:
    other = [{**event, "run": "other"} for event in SCENES["killed"]().events]
    conclusion = judged([*healthy().events, *other])
    assert conclusion.trial.run == ""
    assert not culprits(conclusion)
    assert "2 runs" in conclusion.trial.missing[0]


def test_of_many_runs_four_are_named() -> None:
    events = [{**event, "run": run} for run in "edcba" for event in healthy().events]
    assert fold(events).missing[0] == "the events of 5 runs are mixed (a, b, c, d)"


def test_events_of_another_run_without_its_beginning_are_counted() -> None:
    other = [{**event, "run": "other"} for event in healthy().events if event["kind"] == "done"]
    trial = fold([*healthy().events, *other])
    assert trial.run == RUN
    assert trial.missing == (f"{len(other)} events of another run are mixed in",)


def test_events_after_the_end_are_told() -> None:
    stream = healthy()
    stream.send("node0", "note", severity="info", text="late")
    assert fold(stream.events).missing == ("node0 sent events after its `end` event",)


def test_the_ends_of_a_trial_that_was_cut_short_are_not_expected_of_ranks() -> None:
    for scene in ("frozen", "stuck", "interrupted", "killed"):
        assert fold(SCENES[scene]().events).missing == (), scene


def test_evidence_so_far_equals_the_later_evidence() -> None:
    stream = Stream().until("compute")
    stream.measure("compute", 0)
    stream.measure("compute", 1)
    kinds = ("rank", "measurements", "facts")
    evidence = evidence_so_far("compute", [event for event in stream.events if event["kind"] in kinds])
    trial = fold(stream.events)
    # The names of nodes come with the end: until then a rank's own word is no name.
    named = {rank: replace(record, node="gpu-0") for rank, record in evidence.ranks.items()}
    assert {record.node for record in evidence.ranks.values()} == {"node 0"}
    assert named == trial.ranks
    assert tuple(replace(entry, node="gpu-0") for entry in evidence.measurements) == trial.measurements
    assert evidence.asked == (0, 1)
    assert evidence.device_type == "cpu"


def test_a_later_attempt_needs_the_ends_of_its_ranks() -> None:
    events = SCENES["second generation"]().events
    lost = [event for event in events if (event["src"], event["kind"]) != ("rank0.1", "end")]
    assert fold(events).missing == ()
    assert fold(lost).missing == ("the `end` event of rank0.1 is missing",)


def test_the_controller_may_interrupt_a_trial_that_others_conduct() -> None:
    stream = Stream().until("compute")
    stream.send("controller", "interrupted", by="SIGTERM", order=40)
    trial = fold(stream.events)
    assert (trial.interrupted, trial.interrupted_order) == ("SIGTERM", 40)
    stream.send("controller", "trouble", gen=0, step=0, order=30, seen=[{"node": 0, "how": "lost"}], waiting=[])
    (trouble,) = fold(stream.events).troubles
    assert (trouble.node, trouble.how, trouble.order) == (0, "lost", 30)


@pytest.mark.timeout(20)
def test_many_events_before_a_step_keep_nobody() -> None:
    """Looking at all numbers of the conductor for each of them takes minutes."""
    ended = [{"kind": "end", "run": "r", "src": "conductor", "seq": number, "t": 1} for number in range(80_000)]
    of_rank = {"kind": "facts", "run": "r", "src": "rank0.0", "t": 1, "gen": 0, "step": 7, "facts": [{}]}
    trial = fold([*ended, *({**of_rank, "seq": number} for number in range(80_000))])
    assert any("of a step that was not begun" in reason for reason in trial.missing)


_PLAN = 'training.timeout_s=1\\n[storage]\\nfolder="/home/user/.ssh"\\n#'


@pytest.mark.parametrize("field", ["check", "stage"])
def test_a_step_of_a_check_that_is_no_name_is_damage(field: str) -> None:
    """Its name stands in advice: a command that writes a plan file, to be copied into a shell."""
    stream = Stream()
    stream.begin("training")
    stream.events[-1][field] = _PLAN
    stream.trouble({"rank": 0, "how": "working", "phase": "training/step 1"}, outcome="deadline")
    stream.kill(0, 1)
    conclusion = conclude(stream.close(ranks=False).events, load=fake_load)
    assert conclusion.verdict.status == "INCONCLUSIVE"
    assert any(f"step: {field}" in words for words in conclusion.trial.missing)
    assert not any(_PLAN in line for line in lines(conclusion, view=View(foreign=("--hosts",))))


@pytest.mark.parametrize("names", [[_PLAN], [f"c{number}" for number in range(20_000)]], ids=["words", "many"])
@pytest.mark.parametrize("key", ["checks", "not_asked"])
def test_a_plan_of_checks_that_cannot_be_is_damage(key: str, names: list[str]) -> None:
    """Each check costs time in every report."""
    stream = healthy()
    plan = stream.events[0]["plan"]
    plan[key] = [*plan["checks"], *names] if key == "checks" else dict.fromkeys(names, "--skip")
    with watched(key):
        conclusion = conclude(stream.events, load=fake_load)
        text(conclusion)
    assert conclusion.verdict.status == "INCONCLUSIVE"
    assert any(f"run: plan.{key}" in words for words in conclusion.trial.missing)


def test_the_words_of_a_rank_about_its_device_name_no_other_rank() -> None:
    """They stand in the middle of its name, in each sentence about it."""
    stream = died()
    for event in stream.events:
        if (event["src"], event["kind"]) == ("rank1.0", "rank"):
            event["device"] = "Intel(R) CPU, local rank 0 on node gpu-9) was killed by rank 0 (Intel(R) CPU"
            event["device_id"] = "x); replace gpu-9 ("
    (found, *_) = blame(fold(stream.events))
    assert found.what.startswith(
        "rank 1 (Intel(R) CPU? local rank 0 on node gpu-9? was killed by rank 0 ?Intel(R) CPU, x?? replace gpu-9 ?,"
        " local rank 1 on node gpu-0) was killed by signal 9"
    )


def test_a_process_that_is_left_has_a_state_of_one_letter() -> None:
    stream = Stream()
    stream.send("node0", "left", gen=0, rank=0, pid=3, state="D); replace gpu-9 (")
    (found,) = (finding for finding in blame(fold(stream.close().events)) if finding.severity == "warn")
    assert found.what.endswith("could not be ended (state D)")
