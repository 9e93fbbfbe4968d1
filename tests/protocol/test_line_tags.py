"""Tags of the lines of a connection: whatever somebody in the path does to them, it is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seatrial.protocol.line_tags import LineTags

_LINES = [b"one\n", b"two\n", b"three\n", b"\n"]


def _tags(role: str = "agent", nonce: str = "n", challenge: str = "c", node: int = 0, token: str = "t") -> LineTags:
    return LineTags(token, role, nonce, challenge, node)


def _tagged() -> list[bytes]:
    sender = _tags()
    return [sender.add(line).rstrip(b"\n") for line in _LINES]


def _accepted(lines: list[bytes], receiver: LineTags | None = None) -> list[bytes | None]:
    receiver = receiver or _tags()
    accepted = []
    for line in lines:
        accepted.append(receiver.remove(line))
        if accepted[-1] is None:
            break
    return accepted


def test_lines_come_back() -> None:
    assert _accepted(_tagged()) == [line.rstrip(b"\n") for line in _LINES]


@pytest.mark.parametrize(
    ("change", "sound"),
    [
        (lambda lines: [lines[0], lines[0]], 1),
        (lambda lines: [lines[1], lines[0]], 0),
        (lambda lines: [lines[0], lines[2]], 1),
        (lambda lines: [lines[0], lines[1][:-1] + b"0"], 1),
        (lambda lines: [lines[0], lines[1] + b" "], 1),
        (lambda lines: [lines[0], b"two"], 1),
        (lambda lines: [lines[0], b""], 1),
        (lambda lines: [lines[0], b"0" * 32 + b" two"], 1),
        (lambda lines: [lines[0], lines[0][:33] + b"two"], 1),
        (lambda lines: [b"\xff" * 40], 0),
    ],
    ids=["repeated", "moved", "left out", "changed", "longer", "bare", "empty", "zeros", "old tag", "no text"],
)
def test_a_line_that_is_not_the_next_one_is_refused(change: Callable[[list[bytes]], list[bytes]], sound: int) -> None:
    accepted = _accepted(change(_tagged()))
    assert accepted == [*(line.rstrip(b"\n") for line in _LINES[:sound]), None]


@pytest.mark.parametrize(
    "other",
    [{"role": "conductor"}, {"nonce": "m"}, {"challenge": "d"}, {"node": 1}, {"token": "u"}],
    ids=lambda other: next(iter(other)),
)
def test_lines_of_another_connection_are_refused(other: dict[str, str]) -> None:
    assert _accepted(_tagged(), _tags(**other)) == [None]  # type: ignore[arg-type]
