"""The hosts that were typed, or stand in a file: names and how many processes each of them gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import RequestError

__all__ = ["Host", "hosts_of"]

_MOST_BYTES = 1 << 20
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})"
_SPELLINGS = re.compile(rf"(?P<name>{_NAME})(?::(?P<short>[0-9]+)|\s+slots\s*=\s*(?P<long>[0-9]+))?")
_MOST_SLOTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host."""

    name: str
    slots: int | None
    """None: not told."""


def hosts_of(typed: str | None, file: Path | None) -> tuple[Host, ...]:
    """Out of ``--hosts`` or ``--hostfile``; empty when neither was given. Raises RequestError with the place."""
    if typed is not None and file is not None:
        raise RequestError("--hosts and --hostfile say the same thing twice; give one of them.")
    told = list(_of_text(typed) if typed is not None else _of_file(file) if file is not None else ())
    seen: dict[str, str] = {}
    for origin, host in told:
        if host.name in seen:
            raise RequestError(
                f"{origin}: {host.name} stands in {seen[host.name]} already; give it all its slots there."
            )
        seen[host.name] = origin
    if not told and (typed, file) != (None, None):
        raise RequestError(f"{'--hosts' if file is None else f'--hostfile {file}'}: there is no host in it.")
    return tuple(host for _, host in told)


def _of_text(typed: str) -> Iterator[tuple[str, Host]]:
    for word in filter(None, typed.split(",")):
        yield "--hosts", _host("--hosts", word)


def _of_file(path: Path) -> Iterator[tuple[str, Host]]:
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1).decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise RequestError(f"--hostfile {path}: it cannot be read ({why}).") from error
    if len(text) > _MOST_BYTES:
        raise RequestError(f"--hostfile {path}: it is larger than {_MOST_BYTES} bytes.")
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.partition("#")[0].strip()
        if plain:
            origin = f"{path}, line {number}"
            yield origin, _host(origin, plain)


def _host(origin: str, text: str) -> Host:
    match = _SPELLINGS.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{origin}: {text[:80]!a} is no host; HOST, HOST:M or HOST slots=M is expected.")
    told = match["short"] or match["long"]
    if told is not None and not 1 <= int(told[:9]) <= _MOST_SLOTS:
        raise RequestError(f"{origin}: {match['name']} has {told[:9]} slots; 1 to {_MOST_SLOTS} are expected.")
    return Host(name=match["name"], slots=int(told) if told else None)
