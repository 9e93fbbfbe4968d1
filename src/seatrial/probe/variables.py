"""Variables of an environment, which anybody may have set: each is what it must be, or a RequestError says why not."""

from __future__ import annotations

import re
from collections.abc import Mapping

from seatrial.errors import RequestError

__all__ = ["Environ", "address", "below", "contradiction", "optional", "required", "shown"]

Environ = Mapping[str, str]

_MOST = 999_999_999
_MOST_SHOWN = 40


def required(environ: Environ, name: str, sign: str, *, least: int = 0) -> int:
    """A whole number. ``sign`` is the variable whose family it belongs to."""
    if name not in environ:
        raise RequestError(
            f"{sign} is set in the environment and {name}, which goes with it, is not; pass both on, or unset {sign}."
        )
    return _number(name, environ[name], least=least)


def optional(environ: Environ, name: str | None, *, least: int = 0, most: int = _MOST) -> int | None:
    """The same; None where it is not set, or where the family has no such variable."""
    return _number(name, environ[name], least=least, most=most) if name is not None and name in environ else None


def _number(name: str, text: str, *, least: int = 0, most: int = _MOST) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise RequestError(
            f"{name}={shown(text)} in the environment: a whole number from {least} to {most} is expected;"
            " set it right, or unset it if it was left behind."
        )
    return int(text)


def address(environ: Environ, name: str) -> str | None:
    """A host name or an address; None where it is not set."""
    text = environ.get(name)
    if text is not None and not re.fullmatch(r"[!-~]{1,253}", text):
        raise RequestError(
            f"{name}={shown(text)} in the environment: a host name or an address is expected;"
            " set it right, or unset it if it was left behind."
        )
    return text


def below(environ: Environ, name: str | None, value: int | None, size_name: str | None, size: int | None) -> None:
    """A number must be below its count; where one of both is not told there is nothing to hold it against."""
    if name is not None and size_name is not None and value is not None and size is not None and value >= size:
        raise contradiction(environ, name, size_name)


def contradiction(environ: Environ, name: str, other: str) -> RequestError:
    """To be raised: two that cannot both be true."""
    return RequestError(
        f"{name}={shown(environ[name])} and {other}={shown(environ[other])} in the environment contradict one"
        " another; set them right, or unset what was left behind."
    )


def shown(text: str) -> str:
    """A value as a message shows it: on one line, in ASCII, cut to a length."""
    if re.fullmatch(r"[\w:-]{1,40}", text, re.ASCII):
        return text
    return ascii(text[:_MOST_SHOWN]) + ("..." if len(text) > _MOST_SHOWN else "")
