"""How long those wait for one another that a launcher starts one by one."""

from __future__ import annotations

import pytest

from seatrial.cli.argparse_app import parse
from seatrial.environment.identity import Identity
from seatrial.errors import RequestError
from seatrial.protocol.timeouts import join_timeout_s
from seatrial.request.trial_request import job_of, request_of
from seatrial.run import conduct


def test_the_default_is_a_minute() -> None:
    assert join_timeout_s() == 60


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "86401", "9" * 30, "x", "٣"])
def test_an_invalid_timeout_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_JOIN_TIMEOUT_S", text)
    with pytest.raises(RequestError, match="SEATRIAL_JOIN_TIMEOUT_S="):
        join_timeout_s()


def test_the_deadline_begins_when_all_have_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    values = parse("seatrial", "run", ["smoke", "--deadline", "30", "--device", "cpu"])
    job, _ = job_of(request_of(values), Identity(launcher="none", level="none"), None)
    at_once = conduct._config(job)
    monkeypatch.setenv("SEATRIAL_JOIN_TIMEOUT_S", "900")
    one_by_one = conduct._config(job)
    assert (at_once.join_timeout_s, at_once.deadline_s) == (60, 30)
    assert (one_by_one.join_timeout_s, one_by_one.deadline_s) == (900, 930)
