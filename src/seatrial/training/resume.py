"""Saving a training and taking it up again, so that every bit comes out as if it had never stopped.

Which samples come, how they are varied, the learning rate and the seed of dropout are functions of the step, so the
step is all there is to save of them. What else is in a state: parameters, optimizer and buffers, and the recipe, so
that a checkpoint of another training is refused and not mixed in.
"""

from __future__ import annotations

import ctypes
import io
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from seatrial.errors import RequestError, SeatrialError
from seatrial.training.buffers import averaged, load_buffers
from seatrial.training.precision import LossScale
from seatrial.training.recipe import Recipe
from seatrial.training.strategies.base import Strategy
from seatrial.training.watch import CheckpointStore

__all__ = ["Position", "Training", "compare", "find_state", "load_state", "save_state"]

_MAY_CHANGE = (
    "epochs",
    "max_steps",
    "lr",
    "strategy",
    "model_parallel_size",
    "num_microbatches",
    "amp",
    "compile",
    "channels_last",
)
"""Fields of a recipe in which a resumed training may differ: how long, how fast, and how it is computed. All others
decide what is learned from what, or what the saved numbers mean."""
_FORMAT = 1

Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True)
class Position:
    """Where a training stands; the same on all ranks."""

    step: int = 0
    """Steps done."""
    samples_seen: int = 0
    epoch_loss_sum: float = 0.0
    """Over the samples of the current epoch so far."""
    epoch_samples: int = 0

    def advance(self, num_samples: int) -> None:
        """One step more; its loss is added when it is known."""
        self.step += 1
        self.samples_seen += num_samples
        self.epoch_samples += num_samples

    def begin_epoch(self) -> None:
        """Nothing of the next epoch has been seen."""
        self.epoch_loss_sum, self.epoch_samples = 0.0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a checkpoint is made of, on one rank."""

    recipe: Recipe
    strategy: Strategy
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale
    position: Position
    group: dist.ProcessGroup
    device: torch.device


def save_state(training: Training, store: CheckpointStore) -> Path | None:
    """Write a checkpoint, on rank 0, which alone learns its path; all ranks call this and wait for it.

    Raises SeatrialError, on all ranks, when it could not be written.
    """
    state = _make_state(training)
    return _on_rank_0(
        lambda: store.save(training.position.step, state), training.group, training.device, "save a checkpoint"
    )


def _make_state(training: Training) -> dict[str, Any]:
    """The state after a step, of tensors and primitives only. Whole on rank 0; all ranks call this."""
    recipe, position = training.recipe, training.position
    with averaged(training.strategy.model, training.group) as rows:
        model, optimizer_state = training.strategy.full_state(training.optimizer)
    return {
        "format": _FORMAT,
        **asdict(position),
        "seed": recipe.seed,
        "world_size": training.group.size(),
        "global_batch_size": recipe.global_batch_size,
        "recipe": recipe.to_json(),
        "recipe_digest": recipe.digest(),
        "made_by": _made_by(training.device),
        "model": model,
        "optimizer": optimizer_state,
        "loss_scale": training.loss_scale.state(),
        # Each rank's own; ``model`` has their average.
        "buffers": rows.cpu(),
    }


def find_state(
    store: CheckpointStore, resume: str, group: dist.ProcessGroup, device: torch.device, *, restarted: bool = False
) -> tuple[str, dict[str, Any]] | None:
    """What to resume from, and its name: rank 0 looks, all ranks are given the same, or all raise.

    ``restarted``: what the store holds is of this training, so ``never`` and a path held for its begin only.

    ``resume`` is auto (the newest checkpoint, if there is one), never, or a path. What travels is what torch.save
    writes, read with ``weights_only``: no code can come with it. Raises SeatrialError or RequestError.
    """

    def look() -> torch.Tensor:
        found = store.newest()
        name = "" if found is None else f"step {found[0]}"
        if found is not None and resume == "never" and not restarted:
            raise RequestError(
                f"the checkpoint folder holds one of {name} and resume is never: checkpoints of two trainings "
                "in one folder would be mixed up; give another folder, or resume."
            )
        if resume not in ("auto", "never"):
            asked = store.load(Path(resume))
            if found is None or found[0] <= asked[0]:
                found, name = asked, Path(resume).name
            elif not restarted:
                raise RequestError(
                    f"the checkpoint folder holds one of {name}, later than {Path(resume).name}: the next restart "
                    "would go on from that one; give another folder, or move the later ones away."
                )
        if found is None:
            return torch.zeros(0, dtype=torch.uint8)
        state = found[1]
        file = io.BytesIO()
        torch.save({"name": name, "state": dict(state)}, file)
        return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)

    content = _on_rank_0(look, group, device, "read a checkpoint")
    # As sums with zeros: a broadcast would need the number of rank 0 in the world, which a group of its own has not.
    size = torch.zeros(1, dtype=torch.int64, device=device)
    if content is not None:
        size[0] = content.numel()
    dist.all_reduce(size, group=group)
    size_bytes = int(size.item())
    if size_bytes == 0:
        return None
    everywhere = torch.zeros(size_bytes, dtype=torch.uint8) if content is None else content
    everywhere = everywhere.to(device)
    dist.all_reduce(everywhere, group=group)
    found = torch.load(io.BytesIO(_bytes(everywhere.cpu())), map_location="cpu", weights_only=True)
    return found["name"], found["state"]


def compare(
    state: Mapping[str, Any], recipe: Recipe, num_steps: int, world_size: int, device: torch.device
) -> tuple[str, ...]:
    """Why the bits will differ from those of an uninterrupted training, one sentence each; empty if they will not.

    Raises RequestError when this is not the same training, with the fields that differ.
    """
    if state.get("format") != _FORMAT:
        raise RequestError(
            f"the checkpoint has format {state.get('format')!r} and this version reads {_FORMAT}; start anew in "
            "another folder."
        )
    saved, asked = dict(state["recipe"]), recipe.to_json()
    changed = [name for name in sorted({*saved, *asked}) if saved.get(name) != asked.get(name)]
    refused = [name for name in changed if name not in _MAY_CHANGE]
    if refused:
        told = "; ".join(f"{name} was {saved.get(name)!r} and is now {asked.get(name)!r}" for name in refused)
        raise RequestError(
            f"the checkpoint is of another training: {told}. Only {', '.join(_MAY_CHANGE)} may change; give another "
            "checkpoint folder to start anew."
        )
    if state["step"] > num_steps:
        raise RequestError(
            f"the checkpoint is at step {state['step']}, beyond the {num_steps} steps asked for; ask for more, or give "
            "another checkpoint folder."
        )
    notes = [f"{name} was {saved.get(name)!r} and is now {asked.get(name)!r}." for name in changed]
    if state["world_size"] != world_size:
        notes.append(
            f"{state['world_size']} ranks trained before and {world_size} do now: each sample still comes once an "
            "epoch, but sums over ranks round differently."
        )
    made_by = _made_by(device)
    if state["made_by"] != made_by:
        notes.append(f"it was saved by {state['made_by']} and goes on with {made_by}, which may round differently.")
    if device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
        notes.append("kernels of a GPU may add up in another order from run to run, and round differently.")
    return tuple(notes)


def load_state(training: Training, state: Mapping[str, Any]) -> None:
    """Put a state into the model, the optimizer and the position of each rank."""
    strategy, position = training.strategy, training.position
    strategy.load(training.optimizer, state["model"], state["optimizer"])
    rows = state["buffers"]
    if rows.shape[1] and len(rows) == training.group.size():
        with torch.no_grad():
            load_buffers(strategy.model, rows[training.group.rank()])
    training.loss_scale.load(state["loss_scale"])
    for field in fields(position):
        setattr(position, field.name, state[field.name])


def _on_rank_0(
    action: Callable[[], Result], group: dist.ProcessGroup, device: torch.device, what: str
) -> Result | None:
    """Do something on rank 0 while the others wait: None there. When it fails, all ranks raise, and nobody is left
    waiting for rank 0."""
    failed: Exception | None = None
    result = None
    if group.rank() == 0:
        try:
            result = action()
        except Exception as error:
            failed = error
    flag = torch.tensor([int(failed is not None)], device=device)
    dist.all_reduce(flag, group=group)
    if failed is not None:
        raise failed
    if int(flag.item()):
        raise SeatrialError(f"rank 0 could not {what}; its own message says why.")
    return result


def _made_by(device: torch.device) -> str:
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"torch {torch.__version__} on {kind}"


def _bytes(content: torch.Tensor) -> bytes:
    # The memory itself: torch hands out bytes only through numpy, which need not be there.
    return ctypes.string_at(content.data_ptr(), content.numel())
