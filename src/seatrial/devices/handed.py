"""A file that a person hands over as evidence: what another tool said about devices, processes and nodes.

Each form is one file of this folder with ``parse(content: bytes) -> HandedFile | None``: None where the content is not
of its form, ValueError where it is, and damaged or in words that are not known. Its name stands in ``FORMS``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from seatrial.devices.plain_json import from_json, to_json

FORMS = ("dcgm", "nccl_ras")
"""Modules of this folder, each for one form."""
MOST_BYTES = 1 << 25
"""32 MiB: NCCL RAS writes about 700 bytes a rank, for 4,096 ranks in ten communicators."""
MOST_RESULTS = 512
MOST_LINES = 10
"""Lines that are kept of one result."""
MOST_DEVICES = 4_096
_MOST_EVENT_BYTES = 1 << 22
"""Bytes of the event that keeps a file, which the line format must be able to hold."""
_TEXT_CHARS = 500
_NAME_CHARS = 253
Verdict = Literal["broken", "warning", "not checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedResult:
    """One thing that a file says about one device or process."""

    verdict: Verdict
    """``broken``: its tool says so. ``not checked``: its tool left a test out."""
    what: str
    """What follows the name: ``failed the test memory of DCGM``."""
    gpu: int | None = None
    """Number of the device where the tool ran. None: the machine as a whole, or not known."""
    host: str = ""
    """Name or address of the machine, as the file has it."""
    rank: int | None = None
    """Rank in the job that the file is about."""
    pid: int | None = None
    lines: tuple[str, ...] = ()
    """What the file says, word by word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedFile:
    """One file, as its form was understood."""

    name: str = ""
    """Name of the file without its folder."""
    node: str = ""
    """The node that the person named for it; empty: none."""
    sha256: str = ""
    form: str = ""
    """Form and version: ``DCGM diagnostics 4.2.3``."""
    problem: str = ""
    """Why it says nothing, as a clause; empty: it was understood."""
    driver: str = ""
    """Version of the driver that it names."""
    serials: Mapping[str, str] = field(default_factory=dict)
    """Number of a device -> its serial number."""
    hosts: tuple[str, ...] = ()
    """Machines that it names, as it names them."""
    gpus: tuple[int, ...] = ()
    """Numbers of the devices that it is about; empty: it is about a job."""
    passed: int = 0
    """Tests that passed, or ranks without any trouble."""
    results: tuple[HandedResult, ...] = ()

    def key(self) -> str:
        """Return 12 hexadecimal digits for its content and its node."""
        return hashlib.sha256(f"{self.sha256} {self.node}".encode()).hexdigest()[:12]


def read(content: bytes, *, name: str = "", node: str = "") -> HandedFile:
    """Return what a file says; ``problem`` tells why, where it says nothing. Never raises for its content."""
    known = HandedFile(name=name[:_TEXT_CHARS], node=node, sha256=hashlib.sha256(content).hexdigest())
    if len(content) > MOST_BYTES:
        return replace(known, problem=f"it has more than {MOST_BYTES >> 20} MiB")
    if not content.strip():
        return replace(known, problem="it is empty")
    for form in FORMS:
        try:
            parsed: HandedFile | None = importlib.import_module(f"seatrial.devices.{form}").parse(content)
        except (ValueError, RecursionError) as error:
            return replace(known, form=form.replace("_", " ").upper(), problem=str(error)[:_TEXT_CHARS])
        if parsed is not None:
            return _as_judge_reads_it(replace(parsed, name=known.name, node=node, sha256=known.sha256))
    return replace(known, problem="it is in none of the known forms (dcgmi diag -j, ncclras)")


def _as_judge_reads_it(handed: HandedFile) -> HandedFile:
    """Return a file as it is, or with the problem for which no event could hold it or no judge would read it."""
    text_of_event = json.dumps(to_json(handed))
    known = HandedFile(name=handed.name, node=handed.node, sha256=handed.sha256, form=handed.form)
    if len(text_of_event) > _MOST_EVENT_BYTES:
        return replace(known, problem=f"it says too much: more than {_MOST_EVENT_BYTES >> 20} MiB")
    try:
        from_json(HandedFile, json.loads(text_of_event))
    except ValueError as error:
        return replace(known, problem=f"a value cannot be ({error})")
    return handed


def json_object(content: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object that a text consists of, after lines of log messages; None where it is none."""
    start = content.find(b"{")
    if start < 0 or any(not _is_text(line) for line in content[:start].splitlines()):
        return None
    try:
        value = json.loads(content[start:])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_text(line: bytes) -> bool:
    return line.strip()[:1] not in (b"[", b'"')


def whole(value: object, what: str) -> int:
    """Return a number of 0 or more, also one in quotes. Raises ValueError."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31:
        return value
    raise ValueError(f"{what} is no number of up to nine digits: {str(value)[:40]!r}")


def text(value: object, what: str) -> str:
    """Return a text, cut to 500 characters. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is no text: {str(value)[:40]!r}")
    return value[:_TEXT_CHARS]


def name_text(value: object, what: str) -> str:
    """Return the name of a host, a serial number or a version, cut to 253 characters. Raises ValueError."""
    return text(value, what)[:_NAME_CHARS]


def entries(value: object, what: str) -> list[Any]:
    """Return a list. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list")
    return value


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Return an object. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")
    return value
