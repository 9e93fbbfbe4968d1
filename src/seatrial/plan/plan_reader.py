"""The plan reader: merges defaults, a level, a plan file and options into a Plan.

A later source wins over an earlier one, and every value keeps its origin:

    the default of the dataclass ``default``
    the level                    ``level quick``
    the plan file                ``plan FILE:compute.size``, or ``plan FILE: WORDS`` by its table ``[origins]``
    an option                    ``--epochs``

A mistake in a request is a RequestError. Nothing is ignored: an unknown key could be a limit that its writer relies on
and no check applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, TypeAlias, get_type_hints

from seatrial.errors import RequestError
from seatrial.files import exists
from seatrial.plan.model import Plan, Setting
from seatrial.plan.plan_file import LEVELS, is_level, read_file, read_level
from seatrial.plan.selection import check_names, in_order, select, world_without_bootstrap
from seatrial.plan.values import MISFIT, did_you_mean, expected, fit, shortened, shown
from seatrial.util.text import plan_value, printable

Override: TypeAlias = tuple[str, str, Any, str]
"""(check, parameter, value, option): ``("training", "epochs", 5, "--epochs")``."""

_PLAN_KEYS = ("level", "deadline_s", "checks", "demands_limits", "origins")
LONGEST_ORIGIN = 200
"""Most characters of an origin that a plan file gives."""
_MOST_ORIGINS = 3
_STEP_SHARE = 0.75
"""The part of a trial's deadline that a step may take, so that ranks have time to start, and to end after a hang."""
OF_DEADLINE = f"{_STEP_SHARE:g} x the trial's deadline"
"""Begins the origin of a timeout that was shortened to fit into the deadline."""


def read_plan(
    source: str,
    *,
    schemas: Mapping[str, type[Any]],
    scopes: Mapping[str, str],
    work: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    overrides: Sequence[Override] = (),
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    validation_only: bool = False,
) -> Plan:
    """Return the resolved plan. Raises RequestError.

    Args:
        source: the name of a level or the path of a plan file.
        schemas: check -> its Params dataclass. This package imports no check.
        scopes: check -> its scope.
        work: check -> its parameters that say how much it measures.
        overrides: values of parameters that options set.
        only: check names of ``--only``, each entry one or several with commas between them.
        skip: check names of ``--skip``, alike.
        validation_only: leave out the training.
    """
    if source in scopes and not exists(source):
        both = ",".join([*only, source])
        raise RequestError(f"plan {source!r}: that is a check; give checks with commas between: --only {both}.")
    if source.endswith((".py", ".sh")):
        raise RequestError(f"plan {printable(source)!r}: a script is no plan; seatrial launch starts it.")
    plan = _PlanBuilder(schemas)
    document = None if is_level(source) else read_file(source)
    if document is None:
        name, source_name = source, f"level {source}"
        plan.merge(read_level(source), source_name, of_file=False)
    else:
        name = printable(source)
        source_name = f"plan {name}"
        plan.merge_file(document, source_name)
    asked = in_order(plan.checks, scopes)
    if stranded := world_without_bootstrap(asked, scopes):
        raise RequestError(f"{source_name}: {stranded} cannot run without bootstrap; add bootstrap to checks.")
    plan.add(check_names("--only", only, scopes), scopes)
    asked = in_order(plan.checks, scopes)
    selected, left_out = select(asked, scopes, only=only, skip=skip, validation_only=validation_only)
    for check, parameter, value, option in overrides:
        if check not in selected:
            raise RequestError(f"{option} sets {check}.{parameter}, but {check} is not asked for; leave {option} out.")
        plan.set(check, parameter, value, option, option)
    plan.fit_into_deadline()
    # The checks that options took out are built too: a wrong table is an error, used or not.
    for check in asked:
        plan.build(check)
    return Plan(
        name=name,
        checks=selected,
        not_asked={**plan.not_asked, **left_out},
        deadline_s=plan.deadline_s,
        settings={check: plan.settings[check] for check in selected},
        demands_limits=plan.demands_limits,
        reduced=dict(reduced for check in selected for reduced in plan.reduced(check, work.get(check, ()))),
        document=document,
    )


class _PlanBuilder:
    """The plan while its sources are merged."""

    def __init__(self, schemas: Mapping[str, type[Any]]) -> None:
        self.schemas = schemas
        self.checks: tuple[str, ...] = ()
        self.not_asked: dict[str, str] = {}
        self.deadline_s = Setting(value=None, origin="")
        self.demands_limits = False
        self.settings: dict[str, dict[str, Setting]] = {}
        """Check -> parameter -> setting, of the requested checks."""
        self._level = ""
        self._level_tables: Mapping[str, Any] = {}
        """Check -> the table of the level."""
        self._tables_of_level: dict[str, tuple[Mapping[str, Any], str]] = {}
        """Check -> table and source, of the checks that the level has a table for and does not request."""

    def merge_file(self, document: Mapping[str, Any], source_name: str) -> None:
        """Merge a file, over the level that it names if it names one."""
        level = document.get("level")
        if level is not None:
            if not isinstance(level, str) or not is_level(level):
                hint = did_you_mean(level, LEVELS) if isinstance(level, str) else "."
                raise RequestError(f"{source_name}: level is {shown(level)}, expected one of {', '.join(LEVELS)}{hint}")
            self.merge(read_level(level), f"level {level}", of_file=False)
        else:
            for key in ("deadline_s", "checks"):
                if key not in document:
                    raise RequestError(
                        f'{source_name}: {key} is missing; give it, or start from a level with level = "quick".'
                    )
        # A file without a level leaves out every check that it does not request.
        before = self.checks or tuple(self.schemas)
        self.merge(document, source_name, of_file=True)
        self.not_asked = {check: source_name for check in before if check not in self.checks}

    def merge(self, document: Mapping[str, Any], source_name: str, *, of_file: bool) -> None:
        """Merge one document over the values so far; ``source_name`` names it in messages and origins.

        A level may have tables of checks that it does not request, for files that start from it and do. In a file
        such a table is refused: its writer would believe that the check runs.
        """
        for key in document:
            if key not in self.schemas and key not in _PLAN_KEYS:
                hint = did_you_mean(key, (*_PLAN_KEYS, *self.schemas))
                raise RequestError(f"{source_name}: unknown key {shown(key)}{hint}")
        if not of_file:
            self._level, self._level_tables = source_name.removeprefix("level "), document
        if not of_file and "level" in document:
            raise RequestError(f"{source_name}: a level cannot start from another level; take the key level out.")
        if "deadline_s" in document:
            self._set_deadline(
                document["deadline_s"], source_name, f"{source_name}:deadline_s" if of_file else source_name
            )
        if "demands_limits" in document:
            value = document["demands_limits"]
            if not isinstance(value, bool):
                raise RequestError(f"{source_name}: demands_limits is {shown(value)}, expected true or false.")
            self.demands_limits = value
        if "checks" in document:
            self._set_checks(document["checks"], source_name)
        origins = _origins(document, source_name)
        for check in (key for key in document if key in self.schemas):
            table = document[check]
            if not isinstance(table, dict):
                raise RequestError(f"{source_name}: {check} is {shown(table)}, expected a table [{check}].")
            if check in self.checks:
                self._set_table(check, table, source_name, of_file=of_file, words=origins.get(check, {}))
            elif of_file:
                raise RequestError(
                    f"{source_name}: has a table [{check}], but the plan does not ask for {check};"
                    " add it to checks or take the table out."
                )
            else:
                self._tables_of_level[check] = table, source_name

    def _set_table(
        self,
        check: str,
        table: Mapping[str, Any],
        source_name: str,
        *,
        of_file: bool,
        words: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Set the parameters of a table; ``words``: where the file says to have the value of a parameter from."""
        for parameter, value in table.items():
            place = f": {words[parameter]}" if parameter in words else f":{check}.{parameter}"
            origin = f"{source_name}{place}" if of_file else source_name
            self.set(check, parameter, value, source_name, origin)

    def set(self, check: str, parameter: str, value: Any, source_name: str, origin: str) -> None:
        """Set one parameter, if the value fits its type. Raises RequestError."""
        path = f"{check}.{parameter}"
        hints = get_type_hints(self.schemas[check])
        if parameter not in hints:
            hint = did_you_mean(parameter, tuple(hints))
            raise RequestError(f"{source_name}: the check {check} has no parameter {shown(parameter)}{hint}")
        fitting = fit(value, hints[parameter])
        if fitting is MISFIT:
            raise RequestError(f"{source_name}: {path} is {shown(value)}, expected {expected(hints[parameter])}.")
        _refuse_wrong_time(parameter, fitting, f"{source_name}: {path}")
        self.settings[check][parameter] = Setting(value=fitting, origin=origin)

    def add(self, checks: Sequence[str], scopes: Mapping[str, str]) -> None:
        """Ask for further checks, and for bootstrap where one of them needs it."""
        new = [check for check in checks if check not in self.checks]
        if world_without_bootstrap((*self.checks, *new), scopes):
            new += [check for check in self.schemas if scopes[check] == "bootstrap"]
        if new:
            self._set_checks([*self.checks, *new], "--only")
            self.not_asked = {check: origin for check, origin in self.not_asked.items() if check not in new}

    def fit_into_deadline(self) -> None:
        """Shorten the timeouts that nobody typed to the part of the deadline that one step may take.

        A deadline that a plan file sets may be shorter than the timeouts of its level, or than the defaults.
        """
        longest_s = round(_STEP_SHARE * self.deadline_s.value, 3)
        for table in self.settings.values():
            setting = table.get("timeout_s")
            if setting is not None and setting.value > longest_s and not is_typed(setting):
                origin = f"{OF_DEADLINE} ({setting.origin}: {setting.value:g})"
                table["timeout_s"] = Setting(value=longest_s, origin=origin)

    def build(self, check: str) -> None:
        """Build the Params of the check once, since they validate values together. Raises RequestError."""
        settings = self.settings[check]
        for field in fields(self.schemas[check]):
            if field.name not in settings:
                raise RequestError(
                    f"{check}.{field.name} has no value; set {field.name} in the plan's table [{check}]."
                )
        try:
            self.schemas[check](**{name: setting.value for name, setting in settings.items()})
        except (ValueError, ArithmeticError, RequestError) as error:
            origins = [*dict.fromkeys(setting.origin for setting in settings.values() if setting.origin != "default")]
            sources = ", ".join(origins[:_MOST_ORIGINS]) or "the defaults"
            more = f" and {len(origins) - _MOST_ORIGINS} more" if len(origins) > _MOST_ORIGINS else ""
            reason = shortened(str(error)).rstrip(".")
            raise RequestError(f"{check}: {reason} (values from {sources}{more}).") from error

    def reduced(self, check: str, work: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the parameters of how much is measured that are below the level, or below the default without one."""
        defaults = {field.name: (field.default, "default") for field in fields(self.schemas[check])}
        table = {name: (value, f"level {self._level}") for name, value in self._level_tables.get(check, {}).items()}
        for name in work:
            setting = self.settings[check][name]
            usual, origin = table.get(name, defaults[name])
            if is_typed(setting) and _is_less(setting.value, usual):
                yield f"{check}.{name}", f"{plan_value(setting.value)} ({origin}: {plan_value(usual)})"

    def _set_deadline(self, value: Any, source_name: str, origin: str) -> None:
        seconds = fit(value, float)
        if seconds is MISFIT or seconds <= 0:
            raise RequestError(f"{source_name}: deadline_s is {shown(value)}, expected seconds above 0.")
        self.deadline_s = Setting(value=seconds, origin=origin)

    def _set_checks(self, value: Any, source_name: str) -> None:
        checks = fit(value, tuple[str, ...])
        if checks is MISFIT or not checks:
            raise RequestError(f"{source_name}: checks is {shown(value)}, expected a list of at least one check name.")
        for check in checks:
            if check not in self.schemas:
                hint = did_you_mean(check, tuple(self.schemas))
                raise RequestError(f"{source_name}: checks has {shown(check)}, which is not a check{hint}")
            if checks.count(check) > 1:
                raise RequestError(f"{source_name}: checks has {check} more than once; name it once.")
        self.checks = checks
        for check in checks:
            if check not in self.settings:
                self.settings[check] = {
                    field.name: Setting(value=field.default, origin="default")
                    for field in fields(self.schemas[check])
                    if field.default is not MISSING
                }
                if check in self._tables_of_level:
                    self._set_table(check, *self._tables_of_level[check], of_file=False)


def _origins(document: Mapping[str, Any], source_name: str) -> Mapping[str, Mapping[str, str]]:
    """Return the table ``[origins]`` of a plan: check -> parameter -> where its value is from. Raises RequestError."""
    origins = document.get("origins", {})
    if not isinstance(origins, dict):
        raise RequestError(f"{source_name}: origins is {shown(origins)}, expected a table [origins].")
    for check, words in origins.items():
        if not isinstance(words, dict):
            raise RequestError(f"{source_name}: origins.{check} is {shown(words)}, expected CHECK.PARAMETER = WORDS.")
        for parameter, text in words.items():
            if not isinstance(text, str) or not text or len(text) > LONGEST_ORIGIN:
                raise RequestError(
                    f"{source_name}: origins.{check}.{parameter} is {shown(text)}, expected a text of 1 to"
                    f" {LONGEST_ORIGIN} characters."
                )
            table = document.get(check)
            if not isinstance(table, dict) or parameter not in table:
                raise RequestError(
                    f"{source_name}: origins.{check}.{parameter} is the origin of a value that the plan does not set;"
                    f" set {parameter} in [{check}], or take the origin out."
                )
    return {check: {key: printable(text) for key, text in words.items()} for check, words in origins.items()}


def _is_less(value: Any, usual: Any) -> bool:
    """Return whether less is measured with a value than with the usual one."""
    if isinstance(value, tuple):
        if any(isinstance(entry, str) for entry in usual):
            return not set(usual) <= set(value)
        return len(value) < len(usual) or max(value) < max(usual)
    return value is not None and usual is not None and bool(value < usual)


def is_typed(setting: Setting) -> bool:
    """Return whether a plan file or an option set the value, and neither a level nor a default."""
    return setting.origin != "default" and not setting.origin.startswith("level ")


def _refuse_wrong_time(parameter: str, value: Any, path: str) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    if parameter.endswith("_s") and any(isinstance(number, int | float) and number < 0 for number in numbers):
        raise RequestError(f"{path} is {shown(value)}, expected seconds of 0 or more.")
    if parameter == "timeout_s" and 0 in numbers:
        # Every rank would be late, and one would be blamed for it.
        raise RequestError(f"{path} is {shown(value)}, expected seconds above 0.")
