"""Typed access to environment variables: each value is valid, or a RequestError says why not."""

from __future__ import annotations

import re
from collections.abc import Mapping

from seatrial.errors import RequestError

Environ = Mapping[str, str]

_MOST = 999_999_999
_MOST_SHOWN = 40


def required(environ: Environ, name: str, sign: str, *, least: int = 0) -> int:
    """Return a whole number. ``sign`` is the variable that shows which launcher's family this one belongs to.

    Raises RequestError when it is missing or invalid.
    """
    if name not in environ:
        raise RequestError(
            f"{sign} is set in the environment but {name}, which belongs to it, is not; pass both on, or unset {sign}."
        )
    return _number(name, environ[name], least=least)


def optional(environ: Environ, name: str | None, *, least: int = 0, most: int = _MOST) -> int | None:
    """Return a whole number; None where it is not set, or where the family has no such variable (``name`` is None)."""
    return _number(name, environ[name], least=least, most=most) if name is not None and name in environ else None


def _number(name: str, text: str, *, least: int = 0, most: int = _MOST) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise RequestError(
            f"{name}={shown(text)} in the environment: expected a whole number from {least} to {most};"
            " correct it, or unset it if it is left over."
        )
    return int(text)


def address(environ: Environ, name: str) -> str | None:
    """Return a host name or an address; None where it is not set. Raises RequestError for anything else."""
    text = environ.get(name)
    if text is not None and not re.fullmatch(r"[!-~]{1,253}", text):
        raise RequestError(
            f"{name}={shown(text)} in the environment: expected a host name or an address;"
            " correct it, or unset it if it is left over."
        )
    return text


def below(environ: Environ, name: str | None, value: int | None, size_name: str | None, size: int | None) -> None:
    """Raise RequestError unless a number is below its count; where one of the two is unknown, do nothing."""
    if name is not None and size_name is not None and value is not None and size is not None and value >= size:
        raise contradiction(environ, name, size_name)


def contradiction(environ: Environ, name: str, other: str) -> RequestError:
    """Return the error for two variables that cannot both be right."""
    return RequestError(
        f"{name}={shown(environ[name])} and {other}={shown(environ[other])} in the environment contradict each"
        " other; correct them, or unset the one that is left over."
    )


def shown(text: str) -> str:
    """Return a value as messages show it: on one line, in ASCII, shortened."""
    if re.fullmatch(r"[\w:-]{1,40}", text, re.ASCII):
        return text
    return ascii(text[:_MOST_SHOWN]) + ("..." if len(text) > _MOST_SHOWN else "")
