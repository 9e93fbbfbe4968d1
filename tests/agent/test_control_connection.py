"""When the agent takes its controller for alive, by the bytes that arrive."""

from __future__ import annotations

import time

import pytest

from seatrial.agent.control_connection import CommandReader, ConnectionUnusableError
from seatrial.protocol.line_tags import LineTags
from seatrial.protocol.wire import encode


def tags() -> LineTags:
    return LineTags("secret", "conductor", "n", "c", 0)


def line(sender: LineTags | None) -> bytes:
    (heartbeat,) = encode({"kind": "heartbeat"})
    return sender.add(heartbeat) if sender else heartbeat


@pytest.mark.parametrize("has_tags", [True, False])
def test_only_a_whole_line_of_the_controller_counts_as_a_sign_of_life(*, has_tags: bool) -> None:
    """Somebody in the path, without the token, kept an agent and its ranks alive for days, a byte at a time."""
    reader = CommandReader(tags() if has_tags else None)
    sent = line(tags() if has_tags else None)
    before = reader.heard_at
    for byte in sent[:-1]:
        assert list(reader.take_in(bytes([byte]))) == []
    assert reader.heard_at == before
    time.sleep(0.01)
    assert [command["kind"] for command in reader.take_in(sent[-1:])] == ["heartbeat"]
    assert reader.heard_at > before


def test_a_line_with_a_wrong_tag_is_no_sign_of_life() -> None:
    reader = CommandReader(tags())
    before = reader.heard_at
    time.sleep(0.01)
    with pytest.raises(ConnectionUnusableError):
        list(reader.take_in(line(LineTags("guessed", "conductor", "n", "c", 0))))
    assert reader.heard_at == before
