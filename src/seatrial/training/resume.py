"""Saving a training and resuming it so that every bit is the same as without an interruption.

The order of the samples, their augmentation, the learning rate and the seed of dropout are functions of the step, so of
these only the step is saved. A state also has the parameters, the optimizer, the buffers, and the recipe; a checkpoint
of another recipe is refused.
"""

from __future__ import annotations

import ctypes
import io
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from seatrial.errors import RequestError, SeatrialError
from seatrial.training.buffers import averaged, load_buffers
from seatrial.training.plain_content import MOST_BYTES, in_words, load_plain, shown
from seatrial.training.plain_pickle import RefusedContentError
from seatrial.training.precision import LossScale
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import synchronize
from seatrial.training.strategies.strategy import Strategy

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
"""Fields of a recipe that may differ after a resume: how long, how fast, and how it is computed. The other fields
decide what is learned from which data, or what the saved numbers mean."""
_FORMAT = 1
_MOST_DIFFERENCES = 8
"""Fields that a message lists."""
_LARGEST = 1 << 63
_KEYS_OF_OPTIMIZERS = {
    "sgd": {"momentum_buffer"},
    "adam": {"step", "exp_avg", "exp_avg_sq"},
    "adamw": {"step", "exp_avg", "exp_avg_sq"},
}
"""Values that an optimizer has for each parameter once it has taken a step."""
_STEP = torch.empty((), dtype=torch.float32, device="meta")
"""Adam's count of the steps."""
_MOVE = "; move it away, or give another one."
_MOST_RANKS = 4_096
"""A checkpoint of 4,096 ranks is read, however few train now: it has the buffers of each."""
_LARGEST_MODEL_BYTES = 160 << 20
"""More than the largest model has here with its optimizer, so that a checkpoint of another model is read, and refused
by what differs."""

Result = TypeVar("Result")


class DisturbedError(SeatrialError, ConnectionError):
    """A message of rank 0 that arrives changed. Any rank can change a sum, so rank 0 is a witness of it."""


class FirstRankError(SeatrialError, ConnectionError):
    """Rank 0 could not do something that the others wait for, and says why: this rank has only lost it."""


@dataclass(slots=True, kw_only=True)
class Position:
    """The progress of a training; the same on all ranks."""

    step: int = 0
    """Steps done."""
    samples_seen: int = 0
    """Training samples of all ranks since the training began."""
    epoch_loss_sum: float = 0.0
    """Loss sum over the samples of the current epoch so far."""
    epoch_samples: int = 0
    """Samples of the current epoch so far."""

    def advance(self, num_samples: int) -> None:
        """Count one step with ``num_samples`` samples; its loss is added when it is known."""
        self.step += 1
        self.samples_seen += num_samples
        self.epoch_samples += num_samples

    def begin_epoch(self) -> None:
        """Reset the counts of the epoch."""
        self.epoch_loss_sum, self.epoch_samples = 0.0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The parts of a training that a checkpoint is made of, on one rank."""

    recipe: Recipe
    strategy: Strategy
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale
    position: Position
    group: dist.ProcessGroup
    device: torch.device


class CheckpointStore(Protocol):
    """Checkpoints of one training. Only rank 0 uses it, so only its node needs the folder or service behind it.

    A state consists of dicts and lists of tensors and primitives. ``checkpoint.CheckpointFolder`` is one.
    """

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write a new checkpoint and return its path; it exists completely or not at all."""

    def newest(self, most_bytes: int = MOST_BYTES) -> tuple[int, Mapping[str, Any]] | None:
        """Return step and state of the newest valid checkpoint; None when there is none. A larger one is not valid."""

    def load(self, path: Path, most_bytes: int = MOST_BYTES) -> tuple[int, Mapping[str, Any]]:
        """Return step and state of that file. Raises SeatrialError when it is damaged, larger, or no checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Where and when a training saves, and what it resumes from. The same on all ranks, except for ``store``."""

    store: CheckpointStore
    """Every rank gives one; only the one of rank 0 is used."""
    save_every: int = 0
    """Epochs between checkpoints; 0: save only at the end and when the training is stopped."""
    resume: str = "auto"
    """``auto``: resume from the newest checkpoint if there is one; ``never``; or the path of a checkpoint."""
    restarted: bool = False
    """Whether this training was started before with the same arguments. A later checkpoint in the store is then its
    own, and it is resumed whatever ``resume`` says."""

    def is_due(self, epoch: int) -> bool:
        """Return whether to save after this epoch, counted from 0."""
        return self.save_every > 0 and (epoch + 1) % self.save_every == 0


def save_state(training: Training, store: CheckpointStore) -> Path | None:
    """Write a checkpoint on rank 0, which alone gets its path. All ranks call this and wait for it.

    Raises SeatrialError, on all ranks, when the checkpoint could not be written.
    """
    state = _make_state(training)
    return _on_rank_0(
        lambda: store.save(training.position.step, state), training.group, training.device, "save a checkpoint"
    )


def _make_state(training: Training) -> dict[str, Any]:
    """Return the state after a step, made of tensors and primitives only. Complete on rank 0; all ranks call this."""
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
        # The buffers of each rank, shape (ranks, numbers); ``model`` has their average.
        "buffers": rows.cpu(),
    }


def find_state(
    checkpoints: Checkpointing,
    group: dist.ProcessGroup,
    device: torch.device,
    require_fit: Callable[[str, Mapping[str, Any]], None],
    most_bytes: int = MOST_BYTES,
) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the state of the checkpoint to resume from; None to start a new training.

    Rank 0 reads it, and all ranks get the same or all raise. It travels as the bytes that torch.save writes and is read
    by ``load_plain``, so it cannot bring code along. Raises SeatrialError or RequestError.

    Args:
        checkpoints: Where to look.
        group: The ranks that train together.
        device: The device of this rank.
        require_fit: Raises RequestError for the name and the state of a checkpoint that does not fit. Rank 0 calls it
            before it sends what somebody has planted, and all ranks call it for what arrives.
        most_bytes: The largest file that rank 0 reads.
    """

    store, resume = checkpoints.store, checkpoints.resume

    def read_on_rank_0() -> torch.Tensor:
        chosen = store.newest(most_bytes)
        name = "" if chosen is None else f"step {chosen[0]}"
        if chosen is not None and resume == "never" and not checkpoints.restarted:
            raise RequestError(
                f"the checkpoint folder has a checkpoint of {name} and resume is never: checkpoints of two trainings "
                "must not share a folder; give another folder, or resume."
            )
        if resume not in ("auto", "never"):
            given = store.load(Path(resume), most_bytes)
            if chosen is None or chosen[0] <= given[0]:
                chosen, name = given, Path(resume).name
            elif not checkpoints.restarted:
                raise RequestError(
                    f"the checkpoint folder has a checkpoint of {name}, later than {Path(resume).name}: the next "
                    "restart would resume from that one; give another folder, or move the later checkpoints away."
                )
        if chosen is None:
            return torch.zeros(0, dtype=torch.uint8)
        step, state = chosen[0], dict(chosen[1])
        require_fit(name, state)
        if state.get("step", step) != step:
            raise _misfit(name, f"it is named after step {step}, and has step {state['step']}")
        rows = state.get("buffers")
        if isinstance(rows, torch.Tensor) and len(rows) != group.size():
            state["buffers"] = rows[:0].clone()  # of use to as many ranks only
        file = io.BytesIO()
        try:
            torch.save({"name": name, "state": state}, file)
            content = bytearray(file.getbuffer())
            # It may have grown: the others would take it for a message that arrives changed.
            if len(content) > most_bytes:
                raise RefusedContentError(f"it has more than {in_words(most_bytes)}")
            load_plain(content)
        except (RefusedContentError, RuntimeError, ValueError) as error:
            raise _misfit(name, f"it cannot be sent to the other ranks ({shown(str(error))})") from error
        return torch.frombuffer(content, dtype=torch.uint8)

    content = _on_rank_0(read_on_rank_0, group, device, "read a checkpoint")
    # Sums with zeros instead of a broadcast, which would need the world rank of this group's rank 0.
    size = torch.zeros(1, dtype=torch.int64, device=device)
    if content is not None:
        size[0] = content.numel()
    dist.all_reduce(size, group=group)
    synchronize(device)
    size_bytes = int(size.item())
    if size_bytes == 0 and not (content is not None and content.numel()):
        return None
    if not 0 < size_bytes <= most_bytes or size_bytes != (size_bytes if content is None else content.numel()):
        raise DisturbedError(f"a checkpoint of {size_bytes} bytes was announced; test the links between the ranks.")
    content_everywhere = torch.zeros(size_bytes, dtype=torch.uint8) if content is None else content.clone()
    content_everywhere = content_everywhere.to(device)
    dist.all_reduce(content_everywhere, group=group)
    synchronize(device)
    arrived = content_everywhere.cpu()
    if content is not None and not torch.equal(arrived, content):
        raise DisturbedError("the checkpoint that rank 0 has sent arrives changed; test the links between the ranks.")
    name, state = _received(_bytes(arrived))
    try:
        require_fit(name, state)
    except RequestError as error:
        raise DisturbedError(
            f"the checkpoint that rank 0 has sent fits there and not here ({shown(str(error).removesuffix(_MOVE))}); if"
            " all ranks have the same arguments, test the links between them."
        ) from error
    return name, state


def _received(content: bytes) -> tuple[str, dict[str, Any]]:
    """Return name and state out of what rank 0 sent: every rank of the group can change those bytes."""
    try:
        received = load_plain(content)
        name, state = received["name"], received["state"]
        if not isinstance(name, str) or not isinstance(state, dict):
            raise RefusedContentError("it has no name and no state")
    except (RefusedContentError, KeyError, TypeError) as error:
        raise DisturbedError(
            f"the checkpoint that rank 0 has sent is refused: {error}; test the links between the ranks."
        ) from error
    return name, state


def compare_with_saved(
    state: Mapping[str, Any], recipe: Recipe, num_steps: int, world_size: int, device: torch.device
) -> tuple[str, ...]:
    """Return the reasons why the bits will differ from an uninterrupted training, one sentence each; empty if they will
    not.

    Raises RequestError, with the fields that differ, when the state belongs to another training.
    """
    if not _is_of_this_format(state):
        raise RequestError(
            f"the checkpoint has format {shown(state.get('format'))} and this version reads {_FORMAT}; start again in "
            "another folder."
        )
    saved, asked = dict(state["recipe"]), recipe.to_json()
    changed = [name for name in sorted({*saved, *asked}) if saved.get(name) != asked.get(name)]
    refused = [name for name in changed if name not in _MAY_CHANGE]
    if refused:
        differences = "; ".join(
            f"{ascii(name)[1:-1][:100]} was {shown(saved.get(name))} and is now {asked.get(name)!r}"
            for name in refused[:_MOST_DIFFERENCES]
        )
        raise RequestError(
            f"the checkpoint belongs to another training: {differences}. Only {', '.join(_MAY_CHANGE)} may change; "
            "give another checkpoint folder to start a new training."
        )
    if state["step"] > num_steps:
        raise RequestError(
            f"the checkpoint is at step {state['step']}, beyond the {num_steps} requested steps; request more, or give "
            "another checkpoint folder."
        )
    notes = [f"{name} was {shown(saved.get(name))} and is now {asked.get(name)!r}." for name in changed]
    if state["world_size"] != world_size:
        notes.append(
            f"{state['world_size']} ranks trained before and {world_size} train now: each sample still comes once per "
            "epoch, but sums over ranks round differently."
        )
    made_by = _made_by(device)
    if state["made_by"] != made_by:
        notes.append(
            f"it was saved by {shown(state['made_by'])} and continues with {made_by}, which may round differently."
        )
    if device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
        notes.append("GPU kernels may sum in another order from run to run, and round differently.")
    return tuple(notes)


def require_fields(name: str, state: Mapping[str, Any]) -> None:
    """Raise RequestError, with the name of the checkpoint and of the first field that is none, for a damaged state."""
    if not _is_of_this_format(state):
        return  # compare_with_saved says so
    numbers = ["world_size", *(field.name for field in fields(Position))]
    kinds: dict[str, type | tuple[type, ...]] = dict.fromkeys(numbers, (int, float))
    kinds |= {**dict.fromkeys(("made_by", "recipe_digest"), str), **dict.fromkeys(("seed", "global_batch_size"), int)}
    kinds |= dict.fromkeys(("recipe", "model", "optimizer"), dict)
    if more := [key for key in state if key not in {*kinds, "format", "loss_scale", "buffers"}]:
        raise _misfit(name, f"{shown(more[0])} is no part of a training")
    wrong = [key for key, kind in kinds.items() if not isinstance(state.get(key), kind)]
    wrong += [key for key in numbers if key not in wrong and not 0 <= state[key] < _LARGEST]
    wrong += [key for key in numbers if key not in (*wrong, "epoch_loss_sum") and type(state[key]) is not int]
    scale, rows = state.get("loss_scale"), state.get("buffers")
    lowest = {"factor": 1e-30, "good_steps": 0}
    if not isinstance(scale, dict) or (
        scale and (scale.keys() != lowest.keys() or not all(_is_number(scale[key], low) for key, low in lowest.items()))
    ):
        wrong.append("loss_scale")
    if not isinstance(rows, torch.Tensor) or rows.dim() != 2:
        wrong.append("buffers")
    if "recipe" not in wrong and not all(
        isinstance(key, str) and (value is None or isinstance(value, (bool, int, float, str)))
        for key, value in state["recipe"].items()
    ):
        wrong.append("recipe")
    if wrong:
        raise _misfit(name, f"it has no usable {wrong[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Shapes, types and numbers of the tensors of a state, alike on all ranks."""

    entries: Mapping[str, torch.Tensor]
    """The entries of the whole model's state dict, on the device ``meta``: shapes and types without numbers."""
    num_buffers: int
    """Numbers in the buffers of one rank."""

    def most_bytes(self, num_ranks: int) -> int:
        """Return the size of the largest file that is read for a training of ``num_ranks`` ranks."""
        model = sum(entry.numel() * entry.element_size() for entry in self.entries.values())
        optimizer = max(map(len, _KEYS_OF_OPTIMIZERS.values())) * model
        rows = max(num_ranks, _MOST_RANKS) * self.num_buffers * torch.float64.itemsize
        return min(model + optimizer + rows + _LARGEST_MODEL_BYTES, MOST_BYTES)


def form_of(model: torch.nn.Module) -> Form:
    """Return the form of the states of a whole model, before a strategy cuts it."""
    entries = {name: torch.empty_like(value, device="meta") for name, value in model.state_dict().items()}
    return Form(entries=entries, num_buffers=sum(buffer.numel() for buffer in model.buffers()))


def require_shapes(name: str, state: Mapping[str, Any], form: Form) -> None:
    """Raise RequestError, with the name of the checkpoint and the first entry that is wrong, for a state of another
    model."""
    model, optimizer, rows = state["model"], state["optimizer"], state["buffers"]
    keys = _KEYS_OF_OPTIMIZERS.get(str(state["recipe"].get("optimizer")), set())
    for entry, like in form.entries.items():
        if entry not in model:
            raise _misfit(name, f"{entry!r} of its model is missing")
        if wrong := _difference(model[entry], like.shape, like.dtype):
            raise _misfit(name, f"{entry!r} of its model has {wrong}")
    for part, entries, kind in (("model", model, "model"), ("optimizer", optimizer, "parameter")):
        if more := [entry for entry in entries if entry not in form.entries]:
            raise _misfit(name, f"{shown(more[0])} of its {part} is of no {kind} here")
    for entry, values in optimizer.items():
        if not isinstance(values, dict):
            raise _misfit(name, f"{entry!r} of its optimizer has no values")
        if values.keys() != keys:
            raise _misfit(name, f"{entry!r} of its optimizer has other values than {' and '.join(sorted(keys))}")
        for key, value in values.items():
            like = _STEP if key == "step" else form.entries[entry]
            if wrong := _difference(value, like.shape, like.dtype):
                raise _misfit(name, f"{key} of {entry!r} in its optimizer has {wrong}")
    # Rank 0 sends no rows that are of no use to as many ranks as train now.
    num_rows = 0 if len(rows) == 0 else state["world_size"]
    dtype = rows.dtype if form.num_buffers == 0 else torch.float64
    if wrong := _difference(rows, (num_rows, form.num_buffers), dtype):
        raise _misfit(name, f"the table of its buffers has {wrong}")


def _misfit(name: str, wrong: str) -> RequestError:
    return RequestError(f"checkpoint {name}: {wrong}{_MOVE}")


def _is_of_this_format(state: Mapping[str, Any]) -> bool:
    return type(state.get("format")) is int and state["format"] == _FORMAT


def _is_number(value: object, low: float) -> bool:
    return isinstance(value, (int, float)) and low <= value < _LARGEST


def _difference(value: object, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Return what a tensor has in place of this shape and type, in words; empty for one that has both."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return "no plain tensor"
    if value.shape != shape:
        return f"the shape {tuple(value.shape)} in place of {tuple(shape)}"
    if value.dtype != dtype:
        return f"numbers of {value.dtype} in place of {dtype}"
    # A small part of many numbers would be saved, and sent, with all of them.
    is_part = value.untyped_storage().nbytes() != value.numel() * value.element_size()
    return "more numbers than its shape" if is_part else ""


def load_state(training: Training, state: Mapping[str, Any]) -> None:
    """Load a state into the model, the optimizer and the position of this rank."""
    strategy, position = training.strategy, training.position
    strategy.load(training.optimizer, state["model"], state["optimizer"])
    rows = state["buffers"]
    if rows.shape == (training.group.size(), sum(buffer.numel() for buffer in strategy.model.buffers())):
        with torch.no_grad():
            load_buffers(strategy.model, rows[training.group.rank()])
    training.loss_scale.load(state["loss_scale"])
    for field in fields(position):
        setattr(position, field.name, state[field.name])


def _on_rank_0(
    action: Callable[[], Result], group: dist.ProcessGroup, device: torch.device, what: str
) -> Result | None:
    """Run ``action`` on rank 0 while the others wait; return its result there, None elsewhere.

    When it fails, all ranks raise, so none waits for rank 0 forever.
    """
    failure: Exception | None = None
    result = None
    if group.rank() == 0:
        try:
            result = action()
        except Exception as error:
            failure = error
    flag = torch.tensor([int(failure is not None)], device=device)
    dist.all_reduce(flag, group=group)
    synchronize(device)
    if failure is not None:
        raise failure
    if int(flag.item()) and group.rank() == 0:
        raise DisturbedError(f"another rank says that rank 0 could not {what}, which it could; test the links.")
    if int(flag.item()):
        raise FirstRankError(f"rank 0 could not {what}; its message gives the reason.")
    return result


def _made_by(device: torch.device) -> str:
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"torch {torch.__version__} on {kind}"


def _bytes(content: torch.Tensor) -> bytes:
    # Read the memory directly: torch gives bytes only through NumPy, which may not be installed.
    return ctypes.string_at(content.data_ptr(), content.numel())
