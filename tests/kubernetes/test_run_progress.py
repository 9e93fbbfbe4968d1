"""The conditions under which a run in pods never comes to its end: each counts for the pod that it is about."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kubernetes.test_run_log import ended_pod, training

from seatrial.errors import SeatrialError
from seatrial.targets.kubernetes.pending_pods import PendingPods
from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.targets.kubernetes.run_progress import RunProgress, TooFewNodesError
from seatrial.targets.kubernetes.wait_limits import ObservedTime, WaitLimits

_PODS = [
    replace(ended_pod(number, 0), state="running", exit_code=None, end="", uid=f"u{number}", node=f"gpu-{number}")
    for number in (0, 1)
]


def _looks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, under_mpi: bool, nodes: int = 2, min_hosts: int | None = None
) -> Callable[[float, list[PodStatus]], None]:
    """Return what looks at these pods at this time."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    detail = SimpleNamespace(kubectl=None, under_mpi=under_mpi, min_hosts=min_hosts)
    follower: Any = SimpleNamespace(
        awake=ObservedTime(10.0),
        listed=ObservedTime(3.0),
        listed_at=0.0,
        silent_since=0.0,
        unlisted_since=0.0,
        first_has_ended=False,
        complaint="",
        awaited_since=0.0,
        workload_gone=False,
        first_log=None,
        all_started=not (under_mpi or min_hosts),
        is_unattended=False,
    )
    follower.first = lambda: follower.pods[0]
    progress = RunProgress(
        objects=cast(Any, SimpleNamespace(workload="w")),
        job=replace(training(), nodes=nodes, detail=detail, target="mpijob" if under_mpi else "job"),
        limits=WaitLimits(queue_s=86_400.0),
        run_log=cast(
            Any, SimpleNamespace(has_events=False, started=False, began=False, over=False, known_nodes=frozenset())
        ),
        follower=follower,
        folder=folder,
        print_line=lambda line: None,
    )

    def look(at: float, pods: list[PodStatus]) -> None:
        nonlocal now
        now = follower.listed_at = at
        follower.awake.observe(at), follower.listed.observe(at)
        follower.silent_since = follower.unlisted_since = follower.awake.total_s
        follower.pods, follower.pending = tuple(pods), PendingPods(pods=tuple(pods), nodes=nodes, under_mpi=under_mpi)
        progress.require()

    return look


def test_a_pod_is_unready_for_as_long_as_it_was_without_a_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = [replace(pod, ready=True) for pod in _PODS]
    look = _looks(tmp_path, monkeypatch, under_mpi=True)
    look(0.0, [ready[0], _PODS[1]])
    for second in range(2, 125, 2):
        look(second, ready)
    look(126.0, [_PODS[0], ready[1]])
    for second in range(128, 246, 2):
        look(second, [*_PODS])
    with pytest.raises(SeatrialError, match=r"because pod t-0 on node gpu-0 is not ready.*see t-0\.log"):
        look(248.0, [*_PODS])


def test_the_pod_is_named_whose_node_is_gone_for_long_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [replace(pod, node_gone=True) for pod in _PODS]
    look = _looks(tmp_path, monkeypatch, under_mpi=False)
    for second in range(0, 10, 2):
        look(second, [_PODS[0], gone[1]])
    with pytest.raises(SeatrialError, match="pod t-1 on node gpu-1 is lost"):
        look(10.5, gone)


@pytest.mark.parametrize("list_s", [1, 10, 50])
def test_slow_lists_do_not_delay_a_start_with_fewer(
    list_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods wait for one another by the clock, for 900 s."""
    look = _looks(tmp_path, monkeypatch, under_mpi=False, min_hosts=1)
    waits = replace(_PODS[1], state="waiting")
    look(0.0, [replace(_PODS[0], state="waiting"), waits])
    for second in range(100, 701, list_s):
        look(float(second), [_PODS[0], waits])
    with pytest.raises(TooFewNodesError):
        look(700.0 + list_s, [_PODS[0], waits])


@pytest.mark.parametrize("under_mpi", [False, True])
def test_a_look_at_many_pods_takes_no_time(under_mpi: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of each pod is read a few times for all of them, and not once for each other one."""
    reads = 0

    class Counted(PodStatus):
        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += name in ("state", "ready")
            return super().__getattribute__(name)

    fields = {name: getattr(_PODS[0], name) for name in PodStatus.__dataclass_fields__}
    pods: list[PodStatus] = [Counted(**{**fields, "name": f"t-{number}", "uid": f"u{number}"}) for number in range(300)]
    _looks(tmp_path, monkeypatch, under_mpi=under_mpi, nodes=300)(0.0, pods)
    assert reads <= 20 * len(pods)
