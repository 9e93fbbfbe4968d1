"""The answer of a host to the survey. A host may answer anything, so every field is checked by type and by value."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any

from seatrial.protocol.start_fields import MOST_PLACES
from seatrial.util.text import quoted

_DEVICES = ("cpu", "cuda", "rocm")
_LOOPBACKS = ("", "lo", "lo0")
_MAX_PHRASE_CHARS = 300
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyAnswer:
    """The resources that a host reports."""

    device: str
    """``cpu``, ``cuda`` or ``rocm``."""
    nproc_per_node: int
    """The number of ranks on the whole host."""
    because: str
    """The source of the device and of the number of accelerators, as a phrase."""
    torch: str
    """The version of torch."""
    address: str | None
    """The address by which ssh reached the host; None: unknown."""
    loopback: str
    """The loopback interface that Gloo should use; empty: any interface will do."""


def read_answer(text: str, *, device: str, nproc_per_node: int | None) -> SurveyAnswer | str:
    """Return the answer, or a phrase that says why the host cannot take part. Never raises, whatever the host sent.

    Args:
        text: JSON, as ``survey.report_resources`` prints it.
        device: the device that was requested, or ``auto``.
        nproc_per_node: the number of ranks on the whole host that was requested; None: the host decides it.
    """
    try:
        answer = json.loads(text)
        if isinstance(answer, dict) and isinstance(answer.get("refused"), str) and answer["refused"]:
            return f"it says {quoted(answer['refused'].rstrip('.'), _MAX_PHRASE_CHARS)}"
        return _read(answer, device, nproc_per_node)
    except _WrongFieldError as error:
        return f"its answer has {error}; check which seatrial and which login script run there"
    except (ValueError, RecursionError):
        return "its answer was cut or changed on the way"


class _WrongFieldError(Exception):
    """A field that is absent, or has a value that it cannot have."""


def _read(answer: Any, device: str, nproc_per_node: int | None) -> SurveyAnswer:
    found = _field(answer, "resources", dict)
    address = _field(answer, "address", list)
    torch = _field(answer, "torch", str)
    because = _field(found, "because", str)
    result = SurveyAnswer(
        device=_field(found, "device", str),
        nproc_per_node=_field(found, "nproc_per_node", int),
        because=quoted(because, _MAX_PHRASE_CHARS),
        torch=torch,
        address=_address(address),
        loopback=_field(answer, "loopback", str),
    )
    if result.device not in (_DEVICES if device == "auto" else (device,)):
        raise _WrongFieldError(f"device {_shown(result.device)}")
    most = MOST_PLACES if nproc_per_node is None else nproc_per_node
    if not (nproc_per_node or 1) <= result.nproc_per_node <= most:
        raise _WrongFieldError(f"nproc_per_node {_shown(result.nproc_per_node)}")
    if not _VERSION.fullmatch(torch):
        raise _WrongFieldError(f"torch {_shown(torch)}")
    if result.loopback not in _LOOPBACKS:
        raise _WrongFieldError(f"loopback {_shown(result.loopback)}")
    return result


def _field(answer: Any, name: str, kind: type) -> Any:
    if not isinstance(answer, dict) or name not in answer:
        raise _WrongFieldError(f"no {name}")
    value = answer[name]
    if type(value) is not kind:  # a bool is an int, too
        raise _WrongFieldError(f"{name} {_shown(value)}")
    return value


def _address(words: list[Any]) -> str | None:
    if not words:
        return None
    try:
        # An address with a zone, such as fe80::1%eth0, means nothing on other hosts.
        return str(ipaddress.ip_address(str(words[0]).partition("%")[0]))
    except ValueError:
        raise _WrongFieldError(f"address {_shown(words[0])}") from None


def _shown(value: Any) -> str:
    try:
        return ascii(value)[:80]
    except ValueError:  # an int of more digits than Python prints
        return "of more than 4,300 digits"
