"""Real agents that watch GPUs which are not there: a double of NVML answers, and a file is the kernel log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from cuda_double.install import environment
from devices import nvml_double
from devices.nvml_double import h100
from devices.test_handed import DEAD, NEW, TEXT
from devices.test_nvidia_smi import MATRIX, tool_double
from devices.test_nvidia_smi import NEW as NEW_XML
from live.trials import Ended, Trial

from seatrial.cli.click_app import cli

_LOG = "NVRM: Xid (PCI:0000:1A:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
_VALUES = {
    *("model", "uuid", "serial", "driver", "vbios", "bus"),
    *("temperature_c", "memory_temperature_c", "margin_k", "utilization_percent"),
    *("sm_mhz", "sm_max_mhz", "memory_mhz", "throttle_reasons", "throttled_ns"),
    *("power_w", "power_limit_w", "power_default_limit_w", "memory_used_bytes", "memory_total_bytes"),
    *("counters", "link_counters", "recovery_action", "ecc_enabled"),
    *("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max"),
    *("nvlinks", "nvlinks_active", "nvlink_gbps", "fabric_state"),
    *("mig", "compute_mode", "persistence", "processes", "unavailable"),
}
"""What report.json has of each device."""
_COUNTED = {
    *("ecc_corrected", "ecc_uncorrected", "ecc_uncorrected_dram", "ecc_uncorrected_sram", "pages_retired"),
    *("rows_remapped_corrected", "rows_remapped_uncorrected", "pcie_replays"),
    *("nvlink_crc_errors", "nvlink_replays", "nvlink_recoveries"),
}
_END_OF_COMPUTE = 3
"""Snapshots of the watch, counted from 1: before the trial, when compute begins, when it ends."""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a machine whose NVML is the double, with an old line in its kernel log."""
    nvml_double.build(tmp_path)
    (tmp_path / "kmsg").write_text("NVRM: Xid (PCI:0000:17:00): 48, of last week\n")
    return {
        nvml_double.VARIABLE: str(tmp_path / "answers"),
        "LD_LIBRARY_PATH": str(tmp_path),
        "SEATRIAL_KERNEL_LOG": str(tmp_path / "kmsg"),
    }


def _trial(tmp_path: Path, machine: dict[str, str]) -> Trial:
    arguments = ("smoke", "--only", "diagnostics,compute", "--device", "cpu", "--nproc-per-node", "1")
    return Trial(tmp_path / "out", *arguments, env=machine)


def _texts(ended: Ended, severity: str) -> list[str]:
    own = [finding for finding in ended.report["findings"] if finding["check"] == "diagnostics"]
    return sorted(finding["what"] for finding in own if finding["severity"] == severity)


def test_healthy_gpus(tmp_path: Path, machine: dict[str, str]) -> None:
    # That one is divided (MIG) is said, and nothing that was not checked.
    nvml_double.write(tmp_path / "answers", [h100(0), h100(1, nvmlDeviceGetMigMode=1)])
    ended = _trial(tmp_path, machine).ended()
    assert ended.exit_code == 0, ended.report["findings"]
    assert "GPU diagnostics: PASS" in ended.report["acceptance"]["summary"]
    (node,) = ended.report["gpu_diagnostics"]
    assert (node["source"], node["topology"]) == ("NVML 580.105.08", {"0-1": "NV18"})
    assert [device["changes"] for device in node["devices"]] == [{}, {}]
    assert node["devices"][0]["after"]["temperature_c"] == node["devices"][0]["temperature_max_c"] == 29
    assert node["devices"][0]["before"].keys() >= _VALUES
    assert node["devices"][0]["before"]["counters"].keys() >= _COUNTED
    assert node["devices"][0]["memory_max_share"] in (None, pytest.approx(0.0059))  # None: there was no sample
    assert {"compute"} <= {window.get("check") for window in node["windows"]}


@pytest.mark.slow
def test_evidence_of_other_tools(tmp_path: Path, machine: dict[str, str]) -> None:
    nvml_double.write(tmp_path / "answers", [h100(0), h100(1)])
    serials = [str(h100(index)["nvmlDeviceGetSerial"]) for index in (0, 1)]
    text = json.dumps(NEW).replace("1650000000001", serials[0]).replace("1650000000002", serials[1])
    (tmp_path / "diag.json").write_text(text)
    (tmp_path / "ras.txt").write_text(TEXT.format(errors=DEAD, warnings=""))
    arguments = ("smoke", "--only", "diagnostics", "--device", "cpu", "--nproc-per-node", "1")
    files = ("--evidence", str(tmp_path / "diag.json"), "--evidence", str(tmp_path / "ras.txt"))
    ended = Trial(tmp_path / "out", *arguments, *files, env=machine).ended()
    assert ended.exit_code == 1, ended.report["findings"]
    (what,) = _texts(ended, "fail")
    assert what.startswith("GPU 1 (NVIDIA H100 80GB HBM3, 0000:18:00) of ")
    assert what.endswith(" failed the test memory of DCGM (diag.json)")
    (unused,) = _texts(ended, "warn")
    assert "ras.txt, which was handed over, counts for nothing: it is about 10.0.0.2" in unused
    kept = {entry["name"]: entry for entry in ended.report["evidence"]}
    assert (kept["diag.json"]["unused"], len(kept["diag.json"]["results"]), len(kept["ras.txt"]["results"])) == (
        "",
        1,
        1,
    )
    again = CliRunner().invoke(cli, ["report", str(ended.folder), "--json"], standalone_mode=False)
    assert again.return_value == 1
    assert json.loads(again.stdout)["evidence"] == ended.report["evidence"]


@pytest.mark.nightly
def test_a_node_without_nvml_asks_nvidia_smi(tmp_path: Path) -> None:
    gpu = NEW_XML.partition("<gpu ")[2].partition("</gpu>")[0]
    gpu = gpu.replace("<remapped_row_pending>Yes", "<remapped_row_pending>No").replace(
        "Insufficient Resources", "Success"
    )
    gpu = gpu.partition("<processes>")[0]
    other = gpu.replace("53:00", "54:00").replace("GPU-1", "GPU-2")
    opening = NEW_XML.partition("<gpu ")[0].replace("<attached_gpus>1", "<attached_gpus>2")
    document = opening + "".join(f"<gpu {one}</gpu>" for one in (gpu, other)) + "</nvidia_smi_log>"
    tool_double(tmp_path, "clocks_event_reasons.active")
    (tmp_path / "state.xml").write_text(document)
    # When it opens the source, before the trial, when compute begins; the fourth answer is that at the end of compute.
    (tmp_path / "state.xml.from-4").write_text(document.replace("<dram_uncorrectable>2", "<dram_uncorrectable>5", 1))
    (tmp_path / "matrix.from-2").write_text(MATRIX.replace("NV18", "SYS"))
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SEATRIAL_KERNEL_LOG": str(tmp_path / "none")}
    ended = _trial(tmp_path, variables).ended()
    assert ended.exit_code == 1
    node = f"node {ended.report['nodes'][0]['name']}"
    assert _texts(ended, "fail") == [
        f"GPU 0 (NVIDIA H100, 0000:53:00) of {node} counted 3 uncorrectable memory errors (ECC) in compute (DRAM 3)",
        f"NVLink between GPU 0 and GPU 1 of {node} changed from NV18 to SYS by the end of the trial",
    ]
    (state,) = ended.report["gpu_diagnostics"]
    assert (state["topology"]["0-1"], state["topology_after"]["0-1"]) == ("NV18", "SYS")
    assert list(state["not_checked"]) == ["kernel log", "NVLinks"]


def test_each_fault_is_named_with_its_step(tmp_path: Path, machine: dict[str, str]) -> None:
    answers = tmp_path / "answers"
    healthy = [h100(index) for index in range(4)]
    broken = {**healthy[1], "field.145": 1}
    nvml_double.write(answers, [healthy[0], broken, *healthy[2:]])
    changed = {**healthy[2], "field.4": 2, "field.163.5": 7, "nvmlDeviceGetTemperature.0": 95}
    faulty = [healthy[0], broken, changed, {**healthy[3], "*": "!15"}]
    nvml_double.write_later(answers, faulty, from_snapshot=_END_OF_COMPUTE)
    trial = _trial(tmp_path, machine)
    # Its first snapshot has read the old lines of the log; those that come now are of this trial, in whichever step.
    trial.until(lambda event: event["kind"] == "facts" and "before" in [fact["name"] for fact in event["facts"]])
    with (tmp_path / "kmsg").open("a") as log:
        log.write(_LOG)
    ended = trial.ended()
    assert ended.exit_code == 1
    remap, errors, lost = _texts(ended, "fail")
    assert remap == (
        "GPU 1 (NVIDIA H100 80GB HBM3, 0000:18:00) of node "
        + ended.report["nodes"][0]["name"]
        + " is broken: a memory row could not be remapped (before the trial)"
    )
    assert "GPU 2 " in errors
    assert "counted 2 uncorrectable memory errors (ECC) in compute" in errors
    assert "GPU 3 " in lost
    assert "was lost in compute" in lost
    (finding,) = [finding for finding in ended.report["findings"] if " was lost " in finding["what"]]
    assert any("Xid (PCI:0000:1A:00): 79" in line for line in finding["evidence"])
    assert any(
        text.endswith(" counted 7 CRC errors of NVLinks in compute (NVLink 5)") for text in _texts(ended, "warn")
    )


@pytest.mark.nightly
def test_a_driver_that_stops_answering_holds_up_nobody(tmp_path: Path, machine: dict[str, str]) -> None:
    nvml_double.write(tmp_path / "answers", [h100(0)])
    nvml_double.write_later(tmp_path / "answers", [{**h100(0), "*": "~"}], from_snapshot=_END_OF_COMPUTE)
    ended = _trial(tmp_path, machine).ended()
    assert ended.exit_code == 0, ended.report["findings"]
    (what,) = _texts(ended, "warn")
    assert "did not answer at the end of the trial" in what
    lines = ended.report["acceptance"]["summary"]
    assert any(line.startswith("GPU diagnostics: NOT CHECKED: the driver of ") for line in lines)


def test_a_fault_while_a_rank_computes_on_its_gpu_names_both(tmp_path: Path, machine: dict[str, str]) -> None:
    """Both doubles in one trial: ranks on devices of the type cuda, whose NVML tells of a fault meanwhile."""
    (tmp_path / "plan.toml").write_text('level = "smoke"\n[compute]\ngpu_size = 256\nseconds = 1.0\n')
    devices = [h100(number, bus=f"00000000:{0x10 + number:02X}:00.0") for number in (0, 1, 2)]
    nvml_double.write(tmp_path / "answers", devices)
    faulty = [devices[0], {**devices[1], "field.4": 3}, {**devices[2], "field.4": 9}]
    nvml_double.write_later(tmp_path / "answers", faulty, from_snapshot=_END_OF_COMPUTE)
    variables = environment(tmp_path / "double") | machine
    arguments = (str(tmp_path / "plan.toml"), "--only", "diagnostics,compute")
    ended = Trial(tmp_path / "out", *arguments, env=variables).ended()
    (finding,) = [finding for finding in ended.grave() if finding["check"] == "diagnostics"]
    assert finding["culprit"]["ranks"] == [1]
    node = f"node {ended.report['nodes'][0]['name']}"
    assert finding["what"] == (
        f"GPU 1 (NVIDIA H100 80GB HBM3, 0000:11:00) of {node} counted 3 uncorrectable memory errors (ECC) in compute"
    )
    (unused,) = _texts(ended, "warn")
    assert "GPU 2 " in unused
    assert "; no rank used it" in unused
    (state,) = ended.report["gpu_diagnostics"]
    assert [device["rank"] for device in state["devices"]] == [0, 1, None]


@pytest.mark.nightly
def test_gpus_whose_driver_shows_nothing_are_not_checked(tmp_path: Path, machine: dict[str, str]) -> None:
    (tmp_path / "plan.toml").write_text('level = "smoke"\n[compute]\ngpu_size = 256\n')
    nvml_double.write(tmp_path / "answers", [], nvmlInit_v2="!18")
    variables = environment(tmp_path / "double") | machine
    ended = Trial(tmp_path / "out", str(tmp_path / "plan.toml"), "--only", "diagnostics,compute", env=variables).ended()
    assert ended.report["acceptance"]["status"] == "PASS"
    (line,) = [line for line in ended.report["acceptance"]["summary"] if "GPU diagnostics" in line]
    assert line.startswith("GPU diagnostics: NOT CHECKED: NVIDIA devices of ")
    assert "driver and library have different versions (code 18)" in line
    assert any(what.startswith("GPU diagnostics of ") for what in ended.report["acceptance"]["partial"])


@pytest.mark.nightly
def test_a_driver_that_shows_nothing_changes_no_trial_of_cpus(tmp_path: Path, machine: dict[str, str]) -> None:
    nvml_double.write(tmp_path / "answers", [], nvmlInit_v2="!18")
    trial = Trial(tmp_path / "out", "smoke", "--only", "compute", "--device", "cpu", env=machine)
    ended = trial.ended()
    assert "diagnostics" not in ended.report["checks"]
    assert ended.report["gpu_diagnostics"] == []
    assert not any("GPU diagnostics" in line for line in ended.report["acceptance"]["summary"])
