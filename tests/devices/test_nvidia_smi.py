"""``nvidia-smi -q -x``: minimal documents of our own, in the form of drivers 450 to 580, and recorded ones."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from checks.test_diagnostics_judge import rule
from devices.recorded_samples import sample

from seatrial.devices import topology_matrix
from seatrial.devices.nvidia_smi import open_reader, parse
from seatrial.devices.nvidia_smi_samples import period_of
from seatrial.devices.readers import UnreadableError
from seatrial.devices.state import NodeState

NEW = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log><driver_version>580.1</driver_version><attached_gpus>1</attached_gpus><gpu id="00000000:53:00.0">
<product_name>NVIDIA H100</product_name><uuid>GPU-1</uuid><serial>N/A</serial>
<gpu_recovery_action>None</gpu_recovery_action><mig_mode><current_mig>Disabled</current_mig></mig_mode>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>4</current_link_gen>
<device_current_link_gen>1</device_current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
</pci_gpu_link_info><replay_counter>150</replay_counter></pci>
<clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown></clocks_event_reasons>
<clocks_event_reasons_counters><clocks_event_reasons_counters_hw_power_brake>7 us
</clocks_event_reasons_counters_hw_power_brake></clocks_event_reasons_counters>
<fb_memory_usage><total>100 MiB</total><used>1 MiB</used></fb_memory_usage>
<compute_mode>Exclusive_Process</compute_mode>
<ecc_errors><volatile><sram_uncorrectable_parity>1</sram_uncorrectable_parity><dram_uncorrectable>2</dram_uncorrectable>
</volatile></ecc_errors><remapped_rows><remapped_row_failure>No</remapped_row_failure>
<remapped_row_pending>Yes</remapped_row_pending></remapped_rows>
<temperature><gpu_temp>29 C</gpu_temp><gpu_temp_tlimit>58 C</gpu_temp_tlimit>
<gpu_temp_slow_tlimit_threshold>-2 C</gpu_temp_slow_tlimit_threshold></temperature>
<gpu_power_readings><instant_power_draw>68.92 W</instant_power_draw></gpu_power_readings>
<fabric><state>Completed</state><status>Insufficient Resources</status></fabric>
<processes><process_info>
<pid>77</pid>
</process_info></processes>
</gpu></nvidia_smi_log>
"""
OLD = """<nvidia_smi_log><driver_version>450</driver_version><attached_gpus>1</attached_gpus>
<gpu id="0000:00:1E.0"><uuid>GPU-2</uuid>
<clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>
</clocks_throttle_reasons><temperature><gpu_temp>40 C</gpu_temp>
<gpu_temp_slow_threshold>93 C</gpu_temp_slow_threshold></temperature>
<power_readings><power_draw>26.78 W</power_draw></power_readings><gpu_recovery_action>N/A</gpu_recovery_action>
</gpu></nvidia_smi_log>"""


_LISTED = """<nvidia_smi_log>
<driver_version>580.1</driver_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:17:00.0"><uuid>GPU-0</uuid>
\t\t<processes>
\t\t\t<process_info>
\t\t\t\t<pid>77</pid>
\t\t\t\t<process_name>NAME</process_name>
\t\t\t</process_info>
\t\t</processes>
\t\t<accounted_processes>
\t\t</accounted_processes>
\t</gpu>

</nvidia_smi_log>
"""
_END_OF_PROCESS = "</process_name></process_info></processes>"


@pytest.mark.parametrize(
    "name",
    [
        "python",
        "a & b",
        "\x01\ufffd",
        "<!ENTITY x 'y'>",
        f"x{_END_OF_PROCESS}<ecc_errors><tpc_repair_pending>Yes</tpc_repair_pending></ecc_errors><processes><p><process_name>",
        f"x\n{_END_OF_PROCESS}\n\t\t</processes>\n<ecc_errors><tpc_repair_pending>Yes</tpc_repair_pending></ecc_errors>",
    ],
)
def test_the_name_of_a_process_of_others_changes_nothing(name: str) -> None:
    """nvidia-smi writes it as it is, and any user of the device chooses it."""
    (device,) = parse(_LISTED.replace("NAME", name))
    assert (device.uuid, device.broken, device.processes) == ("GPU-0", (), (77,))


_MADE_UP = (
    '<gpu id="00000000:18:00.0"><uuid>GPU-1</uuid><remapped_rows><remapped_row_failure>Yes</remapped_row_failure>'
    "</remapped_rows>\n<processes>\n"
)


def _two(first: str, second: str) -> str:
    """Return a document of two devices, with the name of a process on each."""
    opening, _, gpu = _LISTED.replace("<attached_gpus>1", "<attached_gpus>2").partition("<gpu ")
    gpu, _, end = gpu.partition("</nvidia_smi_log>")
    other = gpu.replace(":17:", ":18:").replace("GPU-0", "GPU-1").replace("77", "78")
    gpus = [f"<gpu {text.replace('NAME', name)}" for text, name in ((gpu, first), (other, second))]
    return f"{opening}{''.join(gpus)}</nvidia_smi_log>{end}"


def test_a_device_that_the_name_of_a_process_makes_up_is_refused() -> None:
    with pytest.raises(UnreadableError, match=r"2 devices, but 1 attached \(the name of a process may have"):
        parse(_LISTED.replace("NAME", f"\n</gpu>\n{_MADE_UP}"))


@pytest.mark.parametrize(("opens", "closes"), [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?x", "?>"), ("<x y='", "'/>")])
def test_a_device_that_the_name_of_a_process_hides_is_read_all_the_same(opens: str, closes: str) -> None:
    """A name on one device hides what follows, and one on the next device ends that."""
    devices = parse(_two(f"x\n</gpu>\n{opens}\n<processes>\n", f"x\n</gpu>\n{closes}\n"))
    assert [(device.uuid, device.broken, device.processes) for device in devices] == [
        ("GPU-0", (), (77,)),
        ("GPU-1", (), (78,)),
    ]
    with pytest.raises(UnreadableError, match="3 devices, but 2 attached"):
        parse(_two(f"x\n</gpu>\n{opens}\n<processes>\n", f"x\n</gpu>\n{closes}\n{_MADE_UP}"))


def test_a_made_up_device_does_not_stand_for_a_hidden_one() -> None:
    """A driver may count devices that it does not show; the list, in which no user writes anything, has the others."""
    hidden = _LISTED.replace("<attached_gpus>1", "<attached_gpus>2")
    (device,) = parse(hidden, listed=1)
    assert device.uuid == "GPU-0"
    with pytest.raises(UnreadableError, match="2 devices, but nvidia-smi -L lists 1 "):
        parse(hidden.replace("NAME", f"\n</gpu>\n{_MADE_UP}"), listed=1)
    with pytest.raises(UnreadableError, match="1 devices, but 2 attached"):
        parse(hidden)


def test_a_new_driver() -> None:
    (state,) = parse(NEW)
    assert (state.model, state.bus, state.serial, state.driver) == ("NVIDIA H100", "0000:53:00", "", "580.1")
    assert (state.margin_k, state.slowdown_c, state.power_w, state.memory_used_bytes) == (60, None, 68.92, 1 << 20)
    assert (state.pcie_generation, state.pcie_generation_max, state.pcie_width) == (1, 5, 16)
    assert (state.throttle_reasons, state.throttled_ns) == (("power_cap",), {"power_brake": 7000})
    assert state.counters == {
        "ecc_uncorrected": 3,
        "ecc_uncorrected_dram": 2,
        "ecc_uncorrected_sram": 1,
        "pcie_replays": 150,
    }
    assert (state.broken, state.recovery_action) == (("row_remap_pending",), "none")
    assert state.fabric_state == "failed: insufficient resources"
    assert (state.mig, state.compute_mode, state.processes) == (False, "exclusive process", (77,))
    assert state.unavailable["slowdown_c"] == "nvidia-smi has none"


def test_an_old_driver() -> None:
    (state,) = parse(OLD)
    assert (state.bus, state.temperature_c, state.slowdown_c, state.margin_k) == ("0000:00:1e", 40, 93, None)
    assert (state.power_w, state.throttle_reasons, state.recovery_action) == (26.78, ("hw_slowdown",), None)


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed", NEW[:900], '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'])
def test_text_that_is_no_document(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse(text)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "exit code 18: Failed to init"),
        ("echo '<nvidia_smi_log></nvidia_smi_log>'", "shows no device"),
        ("echo '<nvidia_smi_log>'", "cut or damaged"),
    ],
)
def test_a_tool_that_shows_nothing(script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UnreadableError, match=why):
        open_reader()


def test_without_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnreadableError, match="not installed"):
        open_reader()


def _recorded(name: str) -> list[str]:
    file = sample(f"nvidia-smi/{name}.xml")
    devices = parse(file.read_text())
    assert devices
    findings = rule((NodeState(devices=devices), ())).findings
    return [f"{finding.severity} {finding.what}" for finding in findings if "was in use by" not in finding.what]


@pytest.mark.parametrize(
    "name",
    [
        "hw-qx-h100",
        "hw-qx-gb200",
        "hw-qx-a100",
        "hw-qx-l40s",
        "hw-qx-t4",
        "tesla-t4",
        "rtx-4000-sff-ada-v13",
        "mock-qx-gb200-healthy",
        "mock-qx-a100-healthy",
    ],
)
def test_no_alarm_on_recorded_healthy_devices(name: str) -> None:
    assert _recorded(name) == []


def test_recorded_faults_are_found() -> None:
    (remap,) = _recorded("mock-qx-gb200-ecc-injected")
    assert remap.startswith("fail GPU 0 (NVIDIA GB200")
    assert "a memory row could not be remapped" in remap
    (route,) = _recorded("mock-qx-gb200-fabric-degraded")
    assert route.startswith("fail GPU 1 (NVIDIA GB200")
    assert "an unhealthy route" in route


# The words of nvidia-smi topo -m of a DGX H100, drivers 535 to 580: columns between tabs, headings underlined.
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\tPXB\t0-55\t0\n"
    "GPU1\tNV18\t X \tNODE\tNODE\t0-55\t0\n"
    "GPU2\tSYS\tNODE\t X \tSYS\t56-111\t1\n"
    "NIC0\tPXB\tNODE\tSYS\t X \n\nLegend:\n\n  X    = Self\n"
)


def test_the_matrix_of_connections() -> None:
    assert topology_matrix.parse(MATRIX) == {"0-1": "NV18", "0-2": "SYS", "1-2": "NODE"}
    assert topology_matrix.parse("Failed to run topology matrix\n") == {}


@pytest.mark.parametrize("file", ["topo-m-8xh100-12nic.txt"])
def test_a_recorded_matrix(file: str) -> None:
    found = topology_matrix.parse(sample(f"nvidia-smi/{file}").read_text())
    assert len(found) == 28
    assert set(found.values()) == {"NV18"}


def tool_double(folder: Path, known: str) -> Path:
    """Write a double of nvidia-smi that answers from files; its loop knows one name for the clock reasons.

    A file NAME.from-4 takes the place of NAME from the fourth time on that it is asked for.
    """
    (folder / "state.xml").write_text(NEW)
    (folder / "matrix").write_text(MATRIX)
    (folder / "loop").write_text("00000000:53:00.0, 71, 99, 650.25, 1980, 503, 5, 16, 0x00000084\n")
    tool = folder / "nvidia-smi"
    tool.write_text(
        f"#!/bin/sh\ncd {folder}\n"
        "answer() {\n  echo >>$1.asked; number=$(wc -l <$1.asked); answer=$1\n"
        '  for later in $1.from-*; do [ "${later##*-}" -le $number ] 2>/dev/null && answer=$later; done\n'
        "  cat $answer\n}\n"
        'case "$*" in "-q -x") answer state.xml ;; "topo -m") answer matrix ;;\n'
        f"*{known}*--loop=1) exec tail -f {folder}/loop ;;\n"
        "*) echo 'Field \"x\" is not a valid field to query.'; exit 2 ;; esac\n"
    )
    tool.chmod(0o755)
    return tool


@pytest.mark.parametrize("known", ["clocks_event_reasons.active", "clocks_throttle_reasons.active"])
def test_samples_of_the_loop(known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool_double(tmp_path, known)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reader = open_reader()
    assert reader.samples is not None
    (sample_read,) = reader.samples()
    assert (sample_read.uuid, sample_read.temperature_c, sample_read.utilization_percent) == ("GPU-1", 71, 99)
    assert (sample_read.power_w, sample_read.sm_mhz, sample_read.memory_used_bytes) == (650.25, 1980, 503 << 20)
    assert (sample_read.pcie_generation, sample_read.pcie_width) == (5, 16)
    assert sample_read.throttle_reasons == ("power_cap", "power_brake")
    assert reader.topology() == {"0-1": "NV18", "0-2": "SYS", "1-2": "NODE"}
    assert reader.samples() == ()
    reader.close()


@pytest.mark.parametrize(("cpu_s", "period_s"), [(0.0, 1), (0.01, 1), (0.011, 2), (0.04, 4), (9.0, 60)])
def test_a_tool_that_costs_more_is_asked_more_rarely(cpu_s: float, period_s: int) -> None:
    assert period_of(cpu_s) == period_s


@pytest.mark.parametrize(
    "started_by",
    [pytest.param("", id="the tool"), pytest.param("sh -c ", id="what it starts", marks=pytest.mark.nightly)],
)
def test_the_cpu_time_of_the_loop_is_measured(started_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double that needs far more than 1 % of a core for each line: it is started again with a longer period."""
    tool = tmp_path / "nvidia-smi"
    tool_double(tmp_path, "nothing")
    line = "00000000:53:00.0, 71, 99, 650.25, 1980, 503, 5, 16, 0x00000084"
    burn = "i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done"
    burn = f"{started_by}'{burn}'" if started_by else burn
    script = tool.read_text().replace("*nothing*--loop=1)", "*--loop=1) while :; do " + burn + f"; echo '{line}'; done")
    tool.write_text(script.replace("; done exec", '; done ;;\n*--loop=*) echo "$*" >>again; exec'))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reader = open_reader()
    assert reader.samples is not None
    deadline = time.monotonic() + 50
    while "samples of each second" not in reader.remarks() and time.monotonic() < deadline:
        reader.samples()
        time.sleep(0.01)
    assert "ms of CPU time for one: one every " in reader.remarks()["samples of each second"]
    while not (tmp_path / "again").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    reader.close()
    period_s = int((tmp_path / "again").read_text().strip().rpartition("--loop=")[2])
    assert 1 < period_s <= 60


def test_a_tool_that_prints_without_end_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tool_double(tmp_path, "nothing")
    line = "00000000:53:00.0, 71, 99, 650.25, 1980, 503, 5, 16, 0x00000084"
    tool.write_text(tool.read_text().replace("*nothing*--loop=1) ", f"*--loop=*) exec yes '{line}' ;; *x*) "))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reader = open_reader()
    assert reader.samples is not None
    try:
        # None may have come yet where the tool has been started again, as it needs too much CPU time.
        read = [sample.temperature_c for _ in range(3) for sample in reader.samples()]
    finally:
        reader.close()
    assert set(read) == {71}


def test_a_tool_without_a_loop_gives_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool_double(tmp_path, "nothing")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert open_reader().samples is None


@pytest.mark.parametrize(
    "values",
    [
        f"<temperature><gpu_temp>{'9' * 400} C</gpu_temp></temperature>",
        f"<remapped_rows><remapped_row_corr>{'9' * 400}</remapped_row_corr></remapped_rows>",
        f"<processes><process_info><pid>{'9' * 5000}</pid></process_info></processes>",
        "<processes><process_info><pid>\u00b2</pid></process_info></processes>",
    ],
)
def test_numbers_that_cannot_be_are_none(values: str) -> None:
    gpu = f"<gpu id='00000000:17:00.0'>{values}</gpu>"
    (device,) = parse(f"<nvidia_smi_log><attached_gpus>1</attached_gpus>{gpu}</nvidia_smi_log>")
    assert (device.temperature_c, device.counters, device.processes) == (None, {}, ())
