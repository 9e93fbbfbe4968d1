"""One step on one rank: what is sent of it, in which order, whatever ``measure`` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from seatrial.checks.base import Check
from seatrial.errors import RequestError
from seatrial.probe.phase import PhaseReader, PhaseWriter, create
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Ruling
from seatrial.verdict.wire import encode
from seatrial.worker.context import Context
from seatrial.worker.device import open_device
from seatrial.worker.inject import parse_fault
from seatrial.worker.step import PHASES_PER_STEP, RankContext, run_step

Measure = Callable[[Context, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Params:
    sizes: tuple[int, ...] = (1,)
    rounds: int = 1


class _Rank:
    """A rank that is not there: its context, and the events that it sends."""

    def __init__(self, planted: tuple[str, ...]) -> None:
        self.fd = create()
        self.phases = PhaseReader(self.fd)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.context = RankContext(
            run="x",
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
            phases=PhaseWriter(self.fd),
            emit=self._emit,
        )

    def _emit(self, kind: str, **payload: Any) -> None:
        encode({"kind": kind, **payload})  # what JSON does not know raises
        self.sent.append((kind, payload))

    def run(self, measure: Measure, params: dict[str, Any] | None = None, given: dict[str, Any] | None = None) -> None:
        def judge(evidence: Evidence, params: Any) -> Ruling:
            return Ruling()

        check = Check(name="compute", scope="alone", params=_Params, measure=measure, judge=judge)
        message = {"step": 4, "stage": "measure", "timeout_s": 9.0, "params": params or {}, "given": given or {}}
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


def test_a_figure_says_where_it_was_measured_and_done_comes_last(make_rank: MakeRank) -> None:
    rank = make_rank()

    def measure(context: Context, params: _Params) -> None:
        assert (params.sizes, params.rounds) == ((8, 16), 3)
        assert context.given == {"store": 1}
        context.figure("tflops", 2, "TFLOP/s", "high", variant="bf16", size_bytes=8)
        context.fact("digest", "ab")
        context.share("port", 7)

    rank.run(measure, {"sizes": [8, 16], "rounds": 3}, {"store": 1})
    assert rank.kinds() == ["figures", "facts", "done"]
    where = {"gen": 2, "step": 4}
    figure = {"check": "compute", "name": "tflops", "value": 2.0, "unit": "TFLOP/s", "better": "high", "rank": 5}
    figure |= {"variant": "bf16", "size_bytes": 8, "device": rank.context.device.name, "node": "here", "generation": 2}
    assert rank.sent[0][1] == {**where, "figures": [figure]}
    assert rank.sent[1][1]["facts"][0]["value"] == "ab"
    done = rank.sent[2][1]
    assert (done["rank"], done["share"]) == (5, {"port": 7})
    assert done["seconds"] >= 0


def test_the_clock_comes_with_the_step_and_an_older_agent_sends_none(make_rank: MakeRank) -> None:
    rank = make_rank()
    seen = []
    clocks: tuple[dict[str, Any], ...] = ({"clock": [1.5, 0.2]}, {"clock": None}, {})
    for clock in clocks:
        message: dict[str, Any] = {"step": 4, "stage": "measure", "timeout_s": 9.0, "params": {}, "given": {}, **clock}
        rank.context.begin("host", message)
        seen.append(rank.context.clock)
    assert seen == [(1.5, 0.2), None, None]


def test_what_one_step_shared_is_not_shared_by_the_next(make_rank: MakeRank) -> None:
    rank = make_rank()
    rank.run(lambda context, params: context.share("port", 7))
    rank.run(lambda context, params: None)
    assert rank.sent[-1][1]["share"] == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_figure_that_is_no_number_is_told_as_a_fact(make_rank: MakeRank, value: float) -> None:
    rank = make_rank()
    rank.run(lambda context, params: context.figure("loss", value, "1", step=3))
    assert rank.kinds() == ["facts", "done"]
    fact = rank.sent[0][1]["facts"][0]
    assert (fact["name"], fact["value"]) == (
        "not_finite",
        {"figure": "loss", "variant": "", "step": 3, "value": str(value)},
    )


@pytest.mark.parametrize(
    ("error", "cause"), [(KeyError("x"), "own"), (MemoryError(), "memory"), (RequestError("no such data"), "request")]
)
def test_what_was_measured_before_an_error_is_kept(make_rank: MakeRank, error: Exception, cause: str) -> None:
    rank = make_rank()

    def measure(context: Context, params: _Params) -> None:
        context.phase("first half")
        context.figure("tflops", 2.0, "TFLOP/s")
        raise error

    rank.run(measure)
    assert rank.kinds() == ["figures", "error"]
    told = rank.sent[1][1]
    assert (told["cause"], told["type"], told["phase"]) == (cause, type(error).__name__, "compute/first half")
    assert "in measure" in told["stack"]


def test_an_error_of_any_length_fits_on_the_wire(make_rank: MakeRank) -> None:
    rank = make_rank()

    def measure(context: Context, params: _Params) -> None:
        raise RuntimeError("x" * 1_000_000)

    rank.run(measure)
    assert len(rank.sent[0][1]["message"]) == 2_000


def test_many_figures_leave_before_the_step_ends(make_rank: MakeRank) -> None:
    rank = make_rank()
    seen = []

    def measure(context: Context, params: _Params) -> None:
        for number in range(100):
            context.figure("x", number, "1", step=number)
        seen.extend(rank.kinds())

    rank.run(measure)
    assert seen == ["figures", "figures"]
    figures = [figure for kind, payload in rank.sent if kind == "figures" for figure in payload["figures"]]
    assert [figure["step"] for figure in figures] == list(range(100))


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
        ("raise@compute/second:5", ["figures", "error"]),
        ("raise@compute:4", ["figures", "done"]),
        ("raise@training:5", ["figures", "done"]),
    ],
)
def test_a_planted_fault_strikes_in_its_step(make_rank: MakeRank, planted: str, kinds: list[str]) -> None:
    rank = make_rank(planted)

    def measure(context: Context, params: _Params) -> None:
        context.figure("x", 1.0, "1")
        context.phase("second")

    rank.run(measure)
    assert rank.kinds() == kinds
