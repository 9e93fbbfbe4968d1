"""How long those wait for one another that a launcher starts one by one."""

from __future__ import annotations

import pytest

from seatrial.agent.main import join_timeout_s
from seatrial.errors import RequestError
from seatrial.launch import conduct
from seatrial.launch.pyz import parse
from seatrial.launch.request import job_of, request_of
from seatrial.probe.identity import Identity


def test_a_minute_unless_told() -> None:
    assert join_timeout_s() == 60


@pytest.mark.parametrize("told", ["", "0", "-1", "1.5", "86401", "9" * 30, "x", "٣"])
def test_what_is_no_such_time_is_refused(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_JOIN_TIMEOUT_S", told)
    with pytest.raises(RequestError, match="SEATRIAL_JOIN_TIMEOUT_S="):
        join_timeout_s()


def test_the_deadline_is_for_what_is_done_when_all_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    values = parse("seatrial", "run", ["smoke", "--deadline", "30", "--device", "cpu"])
    job, _ = job_of(request_of(values), Identity(launcher="none", level="none"), None)
    at_once = conduct._config(job)
    monkeypatch.setenv("SEATRIAL_JOIN_TIMEOUT_S", "900")
    one_by_one = conduct._config(job)
    assert (at_once.join_timeout_s, at_once.deadline_s) == (60, 30)
    assert (one_by_one.join_timeout_s, one_by_one.deadline_s) == (900, 930)
