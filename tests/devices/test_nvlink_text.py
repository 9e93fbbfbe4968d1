"""The output of nvidia-smi nvlink: both generations of counters, and a machine where only nvidia-smi reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checks.test_diagnostics_judge import rule
from devices.recorded_samples import sample
from devices.test_nvidia_smi import NEW

from seatrial.devices import nvidia_smi
from seatrial.devices.node_state import NodeReader, window_between
from seatrial.devices.nvlink_text import parse

GPU = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n"
STATES = GPU + "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n\t Link 2: 26.562 GB/s\n"
ERRORS = GPU + "".join(
    f"\t Link {link}: Replay Errors: 0\n\t Link {link}: Recovery Errors: {link}\n\t Link {link}: CRC Errors: 5\n"
    for link in (0, 2)
)
# The names that newer tools print for NVLink 5.
NEW_ERRORS = (
    "GPU 3: NVIDIA GB200 (UUID: GPU-3)\n\t Link 0: Tx packets: 12345\n\t Link 0: Malformed packet Errors: 1\n"
    "\t Link 0: Rx Errors: 2\n\t Link 0: Rx remote Errors: 9\n\t Link 0: Local link integrity Errors: 3\n"
    "\t Link 0: Link recovery failed events: 4\n\t Link 0: Total link recovery events: 5\n"
    "\t Link 0: Effective Errors: 6\n\t Link 0: Effective BER: 15e-255\n\t Link 0: Symbol Errors: 7\n"
    + "".join(f"\t Link {link}: FEC Errors - {number}: {number}\n" for link in (0, 1) for number in range(16))
)


def test_nvlink_4() -> None:
    links = parse(STATES, ERRORS)["GPU-1"]
    assert links.values() == {
        "nvlinks": 3,
        "nvlinks_active": 2,
        "nvlink_gbps": 26.562,
        "link_counters": {
            "nvlink_replays": (0, -1, 0),
            "nvlink_recoveries": (0, -1, 2),
            "nvlink_crc_errors": (5, -1, 5),
        },
    }
    assert links.counters() == {"nvlink_replays": 0, "nvlink_recoveries": 2, "nvlink_crc_errors": 10}


def test_nvlink_5() -> None:
    links = parse("", NEW_ERRORS)["GPU-3"]
    assert links.counters() == {
        "nvlink_malformed_packets": 1,
        "nvlink_receive_errors": 2,
        "nvlink_integrity_errors": 3,
        "nvlink_failed_recoveries": 4,
        "nvlink_recoveries": 5,
        "nvlink_effective_errors": 6,
        "nvlink_symbol_errors": 7,
    }
    assert links.values()["nvlink_fec_history"] == tuple(2 * number for number in range(16))


def test_values_between_bars() -> None:
    text = GPU + "\t Link 0: Replay Errors: 1 | Recovery Errors: 2 | CRC Errors: 3\n"
    assert parse("", text)["0"].counters() == {"nvlink_replays": 1, "nvlink_recoveries": 2, "nvlink_crc_errors": 3}


@pytest.mark.parametrize("text", ["", "no device", "\t Link 0: 5 GB/s\n", GPU + "\t Link 0: 99", GPU + "\t Link x: 1"])
def test_other_words_are_no_links(text: str) -> None:
    assert all(links.values() == {} for links in parse(text, text).values())


def test_all_links_are_inactive() -> None:
    text = GPU + "NVML: Unable to retrieve NVLink information as all links are inactive\n"
    assert parse(text, "")["GPU-1"].values() == {"nvlinks_active": 0}


@pytest.mark.parametrize(
    ("file", "devices", "active"),
    [("nvidia-smi.nvlink.status.a100", 8, 12), ("nvidia-smi-nvlink-s-h100nvl-12of18.txt", 1, 12)],
)
def test_recorded_states(file: str, devices: int, active: int) -> None:
    links = parse(sample(f"nvlink/{file}").read_text(), "")
    assert [links[str(index)].values()["nvlinks_active"] for index in range(devices)] == [active] * devices


def test_a_machine_where_only_nvidia_smi_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("-q", NEW), ("-s", STATES), ("-e", ERRORS)):
        (tmp_path / name).write_text(text)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\ncd {tmp_path}\n[ "$1" = nvlink ] && shift\ncat -- "$1"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    opened = nvidia_smi.open_reader()
    reader = NodeReader({}, sysfs=tmp_path, kernel_log=str(tmp_path / "none"), readers=(opened,))
    assert "NVLinks" not in reader.snapshot().not_checked
    first = reader.snapshot()
    (tmp_path / "-s").write_text(STATES.replace("Link 2: 26.562 GB/s", "Link 2: <inactive>"))
    (tmp_path / "-e").write_text(ERRORS.replace("Recovery Errors: 2", "Recovery Errors: 4"))
    last = reader.snapshot()
    ruling = rule((first, (window_between("compute", "measure", 60, first, last, {}),)), last=last)
    said = [finding.what.partition(" of node gpu-00 ")[2] for finding in ruling.findings if finding.severity == "fail"]
    assert [what for what in said if " in compute" in what] == [
        "counted 2 recoveries of NVLinks in compute (NVLink 2)",
        "lost 1 NVLink in compute",
    ]
    reader.close()
