"""Doubles of the trainer's surroundings, and a model with everything that makes resuming hard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.training.progress import EpochStats, Start


def fits_always(name: str, state: Mapping[str, Any]) -> None:
    """Refuse no checkpoint."""


class RecordingCallbacks:
    """Callbacks that record their calls, and ask to stop after ``stop_at`` steps if it is given.

    The ranks must then sync after each step: ``sync_points.MOST_STEPS`` must be 1.
    """

    def __init__(self, stop_at: int | None = None) -> None:
        self.starts: list[Start] = []
        self.steps: list[int] = []
        self.epochs: list[EpochStats] = []
        self._stop_at = stop_at

    def on_start(self, start: Start) -> None:
        self.starts.append(start)

    def on_step(self, step: int) -> None:
        self.steps.append(step)

    def on_losses(self, step: int, loss: float) -> None:
        assert self.steps[-1] == step

    def on_epoch(self, stats: EpochStats) -> None:
        self.epochs.append(stats)

    def should_stop(self) -> bool:
        return self._stop_at is not None and self.steps[-1:] == [self._stop_at - 1]


class UntouchableStore:
    """A store that raises on any call: for ranks that must not use it."""

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        raise AssertionError("a rank other than 0 wrote a checkpoint")

    def newest(self, most_bytes: int = 0) -> tuple[int, Mapping[str, Any]] | None:
        raise AssertionError("a rank other than 0 looked for a checkpoint")

    def load(self, path: Path, most_bytes: int = 0) -> tuple[int, Mapping[str, Any]]:
        raise AssertionError("a rank other than 0 read a checkpoint")


class FullDiskStore:
    """A store that cannot be written to."""

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        raise OSError(28, "No space left on device")

    def newest(self, most_bytes: int = 0) -> tuple[int, Mapping[str, Any]] | None:
        return None

    def load(self, path: Path, most_bytes: int = 0) -> tuple[int, Mapping[str, Any]]:
        raise OSError(2, "No such file")


class _NormedDropoutNet(nn.Module):
    """BatchNorm and dropout: running statistics and random numbers. Two buckets in DDP, so their layout can change."""

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv = nn.Conv2d(channels, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.hidden = nn.Linear(32 * height * width, 160)
        self.hidden_norm = nn.BatchNorm1d(160)
        self.dropout = nn.Dropout(0.3)
        self.classifier = nn.Linear(160, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.conv(images))).flatten(1)
        hidden = torch.relu(self.hidden_norm(self.hidden(features)))
        scores: Tensor = self.classifier(self.dropout(hidden))
        return scores


def build_normed_dropout_net(name: str, shape: tuple[int, int, int], num_classes: int, seed: int) -> nn.Module:
    """In place of ``build_model``."""
    torch.manual_seed(seed)
    return _NormedDropoutNet(shape, num_classes)
