"""The finding about the fabric says which connection failed, from where, and what to do about it."""

from __future__ import annotations

import pytest
from event_streams import Stream

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold

GLOO = "Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: "
TRIES = "[c10d] TCP client failed to connect/validate to host 10.0.0.0:29500 - retrying (try=0, timeout=6000ms): The"
TRIES += " client socket has timed out after 6000ms while trying to connect to (10.0.0.0, 29500)."


def only(stream: Stream) -> Finding:
    (finding,) = blame(fold(stream.events))
    return finding


def raised_by(*messages: str) -> Finding:
    """Every rank raises its message while the world is formed."""
    stream = Stream(len(messages), nodes=len(messages)).until("collectives")
    for rank, message in enumerate(messages):
        stream.error(rank, "fabric", message, "bootstrap/meet at the store")
    stream.trouble(*({"rank": rank, "how": "error", "detail": "fabric"} for rank in range(len(messages))))
    stream.kill(*range(len(messages)))
    return only(stream.close(ranks=False))


@pytest.mark.parametrize(
    ("said", "what", "action"),
    [
        ("Connection refused, remote=[10.0.0.1]:2989$0", "connect to 10.0.0.1 port 2989 (refused)", "open all TCP"),
        ("Connection refused, remote=[127.0.1.1]:2989$0", "connect to 127.0.1.1 port 2989", "map the name of each"),
        ("Connection refused, remote=[172.17.0.1]:2989$0", "connect to 172.17.0.1 port 2989", "Docker's bridge"),
        ("No route to host, remote=[10.0.0.1]:2989$0", "10.0.0.1 port 2989 (no route)", "look at the routes"),
    ],
)
def test_the_address_that_refused_is_named(said: str, what: str, action: str) -> None:
    finding = raised_by("Gloo connectFullMesh failed with [pair.h:311] Connect timeout [none]", GLOO + said)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert "rank 1 (Test CPU, local rank 0 on node gpu-1) could not" in finding.what
    assert what in finding.what
    assert action in finding.action
    assert any("rank 0" in line and "could not connect to a peer (no answer)" in line for line in finding.evidence)


def test_a_lost_connection_is_no_closed_port() -> None:
    finding = raised_by("Connection closed by peer [10.0.0.1]:2989", "Connection reset by peer")
    assert "could not connect" not in finding.what
    assert "cables" in finding.action


@pytest.mark.parametrize(("phase", "told"), [("bootstrap/meet at the store", True), ("collectives/barrier", False)])
def test_a_store_that_nobody_reaches_is_read_from_the_output(phase: str, told: bool) -> None:
    """A rank that was late at the store and reached it in the end has the same line in its output."""
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble(*({"rank": rank, "how": "stuck", "phase": phase} for rank in (0, 1)), outcome="deadline")
    stream.exit(0, -9, ours=True, phase=phase)
    stream.exit(1, -9, ours=True, phase=phase, last_lines=("noise", TRIES))
    finding = only(stream.close(ranks=False))
    assert finding.culprit.kind == "fabric"
    assert ("could not connect to 10.0.0.0 port 29500" in finding.what) is told
    assert ("open all TCP ports" in finding.action) is told


@pytest.mark.parametrize(
    ("size", "before", "told"),
    [(65536, None, True), (8, None, False), (1048576, None, False), (65536, 65536, False), (65536, 8, True)],
)
def test_large_messages_alone_point_to_the_mtu(size: int, before: int | None, told: bool) -> None:
    """The first large message of all hangs; where one has passed, or a small one hangs, the MTU is not at fault."""
    stream = Stream(2, nodes=2).until("collectives")
    if before is not None:
        stream.measure("collectives", 0, 2.0, name="time_us", variant="all_reduce", size_bytes=before)
    phase = f"collectives/all_reduce {size} B"
    stream.trouble(*({"rank": rank, "how": "stuck", "phase": phase} for rank in (0, 1)), outcome="deadline")
    stream.kill(0, 1)
    finding = only(stream.close(ranks=False))
    assert finding.culprit.kind == "fabric"
    assert ("MTU" in finding.action) is told
