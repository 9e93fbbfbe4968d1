"""What the watch of a node with 8 GPUs costs: CPU time of its samples each second, and of a whole snapshot.

    python bench/device_watch.py

The readers of the product read a double of NVML (tests/devices/nvml_double.c), which reads a text file again at each
call: the figures are an upper bound for the code of ours. The cost of a driver, only a GPU can show. Needs gcc.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import write_result

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from devices import nvml_double

from seatrial.devices.nvml import open_reader

DEVICES = 8
PERIOD_S = 1.0
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
    share = sample_s / PERIOD_S
    print(f"samples of {DEVICES} GPUs: {sample_s * 1e3:.2f} ms of CPU each second, {share:.2%} of a core")
    print(f"snapshot of {DEVICES} GPUs: {snapshot_s * 1e3:.1f} ms of CPU")
    result = {"devices": DEVICES, "sample_cpu_s": round(sample_s, 6), "share_of_a_core": round(share, 6)}
    write_result("device_watch", "python bench/device_watch.py", {**result, "snapshot_cpu_s": round(snapshot_s, 6)})
    sys.exit(0 if share <= LIMIT else 1)


def _cpu_s(read: Callable[[], object], times: int) -> float:
    """Mean CPU time of one call."""
    read()
    started = time.process_time()
    for _ in range(times):
        read()
    return (time.process_time() - started) / times


if __name__ == "__main__":
    main()
