"""The table of the review of ``seatrial launch``, made again: scripts of others and ways to fail, one row a case.

    python bench/scripts.py [CASE ...]

As root where Slurm, Open MPI, sshd and ip are installed, with the variables SEATRIAL_TEST_* that ``.ci/run`` sets, and
SEATRIAL_TEST_HEAVY_FRAMEWORKS (tests/launchers/heavy-frameworks.txt): what is absent is a row that says so. Writes
``results/scripts.json``; with CASE, such as 6a or 6a@here, only the rows of these cases are made again, as none is
compared with another. Forty minutes on two cores that others use as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import write_result
from script_rows import endings, inputs, trainings
from script_rows.case import ran
from script_rows.places import made_machine

_RESULT = Path(__file__).parent / "results" / "scripts.json"
_CASES = (*trainings.CASES, *endings.CASES, *inputs.CASES)


def main() -> None:
    wanted = sys.argv[1:]
    names = {case.id for case in _CASES} | {f"{case.id}@{case.on}" for case in _CASES}
    if unknown := set(wanted) - names:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}; known are: {', '.join(sorted(names))}")
    rows = {_key(row): row for row in earlier_rows()} if wanted else {}
    with made_machine() as machine:
        for case in _CASES:
            if not wanted or case.id in wanted or f"{case.id}@{case.on}" in wanted:
                row = ran(case, machine)
                rows[_key(row)] = row
                print(json.dumps(row), file=sys.stderr, flush=True)
                write_rows(rows.values())
    print(json.loads(_RESULT.read_text())["measurements"]["summary"])


def write_rows(rows: Iterable[dict[str, Any]]) -> None:
    """Write the rows of cases that there are, in the order of the cases: after each one, as all of them take long."""
    by_key = {_key(row): row for row in rows}
    known = [by_key[key] for case in _CASES if (key := (case.id, case.name, case.on)) in by_key]
    counted = [row for row in known if "right" in row]
    summary = {
        "rows": len(known),
        "right": sum(row["right"] for row in counted),
        "not_run": len(known) - len(counted),
        "of_others_replaced_by_ours": sum("in the shape of" in row["how"] for row in known),
    }
    write_result("scripts", "python bench/scripts.py", {"summary": summary, "rows": known})


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["case"], row["name"], row["on"]


def earlier_rows() -> list[dict[str, Any]]:
    """Return the rows of the result that is there."""
    measured = json.loads(_RESULT.read_text())["measurements"] if _RESULT.exists() else {"rows": []}
    return [row for row in measured["rows"] if "how" in row]


if __name__ == "__main__":
    main()
