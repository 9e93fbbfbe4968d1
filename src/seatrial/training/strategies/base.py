"""What a strategy supplies to the trainer, and what unsharded strategies have in common.

The loop in ``trainer.py`` is the same for all. A strategy says which share of the global batch this rank computes on,
runs forward and backward of it, and knows the full state. It is made by the function ``build`` of its file:

    build(model, recipe, *, device, group, clock) -> Strategy

``model`` stands on ``device``, with the same parameters on all ranks, in train mode. Every rank of ``group`` calls
``build``. It raises RequestError, on all ranks alike, for what it cannot do: a world size, a model, a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seatrial.training.clock import StepClock
from seatrial.training.recipe import Recipe

__all__ = ["Build", "OptimizerState", "Strategy", "load_optimizer_state", "optimizer_state"]

OptimizerState = dict[str, dict[str, Tensor]]
"""Parameter name -> what the optimizer keeps of it, such as momentum_buffer or exp_avg: full tensors on the CPU.

Names are those of the whole model as the seed built it, whatever the strategy: a state of one loads in another."""


class Strategy(Protocol):
    """The work of one rank. All ranks of the group call the same methods in the same order."""

    model: nn.Module
    """The module whose buffers and mode (train, eval) the trainer handles; a stage of it where the model is cut."""
    data_rank: int
    """Which share of the global batch this rank computes on, from 0. Ranks that work on one share together have the
    same; with plain data parallelism it is the rank itself."""
    data_size: int
    """Number of shares. Gradients are averaged over them."""

    def forward(self, images: Tensor, labels: Tensor, scale: float) -> Tensor:
        """Scores and loss of the own share, and backward where it cannot be told apart from forward.

        ``images``: float of (n, channels, height, width); ``labels``: int64 of (n,); n may be 0. Called within
        autocast where the recipe asks for it. Gradients are to become those of ``scale`` times the loss sum, averaged
        over the shares: the trainer puts the number of shares and the size of the global batch into ``scale``.

        Returns the sum of cross-entropy over the share, a detached scalar, without ``scale``. The trainer adds these up
        over all ranks: each share is to be counted once, so ranks that would repeat it return 0.
        """

    def backward(self) -> None:
        """Backward of the last forward. When it returns, the gradients are reduced over all ranks.

        Marks ``clock.mark("ready")`` when the own gradients are there and only communication is left.
        """

    def scores(self, images: Tensor) -> Tensor | None:
        """Scores of (n, classes) for evaluation, in eval mode and without gradients; None on ranks of a share that
        do not hold them: exactly one rank of each share does. Called equally often on all ranks; n may be 0."""

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What this rank's optimizer works on, by the names of the whole model."""

    def full_state(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], OptimizerState]:
        """State dict of the whole model, and state of the optimizer, as full CPU tensors, on rank 0.

        All ranks call this; other ranks than 0 may return empty dicts.
        """

    def load(self, optimizer: torch.optim.Optimizer, model: Mapping[str, Tensor], state: OptimizerState) -> None:
        """Take over what ``full_state`` gave. Every rank is given all of it, on the CPU.

        ``state`` may lack parameters: what has had no step yet has no state.
        """

    def digest(self) -> str:
        """SHA-256 of what this rank holds: equal on all ranks of a healthy run, whatever each of them holds.

        Replicas are to digest their own copy, so that one that went astray shows.
        """


class Build(Protocol):
    """The function ``build`` of each strategy's file."""

    def __call__(
        self, model: nn.Module, recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, clock: StepClock
    ) -> Strategy: ...


def optimizer_state(optimizer: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]]) -> OptimizerState:
    """State of an optimizer by parameter name, copied to the CPU.

    By name and not by position: positions change with the number of parameters that a rank holds.
    """
    return {
        name: {key: torch.as_tensor(value).detach().cpu().clone() for key, value in optimizer.state[parameter].items()}
        for name, parameter in named
        if optimizer.state.get(parameter)
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]], state: OptimizerState
) -> None:
    """Take over what ``optimizer_state`` gave.

    A tensor of the parameter's shape goes where the parameter is; a scalar, such as the step count of Adam, stays where
    the optimizer keeps it: on the CPU, unless it is fused.
    """
    optimizer.state.clear()
    for name, parameter in named:
        for key, value in state.get(name, {}).items():
            on_device = value.shape == parameter.shape or any(
                settings.get("fused") for settings in optimizer.param_groups
            )
            copy = value.to(parameter.device, copy=True) if on_device else value.clone()
            optimizer.state[parameter][key] = copy
