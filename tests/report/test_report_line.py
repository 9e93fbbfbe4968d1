"""The report as one line of JSON in the log of a pod."""

from __future__ import annotations

import json

import pytest
from event_streams import healthy

from seatrial.judge.conclude import conclude
from seatrial.report.report_line import PREFIX, VARIABLE, print_report_line


def test_it_is_printed_where_the_environment_asks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    conclusion = conclude(healthy().events)
    print_report_line(conclusion, {})
    assert capsys.readouterr().out == ""
    print_report_line(conclusion, {VARIABLE: "1"})
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(PREFIX)
    assert json.loads(line.removeprefix(PREFIX))["run_id"] == conclusion.trial.run
