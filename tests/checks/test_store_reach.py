"""Ranks that cannot connect to the store: who cannot reach whom, at which address, and how."""

from __future__ import annotations

import errno
import os
import socket
import traceback
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from checks.fake_context import FakeContext
from checks.simulated_links import SimulatedCluster
from event_streams import Stream

from seatrial.checks.bootstrap import CHECK as BOOTSTRAP
from seatrial.checks.bootstrap import Params as BootstrapParams
from seatrial.checks.links import CHECK as LINKS
from seatrial.checks.links.params import Params
from seatrial.conductor.rank_status import is_inside
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact
from seatrial.judge.conclude import conclude
from seatrial.protocol.rank_stacks import STEP_LOOP
from seatrial.rank import groups
from seatrial.rank.meeting import MeetingError
from seatrial.worker.failures import cause_of


def _evidence(ways: Mapping[int, object], nodes: int = 4, nproc_per_node: int = 1) -> Evidence:
    facts = tuple(
        Fact(
            check="links",
            name="store_unreachable",
            value={"host": "10.77.0.10", "port": 43303, "how": how},
            rank=rank,
            generation=0,
            stage="measure",
        )
        for rank, how in ways.items()
    )
    cluster = SimulatedCluster(nodes=nodes, nproc_per_node=nproc_per_node)
    return replace(cluster.evidence(), facts=facts, asked=())


@pytest.mark.parametrize(
    ("ways", "kind", "what"),
    [
        (
            dict.fromkeys((1, 2, 3), "no answer"),
            "fabric",
            "n1, n2, n3 cannot connect to n0 at 10.77.0.10:43303 (no answer)",
        ),
        ({2: "refused"}, "link", "n2 cannot connect to n0 at 10.77.0.10:43303 (refused)"),
        (
            {1: "no route", 3: "refused"},
            "fabric",
            "n1, n3 cannot connect to n0 at 10.77.0.10:43303 (no route, refused)",
        ),
    ],
)
def test_the_finding_says_which_node_cannot_reach_which(ways: Mapping[int, str], kind: str, what: str) -> None:
    for findings in (
        LINKS.judge(_evidence(ways), Params()).findings,
        BOOTSTRAP.judge(_evidence(ways), BootstrapParams()).findings,
    ):
        assert [(finding.severity, finding.culprit.kind, finding.what) for finding in findings] == [
            ("fail", kind, what)
        ]
        assert findings[0].culprit.ranks == ()
        assert findings[0].action


def test_ranks_of_one_node_are_named_once() -> None:
    (finding,) = LINKS.judge(_evidence(dict.fromkeys((2, 3), "no answer"), 2, 2), Params()).findings
    assert finding.what.startswith("n1 cannot connect to n0 at")
    assert finding.culprit.name == "link n0–n1, endpoints not separable"


def test_a_malformed_fact_is_no_finding() -> None:
    facts = (Fact(check="links", name="store_unreachable", value={"host": 4}, rank=1, generation=0, stage="measure"),)
    assert BOOTSTRAP.judge(replace(_evidence({}), facts=facts), BootstrapParams()).findings == ()


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (TimeoutError("timed out"), "no answer"),
        (OSError(errno.ETIMEDOUT, "x"), "no answer"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "refused"),
        (OSError(errno.EHOSTUNREACH, "x"), "no route"),
        (OSError(errno.ENETUNREACH, "x"), "no route"),
        (OSError(errno.EPERM, "Operation not permitted"), "Operation not permitted"),
    ],
)
def test_how_a_connection_failed(error: OSError, how: str) -> None:
    assert groups.how_unreachable(error) == how


def test_a_closed_port_is_a_fact_at_once() -> None:
    """The library would try again until its own timeout."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        given = {"store": {"host": "127.0.0.1", "port": taken.getsockname()[1]}}
        context = FakeContext(check="links", rank=1, world_size=2, given=given)
        said = r"no connection to the store at 127\.0\.0\.1:\d+ \(refused\)"
        with pytest.raises(MeetingError, match=said) as raised:
            groups.join_store(context, timedelta(seconds=30))
    assert [(fact.name, fact.value["how"]) for fact in context.facts] == [("store_unreachable", "refused")]
    # The first host may also answer nothing. Connecting happens in C, so its error comes from the frame that waited.
    cause = raised.value.__cause__
    assert cause is not None
    frame = traceback.extract_tb(cause.__traceback__)[-1]
    stack = f'File "{frame.filename}", line {frame.lineno} in {frame.name}\nFile "{STEP_LOOP}", line 1 in main'
    assert is_inside(stack), frame


NAME = {"store": {"host": "localhost", "port": 2}}
"""A name may have many addresses that do not answer, and those who try them all would be named for it."""


@pytest.mark.parametrize(
    "shared", [{}, {"store": 5}, {"store": {"host": "10.0.0.1"}}, {"store": {"host": 1, "port": 2}}, NAME]
)
def test_a_first_rank_without_an_address_is_named(shared: dict[str, Any]) -> None:
    context = FakeContext(check="links", rank=1, world_size=2, given=shared)
    with pytest.raises(MeetingError, match=r"rank 0 shared no address of its store$"):
        groups.join_store(context, timedelta(seconds=30))


@pytest.mark.parametrize("words", ["CUDA error: out of memory", "was built without: cuda error", "out of memory"])
@pytest.mark.parametrize("host", ["{}", "fe80::1%{}", "::1%{}", "10.0.0.1\n{}", "10.0.0.1 {}"])
def test_words_in_a_shared_address_accuse_no_rank_that_reads_them(host: str, words: str) -> None:
    given = {"store": {"host": host.format(words), "port": 1}}
    with pytest.raises(Exception, match="rank 0 shared no address") as raised:
        groups.join_store(FakeContext(check="links", rank=1, world_size=2, given=given), timedelta(seconds=5))
    assert cause_of(raised.value) == "fabric"
    assert words not in str(raised.value)


def test_words_of_a_rank_are_in_quotes() -> None:
    words = "no answer) and node n0 is broken ("
    (finding,) = BOOTSTRAP.judge(_evidence({3: words}), BootstrapParams()).findings
    assert f'("{words}")' in finding.what


LACKS = [*map(os.strerror, (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))]


@pytest.mark.parametrize("lack", LACKS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_what_a_host_lacks_is_no_fault_of_the_network(lack: str, nodes: int) -> None:
    """Another user of its host may have taken them all; ``blame`` tells whose host lacks what."""
    evidence = _evidence({1: lack}, nodes, 2 // nodes)
    assert BOOTSTRAP.judge(evidence, BootstrapParams()).findings == ()
    assert [finding.severity for finding in LINKS.judge(evidence, Params()).findings if "connect" in finding.what] == []


def test_a_lack_of_one_rank_hides_no_other_rank() -> None:
    (finding,) = BOOTSTRAP.judge(_evidence({1: LACKS[0], 2: "refused"}), BootstrapParams()).findings
    assert (finding.culprit.name, finding.severity) == ("link n0–n2, endpoints not separable", "fail")
    assert len(finding.evidence) == 1


@pytest.mark.parametrize(("nodes", "severity", "kind"), [(1, "error", "none"), (2, "fail", "fabric")])
def test_a_rank_without_a_port_for_the_store(nodes: int, severity: str, kind: str) -> None:
    stream, phase = Stream(2, nodes=nodes), "bootstrap/meet at the store"
    step = stream.begin("bootstrap", "world")
    place = {"host": "10.0.0.10", "port": 36625, "how": LACKS[0]}
    fact = Fact(check="bootstrap", name="store_unreachable", value=place, rank=1, generation=0, stage="world")
    stream.send("rank1.0", "facts", gen=0, step=step, facts=[fact.to_json()])
    message = f"no connection to the store at 10.0.0.10:36625 ({LACKS[0]})"
    stream.error(1, "fabric", message, phase, "MeetingError")
    stream.trouble({"rank": 1, "how": "error", "detail": "fabric"}, waiting=(0,))
    stream.kill(0, 1)
    conclusion = conclude(stream.close(ranks=False).events)
    (finding,) = [finding for finding in conclusion.findings if finding.severity in ("fail", "error")]
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == (severity, kind, ())
    assert "got no further port from its host" in finding.what
    assert "ip_local_port_range" in finding.action
    assert conclusion.verdict.status == ("FAIL" if nodes > 1 else "INCONCLUSIVE")


class _Probe:
    """A socket that finds a port, and may find no address to connect from."""

    def __init__(self, bound: int, connected: int) -> None:
        self._bound, self._connected = bound, connected

    def __enter__(self) -> _Probe:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def bind(self, _: object) -> None:
        if self._bound:
            raise OSError(self._bound, "x")

    def connect(self, _: object) -> None:
        if self._connected:
            raise OSError(self._connected, "x")


@pytest.mark.parametrize(
    ("failed", "bound", "connected", "is_without"),
    [
        (errno.EADDRNOTAVAIL, 0, errno.EADDRNOTAVAIL, True),
        (errno.EADDRNOTAVAIL, 0, 0, False),
        (errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EADDRNOTAVAIL, False),
        (errno.ECONNREFUSED, 0, errno.EADDRNOTAVAIL, False),
    ],
)
def test_a_host_without_ipv6_lacks_no_port(
    monkeypatch: pytest.MonkeyPatch, failed: int, bound: int, connected: int, is_without: bool
) -> None:
    monkeypatch.setattr("seatrial.rank.groups.socket.socket", lambda *_: _Probe(bound, connected))
    assert groups.is_without_address(OSError(failed, "x"), "fd00::7") is is_without
