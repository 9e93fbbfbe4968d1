"""The memory check on this machine's own memory, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from checks.lone_context import LoneContext
from checks.test_check_memory import MIB, fleet

from seatrial.checks import _patterns, memory
from seatrial.checks._memory_judge import COPIES
from seatrial.checks.memory import CHECK, Params
from seatrial.probe import host

SMALL = Params(cpu_copy_bytes=MIB, cpu_bytes=9 * MIB, seconds=0.001, rounds=2)


def test_this_memory_keeps_what_is_written() -> None:
    context = LoneContext(check="memory", rank=3)
    memory.measure(context, SMALL)
    told = {(figure.name, figure.variant): figure for figure in context.figures}
    assert told["tested_bytes", ""].value == 9 * MIB
    assert [told["wrong_words", pattern].value for pattern in SMALL.patterns] == [0] * 7
    speed = told["copy_gbps", "device"]
    assert (speed.better, speed.size_bytes, speed.value > 0) == ("high", MIB, True)
    assert told["cpu_share", "device"].value > 0
    assert [entry.name for entry in context.facts] == ["tested"]
    assert context.phases[:4] == [
        "copy device round 0",
        "take memory round 0",
        "write 0x00 block 0 of 1",
        "read 0x00 block 0 of 1",
    ]
    seen = fleet([20, 20, 20, 20])
    assert CHECK.judge(replace(seen, figures=tuple(context.figures), asked=(3,)), SMALL).absent == ()


@pytest.fixture
def corrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any, str], None]], None]:
    """Spoils words after each pattern was written and before it is read back."""
    right = _patterns.write

    def plant(spoil: Callable[[Any, str], None]) -> None:
        def write(blocks: Sequence[Any], pattern: str, seed: int, phase: Callable[[str], None]) -> None:
            right(blocks, pattern, seed, phase)
            spoil(blocks, pattern)

        monkeypatch.setattr(_patterns, "write", write)

    return plant


def test_a_bit_that_flips_is_found_in_every_pattern_with_its_place(
    corrupt: Callable[[Callable[[Any, str], None]], None],
) -> None:
    def flip(blocks: Any, pattern: str) -> None:
        for place in (700_000, 1_100_000):  # in the second and the third chunk
            blocks[0][place] ^= 1 << 40

    corrupt(flip)
    context = LoneContext(check="memory")
    memory.measure(context, SMALL)
    counts = {figure.variant: figure.value for figure in context.figures if figure.name == "wrong_words"}
    assert counts == dict.fromkeys(SMALL.patterns, 4), "two words in each of two rounds"
    places = [entry.value for entry in context.facts if entry.name == "wrong_words"]
    assert [place["pattern"] for place in places] == list(SMALL.patterns), "told once each"
    for place in places:
        assert (place["words"], place["first_byte"], place["last_byte"]) == (2, 5_600_000, 8_800_007)
        assert int(place["expected"], 16) ^ int(place["found"], 16) == 1 << 40
    by_name = {place["pattern"]: place["expected"] for place in places}
    assert by_name["0xAA"] == "0xaaaaaaaaaaaaaaaa"
    assert int(by_name["address"], 16) == 700_000
    assert int(by_name["walking"], 16) == 1 << 700_000 % 64


def test_a_word_that_answers_to_two_addresses_is_found_by_address_and_random(
    corrupt: Callable[[Callable[[Any, str], None]], None],
) -> None:
    def alias(blocks: Any, pattern: str) -> None:
        blocks[0][123] = blocks[0][123 + 512 * 1024]  # the same place, one chunk further

    corrupt(alias)
    context = LoneContext(check="memory")
    memory.measure(context, replace(SMALL, rounds=1))
    counts = {figure.variant: figure.value for figure in context.figures if figure.name == "wrong_words"}
    assert {pattern for pattern, count in counts.items() if count} == {"address", "random"}


def test_memory_that_is_refused_is_told_and_the_rest_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setitem(_patterns._BLOCK_BYTES, "cpu", 4 * MIB)
    context = LoneContext(check="memory")
    memory.measure(context, replace(SMALL, rounds=1))
    (refused,) = [entry.value for entry in context.facts if entry.name == "refused"]
    assert (refused["refused_bytes"], refused["taken_bytes"]) == (MIB, 8 * MIB)
    assert [figure.value for figure in context.figures if figure.name == "tested_bytes"] == [8 * MIB]
    assert sum(figure.name == "wrong_words" for figure in context.figures) == 7


def test_a_copy_that_finds_no_memory_is_told_and_the_patterns_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    given = torch.zeros

    def zeros(count: int, **options: Any) -> Any:
        if count == MIB // 8:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 MiB")
        return given(count, **options)

    monkeypatch.setattr(torch, "zeros", zeros)
    context = LoneContext(check="memory")
    memory.measure(context, replace(SMALL, rounds=1))
    (refused,) = [entry.value for entry in context.facts if entry.name == "refused"]
    assert (refused["what"], refused["refused_bytes"], refused["taken_bytes"]) == ("copies (device)", 2 * MIB, 0)
    assert sum(figure.name == "wrong_words" for figure in context.figures) == 7
    seen = replace(fleet([20]), figures=tuple(context.figures), facts=tuple(context.facts))
    ruling = CHECK.judge(seen, SMALL)
    assert [finding.severity for finding in ruling.findings] == ["fail"]
    assert ruling.absent == ("copy_gbps device of rank 0",)


def test_no_more_is_taken_than_a_share_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory_available", lambda: 100 * MIB)
    context = LoneContext(check="memory", local_world_size=2)
    memory.measure(context, replace(SMALL, rounds=1, cpu_bytes=512 * MIB))
    (figure,) = [figure for figure in context.figures if figure.name == "tested_bytes"]
    assert figure.value == (25 - 16) * MIB, "half of it, for two ranks, less what comparing needs"
    monkeypatch.setattr(host, "memory_available", lambda: None)
    context = LoneContext(check="memory")
    memory.measure(context, replace(SMALL, rounds=1))
    assert [entry.name for entry in context.facts] == ["no_room", "tested"]
    assert [(figure.name, figure.value) for figure in context.figures] == [("tested_bytes", 0)]


def test_a_repeat_tells_the_speed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_REPEAT_S", 0.001)
    context = LoneContext(check="memory", stage="repeat")
    memory.measure(context, SMALL)
    assert [(figure.name, figure.stage) for figure in context.figures] == [
        ("copy_gbps", "repeat"),
        ("cpu_share", "repeat"),
    ]


def test_a_long_check_tells_after_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "TELL_EVERY_S", 0.0)
    context = LoneContext(check="memory")
    memory.measure(context, SMALL)
    assert sum(figure.name == "tested_bytes" for figure in context.figures) == 3


def test_a_copy_inside_the_device_moves_twice_its_size_and_one_to_the_host_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "COPIES", {**COPIES, "cpu": ("device", "device_to_host")})
    monkeypatch.setattr(memory, "_time_copy", lambda context, params, kind: (0.5, 1.0))
    context = LoneContext(check="memory")
    memory.measure(context, replace(SMALL, host_copy_bytes=3 * MIB))
    speeds = {figure.variant: figure.value for figure in context.figures if figure.name == "copy_gbps"}
    assert speeds == pytest.approx({"device": 2 * MIB / 0.5e9, "device_to_host": 3 * MIB / 0.5e9})


def test_random_words_differ_by_chunk_by_rank_and_by_round() -> None:
    (block,) = _patterns.take(LoneContext(check="memory").device.torch, 9 * MIB).blocks
    seen = set()
    for seed in (0, 1, 65_537):
        _patterns.write([block], "random", seed, lambda label: None)
        seen |= {int(block[place]) for place in (0, 524_288, 1_048_576)}
        assert _patterns.read_back([block], "random", seed, lambda label: None) is None
    assert len(seen) == 9


def test_the_walking_bit_moves_on_from_word_to_word_and_from_round_to_round() -> None:
    (block,) = _patterns.take(LoneContext(check="memory").device.torch, 2 * MIB).blocks
    for seed in (0, 65_537 * 3):
        _patterns.write([block], "walking", seed, lambda label: None)
        words = [word % 2**64 for word in block[:130].tolist()]
        assert words == [1 << (place + seed) % 64 for place in range(130)]


@pytest.mark.gpu
def test_this_device_keeps_what_is_written() -> None:
    from seatrial.worker.device import open_device

    device = open_device("cuda", 0, 1)
    context = LoneContext(check="memory", device=device)
    params = Params(gpu_share=0.9, gpu_copy_bytes=256 * MIB, host_copy_bytes=64 * MIB, seconds=0.02)
    memory.measure(context, params)
    told = {(figure.name, figure.variant): figure.value for figure in context.figures}
    assert [told["wrong_words", pattern] for pattern in params.patterns] == [0] * 7
    assert told["tested_bytes", ""] > 0.5 * device.memory_bytes
    assert told["copy_gbps", "device"] > told["copy_gbps", "host_to_device"] > 1
    assert [entry.name for entry in context.facts] == ["tested"]
