"""examples/swap.py, a check of agents: its judge, on made-up readings."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact

_SPEC = importlib.util.spec_from_file_location("swap_example", Path(__file__).parents[2] / "examples" / "swap.py")
assert _SPEC is not None
assert _SPEC.loader is not None
swap = importlib.util.module_from_spec(_SPEC)
sys.modules["swap_example"] = swap  # its dataclasses look it up
_SPEC.loader.exec_module(swap)
AFTER, BEFORE, OTHER, GIB = swap.AFTER, swap.BEFORE, swap.OTHER, 1 << 30


def rule(*nodes: dict[str, Any], params: Any | None = None) -> Ruling:
    facts = tuple(
        Fact(check="swap", name=name, value=value, node_rank=node)
        for node, values in enumerate(nodes)
        for name, value in values.items()
    )
    names = {node: f"node{node}" for node in range(len(nodes))}
    ruling: Ruling = swap.judge(
        Evidence(ranks={}, asked=(), measurements=(), facts=facts, nodes=names), params or swap.Params()
    )
    return ruling


def read(gib: float = 0, pages_in: int = 7, pages_out: int = 9) -> dict[str, int]:
    return {"used_bytes": int(gib * GIB), "pages_in": pages_in, "pages_out": pages_out}


def test_an_idle_node_passes_both_limits() -> None:
    ruling = rule({BEFORE: read(1), AFTER: read(1)})
    assert not any((ruling.findings, ruling.absent, ruling.unjudged))
    assert [entry.passed for entry in ruling.judged] == [True, True]


def test_only_the_node_above_the_limit_fails() -> None:
    ruling = rule({BEFORE: read(), AFTER: read()}, {BEFORE: read(0.5), AFTER: read(1.5)})
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.nodes, finding.measured) == ("fail", ("node1",), "1.5 GiB")


def test_a_limit_of_the_plan_counts() -> None:
    assert rule({BEFORE: read(3), AFTER: read(3)}, params=swap.Params(max_used_gib=4)).findings == ()


def test_pages_that_moved_only_warn() -> None:
    (finding,) = rule({BEFORE: read(), AFTER: read(pages_in=8, pages_out=11)}).findings
    assert (finding.severity, finding.measured) == ("warn", "3 pages")


def test_a_node_that_did_not_say_it_is_inconclusive() -> None:
    assert rule({}).absent == ("swap of node0",)
    assert rule({BEFORE: None, AFTER: None}).absent == ("swap of node0",)


@pytest.mark.parametrize("bad", [[1], "no", 5, {}, {"used_bytes": "2", "pages_in": 0, "pages_out": 0}])
def test_what_cannot_be_read_is_absent_and_the_others_are_judged(bad: Any) -> None:
    full = {BEFORE: read(3), AFTER: read(3)}
    for lie in ({BEFORE: bad}, {BEFORE: read(), AFTER: bad}):
        ruling = rule(full, lie)
        assert [finding.culprit.nodes for finding in ruling.findings] == [("node0",)]
        assert ruling.absent == ("swap of node1",)


def test_without_the_last_reading_a_pass_is_partial() -> None:
    ruling = rule({BEFORE: read()})
    assert (len(ruling.judged), len(ruling.unjudged)) == (1, 1)


def test_a_second_agent_of_a_machine_is_not_missing() -> None:
    assert rule({OTHER: True}) == Ruling()
