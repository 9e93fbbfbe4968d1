"""The resolved plan: the checks, the value of each parameter, and the origin of each value."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from seatrial.util.text import fitted

Params = TypeVar("Params")

_MOST_ORIGIN_CHARS = 1_000
"""An origin names an option, or the path of a plan file. It stands beside each measurement that its limit judges."""
_OF_USER = re.compile(r"\buser (\w+)\.(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and its origin: ``level quick``, ``plan FILE:compute.size``, ``--epochs``, ``default``.

    The file may say where it has the value from: ``plan FILE: from 3 runs, median 812 less 10 %``.
    """

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The checks of a trial with their limits, after levels, files and options were merged."""

    name: str
    """A level (``quick``) or the file that was read."""
    checks: tuple[str, ...]
    """The requested checks, in the order of a trial."""
    not_asked: Mapping[str, str]
    """Checks that the user took out: check -> the option or file that did. A PASS is then partial."""
    deadline_s: Setting
    """Seconds for the whole trial, start-up included."""
    settings: Mapping[str, Mapping[str, Setting]]
    """check -> parameter -> value and origin; every parameter of every requested check."""
    demands_limits: bool = False
    """A PASS is partial while a speed is held against no limit."""
    reduced: Mapping[str, str] = field(default_factory=dict)
    """The parameters by which a file or an option measures less than the level: ``compute.cpu_size`` -> ``64 (level
    quick: 1024)``. A PASS is then partial."""
    document: Mapping[str, Any] | None = field(default=None, compare=False)
    """What the file says, for pods that read it again; None: a level. It has no other keys than a plan may have, and is
    no part of the JSON."""

    def params(self, check: str, cls: type[Params]) -> Params:
        """Return the parameters of one check as ``cls``, its Params dataclass. Lists become tuples."""
        known = {each.name for each in fields(cls)}  # type: ignore[arg-type]
        values = {name: setting.value for name, setting in self.settings[check].items() if name in known}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def named(self, origin: str) -> str:
        """Return the origin of a limit that a check calls ``user CHECK.PARAMETER``, as its setting has it."""
        return _OF_USER.sub(self._of_setting, origin)

    def _of_setting(self, match: re.Match[str]) -> str:
        setting = self.settings.get(match[1], {}).get(match[2])
        return match[0] if setting is None or setting.origin == "default" else setting.origin

    def without(self, checks: Collection[str]) -> Plan:
        """Return the plan as if nobody had asked for some checks."""
        return replace(
            self,
            checks=tuple(name for name in self.checks if name not in checks),
            settings={name: table for name, table in self.settings.items() if name not in checks},
            reduced={name: words for name, words in self.reduced.items() if name.partition(".")[0] not in checks},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON, for the ``run`` event and the report."""
        return {
            "name": self.name,
            "checks": list(self.checks),
            "not_asked": dict(self.not_asked),
            "deadline_s": [self.deadline_s.value, self.deadline_s.origin],
            **({"demands_limits": True} if self.demands_limits else {}),
            **({"reduced": dict(self.reduced)} if self.reduced else {}),
            "settings": {
                check: {name: [_listed(setting.value), setting.origin] for name, setting in table.items()}
                for check, table in self.settings.items()
            },
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Read the plan from the JSON of ``to_json``. Raises KeyError, TypeError or ValueError for any other JSON."""
        return cls(
            name=document["name"],
            checks=tuple(document["checks"]),
            not_asked=dict(document["not_asked"]),
            deadline_s=_setting(document["deadline_s"]),
            settings={
                check: {name: _setting(pair) for name, pair in dict(table).items()}
                for check, table in dict(document["settings"]).items()
            },
            demands_limits=document.get("demands_limits") is True,
            reduced=dict(document.get("reduced", {})),
        )


def _setting(pair: Sequence[Any]) -> Setting:
    """Read a setting from its JSON. Raises KeyError, TypeError or ValueError for any other JSON."""
    value, origin = pair
    if not isinstance(origin, str):
        raise TypeError(f"the origin of a setting is {type(origin).__name__}, expected a text")
    return Setting(value=value, origin=fitted(origin, _MOST_ORIGIN_CHARS))


def _listed(value: Any) -> Any:
    """Return a tuple as a list, since JSON has no tuples."""
    return list(value) if isinstance(value, tuple) else value
