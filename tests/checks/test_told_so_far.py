"""What a long check tells before it ends, and what is made of it when it does not end."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed
from checks.simulated_training import SMOKE, trained
from checks.test_check_compute import ONE, RecordingContext, evidence

from seatrial.checks import collectives, compute, training
from seatrial.checks.base import last_told
from seatrial.verdict.figures import Fact, Figure
from seatrial.worker.device import Device

CPU = Device(type="cpu", vendor="cpu", index=0, name="a CPU", backend="gloo", memory_bytes=1, libraries="torch")
WRONG = Fact(check="compute", name="wrong_values", value={"dtype": "bf16", "round": 7, "count": 5}, rank=1)


def told(runs: int, rank: int, digest: str) -> Fact:
    return Fact(check="training", name="digest", value={"runs": runs, "digest": digest}, rank=rank)


def test_the_last_word_counts_and_only_of_the_same_figure() -> None:
    first = Figure(check="compute", name="tflops", value=1.0, unit="TFLOP/s", rank=0, variant="fp32")
    others = [replace(first, rank=1), replace(first, variant="bf16"), replace(first, stage="repeat")]
    others += [replace(first, step=0), replace(first, size_bytes=8), replace(first, peer=1)]
    last = replace(first, value=2.0)
    assert last_told([first, *others, last]) == (last, *others)


def test_compute_tells_after_each_round_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    params = compute.Params(cpu_size=64, cpu_dtypes=("fp32",), seconds=0.001, rounds=3)
    for every_s, times in ((0.0, 4), (60.0, 1)):
        monkeypatch.setattr(compute, "TELL_EVERY_S", every_s)
        context = RecordingContext(device=CPU)
        compute.measure(context, params)
        names = ["tflops", "cpu_share", "wrong_elements", "wrong_elements"]
        assert [figure.name for figure in context.figures] == names * times


def test_collectives_tell_after_each_round_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_in_no_time(context: Any, wanted: int, operation: str, size: int, turn: int, *, tell: bool) -> Any:
        return 1e-3 * (turn + 1), int(operation == "all_gather" and turn == 1)

    monkeypatch.setattr(collectives, "_run", run_in_no_time)
    monkeypatch.setattr(collectives, "TELL_EVERY_S", 0.0)
    store = torch.distributed.HashStore()
    context = RecordingContext(device=CPU, world_size=2, ranks=(0, 1), store=store)
    collectives.measure(context, collectives.Params(cpu_sizes=(8, 4096), rounds=3))
    series = [figure.value for figure in context.figures if (figure.name, figure.variant) == ("time_us", "barrier")]
    assert series == pytest.approx([1e3, 1.5e3, 2e3, 2e3])
    wrong = [
        figure.value for figure in context.figures if (figure.name, figure.variant) == ("wrong_elements", "all_gather")
    ]
    assert wrong == [0, 2, 2, 2], "of both sizes, in the second round"


@pytest.mark.parametrize("asked", [(), (0, 2), (0, 1, 2)])
def test_wrong_bits_fail_their_device_whatever_came_later(asked: tuple[int, ...]) -> None:
    # The figure of an earlier round says that all was right until then.
    for figures in (evidence([700, 701, 702]).figures, ()):
        seen = replace(evidence([700, 701, 702]), asked=asked, figures=figures, facts=(WRONG,))
        (finding,) = compute.CHECK.judge(seen, ONE).findings
        assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "device", (1,))
        assert finding.measured == ("5 wrong elements" if 1 in asked else "at least 5 wrong elements")


def test_a_speed_that_was_told_twice_is_judged_once() -> None:
    slow_at_first = evidence([300, 701, 702])
    figures = (*slow_at_first.figures, *evidence([700, 701, 702]).figures)
    ruling = compute.CHECK.judge(replace(slow_at_first, figures=figures), ONE)
    assert (ruling.findings, ruling.absent, len(ruling.judged)) == ((), (), 9)


def test_replicas_are_compared_run_by_run_also_when_they_did_not_finish() -> None:
    whole = trained(3)
    figures = tuple(figure for figure in whole.figures if figure.name != "digest")
    unfinished = replace(whole, asked=(), figures=figures)
    # Rank 2 told of fewer runs before all were stopped: it differs from nobody.
    fair = (whole.facts[0], told(5, 0, "aa"), told(5, 1, "aa"), told(5, 2, "aa"), told(9, 0, "bb"), told(9, 1, "bb"))
    assert training.CHECK.judge(replace(unfinished, facts=fair), SMOKE).findings == ()
    apart = (*fair, told(7, 0, "cc"), told(7, 1, "dd"), told(7, 2, "cc"))
    (finding,) = training.CHECK.judge(replace(unfinished, facts=apart), SMOKE).findings
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


def test_counts_of_ranks_that_were_stopped_at_different_runs_are_not_compared() -> None:
    whole = trained(2)
    later = tuple(
        replace(figure, value={"accuracy": 0.94, "evaluated": 3600.0}.get(figure.name, figure.value))
        if figure.rank == 1
        else figure
        for figure in whole.figures
    )
    assert training.CHECK.judge(replace(whole, asked=(), figures=later), SMOKE).findings == ()
    assert training.CHECK.judge(replace(whole, figures=later), SMOKE).findings != ()


def test_rank_0_decides_when_all_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, group: None)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    params = training.Params(duration_s=2000.0, timeout_s=4000.0)
    for group_rank, began, told_at, wanted in (
        (0, 900.0, 990.0, training._AGAIN),
        (0, 900.0, 930.0, training._TELL_AND_AGAIN),
        (1, 900.0, 930.0, training._STOP),
        (0, -1500.0, 990.0, training._STOP),
    ):
        device = SimpleNamespace(torch=torch.device("cpu"))
        context: Any = SimpleNamespace(
            group_rank=group_rank, device=device, timeout_s=4000.0, group=None, phase=lambda label: None
        )
        assert training._wait_for_others_to_agree(context, params, began, 999.0, told_at) == wanted
