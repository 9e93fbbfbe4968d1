"""Tensor parallelism: layers are cut over neighboring ranks, and their parts are sharded over the others."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from seatrial.errors import RequestError
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import StepClock
from seatrial.training.strategies.fsdp import Sharded, find_fully_shard
from seatrial.training.strategies.parts import sharded_parts


@runtime_checkable
class Cuttable(Protocol):
    """A model whose linear layers can be cut."""

    def tensor_plan(self) -> dict[str, str]:
        """Return layer name -> ``columns`` (its outputs are cut) or ``rows`` (its inputs are cut), for each layer with
        parameters.

        After a layer cut by columns comes one cut by rows, with only elementwise functions between them.
        """


def build(
    model: nn.Module, recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, clock: StepClock
) -> Sharded:
    """Cut the layers by the model's plan, over a mesh of (dp, tp) in which the ranks of one tp group are neighbors."""
    fully_shard = find_fully_shard(recipe, device)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size = recipe.model_parallel_size
    plan = _plan(model, recipe, group.size())
    mesh = init_device_mesh(device.type, (group.size() // size, size), mesh_dim_names=("dp", "tp"))
    styles = {"columns": ColwiseParallel, "rows": RowwiseParallel}
    # torch warns about in-place changes of a layer's output; these models make none.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")

    def shard(module: nn.Module) -> None:
        parallelize_module(module, mesh["tp"], {name: styles[how]() for name, how in plan.items()})
        fully_shard(module, mesh=mesh["dp"])

    data_rank, tensor_rank = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")

    def group_of(parameter: Any) -> dist.ProcessGroup:
        # A parameter that is not cut has a copy on each rank of tp, and each rank reads its own copy.
        is_cut = parameter.placements[1].is_shard()
        return group if is_cut else mesh.get_group("dp")

    parts = sharded_parts(copy.deepcopy(model), shard, group_of)
    shard(model)
    return Sharded(
        model,
        parts,
        device,
        clock,
        data_rank=data_rank,
        data_size=group.size() // size,
        counts_loss=tensor_rank == 0,
    )


def _plan(model: nn.Module, recipe: Recipe, world_size: int) -> dict[str, str]:
    size = recipe.model_parallel_size
    if not isinstance(model, Cuttable):
        raise RequestError(f"strategy tensor: model {recipe.model} has no layers that can be cut; use toy or mlp.")
    if world_size % size or world_size < size:
        raise RequestError(
            f"strategy tensor: {world_size} ranks cannot be divided into groups of {size} (--model-parallel-size); "
            "change one of the two."
        )
    plan = model.tensor_plan()
    for name, how in plan.items():
        rows, columns = model.get_parameter(f"{name}.weight").shape
        cut, what = (rows, "outputs") if how == "columns" else (columns, "inputs")
        if cut % size:
            raise RequestError(
                f"strategy tensor: layer {name} of {recipe.model} has {cut} {what}, which {size} ranks "
                "(--model-parallel-size) cannot share evenly; choose a number of ranks that divides them."
            )
    return plan
