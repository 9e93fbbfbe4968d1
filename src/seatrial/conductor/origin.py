"""Validation of the origin of a message: a node may send messages about itself and its ranks only. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast, get_args

from seatrial.protocol import fields
from seatrial.protocol.events import KINDS, Cause, ErrorEvent, ExitEvent

_RANK = re.compile(r"rank(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_MAX_CHARS = 300
_MOST_LAST_LINES, _MOST_LINE_CHARS = 40, 500
"""Bounds of the last output of a rank: an agent sends no more, unless it lies."""
MAX_STACK_CHARS = 1 << 16
"""Characters of a stack that are kept; an agent sends at most 48 KiB."""
CONTROLLERS_KINDS = frozenset(
    ("run", "generation", "step", "step_end", "interface", "trouble", "interrupted", "outcome", "handed", "slurm_nodes")
)
"""Events that only the controller writes: by them it says how the run went."""


class OriginError(ValueError):
    """A node sent a message in the name of another node or rank."""


class NumberError(ValueError):
    """A source sent an event after one with the same or a higher number."""


def validate_origin(node: int, message: Mapping[str, Any], nodes: Mapping[int, int], run: str) -> None:
    """Raise OriginError for a message of another run, from another source, or about a rank of another node.

    ``nodes``: rank -> the node that it runs on. An event without a header would count here and be recorded nowhere.
    """
    if _is_event(message):
        src, source_rank = message.get("src"), None
        if isinstance(src, str) and (match := _RANK.fullmatch(src)):
            source_rank, generation = int(match[1]), int(match[2])
            if message.get("gen", generation) != generation:
                raise OriginError(f"{src} sent an event of generation {brief(message['gen'])}")
        if message.get("run") != run or (
            src != f"node{node}" and (source_rank is None or nodes.get(source_rank) != node)
        ):
            raise OriginError(f"node {node} sent an event of {brief(src)} in run {brief(message.get('run'))}")
        if source_rank is not None and message.get("rank", source_rank) != source_rank:
            raise OriginError(f"rank {source_rank} sent an event about rank {brief(message['rank'])}")
        if message.get("kind") in CONTROLLERS_KINDS:
            raise OriginError(f"node {node} sent an event of the controller, {brief(message['kind'])}")
    for rank in _ranks(message):
        if _is_elsewhere(rank, node, nodes):
            raise OriginError(f"node {node} sent a message about rank {brief(rank)}")


def take_number(message: Mapping[str, Any], numbers: dict[str, int]) -> None:
    """Raise NumberError for an event that is out of order. ``numbers``: source -> the number of its last event.

    The report has the events in the order of their numbers, leaves copies out, and believes neither of two events with
    one number: in another order, or beside a malformed event, the conductor would act on something else than the report
    shows. So a malformed event has its number, too; it is recorded. A malformed number is none.
    """
    if "seq" not in message:
        return
    try:
        src, number = message["src"], fields.whole(message, "seq")
    except fields.DamageError:
        return
    last = numbers.get(src, -1)
    if number <= last:
        raise NumberError(f"{brief(src)} sent event {number} after event {last}")
    numbers[src] = number


def validate_form(message: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError for a rank, number, time or exit code that is none."""
    for rank in _ranks(message):
        int(rank)
    if _is_event(message):
        fields.whole(message, "seq"), fields.number(message, "t", time=True)
        if "code" in message:
            fields.exit_code(message)


def _is_event(message: Mapping[str, Any]) -> bool:
    return "seq" in message or "src" in message or message.get("kind") in KINDS


def _is_elsewhere(rank: Any, node: int, nodes: Mapping[int, int]) -> bool:
    try:
        return isinstance(rank, bool) or nodes.get(int(rank)) != node
    except (TypeError, ValueError):  # no rank at all: the message is malformed
        return False


def _ranks(message: Mapping[str, Any]) -> list[Any]:
    """Return the ranks that a message is about."""
    rows = [message.get("ranks"), message.get("still")] if message.get("kind") == "status" else []
    about = [rank for row in rows if isinstance(row, dict) for rank in row]
    return [message["rank"], *about] if "rank" in message else about


def last_lines(event: ExitEvent) -> tuple[str, ...]:
    """Return the last output of a rank, within its bounds. Raises TypeError where it is no list of texts."""
    lines: Any = event["last_lines"]
    kept = lines[-_MOST_LAST_LINES:] if isinstance(lines, list) else [None]
    if not all(isinstance(line, str) for line in kept):
        raise TypeError(f"the last lines of rank {brief(event['rank'])} are no list of texts")
    return tuple(brief(line, _MOST_LINE_CHARS) for line in kept)


def cause_of(event: ErrorEvent) -> Cause:
    """Return the cause of an error. Raises ValueError for any other word: the judge reads it beside ours."""
    for cause in get_args(Cause):
        if cause == event["cause"]:
            return cast("Cause", cause)
    raise ValueError(f"the error of rank {brief(event['rank'])} has no cause that we know: {brief(event['cause'])}")


def brief(value: object, max_chars: int = _MAX_CHARS) -> str:
    """Return a node's text cut to ``max_chars``: one node's megabytes must not fill everybody's messages."""
    return str(value)[:max_chars]
