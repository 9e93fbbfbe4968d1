"""Steps that the deadline of the trial leaves less time than the plan gives them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from event_streams import Stream
from fake_checks import a_plan

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.plan.model import Setting


def findings(stream: Stream) -> tuple[Finding, ...]:
    return blame(fold(stream.events))


@pytest.mark.parametrize(("how", "kind"), [("late", "process"), ("absent", "process"), ("stuck", "fabric")])
def test_a_standstill_is_named_whichever_deadline_ends_it(how: str, kind: str) -> None:
    """The trial left the step 54 s of its 60 s, or 9 s, and nothing went on."""
    for left_s in (54.0, 9.0):
        stream = Stream(2, nodes=2).until("collectives")
        stream.events[-1]["timeout_s"] = left_s
        ranks = (0, 1) if how == "stuck" else (1,)
        seen = [{"rank": rank, "how": how, "waited_s": left_s - 2.0} for rank in ranks]
        stream.trouble(*seen, outcome="deadline")
        stream.kill(0, 1)
        (finding,) = findings(stream.close(ranks=False))
        assert (finding.severity, finding.culprit.kind) == ("fail", kind)


@pytest.mark.parametrize("settings", [[], "none", {"collectives": []}, {"collectives": {"timeout_s": []}}, [[1]]])
def test_a_plan_that_is_none_costs_no_judgment(settings: Any) -> None:
    """The events may be another user's."""
    stream = Stream(2, nodes=2).until("collectives")
    next(event for event in stream.events if event["kind"] == "run")["plan"]["settings"] = settings
    stream.trouble(*({"rank": rank, "how": "stuck", "waited_s": 52.0} for rank in (0, 1)), outcome="deadline")
    stream.kill(0, 1)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.severity == "fail"


@pytest.mark.parametrize(("left_s", "severity"), [(30.0, "error"), (120.0, "fail")])
def test_ranks_that_say_themselves_who_did_not_come_have_not_hung_before(left_s: float, severity: str) -> None:
    """A neighbor may keep two ranks of links from meeting. The trial's deadline leaves that round little time."""
    settings = {"links": {"timeout_s": Setting(value=240.0, origin="level")}}
    stream = Stream(2, nodes=2, plan=replace(a_plan(("links",)), settings=settings))
    stream.begin("links", timeout_s=left_s)
    seen = [{"rank": rank, "how": "stuck", "waited_s": left_s - 2.0} for rank in (0, 1)]
    stream.trouble(*seen, outcome="deadline")
    stream.kill(0, 1)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.severity == severity
