"""The order of checks, and their selection by ``--only``, ``--skip`` and ``--validation-only``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seatrial.errors import RequestError
from seatrial.plan.values import did_you_mean, shortened

_SCOPES = ("agents", "alone", "node", "pairs", "bootstrap", "world")
"""In the order of a trial: each scope needs only what the earlier scopes have shown to work."""


def in_order(checks: Sequence[str], scopes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the checks in the order of their scopes; checks of one scope keep their order."""
    return tuple(sorted(checks, key=lambda check: _SCOPES.index(scopes[check])))


def select(
    asked: tuple[str, ...],
    scopes: Mapping[str, str],
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    validation_only: bool = False,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the selected checks, and for each other one the option that took it out. Raises RequestError.

    ``asked`` contains the checks of ``only``, and bootstrap if it contains a check of scope ``world``.
    """
    left_out: dict[str, str] = {}
    wanted = check_names("--only", only, scopes)
    if only:
        selection = set(wanted)
        if world_without_bootstrap(wanted, scopes):
            selection |= {check for check in asked if scopes[check] == "bootstrap"}
        left_out = dict.fromkeys((check for check in asked if check not in selection), "--only")
    skipped = dict.fromkeys(check_names("--skip", skip, scopes), "--skip")
    if validation_only:
        skipped.setdefault("training", "--validation-only")
    for check, option in skipped.items():
        if check in wanted:
            raise RequestError(f"--only asks for {check} and {option} takes it out; leave one of the two out.")
        if check in asked:
            left_out.setdefault(check, option)
    selected = tuple(check for check in asked if check not in left_out)
    if not selected:
        raise RequestError(
            f"nothing is left to check: {', '.join(dict.fromkeys(left_out.values()))} took out every check."
        )
    stranded = world_without_bootstrap(selected, scopes)
    if stranded:
        option = next(option for check, option in left_out.items() if scopes[check] == "bootstrap")
        raise RequestError(
            f"{option} takes out bootstrap, but {stranded} cannot run without it; take {stranded} out too."
        )
    return selected, left_out


def check_names(option: str, entries: Sequence[str], scopes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the check names of a repeated option; each entry is one name or several with commas between them.

    Raises RequestError for a word that is not a check.
    """
    names = tuple(dict.fromkeys(name.strip() for entry in entries for name in entry.split(",")))
    for name in names:
        if name not in scopes:
            hint = did_you_mean(name, tuple(scopes))
            typed = shortened(",".join(entries))
            raise RequestError(f"{option} {typed}: {shortened(repr(name))} is not a check{hint}")
    return names


def world_without_bootstrap(checks: Sequence[str], scopes: Mapping[str, str]) -> str:
    """Return the checks of scope ``world``, joined by commas, where bootstrap, which forms their group, is missing."""
    if any(scopes[check] == "bootstrap" for check in checks):
        return ""
    return ", ".join(check for check in checks if scopes[check] == "world")
