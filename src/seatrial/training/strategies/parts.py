"""Parts of a model that is spread over ranks, and how the whole is put together for checkpoints and digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seatrial.training.precision import local
from seatrial.training.step_clock import synchronize
from seatrial.training.strategies.strategy import OptimizerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """This rank's part of one entry of the whole model's state dict."""

    shape: torch.Size
    """Shape of the whole entry."""
    dtype: torch.dtype
    positions: Tensor | None
    """int64 (n,), on the CPU: positions of this rank's values in the flattened whole. None: it has none."""
    group: dist.ProcessGroup | None
    """The ranks that have the whole together, each value once. None: every rank has a whole copy."""
    sends_scalars: bool
    """Whether this rank contributes the optimizer's scalars of the parameter, such as a step count, for the group."""


def sharded_parts(
    copy: nn.Module, shard: Callable[[nn.Module], None], group_of: Callable[[Any], dist.ProcessGroup]
) -> dict[str, Part]:
    """Return the parts that ``shard`` leaves on this rank, for each entry of the model's state dict.

    Args:
        copy: A copy of the model, which is used up: its parameters are filled with their positions, so the values that
            ``shard`` leaves are the positions of this rank's values.
        shard: Shards a model in place.
        group_of: Returns ``Part.group`` of a sharded parameter.
    """
    shapes = {name: (value.shape, value.dtype) for name, value in copy.state_dict().items()}
    for parameter in copy.parameters():
        # float64 represents every position exactly, up to 2**53.
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
            sends_scalars=group is not None and group.rank() == 0,
        )
    return parts


def whole_state(own: Mapping[str, Tensor], parts: Mapping[str, Part], device: torch.device) -> dict[str, Tensor]:
    """Return the state dict of the whole model on the CPU, on every rank. All ranks of the groups call this together.

    ``own``: the entries of which this rank has values.
    """
    return {name: _whole(own.get(name), part, part.shape, part.dtype, device) for name, part in parts.items()}


def whole_optimizer_state(
    optimizer: torch.optim.Optimizer,
    own: Mapping[str, nn.Parameter],
    parts: Mapping[str, Part],
    device: torch.device,
) -> OptimizerState:
    """Return the whole state of the optimizer by parameter name, on the CPU, on every rank; empty before the first
    step.

    ``parts`` are those of parameters. All ranks of the groups call this together.
    """
    # The optimizer has the same keys for every parameter, so each rank knows the keys of the others.
    example: Mapping[str, Any] = next(
        (optimizer.state[parameter] for parameter in own.values() if optimizer.state.get(parameter)), {}
    )
    state: OptimizerState = {}
    for name, part in parts.items():
        own_values = optimizer.state[own[name]] if name in own else {}
        for key, like in sorted(example.items()):
            if not isinstance(like, Tensor):
                continue
            if like.dim():
                value = _whole(own_values.get(key), part, part.shape, like.dtype, device)
            elif part.group is None:
                value = own_values[key].cpu().clone()
            else:
                scalar = own_values[key] if part.sends_scalars else None
                first = Part(
                    shape=like.shape,
                    dtype=like.dtype,
                    positions=None if scalar is None else torch.zeros(1, dtype=torch.int64),
                    group=part.group,
                    sends_scalars=part.sends_scalars,
                )
                value = _whole(scalar, first, like.shape, like.dtype, device)
            state.setdefault(name, {})[key] = value
    return state


def load_parts(
    optimizer: torch.optim.Optimizer,
    own: Mapping[str, Tensor],
    parts: Mapping[str, Part],
    model: Mapping[str, Tensor],
    state: OptimizerState,
) -> None:
    """Copy this rank's values out of a whole state dict and a whole state of the optimizer.

    ``own``: the entries of the state dict of which this rank has values, as the optimizer knows them.
    """
    optimizer.state.clear()
    fused = any(settings.get("fused") for settings in optimizer.param_groups)
    for name, entry in own.items():
        _fill(entry, parts[name], model[name])
        for key, value in state.get(name, {}).items():
            if value.dim():
                copy = torch.zeros_like(entry.detach(), dtype=value.dtype)
                _fill(copy, parts[name], value)
            else:
                copy = value.to(entry.device, copy=True) if fused else value.clone()
            optimizer.state[entry][key] = copy


def _fill(entry: Tensor, part: Part, whole: Tensor) -> None:
    values = local(entry)
    own_values = whole if part.positions is None else whole.flatten()[part.positions]
    values.copy_(own_values.view(values.shape))


def _whole(own: Tensor | None, part: Part, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the sum over the group of tensors that are zero except for each rank's values. Bytes are summed, so every
    value arrives unchanged."""
    if part.group is None:
        if own is None:
            raise ValueError("a part without a group must be whole on every rank")
        return local(own).cpu().clone()
    whole = torch.zeros(shape.numel(), dtype=dtype, device=device)
    if own is not None and part.positions is not None:
        whole[part.positions.to(device)] = local(own).flatten()
    dist.all_reduce(whole.view(torch.uint8), group=part.group)
    synchronize(device)
    return whole.cpu().view(shape)
