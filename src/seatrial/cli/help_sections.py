"""What ``--help`` of a command shows: the usual options and the targets, or with ``--on TARGET`` all for one target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seatrial.cli.command import Command, num_own_words, options_of
from seatrial.targets.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpSections:
    """The parts of a help below its first paragraphs."""

    options: Mapping[str, tuple[Option, ...]]
    """Heading -> the options below it."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Word after ``--on`` -> what it is. Empty where the help is that of one target."""


def help_sections(command: Command, arguments: Sequence[str]) -> HelpSections:
    """Return what the help of a command shows.

    Nine targets have about sixty options together, of which a run takes those of one: where no target was typed the
    help lists the targets, and leaves out their options and the rare ones.

    Args:
        command: the command.
        arguments: the words that were typed after its name.
    """
    if not any(option.name == "target" for option in options_of(command)):
        return HelpSections(options=command.options())
    from seatrial.targets.registry import TARGETS

    words = [command.name, *arguments]
    target = TARGETS.get(_typed_target(words[: num_own_words(words)]))
    of_targets = {option for each in TARGETS.values() for option in each.options}
    shown = {
        heading: tuple(
            option
            for option in options
            if (target is not None and option in target.options)
            or (option not in of_targets and (target is not None or not option.rare))
        )
        for heading, options in command.options().items()
    }
    return HelpSections(
        options={heading: options for heading, options in shown.items() if options},
        targets={} if target else {name: each.help for name, each in TARGETS.items()},
    )


def closing(program: str) -> str:
    """Return the last sentence of a help that lists the targets. ``program``: the words up to the command."""
    return f"All options: {program} --on TARGET --help"


def _typed_target(words: Sequence[str]) -> str:
    """Return the last word that was typed after ``--on``; empty without one."""
    target = ""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word == "--on":
            target = following
        elif word.startswith("--on="):
            target = word.removeprefix("--on=")
    return target
