"""The table of the review of ``seatrial launch``, made again: scripts of others and ways to fail, one row a case.

    python bench/scripts.py [CASE ...]

As root where Slurm, Open MPI, sshd and ip are installed, with the variables SEATRIAL_TEST_* that ``.ci/run`` sets, and
SEATRIAL_TEST_HEAVY_FRAMEWORKS (tests/launchers/heavy-frameworks.txt): what is absent is a row that says so. Without
CASE, such as 6a, it writes ``results/scripts.json``; half an hour on two cores.
"""

from __future__ import annotations

import json
import sys

from harness import write_result
from script_rows import endings, inputs, trainings
from script_rows.case import ran
from script_rows.places import made_machine


def main() -> None:
    wanted = sys.argv[1:]
    cases = [case for topic in (trainings, endings, inputs) for case in topic.CASES if case.id in wanted or not wanted]
    rows = []
    with made_machine() as machine:
        for case in cases:
            rows.append(ran(case, machine))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    counted = [row for row in rows if "right" in row]
    summary = {
        "rows": len(rows),
        "right": sum(row["right"] for row in counted),
        "not_run": len(rows) - len(counted),
        "of_others_replaced_by_ours": sum("in the shape of" in row["how"] for row in rows),
    }
    print(json.dumps(summary))
    if not wanted:
        print(write_result("scripts", "python bench/scripts.py", {"summary": summary, "rows": rows}))


if __name__ == "__main__":
    main()
