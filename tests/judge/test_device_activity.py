"""A finding about a slow rank says what its device counted in that check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from seatrial.checks.diagnostics.history import NodeHistory
from seatrial.devices.plain_json import to_json
from seatrial.devices.state import DeviceState, DeviceWindow, NodeState, NodeWindow
from seatrial.evidence.evidence import RankRecord
from seatrial.evidence.findings import Culprit, Finding, Ruling
from seatrial.evidence.measurement import Fact
from seatrial.judge import device_activity
from seatrial.judge.device_activity import with_device_activity
from seatrial.judge.fold import fold
from seatrial.judge.trial import Trial

SLOW = Finding(
    severity="fail", check="compute", what="rank 1 was slow", culprit=Culprit(kind="rank", name="rank 1", ranks=(1,))
)


def _trial(*windows: NodeWindow) -> Trial:
    device = DeviceState(vendor="nvidia", index=0, uuid="GPU-7", bus="0000:17:00")
    rank = RankRecord(rank=1, node="a", node_rank=0, local_rank=0, device="", kind="", device_id="7")
    values: list[tuple[str, object]] = [
        ("before", NodeState(devices=(device,))),
        *(("window", window) for window in windows),
    ]
    facts = tuple(Fact(check="diagnostics", name=name, value=to_json(value), node_rank=0) for name, value in values)
    return replace(fold([]), facts=facts, ranks={1: rank}, host_names={0: "a"})


def test_the_time_of_a_slowdown_in_that_check() -> None:
    changes = DeviceWindow(uuid="GPU-7", throttled_ns={"power_brake": 7_100_000_000}, risen={"pcie_replays": 3})
    trial = _trial(
        NodeWindow(check="compute", seconds=60, devices=(changes,)),
        NodeWindow(check="memory", seconds=60, devices=(DeviceWindow(uuid="GPU-7", risen={"ecc_corrected": 1}),)),
    )
    (finding,) = with_device_activity(trial, {"compute": Ruling(findings=(SLOW,))})["compute"].findings
    assert finding.evidence == (
        "counted meanwhile: its GPU was slowed at the request of its power supply (HW power brake) for 7.1 of 60.0 s",
        "counted meanwhile: 3 PCIe replays",
    )


def test_short_slowdowns_and_devices_of_others_explain_nothing() -> None:
    brief = DeviceWindow(uuid="GPU-7", throttled_ns={"power_brake": 1_000_000_000})
    other = replace(SLOW, culprit=replace(SLOW.culprit, ranks=(2,)))
    trial = _trial(NodeWindow(check="compute", seconds=60, devices=(brief,)))
    for finding in (SLOW, other):
        assert with_device_activity(trial, {"compute": Ruling(findings=(finding,))})["compute"].findings == (finding,)


def test_the_windows_of_a_device_are_read_once_for_many_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may report any number of both."""
    read, lines = list[str](), device_activity._lines

    def counted(history: NodeHistory, uuid: str, check: str) -> Iterable[str]:
        read.append(check)
        return lines(history, uuid, check)

    monkeypatch.setattr(device_activity, "_lines", counted)
    changes = DeviceWindow(uuid="GPU-7", risen={"pcie_replays": 3})
    trial = _trial(*[NodeWindow(check="compute", seconds=60, devices=(changes,))] * 50)
    (*_, last) = with_device_activity(trial, {"compute": Ruling(findings=(SLOW,) * 50)})["compute"].findings
    assert last.evidence == ("counted meanwhile: 150 PCIe replays",)
    assert read == ["compute"]
