"""Whom ``links`` names when real cables of hosts made from network namespaces are limited, cut or noisy, and how fast.

    sudo python bench/links_faults.py

Four hosts at 1 Gbit/s, one rank each; then the same with one fault. Writes ``results/links_faults.json``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from harness import write_result

_TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(_TESTS), str(_TESTS / "live")]

from hosts import made_hosts  # noqa: E402
from test_links_on_hosts import FAULTS, at_one_gbit, hosts_of, is_right, named, run_trial  # noqa: E402


def _row(fault: str) -> dict[str, Any]:
    plant, _ = FAULTS[fault]
    with made_hosts(hosts_of(fault)) as hosts:
        plant(at_one_gbit(hosts))
        started = time.monotonic()
        report = run_trial(hosts)
        seconds = time.monotonic() - started
    rounds_s = [step["seconds"] for step in report["steps"]]
    row = {
        "planted": fault,
        "verdict": report["acceptance"]["status"],
        "named": [name for _, name in named(report)],
        "right": is_right(named(report), fault),
        "rounds": len(rounds_s) - 1,
        "seconds_measuring": round(sum(rounds_s), 1),
        "seconds_in_all": round(seconds, 1),
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def main() -> None:
    rows = [_row(fault) for fault in FAULTS]
    print(write_result("links_faults", "python bench/links_faults.py", {"rows": rows}))


if __name__ == "__main__":
    main()
