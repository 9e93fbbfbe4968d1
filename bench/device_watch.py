"""What the watch of a node with 8 GPUs costs: CPU time of its samples by NVML, nvidia-smi, sysfs (AMD); of a snapshot.

    python bench/device_watch.py

The readers of the product read a double of NVML (tests/devices/nvml_double.c), which reads a text file again at each
call: the figures are an upper bound for the code of ours. The cost of a driver, only a GPU can show. Needs gcc.

Of nvidia-smi stands a script that needs far more CPU time for its lines than the samples may take: the product has to
measure that, and to ask more rarely. Its start, which loads the driver's library, is in the figure as it is. The files
of AMD's driver are those of a made tree.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import write_result

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from devices import nvml_double
from devices.test_amd_devices import sysfs_tree

from seatrial.devices import amd_sysfs
from seatrial.devices.nvidia_smi_samples import open_samples
from seatrial.devices.nvml import open_reader

DEVICES = 8
PERIOD_S = 1.0
TOOL_WATCHED_S = 20.0
LIMIT = 0.01
"""Share of a core that the samples may take."""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = nvml_double.build(folder)
        os.environ[nvml_double.VARIABLE] = str(folder / "answers")
        nvml_double.write(folder / "answers", [nvml_double.h100(index) for index in range(DEVICES)])
        reader = open_reader(str(library))
        assert reader.samples is not None
        sample_s = _cpu_s(reader.samples, 200)
        snapshot_s = _cpu_s(reader.states, 10)
        tool = _tool_samples(folder)
        amd_s = _amd_sample_s(folder)
    share = sample_s / PERIOD_S
    print(f"samples of {DEVICES} GPUs: {sample_s * 1e3:.2f} ms of CPU each second, {share:.2%} of a core")
    print(f"snapshot of {DEVICES} GPUs: {snapshot_s * 1e3:.1f} ms of CPU")
    print(
        f"nvidia-smi that takes {tool['tool_line_cpu_s'] * 1e3:.0f} ms of CPU for 8 GPUs: {tool['tool_share']:.2%} "
        f"of a core over {TOOL_WATCHED_S:g} s; our reading of it {tool['tool_read_cpu_s'] * 1e3:.2f} ms a second"
    )
    print(f"samples of {DEVICES} AMD GPUs: {amd_s * 1e3:.2f} ms of CPU each second")
    result = {"devices": DEVICES, "sample_cpu_s": round(sample_s, 6), "share_of_a_core": round(share, 6)}
    write_result(
        "device_watch",
        "python bench/device_watch.py",
        {**result, "snapshot_cpu_s": round(snapshot_s, 6), "amd_sample_cpu_s": round(amd_s, 6), **tool},
    )
    sys.exit(0 if max(share, amd_s / PERIOD_S, tool["tool_share"], tool["tool_read_cpu_s"]) <= LIMIT else 1)


def _tool_samples(folder: Path) -> dict[str, float]:
    """Watch a costly double of nvidia-smi as the product does, and return what it and we took, once the rule holds."""
    buses = [f"0000:{0x17 + index:02x}:00" for index in range(DEVICES)]
    lines = "".join(f"0000{bus.upper()}.0, 71, 99, 650.25, 1980, 503, 5, 16, 0x00000004\n" for bus in buses)
    (folder / "lines").write_text(lines)
    tool = folder / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\nperiod=${3#--loop=}\n"
        f"while :; do i=0; while [ $i -lt 24000 ]; do i=$((i + 1)); done; cat {folder}/lines; sleep $period; done\n"
    )
    tool.chmod(0o755)
    samples = open_samples(str(tool), {bus: f"GPU-{number}" for number, bus in enumerate(buses)})
    assert samples is not None
    deadline = time.monotonic() + 60
    while not samples.remarks() and time.monotonic() < deadline:
        samples.read()
        time.sleep(PERIOD_S)
    words = samples.remarks()["samples of each second"]
    line_s, period_s = float(words.split()[2]) / 1e3, float(words.split()[-2])
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    own, reads = time.process_time(), int(TOOL_WATCHED_S / PERIOD_S)
    seen = 0
    for _ in range(reads):
        seen += len(samples.read())
        time.sleep(PERIOD_S)
    read_s = (time.process_time() - own) / reads
    samples.close()
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    share = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / seconds
    assert seen, "the tool went on"
    return {
        "tool_line_cpu_s": line_s,
        "tool_period_s": period_s,
        "tool_share": round(share, 6),
        "tool_read_cpu_s": round(read_s, 6),
    }


def _amd_sample_s(folder: Path) -> float:
    first = sysfs_tree(folder)
    for index in range(1, DEVICES):
        shutil.copytree(first, first.with_name(f"0000:{0x0C + index:02x}:00.0"))
    samples = amd_sysfs.open_reader(folder).samples
    assert samples is not None
    assert len(samples()) == DEVICES
    return _cpu_s(samples, 200)


def _cpu_s(read: Callable[[], object], times: int) -> float:
    """Mean CPU time of one call."""
    read()
    started = time.process_time()
    for _ in range(times):
        read()
    return (time.process_time() - started) / times


if __name__ == "__main__":
    main()
