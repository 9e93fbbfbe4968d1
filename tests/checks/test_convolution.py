"""The convolution with a known answer: right on this CPU, and each of its four results is checked."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from checks.fake_context import CPU

from seatrial.checks.shared import convolution
from seatrial.checks.shared.convolution import count_wrong_convolution


@pytest.mark.parametrize("seed", [0, 1])
def test_this_cpu_convolves_rightly(seed: int) -> None:
    assert count_wrong_convolution(CPU, seed) == (0, [])


@pytest.mark.gpu
def test_this_accelerator_convolves_rightly() -> None:
    from seatrial.rank.device import open_device

    device = open_device("cuda", 0, 1)
    assert [count_wrong_convolution(device, seed) for seed in range(10)] == [(0, [])] * 10


@pytest.mark.parametrize("which", ["output", "image", "weight", "bias"])
def test_one_wrong_element_is_seen_with_its_place(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class SpoiledConv2d(torch.nn.Conv2d):
        """A double of a device that adds 1 to the first element of one result."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if which in ("weight", "bias"):
                getattr(self, which).register_hook(_spoiled)
            if which == "image":
                images.register_hook(_spoiled)  # type: ignore[no-untyped-call]
            output = super().forward(images)
            return output + torch.zeros_like(output).index_fill_(0, torch.tensor(0), 1) if which == "output" else output

    monkeypatch.setattr(torch.nn, "Conv2d", SpoiledConv2d)
    count, places = count_wrong_convolution(CPU, 0)
    _, channels, side = convolution._SIZES["cpu"]
    assert count == (channels * side * side if which == "output" else 1)
    match = re.fullmatch(rf"{which} \[0(?:, 0)*\] is (-?\d+), not (-?\d+)", places[0])
    assert match is not None, places
    assert int(match[1]) == int(match[2]) + 1
    assert len(places) == min(count, 4)


def _spoiled(gradient: Any) -> Any:
    changed = gradient.clone()
    changed[(0,) * changed.dim()] += 1
    return changed


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_every_sum_is_exact_in_float32(device_type: str) -> None:
    images, channels, side = convolution._SIZES[device_type]
    most_products = max(9 * channels, images * side * side)
    assert most_products * convolution._LARGEST**2 + convolution._LARGEST < 2**24
