"""Pipeline parallelism: the model is cut into stages on neighboring ranks (1F1B), with DistributedDataParallel over the
pipelines."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from seatrial.errors import RequestError
from seatrial.training.digest import digest_state
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import StepClock
from seatrial.training.strategies.ddp import wrap
from seatrial.training.strategies.parts import Part, load_parts, whole_optimizer_state, whole_state
from seatrial.training.strategies.strategy import OptimizerState

_PADDING = -100
"""The label of samples that fill up a microbatch; the loss ignores them."""
_PICKLED = "another stage of this pipeline asks for pickled objects, and no rank of seatrial does"


@runtime_checkable
class Staged(Protocol):
    """A model that can be cut into stages."""

    def blocks(self) -> list[nn.Module]:
        """Return its modules in order: forward calls one after the other, and together they have all parameters."""


def build(
    model: nn.Module, recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, clock: StepClock
) -> _Pipelined:
    """Cut the model, over a mesh of (dp, pp) in which the ranks of one pipeline are neighbors.

    The stages get equal numbers of blocks with parameters, or as near as possible.
    """
    num_stages = recipe.model_parallel_size
    blocks = _check(model, recipe, group.size(), device)
    stages = nn.ModuleList(_Stage(*part) for part in _split(blocks, num_stages))
    mesh = init_device_mesh(device.type, (group.size() // num_stages, num_stages), mesh_dim_names=("dp", "pp"))
    return _Pipelined(model, stages, recipe, device, mesh, clock)


def _check(model: nn.Module, recipe: Recipe, world_size: int, device: torch.device) -> list[list[nn.Module]]:
    """Return the blocks of the model, each with parameters. Raises RequestError for what a pipeline cannot do."""
    name, num_stages, num_microbatches = recipe.model, recipe.model_parallel_size, recipe.num_microbatches
    if not isinstance(model, Staged):
        raise RequestError(
            f"strategy pipeline: model {name} does not define how it is cut into stages; use ddp or fsdp."
        )
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise RequestError(
            f"strategy pipeline: model {name} has BatchNorm, which would normalize by a microbatch instead of the "
            "batch; use ddp or fsdp."
        )
    for setting in ("compile", "channels_last"):
        if getattr(recipe, setting):
            raise RequestError(f"strategy pipeline: {setting} was not verified with it; leave it off, or use ddp.")
    if device.type == "cpu" and not hasattr(schedules, "_wait_batch_p2p"):
        # Before, it waited only for the last message of a step; over NCCL all messages of a step are one.
        raise RequestError(
            f"strategy pipeline on CPUs does not work with torch {torch.__version__}; it was verified with 2.13; "
            "use ddp, or a newer torch."
        )
    if world_size % num_stages or world_size < num_stages:
        raise RequestError(
            f"strategy pipeline: {world_size} ranks cannot be divided into pipelines of {num_stages} stages "
            "(--model-parallel-size); change one of the two."
        )
    in_blocks = [parameter for block in model.blocks() for parameter in block.parameters()]
    if {id(parameter) for parameter in in_blocks} != {id(parameter) for parameter in model.parameters()}:
        raise ValueError(f"the blocks of model {name} do not contain all of its parameters")
    units: list[list[nn.Module]] = [[]]
    for block in model.blocks():
        if _has_parameters(block) and any(map(_has_parameters, units[-1])):
            units.append([])
        units[-1].append(block)
    if len(units) < num_stages:
        raise RequestError(
            f"strategy pipeline: model {name} has {len(units)} blocks with parameters, too few for {num_stages} stages "
            "(--model-parallel-size); use fewer stages."
        )
    if num_microbatches < num_stages:
        raise RequestError(
            f"strategy pipeline: {num_microbatches} microbatches (--num-microbatches) do not fill {num_stages} stages "
            "(--model-parallel-size); use at least as many microbatches as stages."
        )
    share = recipe.global_batch_size // (world_size // num_stages)
    if share < num_microbatches:
        raise RequestError(
            f"strategy pipeline: a global batch of {recipe.global_batch_size} gives a pipeline {share} samples, fewer "
            f"than its {num_microbatches} microbatches (--num-microbatches); use a larger batch."
        )
    return units


def _split(units: list[list[nn.Module]], num_stages: int) -> list[list[nn.Module]]:
    cuts = [len(units) * stage // num_stages for stage in range(num_stages + 1)]
    return [[block for unit in units[low:high] for block in unit] for low, high in itertools.pairwise(cuts)]


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


class _StageWithoutPickle(PipelineStage):
    """Refuses to exchange descriptions of tensors, which are pickled: to read them runs code of their sender.

    Newer versions of torch do so as soon as one stage of the pipeline asks for it, whatever the others know.
    """

    def _send_meta(self, meta: Any, dst_stage: int) -> None:
        raise ConnectionError(_PICKLED)

    def _recv_meta(self, src_stage: int) -> Any:
        raise ConnectionError(_PICKLED)


class _Stage(nn.Sequential):
    """One stage: some of the model's blocks, one after the other.

    Its output is float32 also under autocast, so the next stage needs no information about its type.
    """

    def forward(self, values: Tensor) -> Tensor:
        passed: Tensor = super().forward(values)  # type: ignore[no-untyped-call]
        return passed.float()


class _Pipelined:
    """One stage of one pipeline; its methods are those of ``strategy.Strategy``.

    Time that a stage waits for its neighbors counts as forward and backward.
    """

    def __init__(
        self,
        model: nn.Module,
        stages: nn.ModuleList,
        recipe: Recipe,
        device: torch.device,
        mesh: DeviceMesh,
        clock: StepClock,
    ) -> None:
        index = mesh.get_local_rank("pp")
        self.model = stages[index]
        self.data_rank, self.data_size = mesh.get_local_rank("dp"), mesh.size(0)
        self._device, self._group = device, mesh.get_group("pp")
        self._index, self._num_stages = index, len(stages)
        self._is_first, self._is_last = index == 0, index == len(stages) - 1
        self._num_microbatches = recipe.num_microbatches
        share = -(-recipe.global_batch_size // self.data_size)
        self._microbatch_size = -(-share // self._num_microbatches)
        # Copies without memory, to compute the shapes of activations, which depend on the shape of the images.
        self._stages_without_values = copy.deepcopy(stages).to("meta")

        names = {id(value): name for name, value in model.state_dict(keep_vars=True).items()}
        self._own = {names[id(value)]: value for value in self.model.state_dict(keep_vars=True).values()}
        self._parts = {
            name: Part(
                shape=value.shape,
                dtype=value.dtype,
                positions=torch.arange(value.numel()) if name in self._own else None,
                group=self._group,
                sends_scalars=name in self._own,
            )
            for name, value in model.state_dict().items()
        }

        # Never static_graph: with a pipeline it silently gives wrong parameters.
        self._wrapped = wrap(self.model, device, mesh.get_group("dp"), clock)
        self._schedule: Schedule1F1B | None = None
        self._loss_sum = torch.zeros((), device=device)
        self._scale = 1.0

    def _open(self, image_shape: torch.Size) -> Schedule1F1B:
        """Return the schedule, made at the first call for microbatches of images of that shape, (C, H, W)."""
        if self._schedule is not None:
            return self._schedule
        passed = self._passed(self._microbatch_size, image_shape)
        # With both shapes given the stages need not exchange them.
        stage = _StageWithoutPickle(
            self._wrapped,
            self._index,
            self._num_stages,
            self._device,
            input_args=passed[self._index].requires_grad_(not self._is_first),
            output_args=passed[self._index + 1].requires_grad_(),
            group=self._group,
        )
        known = inspect.signature(Schedule1F1B.__init__).parameters
        # torch 2.4 does not scale at all; later versions divide by the number of microbatches by default.
        scaling: dict[str, Any] = {"scale_grads": False} if "scale_grads" in known else {}
        self._schedule = Schedule1F1B(stage, self._num_microbatches, loss_fn=self._scaled_loss, **scaling)
        return self._schedule

    def _passed(self, num_samples: int, image_shape: torch.Size) -> list[Tensor]:
        """Return the input of each stage and the output of the last, as tensors without memory."""
        passed = [torch.empty(num_samples, *image_shape, device="meta")]
        with torch.no_grad():
            for stage in self._stages_without_values:
                passed.append(stage(passed[-1]))
        return passed

    def forward(self, images: Tensor, labels: Tensor, scale: float) -> Tensor:
        # All microbatches of all steps have one size, so that all received tensors have one shape.
        missing = self._num_microbatches * self._microbatch_size - len(labels)
        self._loss_sum, self._scale = torch.zeros((), device=self._device), scale
        schedule = self._open(images.shape[1:])
        if self._is_first:
            schedule.step(torch.cat([images, images.new_zeros(missing, *images.shape[1:])]))
        elif self._is_last:
            schedule.step(target=torch.cat([labels, labels.new_full((missing,), _PADDING)]), losses=[])
        else:
            schedule.step()
        return self._loss_sum

    def _scaled_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        loss_sum = cross_entropy(scores, labels, reduction="sum", ignore_index=_PADDING)
        self._loss_sum = self._loss_sum + loss_sum.detach()
        return loss_sum * self._scale

    def backward(self) -> None:
        """Do nothing: with 1F1B, forward has done it."""

    def scores(self, images: Tensor) -> Tensor | None:
        passed = self._passed(len(images), images.shape[1:])
        if not len(images):
            return images.new_zeros(passed[-1].shape) if self._is_last else None
        values = images
        if not self._is_first:
            values = images.new_empty(passed[self._index].shape)
            dist.recv(values, dist.get_global_rank(self._group, self._index - 1), group=self._group)
        computed: Tensor = self.model(values)
        if self._is_last:
            return computed
        dist.send(computed.contiguous(), dist.get_global_rank(self._group, self._index + 1), group=self._group)
        return None

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, value) for name, value in self._own.items() if isinstance(value, nn.Parameter)]

    def full_state(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], OptimizerState]:
        return self._whole(), whole_optimizer_state(optimizer, dict(self.named_parameters()), self._parts, self._device)

    def load(self, optimizer: torch.optim.Optimizer, model: Mapping[str, Tensor], state: OptimizerState) -> None:
        load_parts(optimizer, self._own, self._parts, model, state)

    def digest(self) -> str:
        return digest_state(self._whole())

    def _whole(self) -> dict[str, Tensor]:
        return whole_state(self._own, self._parts, self._device)
