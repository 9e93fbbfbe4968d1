"""The resolved plan: what is asked, with which values, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

__all__ = ["Plan", "Setting"]

Params = TypeVar("Params")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and where it came from: ``level quick``, ``plan FILE``, ``--epochs``, ``default``."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to check and within which limits. Levels, files and options have been put together already."""

    name: str
    """A level (``quick``) or the file that was read."""
    checks: tuple[str, ...]
    """Asked for, in the order of a trial."""
    not_asked: Mapping[str, str]
    """Taken out by the user: check -> the option or file that took it out. A PASS is then partial."""
    deadline_s: Setting
    """Seconds for the whole trial, start-up included."""
    settings: Mapping[str, Mapping[str, Setting]]
    """check -> parameter -> value and origin; every parameter of every check asked for."""

    def params(self, check: str, cls: type[Params]) -> Params:
        """The parameters of one check as its own dataclass. Lists become tuples."""
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        values = {name: setting.value for name, setting in self.settings[check].items() if name in known}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def to_json(self) -> dict[str, Any]:
        """JSON for the ``run`` event and the report."""
        return {
            "name": self.name,
            "checks": list(self.checks),
            "not_asked": dict(self.not_asked),
            "deadline_s": [self.deadline_s.value, self.deadline_s.origin],
            "settings": {
                check: {name: [_listed(setting.value), setting.origin] for name, setting in table.items()}
                for check, table in self.settings.items()
            },
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Read back what ``to_json`` wrote. Raises KeyError, TypeError or ValueError on anything else."""
        return cls(
            name=document["name"],
            checks=tuple(document["checks"]),
            not_asked=dict(document["not_asked"]),
            deadline_s=Setting(value=document["deadline_s"][0], origin=document["deadline_s"][1]),
            settings={
                check: {name: Setting(value=pair[0], origin=pair[1]) for name, pair in table.items()}
                for check, table in document["settings"].items()
            },
        )


def _listed(value: Any) -> Any:
    """JSON knows no tuples."""
    return list(value) if isinstance(value, tuple) else value
