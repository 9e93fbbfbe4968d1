"""How the progress and the result of a training are put into words, for ranks and for the controller. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["progress_words", "result_lines", "resumed_words"]


def progress_words(told: Mapping[str, Any]) -> str:
    """One line of progress: where it is, loss, samples/s, time left."""
    words = [f"step {told['step']}/{told['num_steps']}"]
    if told["num_epochs"] > 0:
        words.insert(0, f"epoch {min(told['epoch'] + 1, told['num_epochs'])}/{told['num_epochs']}")
    if told["loss"] is not None:
        words.append(f"loss {told['loss']:.4f}")
    if told["accuracy"] is not None:
        words.append(f"accuracy {told['accuracy']:.4f}")
    if told["samples_per_s"] is not None:
        words.append(f"{told['samples_per_s']:,.0f} samples/s")
    if told["left_s"] is not None:
        words.append(f"{_clock(told['left_s'])} left")
    return ", ".join(words)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def resumed_words(name: str, step: int) -> str:
    """``name``: a path, or ``step 40`` where the newest one was taken."""
    return f"resumed from the checkpoint of step {step}" + ("" if name.startswith("step ") else f", {name}")


def result_lines(told: Mapping[str, Any]) -> list[str]:
    """The last lines of a training, the most important one first."""
    lines = [_headline(told)]
    if told["resumed_from"]:
        lines.append(resumed_words(told["resumed_from"], told["first_step"]))
    lines += list(told["notes"])
    if told["difference"]:
        lines.append(f"digests of the ranks differ: {told['difference']}")
    elif told["digest"]:
        one = told["world_size"] == 1
        lines.append(
            f"digest of the one rank: {told['digest']}" if one else f"digests of all ranks equal: {told['digest']}"
        )
    if told["checkpoint"]:
        lines.append(f"checkpoint: {told['checkpoint']}")
    if told["log"]:
        lines.append(f"log: {told['log']}")
    if told["profile"]:
        lines.append(f"profile: {told['profile']}")
    return lines


def _headline(told: Mapping[str, Any]) -> str:
    where = f"step {told['step']} of {told['num_steps']}"
    if told["nonfinite"] is not None:
        ranks = ", ".join(str(rank) for rank in told["nonfinite"])
        return (
            f"stopped at {where}: the loss was not a finite number on rank {ranks}; lower --lr, or look at that device."
        )
    figures = []
    if told["accuracy"] is not None:
        figures.append(f"accuracy {told['accuracy']:.4f} ({told['num_correct']} of {told['num_evaluated']})")
    if told["loss"] is not None:
        figures.append(f"loss {told['loss']:.4f}")
    if told["samples_per_s"] is not None:
        figures.append(f"{told['samples_per_s']:,.0f} samples/s")
    if told["stopped"]:
        kept = (
            "what was trained is in the checkpoint" if told["checkpoint"] else "nothing was saved (no --checkpoint-dir)"
        )
        return f"stopped on request after {where}; {kept}"
    if told["missed"] is not None:
        return f"after {where}: " + ", ".join(figures) + f"; the target accuracy {told['missed']:g} was missed"
    return f"trained {told['step']} of {told['num_steps']} steps" + (": " + ", ".join(figures) if figures else "")
