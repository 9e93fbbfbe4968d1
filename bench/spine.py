"""The spine, measured as a person meets it: whole processes, ratios within one run.

    python bench/spine.py processes  whole processes and their memory, about 3 minutes
    python bench/spine.py loop       our collective loop against the bare call
    python bench/spine.py trials     100 clean smoke and 20 clean quick trials, quiet and beside a load, 25 minutes
    python bench/spine.py trials 5   5 of each, printed and not recorded

Results go to bench/results/.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness import alternately, process_s, ratios, write_result

SEATRIAL = [sys.executable, "-m", "seatrial"]
TRIALS = {"smoke": 100, "quick": 20}
HALF_LOAD = """
import time
while True:
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass
    time.sleep(0.05)
"""


def whole_process(rounds: int) -> dict[str, Any]:
    """Seconds of whole processes; each ratio is to importing torch."""
    with tempfile.TemporaryDirectory() as out:
        commands = {
            "import torch": [sys.executable, "-c", "import torch"],
            "python": [sys.executable, "-c", "pass"],
            "--help": [*SEATRIAL, "--help"],
            "run --dry-run": [*SEATRIAL, "run", "--dry-run", "--out", out],
            "run smoke": [*SEATRIAL, "run", "smoke", "--out", out],
            "run quick": [*SEATRIAL, "run", "quick", "--out", out],
        }
        return ratios(alternately({name: partial(process_s, command) for name, command in commands.items()}, rounds))


def peak_memory() -> dict[str, Any]:
    """Peak resident memory of each process of a quick trial, in MB (10**6 bytes), by /proc while it runs."""
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as out:
        trial = subprocess.Popen(
            [*SEATRIAL, "run", "quick", "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while trial.poll() is None:
            for pid, name in [(trial.pid, "controller"), *_of_run(out)]:
                peaks[name] = max(peaks.get(name, 0.0), _peak_mb(pid))
            time.sleep(0.05)
    return {name: round(value, 1) for name, value in sorted(peaks.items())}


def collective_loop(rounds: int) -> dict[str, Any]:
    """Median time of an all_reduce as our check measures it against a bare loop around the same call."""
    text = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("collective_loop.py")), str(rounds)],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    ).stdout
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def all_clean_trials(counts: Mapping[str, int]) -> dict[str, Any]:
    """Verdicts of clean trials of each level, quiet and beside a load: none of them may be a FAIL."""
    quiet = {level: clean_trials(level, count) for level, count in counts.items()}
    with half_load():
        loaded = {level: clean_trials(level, count) for level, count in counts.items()}
    return {"quiet": quiet, "beside half a core of load": loaded}


def clean_trials(level: str, count: int) -> dict[str, Any]:
    """Verdicts of clean trials, one after the other."""
    verdicts: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    seconds = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as out:
            started = time.perf_counter()
            done = subprocess.run(
                [*SEATRIAL, "run", level, "--out", out, "--json"],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            seconds.append(time.perf_counter() - started)
            report = json.loads(done.stdout)
            verdicts[report["acceptance"]["status"]] += 1
            findings.update(f"{found['severity']}: {found['what'][:120]}" for found in report["findings"])
    return {
        "trials": count,
        "verdicts": dict(verdicts),
        "findings": dict(findings),
        "median_s": round(statistics.median(seconds), 2),
        "slowest_s": round(max(seconds), 2),
    }


@contextmanager
def half_load() -> Iterator[None]:
    """One process that loads one core half of the time."""
    process = subprocess.Popen([sys.executable, "-c", HALF_LOAD])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _of_run(out: str) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"SEATRIAL_KEEP={out}".encode() in (folder / "environ").read_bytes():
                words = (folder / "cmdline").read_bytes().split(b"\0")
                yield int(folder.name), "rank" if b"seatrial.worker.worker_main" in words else "agent"
        except OSError:
            continue


def _peak_mb(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return 0.0


def main() -> None:
    """Measure what the argument names."""
    what = sys.argv[1] if len(sys.argv) > 1 else "processes"
    command = f"python bench/spine.py {what}"
    if what == "processes":
        write_result("processes", command, {"seconds": whole_process(5), "peak_memory_mb": peak_memory()})
    elif what == "loop":
        write_result("collective_loop", command, collective_loop(30))
    elif what == "trials":
        if len(sys.argv) > 2:  # a look; the record has the whole number
            print(json.dumps(all_clean_trials(dict.fromkeys(TRIALS, int(sys.argv[2]))), indent=2))
        else:
            write_result("clean_trials", command, all_clean_trials(TRIALS))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
