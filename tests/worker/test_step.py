"""One step on one rank: the events that it sends, in which order, whatever ``measure`` does."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from seatrial.checks.check import Check
from seatrial.errors import RequestError
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.protocol.phase_page import PhaseReader, PhaseWriter, create
from seatrial.protocol.wire import encode
from seatrial.rank.context import PHASES_PER_STEP, Context
from seatrial.rank.device import open_device
from seatrial.rank.faults import parse_fault
from seatrial.worker.step import run_step

Measure = Callable[[Context, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Params:
    sizes: tuple[int, ...] = (1,)
    rounds: int = 1


class _Rank:
    """A rank without a process: its context, and the events that it sends."""

    def __init__(self, planted: tuple[str, ...]) -> None:
        self.fd = create()
        self.phases = PhaseReader(self.fd)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.context = Context(
            generation=2,
            rank=5,
            local_rank=1,
            local_world_size=2,
            node_rank=0,
            node="here",
            address="127.0.0.1",
            group_rank=3,
            world_size=6,
            ranks=(0, 1, 4, 5, 6, 7),
            backend="gloo",
            device=open_device("cpu", 1, 1),
            faults=tuple(parse_fault(text) for text in planted),
            phase_page=PhaseWriter(self.fd),
            emit=self._emit,
        )

    def _emit(self, event: Any) -> None:
        encode(event)  # what JSON does not know raises
        self.sent.append((event["kind"], event))

    def run(self, measure: Measure, params: dict[str, Any] | None = None, given: dict[str, Any] | None = None) -> None:
        def judge(evidence: Evidence, params: Any) -> Ruling:
            return Ruling()

        check = Check(name="compute", scope="alone", params=_Params, measure=measure, judge=judge)
        message: Any = {"step": 4, "stage": "measure", "timeout_s": 9.0, "params": params or {}, "given": given or {}}
        run_step(self.context, check, message)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.sent]


@pytest.fixture
def make_rank() -> Iterator[Callable[..., _Rank]]:
    ranks = []

    def make(*planted: str) -> _Rank:
        ranks.append(_Rank(planted))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.phases.close()
        os.close(rank.fd)


MakeRank = Callable[..., _Rank]


def test_a_measurement_has_its_origin_and_done_comes_last(make_rank: MakeRank) -> None:
    rank = make_rank()

    def measure(context: Context, params: _Params) -> None:
        assert (params.sizes, params.rounds) == ((8, 16), 3)
        assert context.given == {"store": 1}
        context.measurement("tflops", 2, "TFLOP/s", "high", variant="bf16", size_bytes=8)
        context.fact("digest", "ab")
        context.share("port", 7)

    rank.run(measure, {"sizes": [8, 16], "rounds": 3}, {"store": 1})
    assert rank.kinds() == ["measurements", "facts", "done"]
    where = {"gen": 2, "step": 4}
    measurement = {"check": "compute", "name": "tflops", "value": 2.0, "unit": "TFLOP/s", "better": "high", "rank": 5}
    measurement |= {
        "variant": "bf16",
        "size_bytes": 8,
        "device": rank.context.device.name,
        "node": "here",
        "generation": 2,
    }
    assert rank.sent[0][1] == {"kind": "measurements", **where, "measurements": [measurement]}
    assert rank.sent[1][1]["facts"][0]["value"] == "ab"
    done = rank.sent[2][1]
    assert (done["rank"], done["share"]) == (5, {"port": 7})
    assert done["seconds"] >= 0


def test_the_clock_comes_with_the_step_and_an_older_agent_sends_none(make_rank: MakeRank) -> None:
    rank = make_rank()
    seen = []
    clocks: tuple[dict[str, Any], ...] = ({"clock": [1.5, 0.2]}, {"clock": None}, {})
    for clock in clocks:
        message: Any = {"step": 4, "stage": "measure", "timeout_s": 9.0, "params": {}, "given": {}, **clock}
        rank.context.begin("host", message)
        seen.append(rank.context.clock)
    assert seen == [(1.5, 0.2), None, None]


def test_what_one_step_shared_is_not_shared_by_the_next(make_rank: MakeRank) -> None:
    rank = make_rank()
    rank.run(lambda context, params: context.share("port", 7))
    rank.run(lambda context, params: None)
    assert rank.sent[-1][1]["share"] == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_becomes_a_fact(make_rank: MakeRank, value: float) -> None:
    rank = make_rank()
    rank.run(lambda context, params: context.measurement("loss", value, "1", step=3))
    assert rank.kinds() == ["facts", "done"]
    fact = rank.sent[0][1]["facts"][0]
    assert (fact["name"], fact["value"]) == (
        "not_finite",
        {"measurement": "loss", "variant": "", "step": 3, "value": str(value)},
    )


@pytest.mark.parametrize("value", [math.nan, {"sums": [1.0, [math.inf]]}, [{"x": -math.inf}]])
def test_a_fact_with_a_number_that_is_not_finite_says_so(make_rank: MakeRank, value: Any) -> None:
    rank = make_rank()
    rank.run(lambda context, params: context.fact("own_loss", value))
    assert rank.kinds() == ["facts", "done"]
    fact = rank.sent[0][1]["facts"][0]
    assert (fact["name"], fact["value"]["measurement"]) == ("not_finite", "own_loss")


def test_a_fact_that_cannot_be_sent_is_a_mistake_of_ours(make_rank: MakeRank) -> None:
    rank = make_rank()
    rank.run(lambda context, params: context.fact("shape", {1, 2}))
    assert rank.kinds() == ["error"]
    assert rank.sent[0][1]["cause"] == "own"


@pytest.mark.parametrize(
    ("error", "cause"), [(KeyError("x"), "own"), (MemoryError(), "memory"), (RequestError("no such data"), "request")]
)
def test_what_was_measured_before_an_error_is_kept(make_rank: MakeRank, error: Exception, cause: str) -> None:
    rank = make_rank()

    def measure(context: Context, params: _Params) -> None:
        context.phase("first half")
        context.measurement("tflops", 2.0, "TFLOP/s")
        raise error

    rank.run(measure)
    assert rank.kinds() == ["measurements", "error"]
    error_event = rank.sent[1][1]
    assert (error_event["cause"], error_event["type"], error_event["phase"]) == (
        cause,
        type(error).__name__,
        "compute/first half",
    )
    assert "in measure" in error_event["stack"]


def test_an_error_of_any_length_fits_on_the_wire(make_rank: MakeRank) -> None:
    rank = make_rank()

    def measure(context: Context, params: _Params) -> None:
        raise RuntimeError("x" * 1_000_000)

    rank.run(measure)
    assert len(rank.sent[0][1]["message"]) == 2_000


def test_many_measurements_leave_before_the_step_ends(make_rank: MakeRank) -> None:
    rank = make_rank()
    seen = []

    def measure(context: Context, params: _Params) -> None:
        for number in range(100):
            context.measurement("x", number, "1", step=number)
        seen.extend(rank.kinds())

    rank.run(measure)
    assert seen == ["measurements", "measurements"]
    measurements = [
        measurement for kind, payload in rank.sent if kind == "measurements" for measurement in payload["measurements"]
    ]
    assert [measurement["step"] for measurement in measurements] == list(range(100))


def test_phases_are_numbered_from_the_step_on(make_rank: MakeRank) -> None:
    rank = make_rank()
    seen = []

    def measure(context: Context, params: _Params) -> None:
        seen.append(rank.phases.read())
        context.phase("all_reduce 8 B")
        seen.append(rank.phases.read())

    rank.run(measure)
    first = 4 * PHASES_PER_STEP + 1
    assert seen == [(first, "compute/begin measure"), (first + 1, "compute/all_reduce 8 B")]
    assert rank.phases.read() == (first + 2, "compute/done measure")


def test_params_that_the_check_does_not_have_are_a_mistake_of_ours(make_rank: MakeRank) -> None:
    rank = make_rank()
    rank.run(lambda context, params: None, {"colour": "red"})
    assert [(kind, payload.get("cause")) for kind, payload in rank.sent] == [("error", "own")]


@pytest.mark.parametrize(
    ("planted", "kinds"),
    [
        ("raise@compute:5", ["error"]),
        ("raise@compute/second:5", ["measurements", "error"]),
        ("raise@compute:4", ["measurements", "done"]),
        ("raise@training:5", ["measurements", "done"]),
    ],
)
def test_a_planted_fault_strikes_in_its_step(make_rank: MakeRank, planted: str, kinds: list[str]) -> None:
    rank = make_rank(planted)

    def measure(context: Context, params: _Params) -> None:
        context.measurement("x", 1.0, "1")
        context.phase("second")

    rank.run(measure)
    assert rank.kinds() == kinds
