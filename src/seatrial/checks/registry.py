"""The checks: the modules and packages of this folder, each with a ``CHECK``, in a zip too."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

import seatrial.checks
from seatrial.checks.check import Check

_Value = TypeVar("_Value")

_NOT_CHECKS = ("check", "registry", "shared")


@cache
def names() -> tuple[str, ...]:
    """Return the names of all checks, sorted."""
    modules = {module.name for module in pkgutil.iter_modules(seatrial.checks.__path__)}
    return tuple(sorted(modules.difference(_NOT_CHECKS)))


def load(name: str) -> Check:
    """Return the check of that name. Raises KeyError when there is none."""
    if name not in names():
        raise KeyError(name)
    check: Check = importlib.import_module(f"seatrial.checks.{name}").CHECK
    return check


def schemas() -> Mapping[str, type[Any]]:
    """Return check -> its dataclass of parameters. A check is imported when its value is read."""
    return _OfEachCheck(lambda check: check.params)


def scopes() -> Mapping[str, str]:
    """Return check -> its scope. A check is imported when its value is read."""
    return _OfEachCheck(lambda check: check.scope)


def work() -> Mapping[str, tuple[str, ...]]:
    """Return check -> the parameters that say how much it measures. A check is imported when its value is read."""
    return _OfEachCheck(lambda check: check.work)


class _OfEachCheck(Mapping[str, _Value]):
    """One value of each check: a plan reads those of the checks that it asks for, and importing all of them is slow."""

    def __init__(self, value: Callable[[Check], _Value]) -> None:
        self._names = names()
        self._value = value

    def __getitem__(self, name: str) -> _Value:
        return self._value(load(name))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
