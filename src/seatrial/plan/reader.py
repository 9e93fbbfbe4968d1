"""One strict reader: defaults, a level, a plan file and options become a Plan.

A later source wins over an earlier one, and every value keeps the origin that it came from:

    the dataclass's default      ``default``
    the level                    ``level quick``
    the plan file                ``plan FILE:compute.size``
    an option                    ``--epochs``

Whatever is wrong with a request is a RequestError. Nothing is ignored: a key that nobody reads would be a limit
that its writer believes in and nobody holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeAlias, get_type_hints

from seatrial.errors import RequestError
from seatrial.plan import source as files
from seatrial.plan.model import Plan, Setting
from seatrial.plan.selection import in_order, select, world_without_bootstrap
from seatrial.plan.values import MISFIT, did_you_mean, expected, fit, shortened, shown

__all__ = ["Override", "read_plan"]

Override: TypeAlias = tuple[str, str, Any, str]
"""(check, parameter, value, option): ``("training", "epochs", 5, "--epochs")``."""

_PLAN_KEYS = ("level", "deadline_s", "checks")
_MOST_ORIGINS = 3


def read_plan(
    source: str,
    *,
    schemas: Mapping[str, type[Any]],
    scopes: Mapping[str, str],
    overrides: Sequence[Override] = (),
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    validation_only: bool = False,
) -> Plan:
    """The resolved plan of a level's name or of a plan file's path.

    ``schemas`` maps every check to its Params dataclass and ``scopes`` to its scope: this room knows no check.
    ``only`` and ``skip`` hold check names, one or several with commas between them in each. Raises RequestError.
    """
    plan = _Reading(schemas)
    if files.is_level(source):
        name, where = source, f"level {source}"
        plan.take(files.read_level(source), where, of_file=False)
    else:
        name = files.printable(source)
        where = f"plan {name}"
        plan.read_file(files.read_file(source), where)
    asked = in_order(plan.checks, scopes)
    if stranded := world_without_bootstrap(asked, scopes):
        raise RequestError(f"{where}: {stranded} cannot run without bootstrap; add bootstrap to checks.")
    selected, left_out = select(asked, scopes, only=only, skip=skip, validation_only=validation_only)
    for check, parameter, value, option in overrides:
        if check not in selected:
            raise RequestError(f"{option} sets {check}.{parameter}, but {check} is not asked for; leave {option} out.")
        plan.set(check, parameter, value, option, option)
    # What the options took out is built too: a wrong table is told, used or not.
    for check in asked:
        plan.build(check)
    return Plan(
        name=name,
        checks=selected,
        not_asked={**plan.not_asked, **left_out},
        deadline_s=plan.deadline_s,
        settings={check: plan.settings[check] for check in selected},
    )


class _Reading:
    """The plan while its sources are laid one over the other."""

    def __init__(self, schemas: Mapping[str, type[Any]]) -> None:
        self.schemas = schemas
        self.checks: tuple[str, ...] = ()
        self.not_asked: dict[str, str] = {}
        self.deadline_s = Setting(value=None, origin="")
        self.settings: dict[str, dict[str, Setting]] = {}
        self._hints: dict[str, dict[str, Any]] = {}
        for check, schema in schemas.items():
            self._hints[check] = get_type_hints(schema)
            self.settings[check] = {
                field.name: Setting(value=field.default, origin="default")
                for field in fields(schema)
                if field.default is not MISSING
            }

    def read_file(self, document: Mapping[str, Any], where: str) -> None:
        """Take a file, over the level that it names or on its own."""
        level = document.get("level")
        if level is not None:
            if not isinstance(level, str) or not files.is_level(level):
                hint = did_you_mean(level, files.LEVELS) if isinstance(level, str) else "."
                raise RequestError(f"{where}: level is {shown(level)}, expected one of {', '.join(files.LEVELS)}{hint}")
            self.take(files.read_level(level), f"level {level}", of_file=False)
        else:
            for key in ("deadline_s", "checks"):
                if key not in document:
                    raise RequestError(
                        f'{where}: {key} is missing; give it, or start from a level with level = "quick".'
                    )
        # A file of its own leaves out what it does not ask of all the checks that there are.
        before = self.checks or tuple(self.schemas)
        self.take(document, where, of_file=True)
        self.not_asked = {check: where for check in before if check not in self.checks}

    def take(self, document: Mapping[str, Any], where: str, *, of_file: bool) -> None:
        """Lay one document over what is there.

        A level may hold tables of checks that it does not ask for, for files that start from it and do. In a file
        such a table is refused: its writer would believe that the check runs.
        """
        for key in document:
            if key not in self.schemas and key not in _PLAN_KEYS:
                hint = did_you_mean(key, (*_PLAN_KEYS, *self.schemas))
                raise RequestError(f"{where}: nobody knows the key {shown(key)}{hint}")
        if not of_file and "level" in document:
            raise RequestError(f"{where}: a level cannot start from another level; take the key level out.")
        if "deadline_s" in document:
            self._set_deadline(document["deadline_s"], where, f"{where}:deadline_s" if of_file else where)
        if "checks" in document:
            self._set_checks(document["checks"], where)
        for check in (key for key in document if key in self.schemas):
            table = document[check]
            if not isinstance(table, dict):
                raise RequestError(f"{where}: {check} is {shown(table)}, expected a table [{check}].")
            if of_file and check not in self.checks:
                raise RequestError(
                    f"{where}: there is a table [{check}], but the plan does not ask for {check};"
                    " add it to checks or take the table out."
                )
            for parameter, value in table.items():
                origin = f"{where}:{check}.{parameter}" if of_file else where
                self.set(check, parameter, value, where, origin)

    def set(self, check: str, parameter: str, value: Any, where: str, origin: str) -> None:
        """Give one parameter a value, if it is one that the parameter may have."""
        path = f"{check}.{parameter}"
        hints = self._hints[check]
        if parameter not in hints:
            hint = did_you_mean(parameter, tuple(hints))
            raise RequestError(f"{where}: the check {check} has no parameter {shown(parameter)}{hint}")
        fitting = fit(value, hints[parameter])
        if fitting is MISFIT:
            raise RequestError(f"{where}: {path} is {shown(value)}, expected {expected(hints[parameter])}.")
        _refuse_wrong_time(parameter, fitting, f"{where}: {path}")
        self.settings[check][parameter] = Setting(value=fitting, origin=origin)

    def build(self, check: str) -> None:
        """Make the check's Params once: they may refuse what no single value shows. Raises RequestError."""
        settings = self.settings[check]
        for field in fields(self.schemas[check]):
            if field.name not in settings:
                raise RequestError(
                    f"{check}.{field.name} has no value; set {field.name} in the plan's table [{check}]."
                )
        try:
            self.schemas[check](**{name: setting.value for name, setting in settings.items()})
        except (ValueError, ArithmeticError, RequestError) as error:
            origins = [*dict.fromkeys(each.origin for each in settings.values() if each.origin != "default")]
            told = ", ".join(origins[:_MOST_ORIGINS]) or "the defaults"
            more = f" and {len(origins) - _MOST_ORIGINS} more" if len(origins) > _MOST_ORIGINS else ""
            reason = shortened(str(error)).rstrip(".")
            raise RequestError(f"{check}: {reason} (values from {told}{more}).") from error

    def _set_deadline(self, value: Any, where: str, origin: str) -> None:
        seconds = fit(value, float)
        if seconds is MISFIT or seconds <= 0:
            raise RequestError(f"{where}: deadline_s is {shown(value)}, expected seconds above 0.")
        self.deadline_s = Setting(value=seconds, origin=origin)

    def _set_checks(self, value: Any, where: str) -> None:
        checks = fit(value, tuple[str, ...])
        if checks is MISFIT or not checks:
            raise RequestError(f"{where}: checks is {shown(value)}, expected a list with at least one check's name.")
        for check in checks:
            if check not in self.schemas:
                hint = did_you_mean(check, tuple(self.schemas))
                raise RequestError(f"{where}: checks has {shown(check)}, which is no check{hint}")
            if checks.count(check) > 1:
                raise RequestError(f"{where}: checks has {check} more than once; name it once.")
        self.checks = checks


def _refuse_wrong_time(parameter: str, value: Any, path: str) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    if parameter.endswith("_s") and any(isinstance(number, int | float) and number < 0 for number in numbers):
        raise RequestError(f"{path} is {shown(value)}, expected seconds of 0 or more.")
    if parameter == "timeout_s" and 0 in numbers:
        # Nobody could be in time, and somebody would be blamed for it.
        raise RequestError(f"{path} is {shown(value)}, expected seconds above 0.")
