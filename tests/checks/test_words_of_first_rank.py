"""What the first rank alone sends decides no limit, and takes none away: no value of it makes a verdict better."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checks.simulated_training import KEY, SMOKE, trained

from seatrial.checks.training.judge import judge
from seatrial.checks.training.params import Params, recipe_for
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact
from seatrial.judge.conclude import conclude
from seatrial.protocol.wire import Decoder
from seatrial.training.references import find_reference

RECORDINGS = Path(__file__).parents[1] / "report/recordings"
LOW_KEY = "digits/convnet, 60 steps of 64, lr 0.1"
LONG = replace(SMOKE, max_steps=300)
UNKNOWN = replace(SMOKE, max_steps=61)
FILES = Params(workload="mnist", model="mlp", epochs=1, max_steps=3, global_batch_size=32)


def grade(ruling: Ruling) -> int:
    """Return how good a ruling is: 0 FAIL, 1 INCONCLUSIVE, 2 partial PASS, 3 PASS."""
    severities = {finding.severity for finding in ruling.findings}
    return 0 if "fail" in severities else 1 if "error" in severities or ruling.absent else 2 if ruling.unjudged else 3


def with_word(evidence: Evidence, name: str, word: Any) -> Evidence:
    """Return the evidence in which the first rank says something else under that name."""
    return replace(
        evidence,
        facts=tuple(
            replace(fact, value=word) if (fact.name, fact.rank) == (name, 0) else fact for fact in evidence.facts
        ),
    )


def of_files(num_train: int, num_test: int, *, liar: int | None = None, lie: Any = None) -> Evidence:
    """Return the evidence of a training on such files, in which each rank says their sizes; one of them may lie."""
    evidence = trained(6, params=FILES, images=(num_train, num_test))
    facts = [
        Fact(
            check="training",
            name="data",
            value={"fault": "", "digest": "aa", "images": lie if rank == liar else [num_train, num_test]},
            rank=rank,
        )
        for rank in evidence.ranks
    ]
    return replace(evidence, facts=(*evidence.facts, *facts))


def test_no_limit_comes_from_the_key_that_the_first_rank_says() -> None:
    low, high = find_reference(LOW_KEY), find_reference(recipe_for(LONG, 4)[1])
    assert low is not None
    assert high is not None
    between = (low.limit(1) + high.limit(1)) / 2
    ruling = judge(trained(accuracy=between, params=LONG, key=LOW_KEY), LONG)
    (finding,) = ruling.findings
    assert finding.limit is not None
    assert finding.limit.value == high.limit(1)
    assert "the recipe of the plan, of rank 0" in ruling.absent


def test_a_recipe_without_a_reference_gets_none_from_the_first_rank() -> None:
    honest = judge(trained(params=UNKNOWN), UNKNOWN)
    assert (honest.absent, honest.unjudged) == ((), ("accuracy not judged",))
    liar = judge(trained(params=UNKNOWN, key=LOW_KEY), UNKNOWN)
    assert (liar.absent, liar.unjudged) == (("the recipe of the plan, of rank 0",), ("accuracy not judged",))


WORDS: list[Any] = [
    *({}, [], "x", 0, None, {"key": 1}),
    *({"key": key, "workload": "digits", "num_test": 360} for key in ("", "x", LOW_KEY, KEY, recipe_for(LONG, 4)[1])),
    *({"key": KEY, "workload": "digits", "num_test": number} for number in (-1, 0, 1, 180, 359, 10**30)),
    {"key": KEY, "workload": "mnist", "num_test": 360},
]
BAD: dict[str, tuple[Evidence, Params]] = {
    "low accuracy": (trained(accuracy=0.2), SMOKE),
    "a low accuracy of the plan": (trained(accuracy=0.93, params=LONG), LONG),
    "a limit of the user": (trained(accuracy=0.93), replace(SMOKE, min_accuracy=0.94)),
    "half of the samples": (trained(evaluated=dict.fromkeys(range(4), 180)), SMOKE),
    "no reference": (trained(params=UNKNOWN), UNKNOWN),
    "more ranks than digits": (trained(33, accuracy=0.2), SMOKE),
    "healthy": (trained(), SMOKE),
}


@pytest.mark.parametrize("case", BAD)
def test_no_recipe_of_the_first_rank_makes_a_ruling_better(case: str) -> None:
    evidence, params = BAD[case]
    honest = grade(judge(evidence, params))
    for word in WORDS:
        assert grade(judge(with_word(evidence, "recipe", word), params)) <= honest, word
    silent = replace(evidence, facts=tuple(fact for fact in evidence.facts if fact.name != "recipe"))
    assert grade(judge(silent, params)) <= honest


@pytest.mark.parametrize("liar", [0, 3])
def test_no_number_of_runs_of_one_rank_makes_a_ruling_better(liar: int) -> None:
    reference = find_reference(KEY)
    assert reference is not None
    evidence = trained(6, accuracy=(reference.limit(1) + reference.limit(10**9)) / 2)
    for number in (-1.0, 0.0, 2.0, 1e9, float("nan")):
        changed = {"runs": number, "evaluated": reference.num_test * number}
        measurements = tuple(
            replace(entry, value=changed[entry.name]) if entry.rank == liar and entry.name in changed else entry
            for entry in evidence.measurements
        )
        ruling = judge(replace(evidence, measurements=measurements), SMOKE)
        assert any("below the required" in finding.what for finding in ruling.findings), number
        assert number != number or f"runs of rank {liar} as of most hosts" in ruling.absent


@pytest.mark.parametrize(("num_train", "num_test"), [(64, 18), (60_000, 10_000)])
def test_files_of_any_size_are_judged_by_what_most_hosts_read(num_train: int, num_test: int) -> None:
    honest = judge(of_files(num_train, num_test), FILES)
    assert (honest.absent, honest.unjudged) == ((), ("accuracy not judged",))
    for liar in (0, 3):
        for lie in ([1, 1], [60_000, 10_000], [64, 18], [64, 10**30], "x", None, [], [0, 0]):
            if lie != [num_train, num_test]:
                ruling = judge(of_files(num_train, num_test, liar=liar, lie=lie), FILES)
                assert grade(ruling) == 1, lie
                assert any(f"of rank {liar}" in each for each in ruling.absent)
    failing = replace(FILES, min_accuracy=0.99)
    assert grade(judge(of_files(num_train, num_test, liar=0, lie=[1, 1]), failing)) == 0


def test_earlier_versions_did_not_say_how_large_files_are() -> None:
    evidence = of_files(64, 18)
    old = replace(
        evidence,
        facts=tuple(
            replace(fact, value={"fault": "", "digest": "aa"}) if fact.name == "data" else fact
            for fact in evidence.facts
        ),
    )
    ruling = judge(old, FILES)
    assert (ruling.absent, ruling.unjudged) == ((), ("accuracy not judged",))


ONLY_FIRST = {
    ("collectives", "algbw"),
    ("collectives", "busbw"),
    ("training", "loss"),
    ("training", "recipe"),
    ("training", "samples_per_s"),
}
"""What one rank sends for all. Whatever is new here needs other ranks or the plan to hold it (docs/security.md)."""
TIMES = ("collectives", "time_us")
"""Of most sizes the first rank alone sends it."""
FAULTS = {
    ("training", "accuracy"): 0.5,
    ("training", "evaluated"): 359,
    ("collectives", "wrong_elements"): 3,
    ("compute", "wrong_elements"): 3,
}


def recorded() -> list[dict[str, Any]]:
    """Return the events of a trial of two ranks that passed."""
    return list(Decoder().lines((RECORDINGS / "pass.events").read_bytes()))


def entries(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each fact and measurement in the events."""
    for event in events:
        if event["kind"] in ("facts", "measurements"):
            yield from event[event["kind"]]


def test_it_is_known_what_the_first_rank_alone_sends() -> None:
    senders: dict[tuple[str, str], set[int]] = defaultdict(set)
    for entry in entries(recorded()):
        senders[entry["check"], entry["name"]].add(entry["rank"])
    # The facts of a host are of that host.
    assert {key for key, ranks in senders.items() if ranks == {0} and key[0] != "host"} == ONLY_FIRST
    assert senders[TIMES] == {0, 1}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_that_the_first_rank_says_for_all_takes_a_failure_away(fault: tuple[str, str]) -> None:
    events = recorded()
    for entry in entries(events):
        if (entry["check"], entry["name"]) == fault and (fault[1] != "wrong_elements" or entry["rank"] == 1):
            entry["value"] = FAULTS[fault]
    assert conclude(events).verdict.status == "FAIL"
    for check, name in sorted({*ONLY_FIRST, TIMES}):
        for value in WORDS[-4:] if name == "recipe" else (0.0, 1e-9, 1e9):
            for entry in entries(lies := deepcopy(events)):
                if (entry["check"], entry["name"], entry["rank"]) == (check, name, 0):
                    entry["value"] = value
            assert conclude(lies).verdict.status == "FAIL", (check, name, value)
        silent = deepcopy(events)
        for event in silent:
            if event["kind"] in ("facts", "measurements"):
                event[event["kind"]] = [
                    entry
                    for entry in event[event["kind"]]
                    if (entry["check"], entry["name"], entry["rank"]) != (check, name, 0)
                ]
        assert conclude(silent).verdict.status == "FAIL", (check, name)
