"""Drivers that lie, fall silent or contradict themselves: the double of NVML, and scripts in place of nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from by_day import by_day
from checks.test_diagnostics_judge import rule
from devices import nvml_double
from devices.nvml_double import Answers, h100
from devices.test_nvidia_smi import NEW

from seatrial.devices import nvml_links
from seatrial.devices.kernel_log import KernelLog
from seatrial.devices.node_state import NodeReader, window_between
from seatrial.devices.nvml import open_reader
from seatrial.devices.readers import UnreadableError
from seatrial.devices.state import NodeState, NodeWindow
from seatrial.evidence.findings import Finding, Ruling

Node = Callable[..., NodeReader]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_double.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a function that opens the devices of a node, or changes their answers."""
    monkeypatch.setenv(nvml_double.VARIABLE, str(tmp_path / "answers"))

    def start(*devices: Answers, **system: object) -> NodeReader:
        nvml_double.write(tmp_path / "answers", devices, **system)
        reader = open_reader(str(library))
        return NodeReader({}, sysfs=tmp_path, kernel_log=str(tmp_path / "none"), readers=(reader,))

    return start


def _ruling(node: Node, before: list[Answers], after: list[Answers]) -> Ruling:
    """Return the ruling about a node whose devices answer otherwise after ``compute``, 60 s."""
    reader = node(*before)
    first = reader.snapshot()
    samples = {uuid: [sample] for uuid, sample in reader.samples().items()}
    node(*after)
    last = reader.snapshot()
    return rule((first, (window_between("compute", "measure", 60, first, last, samples),)), last=last)


def _grave(ruling: Ruling) -> list[tuple[str, str]]:
    return [(finding.severity, finding.what) for finding in ruling.findings if finding.severity != "info"]


def _about_devices(ruling: Ruling) -> list[Finding]:
    return [finding for finding in ruling.findings if "kernel log" not in finding.what]


GARBAGE = 4294967295
"""All bits of an unsigned int: what a driver leaves in a value that it does not have."""


@pytest.mark.parametrize(
    ("name", "field"),
    by_day(
        [
            ("nvmlDeviceGetTemperature.0", "temperature_c"),
            ("nvmlDeviceGetTemperatureThreshold.1", "slowdown_c"),
            ("nvmlDeviceGetUtilizationRates", "utilization_percent"),
            ("nvmlDeviceGetPowerUsage", "power_w"),
            ("nvmlDeviceGetMaxPcieLinkWidth", "pcie_width_max"),
            ("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_generation_max"),
            ("nvmlDeviceGetMarginTemperature", "margin_k"),
            ("field.4", "ecc_uncorrected"),
            ("field.94", "pcie_replays"),
            ("field.163", "nvlink_crc_errors"),
            ("field.144", "row_remap_pending"),
            ("sram.exceeded", "sram_threshold"),
            ("repair.tpc", "tpc_repair_pending"),
            ("field.271", "power_brake"),
        ],
        *(0, 7, 11),
    ),
)
def test_an_answer_that_cannot_be_true_is_none(node: Node, name: str, field: str) -> None:
    wrong = {**h100(0), name: GARBAGE if field != "power_brake" else 2**63}
    ruling = _ruling(node, [h100(0)], [wrong])
    assert all(severity == "warn" and " no longer says its " in what for severity, what in _grave(ruling))
    ruling = _ruling(node, [wrong], [wrong])
    assert _grave(ruling) == []
    (device,) = node(wrong).snapshot().devices
    assert device.unavailable[field].startswith("implausible")


def test_a_threshold_of_zero_is_none(node: Node) -> None:
    lying = {**h100(0), "nvmlDeviceGetTemperatureThreshold.1": 0, "nvmlDeviceGetMarginTemperature": 0, "field.194": 0}
    assert _grave(_ruling(node, [lying], [lying])) == []


@pytest.mark.parametrize("count", [GARBAGE, 100_000])
def test_more_devices_than_a_machine_can_have(node: Node, count: int) -> None:
    with pytest.raises(UnreadableError, match=f"NVML shows {count} devices"):
        node(h100(0), count=count)


@pytest.mark.parametrize(
    ("code", "severity", "words"),
    [
        (8, "fail", "stopped working before the trial: a power cable is missing"),
        (11, "fail", "stopped working before the trial: an interrupt is lost"),
        (15, "fail", "was lost before the trial"),
    ],
)
def test_a_device_without_a_handle(node: Node, code: int, severity: str, words: str) -> None:
    broken = {**h100(1), "nvmlDeviceGetHandleByIndex_v2": f"!{code}"}
    ((found, what),) = _grave(_ruling(node, [h100(0), broken], [h100(0), broken]))
    assert found == severity
    assert what.startswith("GPU 1 (index 1) of node gpu-00 ")
    assert words in what


def test_a_device_that_is_refused_is_no_full_pass(node: Node) -> None:
    refused = {**h100(1), "nvmlDeviceGetHandleByIndex_v2": "!999"}
    ruling = _ruling(node, [h100(0), refused], [h100(0), refused])
    assert ruling.unjudged == ("GPU diagnostics of GPU 1 of node gpu-00 not checked",)
    ((severity, what),) = _grave(ruling)
    assert severity == "warn"
    assert 'GPU 1 (index 1) of node gpu-00 did not answer its driver ("unknown error of the driver")' in what


@pytest.mark.parametrize("code", by_day([999, 10, 4]))
def test_a_device_that_stops_answering_is_no_full_pass(node: Node, code: int) -> None:
    ruling = _ruling(node, [h100(0), h100(1)], [h100(0), {**h100(1), "*": f"!{code}"}])
    assert ruling.unjudged == ("GPU diagnostics of GPU 1 of node gpu-00 not checked",)
    ((severity, what),) = _grave(ruling)
    assert severity == "warn"
    assert what.startswith("GPU 1 (NVIDIA H100 80GB HBM3, 0000:18:00) of node gpu-00 no longer says its ")


@pytest.mark.parametrize("code", by_day([1, 4, 9, 10, 12, 18, 19, 20, 23, 24, 27, 29, 77, 999], 0, 13))
def test_a_value_that_a_device_ought_to_have_is_listed(node: Node, code: int) -> None:
    refused = h100(0, processes=f"!{code}")
    (finding,) = _about_devices(_ruling(node, [refused], [refused]))
    assert finding.severity == "info"
    assert finding.what.startswith("not checked: processes of GPU 0 of node gpu-00 (")


@pytest.mark.parametrize("code", by_day([2, 3, 6, 13, 21, 22, 25, 26], 0, 1))
def test_a_value_that_a_device_lacks_is_no_finding(node: Node, code: int) -> None:
    lacking = h100(0, processes=f"!{code}")
    assert _about_devices(_ruling(node, [lacking], [lacking])) == []


def test_links_that_are_no_longer_said_have_the_reason_of_the_links(node: Node) -> None:
    ruling = _ruling(node, [h100(0)], [h100(0, links="!999")])
    ((severity, what),) = _grave(ruling)
    assert severity == "warn"
    assert what.endswith('("unknown error of the driver")')


def test_two_devices_of_one_uuid_are_told_apart(node: Node) -> None:
    twin = {**h100(1), "nvmlDeviceGetUUID": h100(0)["nvmlDeviceGetUUID"]}
    ruling = _ruling(node, [h100(0), twin], [h100(0), {**twin, "field.4": 2}])
    (failed,) = [what for severity, what in _grave(ruling) if severity == "fail"]
    assert failed.startswith("GPU 1 (NVIDIA H100 80GB HBM3, 0000:18:00) of node gpu-00 counted 2 uncorrectable")
    warned = [what for severity, what in _grave(ruling) if severity == "warn"]
    assert [what.partition(" of node gpu-00 ")[2] for what in warned] == ["has the UUID of another device"] * 2


def test_counters_that_wrap_or_start_again(node: Node) -> None:
    def replays(before: int, after: int) -> Ruling:
        return _ruling(node, [h100(0, field__94=before)], [h100(0, field__94=after)])

    assert _grave(replays(2**32 - 2, 3)) == []
    assert _grave(replays(150, 0)) == []


def test_a_link_that_comes_up_brings_its_old_total_along(node: Node) -> None:
    down = h100(0, links__inactive=1, field__162__0=30, field__162__7=4)
    assert _grave(_ruling(node, [down], [h100(0, field__162__0=30, field__162__7=4)])) == []
    ruling = _ruling(node, [down], [h100(0, field__162__0=30, field__162__7=6)])
    ((severity, what),) = _grave(ruling)
    assert severity == "fail"
    assert "counted 2 recoveries of NVLinks in compute (NVLink 7)" in what


def test_the_memory_of_uncorrectable_errors_is_named(node: Node) -> None:
    after = h100(0, field__4=3, nvmlDeviceGetMemoryErrorCounter__1__0__2=1, nvmlDeviceGetMemoryErrorCounter__1__0__7=2)
    ((severity, what),) = _grave(_ruling(node, [h100(0)], [after]))
    assert severity == "fail"
    assert what.endswith(" counted 3 uncorrectable memory errors (ECC) in compute (DRAM 1, SRAM 2)")


def test_a_corrupt_inforom_is_a_warning(node: Node) -> None:
    corrupt = h100(0, nvmlDeviceValidateInforom="!14")
    ((severity, what),) = _grave(_ruling(node, [corrupt], [corrupt]))
    assert severity == "warn"
    assert "its inforom is corrupt" in what


def b200(index: int, **changes: object) -> Answers:
    """Return a device with NVLink 5: it counts other errors, and has a history of its error correction."""
    of_nvlink_4 = ("field.161", "field.162", "field.163")
    kept = {key: value for key, value in h100(index).items() if key not in of_nvlink_4}
    counters = dict.fromkeys((206, 207, 208, 211, 212, 214, 215, 219, 221), 0)
    history = dict(zip(range(235, 251), (10**12, 10**6, 500, 3, *[0] * 12), strict=True))
    kept["links"] = 6
    return {**kept, **{f"field.{number}": value for number, value in (counters | history).items()}, **changes}


def test_what_error_correction_corrected_is_recorded_and_no_finding(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_links, "_BUDGET_S", 600)  # a loaded machine may be slower than a driver
    # Bins 1 and 15 of one link: 15 wrong symbols at once are the most that it can correct.
    worse = b200(0, **{"field.236.4": 10**6 + 70, "field.250.4": 2})
    reader = node(b200(0))
    first = reader.snapshot()
    node(worse)
    last = reader.snapshot()
    window = window_between("compute", "measure", 60, first, last, {})
    assert first.devices[0].nvlink_fec_history[:4] == (6 * 10**12, 6 * 10**6, 3000, 18)
    assert window.devices[0].fec_risen == (0, 70, *[0] * 13, 2)
    assert [
        finding.what for finding in rule((first, (window,)), last=last).findings if finding.severity != "info"
    ] == []


def test_what_error_correction_left_fails_the_device_and_names_the_link(node: Node) -> None:
    ruling = _ruling(node, [b200(0)], [b200(0, **{"field.219.4": 1})])
    ((severity, what),) = _grave(ruling)
    assert severity == "fail"
    assert "counted 1 errors of NVLinks that their error correction left in compute (NVLink 4)" in what


def test_a_history_that_takes_long_is_not_read_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_links, "_BUDGET_S", 0)
    reader = node(b200(0))
    assert reader.snapshot().devices[0].nvlink_fec_history
    (device,) = reader.snapshot().devices
    assert device.nvlink_fec_history == ()
    assert device.unavailable["nvlink_fec_history"].startswith("left out: reading it took ")


def test_a_device_before_nvlink_5_has_no_history(node: Node) -> None:
    (device,) = node(h100(0)).snapshot().devices
    assert (device.nvlink_fec_history, device.unavailable["nvlink_fec_history"]) == ((), "not supported")


@pytest.mark.parametrize(("code", "severity"), [(2, "fail"), (7, "fail"), (9, "warn"), (15, "warn")])
def test_a_configuration_of_the_fabric_that_is_newer_than_the_table(node: Node, code: int, severity: str) -> None:
    odd = h100(0, fabric__health=code << 8)
    assert [found for found, _ in _grave(_ruling(node, [odd], [odd]))] == [severity]


def _fleet(node: Node, **changes: object) -> list[Finding]:
    devices = [h100(number) for number in range(8)]
    devices[5] = h100(5, **changes)
    return list(_ruling(node, devices, devices).findings)


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    by_day(
        [
            ({"nvmlDeviceGetEnforcedPowerLimit": 300_000}, "warn", "a power limit of 300 W, most others 700 W"),
            ({"nvmlDeviceGetMaxClockInfo__1": 1200}, "warn", "a highest clock of 1200 MHz, most others 1980 MHz"),
            ({"nvmlDeviceGetEccMode": 0}, "warn", "ECC off, most others on"),
            ({"nvmlDeviceGetMigMode": 1}, "warn", "MIG on, most others off"),
            ({"nvmlDeviceGetMaxPcieLinkWidth": 8}, "warn", "a widest PCIe link of 8, most others 16"),
            ({"nvmlDeviceGetVbiosVersion": "96.00.01"}, "info", "the VBIOS 96.00.01, most others 96.00.99.00.01"),
        ],
        *(0, 5),
    ),
)
def test_one_of_eight_is_set_up_otherwise(node: Node, changes: dict[str, object], severity: str, words: str) -> None:
    (found,) = [finding for finding in _fleet(node, **changes) if "most others" in finding.what]
    assert found.severity == severity
    assert found.what == f"GPU 5 (NVIDIA H100 80GB HBM3, 0000:1c:00) of node gpu-00 has {words}"


def test_a_power_limit_below_the_default_on_all_devices_is_said(node: Node) -> None:
    capped = [h100(number, nvmlDeviceGetEnforcedPowerLimit=300_000) for number in range(4)]
    (found,) = [finding for finding in _ruling(node, capped, capped).findings if finding.what.startswith("power")]
    assert found.severity == "info"
    assert found.what.startswith(
        "power limit below its default (300 of 700 W): GPU 0 of node gpu-00, GPU 1 of node gpu-00, "
    )


def test_another_model_among_eight_is_held_against_none(node: Node) -> None:
    other = {"nvmlDeviceGetName": "NVIDIA A100-SXM4-80GB", "nvmlDeviceGetEnforcedPowerLimit": 400_000}
    assert not [finding for finding in _fleet(node, **other) if finding.severity != "info"]


SMI = "#!/bin/sh\ncase $1 in -q) {answer} ;; *) exit 2 ;; esac\n"


def _smi(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    (folder / "state.xml").write_text(NEW)
    tool = folder / "nvidia-smi"
    tool.write_text(SMI.format(answer=answer))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def _smi_node(folder: Path) -> NodeReader:
    from seatrial.devices import nvidia_smi

    return NodeReader({}, sysfs=folder, kernel_log=str(folder / "none"), readers=(nvidia_smi.open_reader(),))


@pytest.mark.parametrize(
    "around",
    [
        "echo 'Warning: persistence mode is disabled' >&2; cat {0}/state.xml",
        "cat {0}/state.xml; echo 'WARNING: infoROM is corrupted at gpu 0000:53:00.0'; exit 14",
        "cat {0}/state.xml; exit 8",
    ],
)
def test_sentences_around_a_document(around: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _smi(tmp_path, monkeypatch, around.format(tmp_path))
    (device,) = _smi_node(tmp_path).snapshot().devices
    assert device.uuid == "GPU-1"
    assert ("inforom_corrupt" in device.broken) == ("infoROM" in around)


@pytest.mark.parametrize("answer", ["echo 'Failed to initialize NVML'; exit 255", "exit 0", "kill -9 $$"])
def test_a_tool_that_falls_silent_loses_no_device(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _smi(tmp_path, monkeypatch, f"cat {tmp_path}/state.xml")
    reader = _smi_node(tmp_path)
    before = reader.snapshot()
    _smi(tmp_path, monkeypatch, answer)
    silent = reader.snapshot()
    assert silent.silent
    assert silent.devices == before.devices  # what is not known has not changed
    ruling = rule((before, (window_between("compute", "measure", 60, before, silent, {}),)), last=silent)
    assert [severity for severity, what in _grave(ruling) if " was lost " in what] == []
    assert any("did not answer at the end of the trial" in what for _, what in _grave(ruling))
    assert ruling.unjudged == ("GPU diagnostics of gpu-00 not checked",)


def test_what_rose_while_a_tool_was_silent_is_found_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _smi(tmp_path, monkeypatch, f"cat {tmp_path}/state.xml")
    reader = _smi_node(tmp_path)
    before = reader.snapshot()
    _smi(tmp_path, monkeypatch, "exit 9")
    silent = reader.snapshot()
    _smi(tmp_path, monkeypatch, f"sed 's/<dram_uncorrectable>2/<dram_uncorrectable>5/' {tmp_path}/state.xml")
    after = reader.snapshot()
    windows: tuple[NodeWindow, ...] = (
        window_between("compute", "measure", 60, before, silent, {}),
        window_between("memory", "measure", 60, silent, after, {}),
    )
    assert any("counted 3 uncorrectable" in what for _, what in _grave(rule((before, windows), last=after)))


def test_a_made_up_device_is_no_full_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _smi(tmp_path, monkeypatch, f"cat {tmp_path}/state.xml")
    reader = _smi_node(tmp_path)
    before = reader.snapshot()
    name = "</process_name></process_info></processes></gpu><gpu id='0000:54:00.0'><processes><process_name>"
    text = NEW.replace("</process_info>", f"<process_name>{name}</process_name></process_info>")
    (tmp_path / "state.xml").write_text(text)
    after = reader.snapshot()
    ruling = rule((before, (window_between("compute", "measure", 60, before, after, {}),)), last=after)
    assert ruling.unjudged == ("GPU diagnostics of gpu-00 not checked",)
    assert any("2 devices, but 1 attached" in why for why in after.not_checked.values())


def test_a_name_of_a_process_loses_no_device_where_the_tool_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _smi(tmp_path, monkeypatch, f"cat {tmp_path}/state.xml")
    reader = _smi_node(tmp_path)
    before = reader.snapshot()
    name = "<process_name>Unable to determine the device handle for GPU 0000:53:00.0: GPU is lost."
    cut = NEW.partition("</process_info>")[0]
    (tmp_path / "cut.xml").write_text(f"{cut}{name}")
    _smi(tmp_path, monkeypatch, f"cat {tmp_path}/cut.xml; exit 15")
    last = reader.snapshot()
    ruling = rule((before, (window_between("compute", "measure", 60, before, last, {}),)), last=last)
    assert not any(" was lost " in what for _, what in _grave(ruling))
    assert ruling.unjudged == ("GPU diagnostics of gpu-00 not checked",)


def test_a_tool_that_names_the_lost_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _smi(tmp_path, monkeypatch, f"cat {tmp_path}/state.xml")
    reader = _smi_node(tmp_path)
    before = reader.snapshot()
    sentence = "Unable to determine the device handle for GPU 0000:53:00.0: GPU is lost.  Reboot the system"
    _smi(tmp_path, monkeypatch, f"echo '{sentence}'; exit 15")
    last = reader.snapshot()
    ruling = rule((before, (window_between("compute", "measure", 60, before, last, {}),)), last=last)
    assert ("fail", "GPU 0 (NVIDIA H100, 0000:53:00) of node gpu-00 was lost in compute") in _grave(ruling)


def test_a_log_that_is_rotated_or_cut_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "kern.log"
    line = "Nov 23 08:45:11 gpu-01 kernel: [ 9999.123456] NVRM: Xid (PCI:0000:17:00): {}, text\n"
    file.write_text(line.format(13) * 3)
    log = KernelLog(str(file))
    assert len(log.read()) == 3
    file.rename(tmp_path / "kern.log.1")
    file.write_text(line.format(48))
    assert [event.code for event in log.read()] == [48]
    assert log.was_cut
    with file.open("a") as stream:
        stream.write(line.format(79))
    assert [event.code for event in log.read()] == [79]
    file.write_text("")
    assert log.read() == ()
    file.write_text(line.format(95))
    assert [event.code for event in log.read()] == [95]
    log.close()


def test_a_part_of_the_log_that_was_lost_during_the_trial_is_listed() -> None:
    from checks.test_diagnostics_judge import HEALTHY

    before = NodeState(devices=(HEALTHY,))
    after = NodeState(devices=(HEALTHY,), not_checked={"a part of the kernel log": "the kernel overwrote it"})
    (found,) = rule((before, ()), last=after).findings
    assert found.what == 'not checked: a part of the kernel log of gpu-00 ("the kernel overwrote it")'
