"""Parts of a model that is spread over ranks, and the whole of it: for checkpoints and digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seatrial.training.precision import local
from seatrial.training.strategies.base import OptimizerState

__all__ = ["Part", "load_parts", "sharded_parts", "whole_optimizer_state", "whole_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What this rank holds of one entry of the whole model's state dict."""

    shape: torch.Size
    """Of the whole."""
    dtype: torch.dtype
    positions: Tensor | None
    """int64, on the CPU: where the values that this rank holds stand in the flattened whole. None: it holds none."""
    group: dist.ProcessGroup | None
    """The ranks that hold the whole together, each value once. None: this rank holds it all, others their own copy."""
    tells_scalars: bool
    """Whether this rank speaks for the group on what the optimizer keeps once a parameter, such as a step count."""


def sharded_parts(
    copy: nn.Module, shard: Callable[[nn.Module], None], group_of: Callable[[Any], dist.ProcessGroup]
) -> dict[str, Part]:
    """The parts that ``shard`` leaves on this rank of each entry of a model's state dict.

    ``copy`` is a copy of the model and is used up: its parameters are filled with their positions, so what ``shard``
    leaves of them is where the values of the model are. ``group_of`` a sharded parameter: as in ``Part``.
    """
    shapes = {name: (value.shape, value.dtype) for name, value in copy.state_dict().items()}
    for parameter in copy.parameters():
        # float64 holds every position exactly, up to 2**53.
        parameter.data = torch.arange(parameter.numel(), dtype=torch.float64, device=parameter.device).view(
            parameter.shape
        )
    shard(copy)
    parts = {}
    for name, value in copy.state_dict(keep_vars=True).items():
        shape, dtype = shapes[name]
        group = group_of(value) if hasattr(value, "to_local") else None
        parts[name] = Part(
            shape=shape,
            dtype=dtype,
            positions=None if group is None else local(value).flatten().long().cpu(),
            group=group,
            tells_scalars=group is not None and group.rank() == 0,
        )
    return parts


def whole_state(own: Mapping[str, Tensor], parts: Mapping[str, Part], device: torch.device) -> dict[str, Tensor]:
    """The state dict of the whole model on the CPU, on every rank. ``own``: the entries of which this rank has values.

    All ranks of the groups call this together.
    """
    return {name: _whole(own.get(name), part, part.shape, part.dtype, device) for name, part in parts.items()}


def whole_optimizer_state(
    optimizer: torch.optim.Optimizer,
    own: Mapping[str, nn.Parameter],
    parts: Mapping[str, Part],
    device: torch.device,
) -> OptimizerState:
    """State of the optimizer by parameter name, whole, on the CPU, on every rank; empty before the first step.

    ``parts`` are those of parameters. All ranks of the groups call this together.
    """
    # The same is kept of every parameter, so each rank knows what the others have of theirs.
    kept: Mapping[str, Any] = next(
        (optimizer.state[parameter] for parameter in own.values() if optimizer.state.get(parameter)), {}
    )
    state: OptimizerState = {}
    for name, part in parts.items():
        mine = optimizer.state[own[name]] if name in own else {}
        for key, like in sorted(kept.items()):
            if not isinstance(like, Tensor):
                continue
            if like.dim():
                value = _whole(mine.get(key), part, part.shape, like.dtype, device)
            elif part.group is None:
                value = mine[key].cpu().clone()
            else:
                told = mine[key] if part.tells_scalars else None
                first = Part(
                    shape=like.shape,
                    dtype=like.dtype,
                    positions=None if told is None else torch.zeros(1, dtype=torch.int64),
                    group=part.group,
                    tells_scalars=part.tells_scalars,
                )
                value = _whole(told, first, like.shape, like.dtype, device)
            state.setdefault(name, {})[key] = value
    return state


def load_parts(
    optimizer: torch.optim.Optimizer,
    own: Mapping[str, Tensor],
    parts: Mapping[str, Part],
    model: Mapping[str, Tensor],
    state: OptimizerState,
) -> None:
    """Take this rank's values out of a whole state dict and a whole state of the optimizer.

    ``own``: the entries of the state dict of which this rank has values, as the optimizer knows them.
    """
    optimizer.state.clear()
    fused = any(settings.get("fused") for settings in optimizer.param_groups)
    for name, entry in own.items():
        _fill(entry, parts[name], model[name])
        for key, value in state.get(name, {}).items():
            if value.dim():
                kept = torch.zeros_like(entry.detach(), dtype=value.dtype)
                _fill(kept, parts[name], value)
            else:
                kept = value.to(entry.device, copy=True) if fused else value.clone()
            optimizer.state[entry][key] = kept


def _fill(entry: Tensor, part: Part, whole: Tensor) -> None:
    values = local(entry)
    mine = whole if part.positions is None else whole.flatten()[part.positions]
    values.copy_(mine.view(values.shape))


def _whole(own: Tensor | None, part: Part, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """All zeros but the own values, then the sum over the group: of bytes, so that each comes through as it is."""
    if part.group is None:
        if own is None:
            raise ValueError("a part without a group is whole on every rank")
        return local(own).cpu().clone()
    whole = torch.zeros(shape.numel(), dtype=dtype, device=device)
    if own is not None and part.positions is not None:
        whole[part.positions.to(device)] = local(own).flatten()
    dist.all_reduce(whole.view(torch.uint8), group=part.group)
    return whole.cpu().view(shape)
