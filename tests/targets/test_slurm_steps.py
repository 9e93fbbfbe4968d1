"""The step of a run among the steps of its job, as squeue lists them."""

from __future__ import annotations

import pytest

from seatrial.errors import SeatrialError
from seatrial.targets.host_of_node import HostsMissingError
from seatrial.targets.slurm import node_list


def _answers(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(node_list, "_answer", lambda *argv: list(lines))


def test_the_step_of_the_name_is_found_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(monkeypatch, "7.batch|batch", "7.0|run", "7.1|other")
    assert node_list.find_step("7", "run") == "7.0"


def test_several_steps_of_the_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(monkeypatch, "7.0|run", "7.1|run")
    with pytest.raises(SeatrialError, match=r"steps 7\.0 and 7\.1 of Slurm's job 7 have the name of this run"):
        node_list.find_step("7", "run")


def test_a_job_without_that_step_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(monkeypatch, "7.batch|batch", "7.0|renamed")
    with pytest.raises(HostsMissingError, match="of Slurm's job 7 none has the name of this run"):
        node_list.find_step("7", "run")


@pytest.mark.parametrize("lines", [(), ("",), ("this cluster is down for maintenance on Monday",)])
def test_without_an_answer_the_step_is_unknown(lines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On many clusters squeue is slow, or a script."""
    _answers(monkeypatch, *lines)
    assert node_list.find_step("7", "run") == ""
    assert node_list.find_step("", "run") == ""
