"""What all benches share: subjects measured in turn within one run, medians and ratios, one JSON file of results.

Only what was measured in turn in one run on one machine is comparable, so a result holds one run and is replaced whole.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["alternately", "machine", "process_s", "ratios", "write_result"]

_RESULTS = Path(__file__).parent / "results"


def alternately(subjects: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each subject measured in each round. The order turns round each time: nobody is always the first."""
    names = list(subjects)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            measured[name].append(subjects[name]())
    return measured


def ratios(measured: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Median, smallest and largest of each subject, and its median as a multiple of the first subject's."""
    first = statistics.median(next(iter(measured.values())))
    return {
        name: {
            "median": round(statistics.median(values), 6),
            "least": round(min(values), 6),
            "most": round(max(values), 6),
            "ratio": round(statistics.median(values) / first, 4),
        }
        for name, values in measured.items()
    }


def process_s(argv: Sequence[str]) -> float:
    """Seconds of wall time that a command takes, from its start to its end. Raises CalledProcessError when it fails."""
    started = time.perf_counter()
    subprocess.run(argv, capture_output=True, check=True)
    return time.perf_counter() - started


def machine() -> dict[str, Any]:
    """What the measurements belong to; no names of hosts and no paths. torch is not imported."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cores": os.cpu_count(),
        "cpu": model or platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch,
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def write_result(name: str, command: str, measurements: Mapping[str, Any]) -> Path:
    """Replace ``results/NAME.json``. ``command`` is what to type to measure again, from the root of the repository."""
    document = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "measurements": measurements,
    }
    path = _RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path
