"""The memory check on the memory of this machine, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from checks.fake_context import FakeContext
from checks.test_check_memory import MIB, fleet

from seatrial.checks.memory import CHECK, measure, patterns
from seatrial.checks.memory.params import COPIES, Params
from seatrial.checks.shared import rounds
from seatrial.probe import host

SMALL = Params(cpu_copy_bytes=MIB, cpu_bytes=9 * MIB, seconds=0.001, rounds=2)


def test_this_memory_keeps_what_is_written() -> None:
    context = FakeContext(check="memory", rank=3)
    measure.measure(context, SMALL)
    measured = {(measurement.name, measurement.variant): measurement for measurement in context.measurements}
    assert measured["tested_bytes", ""].value == 9 * MIB
    assert [measured["wrong_words", pattern].value for pattern in SMALL.patterns] == [0] * 7
    speed = measured["copy_gbps", "device"]
    assert (speed.better, speed.size_bytes, speed.value > 0) == ("high", MIB, True)
    assert measured["cpu_share", "device"].value > 0
    assert [entry.name for entry in context.facts] == ["tested"]
    assert context.phases[:4] == [
        "copy device round 0",
        "take memory round 0",
        "write 0x00 block 0 of 1",
        "read 0x00 block 0 of 1",
    ]
    seen = fleet([20, 20, 20, 20])
    assert CHECK.judge(replace(seen, measurements=tuple(context.measurements), asked=(3,)), SMALL).absent == ()


@pytest.fixture
def corrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any, str], None]], None]:
    """Spoils words after each pattern was written and before it is read back."""
    right = patterns.write

    def plant(spoil: Callable[[Any, str], None]) -> None:
        def write(blocks: Sequence[Any], pattern: str, seed: int, phase: Callable[[str], None]) -> None:
            right(blocks, pattern, seed, phase)
            spoil(blocks, pattern)

        monkeypatch.setattr(patterns, "write", write)

    return plant


def test_a_bit_that_flips_is_found_in_every_pattern_with_its_place(
    corrupt: Callable[[Callable[[Any, str], None]], None],
) -> None:
    def flip(blocks: Any, pattern: str) -> None:
        for place in (700_000, 1_100_000):  # in the second and the third chunk
            blocks[0][place] ^= 1 << 40

    corrupt(flip)
    context = FakeContext(check="memory")
    measure.measure(context, SMALL)
    counts = {
        measurement.variant: measurement.value
        for measurement in context.measurements
        if measurement.name == "wrong_words"
    }
    assert counts == dict.fromkeys(SMALL.patterns, 4), "two words in each of two rounds"
    places = [entry.value for entry in context.facts if entry.name == "wrong_words"]
    assert [place["pattern"] for place in places] == list(SMALL.patterns), "each is reported once"
    for place in places:
        assert (place["words"], place["first_byte"], place["last_byte"]) == (2, 5_600_000, 8_800_007)
        assert int(place["expected"], 16) ^ int(place["found"], 16) == 1 << 40
    by_name = {place["pattern"]: place["expected"] for place in places}
    assert by_name["0xAA"] == "0xaaaaaaaaaaaaaaaa"
    assert int(by_name["address"], 16) == 700_000
    assert int(by_name["walking"], 16) == 1 << 700_000 % 64


def test_a_word_with_two_addresses_is_found_by_address_and_random(
    corrupt: Callable[[Callable[[Any, str], None]], None],
) -> None:
    def alias(blocks: Any, pattern: str) -> None:
        blocks[0][123] = blocks[0][123 + 512 * 1024]  # the same place, one chunk further

    corrupt(alias)
    context = FakeContext(check="memory")
    measure.measure(context, replace(SMALL, rounds=1))
    counts = {
        measurement.variant: measurement.value
        for measurement in context.measurements
        if measurement.name == "wrong_words"
    }
    assert {pattern for pattern, count in counts.items() if count} == {"address", "random"}


def test_refused_memory_is_reported_and_the_rest_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    given = torch.empty
    room = [2]

    def empty(*arguments: Any, **options: Any) -> Any:
        if options.get("dtype") == torch.int64:
            if not room[0]:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes")
            room[0] -= 1
        return given(*arguments, **options)

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setitem(patterns._BLOCK_BYTES, "cpu", 4 * MIB)
    context = FakeContext(check="memory")
    measure.measure(context, replace(SMALL, rounds=1))
    (refused,) = [entry.value for entry in context.facts if entry.name == "refused"]
    assert (refused["refused_bytes"], refused["taken_bytes"]) == (MIB, 8 * MIB)
    assert [measurement.value for measurement in context.measurements if measurement.name == "tested_bytes"] == [
        8 * MIB
    ]
    assert sum(measurement.name == "wrong_words" for measurement in context.measurements) == 7


def test_a_copy_without_memory_is_reported_and_patterns_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    given = torch.zeros

    def zeros(count: int, **options: Any) -> Any:
        if count == MIB // 8:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 MiB")
        return given(count, **options)

    monkeypatch.setattr(torch, "zeros", zeros)
    context = FakeContext(check="memory")
    measure.measure(context, replace(SMALL, rounds=1))
    (refused,) = [entry.value for entry in context.facts if entry.name == "refused"]
    assert (refused["what"], refused["refused_bytes"], refused["taken_bytes"]) == ("copies (device)", 2 * MIB, 0)
    assert sum(measurement.name == "wrong_words" for measurement in context.measurements) == 7
    seen = replace(fleet([20]), measurements=tuple(context.measurements), facts=tuple(context.facts))
    ruling = CHECK.judge(seen, SMALL)
    assert [finding.severity for finding in ruling.findings] == ["fail"]
    assert ruling.absent == ("copy_gbps device of rank 0",)


def test_only_a_share_of_the_available_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory_available", lambda: 100 * MIB)
    context = FakeContext(check="memory", local_world_size=2)
    measure.measure(context, replace(SMALL, rounds=1, cpu_bytes=512 * MIB))
    (measurement,) = [measurement for measurement in context.measurements if measurement.name == "tested_bytes"]
    assert measurement.value == (25 - 16) * MIB, "half of it, for two ranks, less what comparing needs"
    monkeypatch.setattr(host, "memory_available", lambda: None)
    context = FakeContext(check="memory")
    measure.measure(context, replace(SMALL, rounds=1))
    assert [entry.name for entry in context.facts] == ["no_room", "tested"]
    assert [(measurement.name, measurement.value) for measurement in context.measurements] == [("tested_bytes", 0)]


def test_a_repeat_reports_the_speed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "REPEAT_S", 0.001)
    context = FakeContext(check="memory", stage="repeat")
    measure.measure(context, SMALL)
    assert [(measurement.name, measurement.stage) for measurement in context.measurements] == [
        ("copy_gbps", "repeat"),
        ("cpu_share", "repeat"),
    ]


def test_a_long_check_reports_after_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "REPORT_EVERY_S", 0.0)
    context = FakeContext(check="memory")
    measure.measure(context, SMALL)
    assert sum(measurement.name == "tested_bytes" for measurement in context.measurements) == 2


def test_a_copy_inside_the_device_counts_its_bytes_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "COPIES", {**COPIES, "cpu": ("device", "device_to_host")})
    monkeypatch.setattr(measure, "_time_copy", lambda context, params, kind: (0.5, 1.0))
    context = FakeContext(check="memory")
    measure.measure(context, replace(SMALL, host_copy_bytes=3 * MIB))
    speeds = {
        measurement.variant: measurement.value
        for measurement in context.measurements
        if measurement.name == "copy_gbps"
    }
    assert speeds == pytest.approx({"device": 2 * MIB / 0.5e9, "device_to_host": 3 * MIB / 0.5e9})


def test_random_words_differ_by_chunk_by_rank_and_by_round() -> None:
    (block,) = patterns.take(FakeContext(check="memory").device.torch, 9 * MIB).blocks
    seen = set()
    for seed in (0, 1, 65_537):
        patterns.write([block], "random", seed, lambda label: None)
        seen |= {int(block[place]) for place in (0, 524_288, 1_048_576)}
        assert patterns.read_back([block], "random", seed, lambda label: None) is None
    assert len(seen) == 9


def test_the_walking_bit_moves_with_each_word_and_round() -> None:
    (block,) = patterns.take(FakeContext(check="memory").device.torch, 2 * MIB).blocks
    for seed in (0, 65_537 * 3):
        patterns.write([block], "walking", seed, lambda label: None)
        words = [word % 2**64 for word in block[:130].tolist()]
        assert words == [1 << (place + seed) % 64 for place in range(130)]


@pytest.mark.gpu
def test_this_device_keeps_what_is_written() -> None:
    from seatrial.rank.device import open_device

    device = open_device("cuda", 0, 1)
    context = FakeContext(check="memory", device=device)
    params = Params(gpu_share=0.9, gpu_copy_bytes=256 * MIB, host_copy_bytes=64 * MIB, seconds=0.02)
    measure.measure(context, params)
    measured = {(measurement.name, measurement.variant): measurement.value for measurement in context.measurements}
    assert [measured["wrong_words", pattern] for pattern in params.patterns] == [0] * 7
    assert measured["tested_bytes", ""] > 0.5 * device.memory_bytes
    assert measured["copy_gbps", "device"] > measured["copy_gbps", "host_to_device"] > 1
    assert [entry.name for entry in context.facts] == ["tested"]
