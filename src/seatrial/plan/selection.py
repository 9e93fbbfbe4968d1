"""Which checks of a plan are asked for, in the order of a trial: ``--only``, ``--skip``, ``--validation-only``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seatrial.errors import RequestError
from seatrial.plan.values import did_you_mean, shortened

__all__ = ["in_order", "select", "world_without_bootstrap"]

_SCOPES = ("alone", "node", "pairs", "bootstrap", "world")
"""Each scope needs only what the scopes before it have shown to work."""


def in_order(checks: Sequence[str], scopes: Mapping[str, str]) -> tuple[str, ...]:
    """The checks by scope, and as they are listed inside a scope."""
    return tuple(sorted(checks, key=lambda check: _SCOPES.index(scopes[check])))


def select(
    asked: tuple[str, ...],
    scopes: Mapping[str, str],
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    validation_only: bool = False,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The checks that stay, and for each one taken out the option that did it. Raises RequestError.

    ``asked`` holds bootstrap where it holds a check of the world.
    """
    out: dict[str, str] = {}
    wanted = _names("--only", only, scopes)
    for check in wanted:
        if check not in asked:
            raise RequestError(f"--only {check}: the plan does not ask for {check}; it asks for {', '.join(asked)}.")
    if only:
        kept = set(wanted)
        if world_without_bootstrap(wanted, scopes):
            kept |= {check for check in asked if scopes[check] == "bootstrap"}
        out = dict.fromkeys((check for check in asked if check not in kept), "--only")
    taken = dict.fromkeys(_names("--skip", skip, scopes), "--skip")
    if validation_only:
        taken.setdefault("training", "--validation-only")
    for check, option in taken.items():
        if check in wanted:
            raise RequestError(f"--only asks for {check} and {option} takes it out; leave one of the two out.")
        if check in asked:
            out.setdefault(check, option)
    selected = tuple(check for check in asked if check not in out)
    if not selected:
        raise RequestError(f"nothing is left to check: {', '.join(dict.fromkeys(out.values()))} took everything out.")
    stranded = world_without_bootstrap(selected, scopes)
    if stranded:
        option = next(option for check, option in out.items() if scopes[check] == "bootstrap")
        raise RequestError(
            f"{option} takes out bootstrap, which {stranded} cannot run without; take {stranded} out too."
        )
    return selected, out


def _names(option: str, entries: Sequence[str], scopes: Mapping[str, str]) -> tuple[str, ...]:
    """The names of a repeated option, each entry a name or several with commas between them."""
    names = tuple(dict.fromkeys(name.strip() for entry in entries for name in entry.split(",")))
    for name in names:
        if name not in scopes:
            hint = did_you_mean(name, tuple(scopes))
            typed = shortened(",".join(entries))
            raise RequestError(f"{option} {typed}: {shortened(repr(name))} is no check{hint}")
    return names


def world_without_bootstrap(checks: Sequence[str], scopes: Mapping[str, str]) -> str:
    """The checks, joined by commas, that run in the group that bootstrap forms, where bootstrap is not among them."""
    if any(scopes[check] == "bootstrap" for check in checks):
        return ""
    return ", ".join(check for check in checks if scopes[check] == "world")
