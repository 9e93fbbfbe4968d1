"""What a node may write into the state of its devices: it names no other node, and fills no memory."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any, get_type_hints

import pytest

from seatrial.checks.diagnostics.judge import judge
from seatrial.checks.diagnostics.params import Params
from seatrial.devices.plain_json import to_json
from seatrial.devices.state import DeviceState, DeviceWindow, KernelEvent, NodeState, NodeWindow
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact

WORDS = "X) of node gpu-77 is broken"
DEVICE = DeviceState(vendor="nvidia", index=0, uuid="GPU-0", bus="0000:17:00", model="NVIDIA H200")
RISEN = DeviceWindow(uuid="GPU-0", samples=10, risen={"ecc_uncorrected": 1})
_QUOTED = re.compile(r'"[^"]*"')


def rule(device: DeviceState = DEVICE, changes: DeviceWindow = RISEN, **window: Any) -> Ruling:
    """Return the ruling about one node, ``evil``, in whose only step a device changes."""
    state = NodeState(devices=(device,), topology={"0-0": "NV18"})
    facts = {
        "before": state,
        "window": NodeWindow(**{"check": "compute", "seconds": 60, "devices": (changes,), **window}),
        "after": replace(state, topology=dict.fromkeys(state.topology, WORDS)),
    }
    return ruling_of({name: to_json(value) for name, value in facts.items()})


def ruling_of(values: dict[str, Any]) -> Ruling:
    facts = tuple(Fact(check="diagnostics", name=name, value=value, node_rank=0) for name, value in values.items())
    return judge(Evidence(ranks={}, asked=(), measurements=(), facts=facts, nodes={0: "evil"}), Params())


def texts_of(cls: type) -> list[str]:
    hints = get_type_hints(cls)
    return [field.name for field in fields(cls) if hints[field.name] in (str, str | None)]


def is_said_of_another_node(ruling: Ruling) -> bool:
    """Return whether words of the host stand in a sentence of ours, not in quotes, or in the name of a device."""
    return any(WORDS in _QUOTED.sub("", finding.what) for finding in ruling.findings) or any(
        WORDS in finding.culprit.name
        or "gpu-77" in finding.culprit.name.partition("of node evil")[2]
        or "of node evil" not in finding.culprit.name
        for finding in ruling.findings
        if finding.severity in ("fail", "warn")
    )


@pytest.mark.parametrize("form", ["{}", "failed: {}", "exclusive {}"])
@pytest.mark.parametrize("name", texts_of(DeviceState))
def test_no_text_of_a_device_names_another_node(name: str, form: str) -> None:
    said: dict[str, Any] = {name: form.format(WORDS)}
    device = replace(DEVICE, processes=(1,), **said)
    for bus in ("0000:17:00", ""):
        changed = device if name == "bus" else replace(device, bus=bus)
        ruling = rule(changed, replace(RISEN, uuid=changed.uuid))
        assert ruling.findings
        assert not is_said_of_another_node(ruling)


@pytest.mark.parametrize("name", [each for each in texts_of(DeviceWindow) if each != "uuid"])
def test_no_text_of_a_step_of_a_device_names_another_node(name: str) -> None:
    said: dict[str, Any] = {name: WORDS}
    ruling = rule(changes=replace(RISEN, **said))
    assert ruling.findings
    assert not is_said_of_another_node(ruling)


@pytest.mark.parametrize("kind", ["xid", "sxid", "amdgpu", "off the bus"])
def test_no_address_in_the_kernel_log_names_another_node(kind: Any) -> None:
    for bus in (WORDS, f"{'f' * 400}:00:00"):
        line = KernelEvent(kind=kind, bus=bus, code=79, text="uncorrectable", fatal=True)
        ruling = rule(replace(DEVICE, bus=""), kernel_events=(line,))
        assert len(ruling.findings) > 1
        assert not is_said_of_another_node(ruling)
        assert all(len(finding.culprit.name) < 200 for finding in ruling.findings)


@pytest.mark.parametrize("name", ["check", "stage"])
def test_a_step_with_a_sentence_for_its_name_is_damage_of_its_node(name: str) -> None:
    said: dict[str, Any] = {name: WORDS}
    ruling = rule(**said)
    assert not ruling.findings
    assert ruling.absent == ("a readable state of the devices of evil (check or stage: not as it must be)",)


def test_names_of_counters_and_reasons_are_no_sentences_of_ours() -> None:
    state = {"vendor": "nvidia", "index": 0, "uuid": "GPU-0", "bus": "0000:17:00", "broken": [WORDS]}
    before = {"devices": [{**state, "counters": {WORDS: 1}, "unavailable": {"device": WORDS}}]}
    ruling = ruling_of({"before": before, "after": {"devices": [{**state, "unavailable": {"counters": WORDS}}]}})
    assert len([finding for finding in ruling.findings if finding.severity == "warn"]) == 3
    assert not is_said_of_another_node(ruling)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_node_could_not_read_is_no_sentence_of_ours(when: str) -> None:
    state = {"vendor": "nvidia", "index": 0, "uuid": "GPU-0", "bus": "0000:17:00"}
    sound: dict[str, Any] = {"devices": [state]}
    for what, why in (
        (WORDS, "late"),
        ("kernel log", WORDS),
        (f"samples of {WORDS}", "x"),
        (f"devices by {WORDS}", "x"),
    ):
        ruling = ruling_of({"before": sound, "after": sound, when: {**sound, "not_checked": {what: why}}})
        assert [finding.severity for finding in ruling.findings] == ["info"]
        assert not is_said_of_another_node(ruling)
    for what, why in ((WORDS, "late"), ("serial", WORDS)):
        ruling = ruling_of({"before": {"devices": [{**state, "unavailable": {what: why}}]}, "after": sound})
        assert [finding.severity for finding in ruling.findings] == ["info"]
        assert not is_said_of_another_node(ruling)


@pytest.mark.parametrize(
    "part",
    [
        *("NVIDIA devices", "AMD devices", "NVLinks", "kernel log", "samples of each second"),
        *("samples of NVML 580.95.05", "devices by amd-smi, driver 6.16.6", "devices by amdgpu in sysfs"),
    ],
)
def test_the_name_of_what_a_reader_could_not_read_stays_as_it_is(part: str) -> None:
    state = NodeState(devices=(DEVICE,), not_checked={part: "late"})
    (finding,) = ruling_of({"before": to_json(state), "after": to_json(state)}).findings
    assert finding.what == f"not checked: {part} of evil (late)"


def test_reasons_for_what_a_device_lacks_are_no_finding() -> None:
    lacking = {"a": "not supported", "b": "not supported, or not readable (fan1)", "c": "no data"}
    state = NodeState(devices=(replace(DEVICE, unavailable=lacking),))
    assert not ruling_of({"before": to_json(state), "after": to_json(state)}).findings


def test_a_long_model_leaves_the_node_in_the_name() -> None:
    model = f"NVIDIA H200, 0000:1a:00) of node gpu-1 counted 7 uncorrectable memory errors; reset it{'.' * 2_100}"
    finding = rule(replace(DEVICE, model=model)).findings[0]
    assert "0000:17:00) of node evil counted 1 " in finding.what[:300]
    assert "gpu-1 counted" in finding.what.partition(")")[0]


def test_what_readers_say_of_a_state_stays_as_it_is() -> None:
    said = [
        ({"problem": "an interrupt is lost"}, "stopped working before the trial: an interrupt is lost"),
        ({"recovery_action": "drain and reset"}, "by its driver: drain and reset (before"),
        ({"recovery_action": "action 9"}, 'by its driver: "action 9" (before'),
        ({"compute_mode": "exclusive process", "processes": (1,)}, "one program (exclusive process)"),
        ({"fabric_state": "not started"}, "has not joined its NVLink fabric (not started)"),
        ({"fabric_state": "failed: no permission"}, 'NVLink fabric: failed: "no permission"'),
        ({"model": "AMD Instinct(TM) MI300X", "vendor": "amd"}, "GPU 0 (AMD Instinct(TM) MI300X, 0000:17:00) of node"),
    ]
    for changes, words in said:
        whats = [finding.what for finding in rule(replace(DEVICE, **changes)).findings]  # type: ignore[arg-type]
        assert any(words in what for what in whats), (words, whats)


def test_states_that_no_reader_knows_are_one_finding() -> None:
    names = tuple(f"{number:x}" for number in range(4_000))
    ruling = rule(replace(DEVICE, broken=("row_remap_failure", *names)), replace(RISEN, broken=names))
    whats = [finding.what for finding in ruling.findings if " is not as it should be: " in finding.what]
    assert len(whats) == 1
    assert "a state that is newer than this seatrial" in whats[0]
    assert any("a memory row could not be remapped" in finding.what for finding in ruling.findings)


def test_no_text_of_a_node_is_copied_whole_into_many_findings() -> None:
    words, lines = "w" * 100_000, [KernelEvent(kind="xid", bus="", code=31, follows=79, text="t" * 100_000)] * 10
    lines += [KernelEvent(kind="xid", bus=f"{number:04x}:00:00", code=79, text="") for number in range(50)]
    said: dict[str, Any] = {name: words for name in texts_of(DeviceState) if name not in ("uuid", "bus")}
    for ruling in (rule(replace(DEVICE, **said)), rule(kernel_events=tuple(lines))):
        assert ruling.findings
        for finding in ruling.findings:
            assert all(len(text) < 1_500 for text in (finding.what, finding.culprit.name, *finding.evidence))


def test_more_devices_in_a_step_than_a_machine_has_are_damage_of_its_node() -> None:
    many = tuple(DeviceWindow(uuid=f"GPU-{number}") for number in range(200))
    ruling = rule(devices=many)
    assert "devices: 200, and no machine has more than 128" in ruling.absent[0]
