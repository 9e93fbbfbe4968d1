"""The judge of the memory check on simulated fleets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from seatrial.checks.memory import CHECK
from seatrial.checks.memory.judge import suspects
from seatrial.checks.memory.params import Params
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Limit
from seatrial.evidence.measurement import Fact, Measurement

ONE = Params(patterns=("0x55",))
H200 = "NVIDIA H200"
MIB = 2**20


def reading(name: str, value: float, rank: int, variant: str = "device", stage: str = "measure") -> Measurement:
    return Measurement(check="memory", name=name, value=value, unit="GB/s", rank=rank, variant=variant, stage=stage)


def fact(name: str, rank: int, **value: Any) -> Fact:
    return Fact(check="memory", name=name, value=value, rank=rank)


def taken(rank: int, **changes: int) -> Fact:
    whole = {"wanted_bytes": 90, "tested_bytes": 88, "free_bytes": 100, "device_bytes": 100, "gpu": True}
    return fact("tested", rank, **{**whole, **changes})


def fleet(
    speeds: Sequence[float],
    again: dict[int, float] | None = None,
    *,
    device: str = "some device",
    device_type: str = "cpu",
    wrong: dict[int, int] | None = None,
    shares: dict[int, float] | None = None,
    facts: Sequence[Fact] = (),
    host_copies: Sequence[float] = (),
) -> Evidence:
    """Return the evidence of one device model, with one kind of copy that differs, and one pattern.

    ``host_copies``: by rank, the rate from the host; default: all alike.
    """
    ranks = range(len(speeds))
    measurements = [reading("copy_gbps", value, rank) for rank, value in enumerate(speeds)]
    if device_type == "cuda":
        alike = [50.0] * len(speeds)
        for kind, rates in (("host_to_device", host_copies or alike), ("device_to_host", alike)):
            measurements += [reading("copy_gbps", rates[rank], rank, kind) for rank in ranks]
    measurements += [reading("wrong_words", (wrong or {}).get(rank, 0), rank, "0x55") for rank in ranks]
    measurements += [reading("tested_bytes", 88, rank, "") for rank in ranks]
    measurements += [reading("copy_gbps", value, rank, stage="repeat") for rank, value in (again or {}).items()]
    measurements += [reading("cpu_share", value, rank, stage="repeat") for rank, value in (shares or {}).items()]
    seen = {
        rank: RankRecord(rank=rank, node=f"n{rank}", node_rank=rank, local_rank=0, device=device, kind=device)
        for rank in ranks
    }
    return Evidence(
        ranks=seen, asked=tuple(seen), measurements=tuple(measurements), facts=tuple(facts), device_type=device_type
    )


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_host_with_most_of_the_ranks_makes_no_other_one_slow(device_type: str) -> None:
    places = {node: f"10.0.0.{max(node, 7)}" for node in range(12)}
    lies = replace(fleet([1400.0] * 8 + [700.0] * 4, device_type=device_type), places_of_nodes=places)
    assert suspects(lies, ONE) == ()


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_healthy_fleet_passes_and_every_speed_is_judged(device_type: str) -> None:
    healthy = fleet([700, 701, 699, 702], device_type=device_type, facts=[taken(rank) for rank in range(4)])
    ruling = CHECK.judge(healthy, ONE)
    assert (ruling.findings, ruling.absent, ruling.unjudged) == ((), (), ())
    assert len(ruling.judged) == 4 + (4 if device_type == "cpu" else 12)
    assert suspects(healthy, ONE) == ()


def test_one_slow_rank_of_eight_is_named_after_its_repeat() -> None:
    first = [3000.0, 3010, 2990, 2600, 3005, 2995, 3001, 2999]
    assert suspects(fleet(first, device_type="cuda"), ONE) == (0, 7, 6, 3)
    ruling = CHECK.judge(fleet(first, {0: 3001, 3: 2610, 7: 2999}, device_type="cuda"), ONE)
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "device", (3,))
    assert finding.limit is not None
    assert finding.limit.origin == "fleet, median 6 MAD and 10 % of 8"
    assert "slow in copies inside its memory, with all ranks and alone" in finding.what


def test_a_copy_within_ten_percent_of_the_others_is_no_suspect() -> None:
    assert suspects(fleet([3000.0, 3010, 2990, 2720, 3005], device_type="cuda"), ONE) == ()


def test_of_two_ranks_the_slower_is_named_beyond_the_ratio_only() -> None:
    assert suspects(fleet([20, 10.1]), ONE) == ()
    assert suspects(fleet([20, 9.9]), ONE) == (0, 1)
    (finding,) = CHECK.judge(fleet([20, 9.9], {0: 21, 1: 9.9}), ONE).findings
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))
    (finding,) = CHECK.judge(fleet([20, 9.9], {0: 21, 1: 20}), ONE).findings
    assert (finding.severity, finding.culprit.ranks) == ("warn", (1,))
    assert len(CHECK.judge(fleet([20, 9.9]), ONE).absent) == 1


@pytest.mark.parametrize("first", [[25.0, 25, 12, 12], [26.0] * 4 + [19.5] * 4, [55.0, 55, 40, 5]])
def test_half_of_the_devices_of_a_host_that_are_slow_are_no_full_pass(first: list[float]) -> None:
    """They may be wired so: nobody is named, and the report names them."""
    one_host = dict.fromkeys(range(8), "10.0.0.1")
    ruling = CHECK.judge(replace(fleet(first, device_type="cuda"), places_of_nodes=one_host), ONE)
    assert (ruling.findings, ruling.absent) == ((), ())
    slow = [f"rank {rank}" for rank, value in enumerate(first) if value < first[0] / 1.2]
    (text,) = [text for text in ruling.unjudged if "device of" in text]
    assert text.endswith(f"{slow[-2]} and {slow[-1]} and the others: the values lie too far apart to compare")
    again = dict.fromkeys(suspects(replace(fleet(first, device_type="cuda"), places_of_nodes=one_host), ONE), first[0])
    ruling = CHECK.judge(replace(fleet(first, again, device_type="cuda"), places_of_nodes=one_host), ONE)
    assert not [text for text in ruling.unjudged if "device of" in text], "alone they are as fast as the others"
    for share in (1.2, 2.5):
        faster = {rank: share * first[rank] for rank in again}
        ruling = CHECK.judge(replace(fleet(first, faster, device_type="cuda"), places_of_nodes=one_host), ONE)
        assert [text for text in ruling.unjudged if "device of" in text], "alone all are faster"
    alone_of_slow = {rank: first[0] for rank, value in enumerate(first) if value < first[0]}
    ruling = CHECK.judge(replace(fleet(first, alone_of_slow, device_type="cuda"), places_of_nodes=one_host), ONE)
    assert [text for text in ruling.unjudged if "device of" in text], "nothing to compare them with"


def test_slow_ranks_are_asked_before_those_that_nobody_names() -> None:
    """Rank 1 is slow. Half of the devices of each host are behind other links, and each is one of many."""
    wired = [50.0, 50, 50, 50, 25, 25, 25, 25] * 2
    slow = {1: 2000.0}
    first = [slow.get(rank, 3000.0) for rank in range(16)]
    hosts = {node: f"10.0.0.{node // 8}" for node in range(16)}
    together = replace(fleet(first, device_type="cuda", host_copies=wired), places_of_nodes=hosts)
    asked = suspects(together, ONE)
    assert {1, *range(4, 8), *range(12, 16)} < {*asked}
    assert 1 in asked[:4]


def test_two_hosts_far_apart_are_no_full_pass() -> None:
    hosts = {node: f"10.0.0.{node // 4}" for node in range(8)}
    apart = replace(fleet([25.0] * 4 + [12.0] * 4, device_type="cuda"), places_of_nodes=hosts)
    assert set(suspects(apart, ONE)) >= {4, 5, 6, 7}, "alone they may be as fast"
    ruling = CHECK.judge(apart, ONE)
    assert (ruling.findings, ruling.absent) == ((), ())
    named = "copy_gbps device of rank 4, rank 5, rank 6 and rank 7"
    assert f"{named} and the others: the values lie too far apart to compare" in ruling.unjudged
    assert not CHECK.judge(apart, replace(ONE, min_copy_gbps=10)).unjudged, "the limit of the user needs no other rank"


def test_an_impossible_copy_is_damage_of_its_rank() -> None:
    ruling = CHECK.judge(fleet([20, 1e9]), ONE)
    assert ruling.findings == ()
    assert [words[:46] for words in ruling.absent] == ["copy_gbps device of rank 1 that can be: it rep"]


def test_a_rank_without_cpu_time_only_warns() -> None:
    seen = fleet([20, 8], {0: 20, 1: 8}, shares={0: 1.0, 1: 0.5})
    ruling = CHECK.judge(seen, ONE)
    (finding,) = ruling.findings
    assert finding.severity == "warn"
    assert "other processes held the CPU" in finding.what
    assert ruling.unjudged == (finding.what,), "a PASS is partial"


def test_a_slow_path_to_the_host_is_named() -> None:
    seen = fleet([3000] * 4, {0: 3000, 1: 3000, 2: 3000}, device_type="cuda")
    swap = {("device_to_host", "measure"): 12.0}
    measurements = [
        replace(measurement, value=swap.get((measurement.variant, measurement.stage), measurement.value))
        if measurement.rank == 2
        else measurement
        for measurement in seen.measurements
    ]
    measurements += [
        reading("copy_gbps", 50, 0, "device_to_host", "repeat"),
        reading("copy_gbps", 50, 1, "device_to_host", "repeat"),
        reading("copy_gbps", 12, 2, "device_to_host", "repeat"),
    ]
    (finding,) = CHECK.judge(replace(seen, measurements=tuple(measurements)), ONE).findings
    assert (finding.severity, finding.culprit.ranks) == ("fail", (2,))
    assert "copies from device to host" in finding.what
    assert "PCIe" in finding.action


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_a_wrong_word_fails_its_device_with_place_and_bits_also_alone(num_ranks: int) -> None:
    last = num_ranks - 1
    value = {"pattern": "0x55", "round": 0, "words": 2, "first_byte": 4096, "last_byte": 8199, "tested_bytes": 65536}
    value |= {"expected": "0x5555555555555555", "found": "0x5555555555555557"}
    ruling = CHECK.judge(fleet([20.0] * num_ranks, wrong={last: 2}, facts=[fact("wrong_words", last, **value)]), ONE)
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.ranks, finding.measured) == ("fail", (last,), "2 wrong words")
    assert finding.limit == Limit(value=0, unit="1", origin="exact")
    (line,) = finding.evidence
    assert "in bytes 4096 to 8199 of the 65536 tested" in line
    assert "found 0x5555555555555557, so the bits 0x2 differ" in line


def test_a_wrong_word_of_a_rank_that_never_finished_fails_too() -> None:
    value = {"pattern": "0x55", "round": 0, "words": 1, "first_byte": 0, "last_byte": 7, "tested_bytes": 64}
    value |= {"expected": "0x5555555555555555", "found": "0x5555555555555555"}
    seen = fleet([20, 20], facts=[fact("wrong_words", 1, **value)])
    unfinished = replace(
        seen, asked=(0,), measurements=tuple(measurement for measurement in seen.measurements if measurement.rank == 0)
    )
    (finding,) = CHECK.judge(unfinished, ONE).findings
    assert (finding.severity, finding.culprit.ranks, finding.measured) == ("fail", (1,), "at least 1 wrong words")
    assert "a second reading was right" in finding.evidence[0]


def test_refused_memory_fails_only_where_it_is_free() -> None:
    refused = {"what": "patterns", "refused_bytes": 10**9, "taken_bytes": 5 * 10**9, "reason": "out of memory"}
    ruling = CHECK.judge(
        fleet(
            [20, 20],
            facts=[
                taken(1, tested_bytes=8),
                fact("refused", 1, free_bytes=4 * 10**9, **refused),
                taken(0, tested_bytes=8),
                fact("refused", 0, free_bytes=10**9, **refused),
            ],
        ),
        ONE,
    )
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))
    assert finding.what == (
        "rank 1 could allocate only 5 GB for patterns: 1 GB more were refused although 4 GB are reported free"
    )
    assert finding.measured == "5 GB allocated"
    assert ruling.unjudged == (
        "memory: only 8 B of 90 B tested of rank 1, as no more was available and of 1 other ranks",
    )


def test_untested_memory_makes_a_pass_partial() -> None:
    busy = taken(1, free_bytes=70, wanted_bytes=63, tested_bytes=56)
    ruling = CHECK.judge(fleet([20, 20], facts=[taken(0), busy]), ONE)
    assert ruling.unjudged == ("memory: 30 B in use by others not tested of rank 1",)
    assert (
        CHECK.judge(fleet([20, 20], facts=[taken(0), replace(busy, value={**busy.value, "gpu": False})]), ONE).unjudged
        == ()
    )


def test_missing_measurements_are_absent() -> None:
    full = fleet([20, 21], device_type="cuda")
    for gone in full.measurements:
        rest = tuple(measurement for measurement in full.measurements if measurement is not gone)
        (absent,) = CHECK.judge(replace(full, measurements=rest), ONE).absent
        assert absent == " ".join(filter(None, (gone.name, gone.variant, f"of rank {gone.rank}")))
    assert CHECK.judge(replace(full, asked=(), measurements=()), ONE).absent == ("any rank that finished",)


def test_a_rank_without_memory_to_test_is_inconclusive() -> None:
    seen = fleet([20, 21])
    measurements = tuple(
        replace(measurement, value=0.0) if (measurement.name, measurement.rank) == ("tested_bytes", 1) else measurement
        for measurement in seen.measurements
        if (measurement.name, measurement.rank) not in (("wrong_words", 1), ("copy_gbps", 1))
    )
    lack = fact("no_room", 1, copy="device", needed_bytes=128 * 10**6, room_bytes=10**6)
    assert CHECK.judge(replace(seen, measurements=measurements, facts=(lack,)), ONE).absent == (
        "copy_gbps device of rank 1: 1 MB free of 128 MB",
        "any memory that rank 1 could test",
    )


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_a_speed_that_is_no_speed_is_absent(speed: float) -> None:
    assert CHECK.judge(fleet([20, speed]), ONE).absent == ("copy_gbps device of rank 1",)


def test_the_users_limits_apply_to_their_kind_of_copy() -> None:
    params = replace(ONE, min_copy_gbps=3000.0, min_host_copy_gbps=40.0)
    assert CHECK.judge(fleet([3001], device_type="cuda"), params).findings == ()
    (finding,) = CHECK.judge(fleet([2999], {0: 2999}, device_type="cuda"), params).findings
    assert finding.limit == Limit(value=3000, unit="GB/s", origin="user memory.min_copy_gbps")
    assert suspects(fleet([3001], device_type="cuda"), replace(params, min_host_copy_gbps=51.0)) == (0,)


def test_a_datasheet_warns_and_never_fails() -> None:
    (finding,) = CHECK.judge(fleet([2399], device=H200, device_type="cuda"), ONE).findings
    assert finding.severity == "warn"
    assert finding.limit == Limit(value=2400, unit="GB/s", origin="datasheet of H200 SXM x 0.5")
    assert CHECK.judge(fleet([2401], device=H200, device_type="cuda"), ONE).findings == ()
    small = replace(ONE, gpu_copy_bytes=MIB)
    assert CHECK.judge(fleet([100], device=H200, device_type="cuda"), small).findings == ()


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"min_copy_gbps": 9000}, "min_copy_gbps is 9000 GB/s; .* at most 8000, the physical peak of the fastest"),
        ({"min_copy_gbps": 0}, "above 0"),
        ({"min_host_copy_gbps": 451}, "at most 450"),
        ({"patterns": ("0x12",)}, "patterns is"),
        ({"patterns": ()}, "patterns is"),
        ({"cpu_bytes": 1000}, "cpu_bytes is 1000; it must be at least 1048576"),
        ({"cpu_bytes": 2**40}, "7 patterns at 0.1 GB/s take 76966 s, which must fit into timeout_s"),
        ({"gpu_share": 1.0}, "at most 0.95"),
        ({"rounds": 0}, "rounds is 0"),
        ({"minutes": 1}, "must fit into timeout_s, 60 s"),
        ({"seconds": 10}, "seconds is 10; 5 times for 3 kinds of copies"),
        ({"seconds": -1}, "seconds is -1"),
    ],
)
def test_an_impossible_value_is_refused(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Params(**params)


@pytest.mark.parametrize("changes", [{"pattern": "0x55, as rank 0 does,"}, {"words": 0}, {"words": 2**1023}])
def test_wrong_words_have_a_pattern_of_ours_and_a_number_that_can_be(changes: dict[str, Any]) -> None:
    whole = {"pattern": "0x55", "round": 1, "words": 2, "first_byte": 8, "last_byte": 24, "tested_bytes": 88}
    wrong = fact("wrong_words", 1, **{**whole, **changes}, expected="0x55", found="0x57")
    ruling = CHECK.judge(fleet([20, 20, 20], facts=[*map(taken, range(3)), wrong]), ONE)
    assert (ruling.findings, ruling.absent) == ((), ("a readable wrong_words of rank 1",))


def test_what_memory_was_refused_for_is_one_of_ours() -> None:
    """Each is a finding, and a rank may make up any number of them."""
    refused = {"refused_bytes": 10**9, "taken_bytes": 5, "free_bytes": 4 * 10**9, "reason": "out of memory"}
    made_up = [fact("refused", 1, what=f"rank 0, number {number}", **refused) for number in range(3)]
    ruling = CHECK.judge(fleet([20, 20, 20], facts=[*map(taken, range(3)), *made_up]), ONE)
    assert (ruling.findings, ruling.absent) == ((), ("a readable refused of rank 1",))
