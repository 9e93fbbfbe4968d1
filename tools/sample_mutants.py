"""Whether the tests of the judges notice changes of them: a sample of mutants, by cosmic-ray.

    python -m venv mutants && mutants/bin/pip install cosmic-ray
    nice python tools/sample_mutants.py mutants/bin/cosmic-ray [NUM_MUTANTS [SECONDS [SEED]]]
    nice python tools/sample_mutants.py replay

Works on a copy of the sources among the temporary files, with the Python that runs this script. The sample depends on
the seed and the sources only. Writes ``bench/results/mutants.json`` with the mutants that survived.

``replay`` makes each of these changes in the sources of today, runs the tests of today, and writes the outcomes into
the same file. It draws no new sample. A mutant that survives and has a ``reason``, written there by a person, changes
nothing that anybody sees ("equivalent"); one that is killed loses its reason. A line that no longer is in the sources
counts as neither ("gone"). ``by`` is the first test that failed; their order is one of chance.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "mutants.json"
OUTCOMES = ("killed", "equivalent", "survived", "gone")
SEED = 17
TEST_S = 60
"""A mutant whose tests take longer is killed."""
# Unions of annotations are never evaluated, and equal words and small numbers are one object in CPython. The flags of a
# dataclass are those of its class only. Such mutants change nothing.
LEFT_OUT = ("%ReplaceBinaryOperator_BitOr_%", "%ReplaceComparisonOperator_Eq_Is", "%_NotEq_IsNot")
SLOW = "not (any_dictionaries or makes_nothing_better or fields_of_any_kind or order_and_copies)"


def _judge(*names: str) -> list[str]:
    return [f"src/seatrial/judge/{name}.py" for name in names]


def _tests_of_judge(*names: str) -> list[str]:
    return [*(f"tests/judge/test_{name}.py" for name in (*names, "word_for_word")), "-k", SLOW]


def _tests_of_check(name: str, *files: str) -> list[str]:
    """``files``: of ``tests/checks``; and what its judge rules, word for word."""
    wanted = f"not real_ranks and (not rulings_are_as_they_were or {name})"
    return [*(f"tests/checks/test_{file}.py" for file in (*files, "rulings_word_for_word")), "-k", wanted]


# Modules -> their tests: pure, and each set a second or two.
SETS = (
    (
        _judge("blame", "lost_nodes", "how_far", "connect_errors", "step_view", "root_causes"),
        _tests_of_judge(
            "blame", "blame_evidence", "lost_nodes", "connect_errors", "root_causes", "agent_reports", "conclude"
        ),
    ),
    (
        _judge("fold", "event_reader", "trial", "host_names"),
        _tests_of_judge("fold", "fold_attempts", "host_names", "agent_reports", "decide", "conclude"),
    ),
    (_judge("decide", "conclude"), _tests_of_judge("decide", "root_causes", "agent_reports", "conclude")),
    (["src/seatrial/checks/collectives/judge.py"], _tests_of_check("collectives", "collectives_judge")),
    (["src/seatrial/checks/compute/judge.py"], _tests_of_check("compute", "check_compute")),
    (["src/seatrial/checks/memory/judge.py"], _tests_of_check("memory", "check_memory")),
    (["src/seatrial/checks/storage/judge.py"], _tests_of_check("storage", "storage_judge")),
    (["src/seatrial/checks/links/judge.py"], _tests_of_check("links", "links_judge")),
    (
        [
            f"src/seatrial/checks/network/{name}.py"
            for name in ("judge", "causes", "pairs", "observations", "interfaces")
        ],
        _tests_of_check("network", "network_judge", "network_causes"),
    ),
    (
        [f"src/seatrial/checks/training/{name}.py" for name in ("judge", "judge_held_up", "judge_one_batch")],
        _tests_of_check("training", "judge_held_up", "judge_one_batch", "check_training"),
    ),
)
QUERY = """SELECT job_id, module_path, operator_name, occurrence, start_pos_row FROM mutation_specs
    WHERE operator_name NOT LIKE ? AND operator_name NOT LIKE ?
    AND operator_name NOT LIKE ? ORDER BY module_path, operator_name, occurrence"""


def main() -> None:
    """Sample, run for at most SECONDS, and write what survived."""
    tool = str(Path(sys.argv[1]).absolute())
    count, seconds, seed = map(int, (sys.argv[2:] + ["300", "7200", str(SEED)][len(sys.argv) - 2 :])[:3])
    with tempfile.TemporaryDirectory(prefix="seatrial-mutants-") as folder:
        _copy_sources(Path(folder))
        sessions = [_prepare(tool, Path(folder), number) for number in range(len(SETS))]
        jobs = [(session, *row) for session in sessions for row in _rows(session)]
        sample = random.Random(seed).sample(jobs, min(count, len(jobs)))
        for session in sessions:
            _keep(session, {job[1] for job in sample if job[0] == session})
        until = time.monotonic() + seconds
        results = [result for session in sessions for result in _run(tool, session, until)]
    killed = sum(result["outcome"] != "SURVIVED" for result in results)
    report = {
        "command": f"python tools/sample_mutants.py COSMIC_RAY {count} {seconds} {seed}",
        "seed": seed,
        "possible": len(jobs),
        "sampled": len(sample),
        "run": len(results),
        "killed": killed,
        "survived": [result for result in results if result["outcome"] == "SURVIVED"],
    }
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{killed} of {len(results)} mutants killed")


def replay() -> None:
    """Run the tests of today against each mutant that survived the sample, and write what became of it."""
    report = json.loads(RESULTS.read_text())
    former = report.pop("replay", {})
    mutants = report.pop("survived", None) or [mutant for outcome in OUTCOMES for mutant in former.get(outcome, ())]
    with tempfile.TemporaryDirectory(prefix="seatrial-mutants-") as folder:
        _copy_sources(Path(folder))
        for number in {_set_of(mutant["file"]) for mutant in mutants}:
            subprocess.run(_tests(number), cwd=folder, check=True, env=_environ(Path(folder)), capture_output=True)
        outcomes = [_replayed(Path(folder), mutant) for mutant in mutants]
    lists = {outcome: [mutant for mutant in outcomes if mutant["outcome"] == outcome] for outcome in OUTCOMES}
    killed = report["killed"] + len(lists["killed"])
    counts = {outcome: len(of_outcome) for outcome, of_outcome in lists.items()}
    command = "python tools/sample_mutants.py replay"
    report["replay"] = {"command": command, "killed_in_all": killed, "counts": counts, **lists}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{killed} of {report['run']} mutants killed; replayed: {counts}")


def _replayed(folder: Path, mutant: dict[str, Any]) -> dict[str, Any]:
    """Return the mutant with its outcome. ``line`` stays the one of the sample."""
    kept = {name: mutant[name] for name in ("file", "line", "operator")}
    reason = {"reason": mutant["reason"]} if "reason" in mutant else {}
    before, after = (row[1:] for row in mutant["change"])
    file = folder / mutant["file"]
    original = file.read_text()
    rows = original.split("\n")
    places = [number for number, row in enumerate(rows, 1) if row == before]
    if not places:
        return {**kept, "outcome": "gone", **reason, "change": mutant["change"]}
    place = min(places, key=lambda number: abs(number - mutant["line"]))
    rows[place - 1] = after
    file.write_text("\n".join(rows))
    try:
        command = _tests(_set_of(mutant["file"]))
        ran = subprocess.run(
            command, cwd=folder, env=_environ(folder), timeout=TEST_S, check=False, capture_output=True, text=True
        )
        is_killed = ran.returncode != 0
        words = next((row.split() for row in ran.stdout.splitlines() if row.startswith(("FAILED", "ERROR "))), [])
        by = words[1] if len(words) > 1 else f"pytest ended with {ran.returncode}"
    except subprocess.TimeoutExpired:
        is_killed, by = True, f"more than {TEST_S} s"
    finally:
        file.write_text(original)
    if is_killed:
        return {**kept, "outcome": "killed", "by": by, "change": mutant["change"]}
    return {**kept, "outcome": "equivalent" if reason else "survived", **reason, "change": mutant["change"]}


def _copy_sources(folder: Path) -> None:
    for name in ("src", "tests", "pyproject.toml", "docs", "tools"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    # Compiled by content, which notices a mutant that has the size and the second of its original.
    by_content = ["-m", "compileall", "-q", "-f", "--invalidation-mode", "checked-hash"]
    subprocess.run([sys.executable, *by_content, "src", "tests"], cwd=folder, check=True)


def _set_of(file: str) -> int:
    return next(number for number, (modules, _) in enumerate(SETS) if file in modules)


def _tests(number: int) -> list[str]:
    # Without rewritten assertions, which take longer than most of these tests.
    return [sys.executable, "-m", "pytest", "-x", "-q", "--assert=plain", "-p", "no:cacheprovider", *SETS[number][1]]


def _prepare(tool: str, folder: Path, number: int) -> Path:
    modules, command = SETS[number][0], _tests(number)
    quoted = " ".join(f"'{word}'" if " " in word else word for word in command)
    config = folder / f"set{number}.toml"
    config.write_text(
        f"[cosmic-ray]\nmodule-path = {json.dumps(modules)}\ntimeout = {TEST_S}\nexcluded-modules = []\n"
        f"test-command = {json.dumps(quoted)}\n[cosmic-ray.distributor]\nname = 'local'\n"
    )
    session = folder / f"set{number}.sqlite"
    subprocess.run([tool, "init", config, session], cwd=folder, check=True, capture_output=True)
    subprocess.run(command, cwd=folder, check=True, env=_environ(folder), capture_output=True)
    return session


def _environ(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{folder / 'src'}:{folder / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}


def _rows(session: Path) -> list[tuple[str, str, str, int, int]]:
    with sqlite3.connect(session) as database:
        rows = database.execute(QUERY, LEFT_OUT).fetchall()
    return [row for row in rows if not _line(session.parent / row[1], row[4]).startswith("@dataclass")]


def _line(file: Path, number: int) -> str:
    return file.read_text().splitlines()[number - 1].strip()


def _keep(session: Path, jobs: set[str]) -> None:
    with sqlite3.connect(session) as database:
        for (job,) in database.execute("SELECT job_id FROM mutation_specs").fetchall():
            if job not in jobs:
                database.execute("DELETE FROM mutation_specs WHERE job_id = ?", (job,))
                database.execute("DELETE FROM work_items WHERE job_id = ?", (job,))


def _run(tool: str, session: Path, until: float) -> list[dict[str, object]]:
    folder, config = session.parent, session.with_suffix(".toml")
    left_s = until - time.monotonic()
    if left_s > 0:
        try:
            run = [tool, "exec", str(config), str(session)]
            subprocess.run(run, cwd=folder, env=_environ(folder), timeout=left_s, check=True, capture_output=True)
        except subprocess.TimeoutExpired:
            pass
    dumped = subprocess.run([tool, "dump", session], cwd=folder, check=True, capture_output=True, text=True).stdout
    results = []
    for line in dumped.splitlines():
        item, result = json.loads(line)
        if result is not None and result["worker_outcome"].upper().endswith("NORMAL"):
            (mutation,) = item["mutations"]
            rows = result["diff"].splitlines()
            results.append(
                {
                    "file": mutation["module_path"],
                    "line": mutation["start_pos"][0],
                    "operator": mutation["operator_name"],
                    "outcome": str(result["test_outcome"]).rsplit(".", 1)[-1].upper(),
                    "change": [row for row in rows if row[:1] in "+-" and row[:3] not in ("+++", "---")],
                }
            )
    return results


if __name__ == "__main__":
    replay() if sys.argv[1:] == ["replay"] else main()
