"""Digest: equal bits and nothing else are equal."""

from __future__ import annotations

import torch
from torch import nn

from seatrial.training.digest import digest


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model


def test_replicas_are_equal() -> None:
    assert digest(_model()) == digest(_model())


def test_the_last_bit_of_one_parameter_counts() -> None:
    model = _model()
    weight = model.get_parameter("0.weight")
    weight.data[1, 2] = torch.nextafter(weight.data[1, 2], torch.tensor(1.0))
    assert digest(model) != digest(_model())


def test_buffers_count() -> None:
    model = _model()
    model.get_buffer("1.num_batches_tracked").add_(1)
    assert digest(model) != digest(_model())


def test_the_sign_of_zero_counts_and_nan_is_equal_to_itself() -> None:
    zero, minus, nan, same_nan = _model(), _model(), _model(), _model()
    for model, value in ((zero, 0.0), (minus, -0.0), (nan, float("nan")), (same_nan, float("nan"))):
        model.get_parameter("0.bias").data[0] = value
    assert digest(zero) != digest(minus)
    assert digest(nan) == digest(same_nan)


def test_the_layout_in_memory_does_not_count() -> None:
    model = _model()
    weight = model.get_parameter("0.weight")
    weight.data[0, 1] = 7
    other = _model()
    other.get_parameter("0.weight").data = weight.data.t().contiguous().t()
    assert digest(model) == digest(other)
