"""The progress and the result of a training as lines for people. Ranks and the controller use it; it imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def progress_words(progress: Mapping[str, Any]) -> str:
    """Return one line of progress: step, loss, samples/s, time left."""
    words = [f"step {progress['step']}/{progress['num_steps']}"]
    if progress["num_epochs"] > 0:
        words.insert(0, f"epoch {min(progress['epoch'] + 1, progress['num_epochs'])}/{progress['num_epochs']}")
    if progress["loss"] is not None:
        words.append(f"loss {progress['loss']:.4f}")
    if progress["accuracy"] is not None:
        words.append(f"accuracy {progress['accuracy']:.4f}")
    if progress["samples_per_s"] is not None:
        words.append(f"{progress['samples_per_s']:,.0f} samples/s")
    if progress["left_s"] is not None:
        words.append(f"{_clock(progress['left_s'])} left")
    return ", ".join(words)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def resumed_words(name: str, step: int) -> str:
    """Return the words for a resumed training; ``name`` is a path, or ``step 40`` for the newest checkpoint."""
    return f"resumed from the checkpoint of step {step}" + ("" if name.startswith("step ") else f", {name}")


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the last lines of a training, the most important first; ``result`` as ``train_rank`` makes it."""
    lines = [_headline(result)]
    if result["resumed_from"]:
        lines.append(resumed_words(result["resumed_from"], result["first_step"]))
    lines += list(result["notes"])
    if result["difference"]:
        lines.append(f"digests of the ranks differ: {result['difference']}")
    elif result["digest"]:
        one = result["world_size"] == 1
        lines.append(
            f"digest of the one rank: {result['digest']}" if one else f"digests of all ranks equal: {result['digest']}"
        )
    if result["checkpoint"]:
        lines.append(f"checkpoint: {result['checkpoint']}")
    if result["log"]:
        lines.append(f"log: {result['log']}")
    if result["profile"]:
        lines.append(f"profile: {result['profile']}")
    return lines


def _headline(result: Mapping[str, Any]) -> str:
    progress = f"step {result['step']} of {result['num_steps']}"
    if result["nonfinite"] is not None and result["nonfinite"]["what"] == "gradients":
        return (
            f"stopped at {progress}: gradients overflow in fp16 even with the lowest scale of the loss, so the model"
            " can no longer learn; use --amp bf16 or lower --lr. All ranks count the overflows together, so nothing"
            " shows which of them, or which link, brought that about."
        )
    if result["nonfinite"] is not None:
        # This rank knows of the others only what arrived of them: each rank reports its own numbers.
        in_loss = result["nonfinite"]["what"] == "loss"
        what = "the loss was NaN or Inf" if in_loss else "NaN or Inf in the parameters; no checkpoint was written"
        return (
            f"stopped at {progress}: {what}; lower --lr. It spreads with the gradients: if one rank alone reports it of"
            " itself, check its device and the links that lead to it; otherwise all devices and links."
        )
    measurements = []
    if result["accuracy"] is not None:
        measurements.append(f"accuracy {result['accuracy']:.4f} ({result['num_correct']} of {result['num_evaluated']})")
    if result["loss"] is not None:
        measurements.append(f"loss {result['loss']:.4f}")
    if result["samples_per_s"] is not None:
        measurements.append(f"{result['samples_per_s']:,.0f} samples/s")
    if result["stopped"]:
        saved = "the training is saved" if result["checkpoint"] else "nothing was saved (no --checkpoint-dir)"
        return f"stopped on request after {progress}; {saved}"
    if result["missed"] is not None:
        return (
            f"after {progress}: " + ", ".join(measurements) + f"; the target accuracy {result['missed']:g} was missed"
        )
    return f"trained {result['step']} of {result['num_steps']} steps" + (
        ": " + ", ".join(measurements) if measurements else ""
    )
