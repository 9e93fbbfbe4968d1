"""The interface between the trainer and a strategy, and the functions that unsharded strategies share.

The loop in ``trainer.py`` is the same for all strategies. A strategy decides which share of the global batch this rank
computes, runs forward and backward on it, and knows the full state. The function ``build`` of its file makes it:

    build(model, recipe, *, device, group, clock) -> Strategy

``model`` is on ``device``, with the same parameters on all ranks, in train mode. Every rank of ``group`` calls
``build``. It raises RequestError, on all ranks alike, for what it cannot do: a world size, a model, a setting.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seatrial.errors import RequestError
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import StepClock
from seatrial.training.strategies import STRATEGIES

OptimizerState = dict[str, dict[str, Tensor]]
"""Parameter name -> values that the optimizer has for it, such as momentum_buffer or exp_avg: full tensors on the CPU.

The names are those of the whole model as the seed built it, whatever the strategy, so a state of one strategy loads in
another.
"""


class Strategy(Protocol):
    """The work of one rank. All ranks of the group call the same methods in the same order."""

    model: nn.Module
    """The module whose buffers and mode (train, eval) the trainer handles; one stage of it where the model is cut."""
    data_rank: int
    """Number, from 0, of the share of the global batch that this rank computes. Ranks that compute one share together
    have the same number; with plain data parallelism it is the group rank."""
    data_size: int
    """Number of shares. Gradients are averaged over them."""

    def forward(self, images: Tensor, labels: Tensor, scale: float) -> Tensor:
        """Compute scores and loss of this rank's share, and also backward where the two cannot be separated.

        Runs within autocast where the recipe asks for it. The gradients must become those of ``scale`` times the loss
        sum, averaged over the shares; the trainer includes the number of shares and the size of the global batch in
        ``scale``.

        Args:
            images: float32 (N, C, H, W); N may be 0.
            labels: int64 (N,).
            scale: Factor of the gradients.

        Returns:
            The sum of cross-entropy over the share, a detached scalar, without ``scale``. The trainer adds these over
            all ranks, so ranks that would count a share again return 0.
        """

    def backward(self) -> None:
        """Run backward of the last forward. When it returns, the gradients are reduced over all ranks.

        Marks ``clock.mark("ready")`` when this rank's gradients are complete and only communication is left.
        """

    def scores(self, images: Tensor) -> Tensor | None:
        """Return scores, shape (N, classes), for images of shape (N, C, H, W), in eval mode and without gradients.

        Exactly one rank of each share returns them, the others None. All ranks call this equally often; N may be 0.
        """

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters of this rank's optimizer, by their names in the whole model."""

    def full_state(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], OptimizerState]:
        """Return the state dict of the whole model and the state of the optimizer, as full CPU tensors, on rank 0.

        All ranks call this; ranks other than 0 may return empty dicts.
        """

    def load(self, optimizer: torch.optim.Optimizer, model: Mapping[str, Tensor], state: OptimizerState) -> None:
        """Load what ``full_state`` returned. Every rank gets all of it, on the CPU.

        ``state`` lacks parameters that have not been stepped yet.
        """

    def digest(self) -> str:
        """Return the SHA-256 of this rank's state: equal on all ranks of a healthy run, even where each has only a
        part.

        Replicas digest their own copy, so that a copy that differs is found.
        """


class Build(Protocol):
    """The function ``build`` of each strategy's file."""

    def __call__(
        self, model: nn.Module, recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, clock: StepClock
    ) -> Strategy: ...


def find_strategy(name: str) -> Build:
    """Return the function ``build`` of a strategy.

    Raises RequestError for an unknown name; the message suggests the closest known one.
    """
    if name not in STRATEGIES:
        near = get_close_matches(name.lower(), STRATEGIES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise RequestError(f"unknown strategy {name!r}{hint} Known: {', '.join(STRATEGIES)}.")
    build: Build = importlib.import_module(f"seatrial.training.strategies.{name}").build
    return build


def optimizer_state(optimizer: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]]) -> OptimizerState:
    """Return the state of an optimizer by parameter name, copied to the CPU.

    By name and not by position: positions change with the number of parameters that a rank has.
    """
    return {
        name: {key: torch.as_tensor(value).detach().cpu().clone() for key, value in optimizer.state[parameter].items()}
        for name, parameter in named
        if optimizer.state.get(parameter)
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]], state: OptimizerState
) -> None:
    """Load what ``optimizer_state`` returned.

    A tensor with the parameter's shape goes to the parameter's device. A scalar, such as Adam's step count, stays on
    the CPU unless the optimizer is fused.
    """
    optimizer.state.clear()
    for name, parameter in named:
        for key, value in state.get(name, {}).items():
            on_device = value.shape == parameter.shape or any(
                settings.get("fused") for settings in optimizer.param_groups
            )
            copy = value.to(parameter.device, copy=True) if on_device else value.clone()
            optimizer.state[parameter][key] = copy
