"""list_gpu_lines.py [FOLDER]: the lines behind a question for the kind of device that no double of a device reaches.

It runs a trial, a training and a launch on doubles (``tests/cuda_double``) under coverage.py, then prints each line of
the ranks' code that stands behind such a question and was not executed. A GPU has to execute those first:
``tests/cuda_double/not_reached.txt`` keeps the list, and the first hour opens with it. FOLDER: where the measured data
go; a temporary one by default.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("rank", "checks", "training", "worker", "mpi_backend")
"""What runs in ranks and imports torch."""
_QUESTION = re.compile(r"cuda|hip\b|rocm|nccl|\.type [!=]= ['\"]cpu|device_type|is_gpu|is_wide")
_COMMAND_S = 1200
"""Each command takes half a minute, many times that on a machine that is busy."""
_SETTINGS = """
[run]
branch = true
parallel = true
source_pkgs = seatrial
data_file = {folder}/data
patch =
    subprocess
    _exit
"""
_PLAN = """
level = "smoke"
deadline_s = 240
[compute]
gpu_size = 128
timeout_s = 100
[memory]
gpu_copy_bytes = 16_777_216
host_copy_bytes = 16_777_216
gpu_share = 0.02
[collectives]
gpu_sizes = [8, 65_536]
[training]
max_steps = 10
timeout_s = 100
"""


def main() -> int:
    """Run the commands and print the list; return 1 if a command could not be run."""
    with tempfile.TemporaryDirectory(prefix="seatrial-lines-") as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        commands_failed = run_commands(folder)
        executed = executed_lines(folder)
    count = 0
    for path in sorted(file for package in PACKAGES for file in (ROOT / "src" / "seatrial" / package).rglob("*.py")):
        text = path.read_text("utf-8")
        reached = executed.get(str(path), set())
        for line in sorted(lines_behind_questions(text) - reached):
            print(f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[line - 1].strip()}")
            count += 1
    print(f"{count} lines behind a question for the device were not executed on the double", file=sys.stderr)
    return int(commands_failed)


def run_commands(folder: Path) -> bool:
    """Run each command under coverage. Return whether one of them ended otherwise than by a verdict."""
    sys.path.insert(0, str(ROOT / "tests"))
    from cuda_double.install import environment

    settings = folder / "coveragerc"
    settings.write_text(_SETTINGS.format(folder=folder))
    (folder / "small.toml").write_text(_PLAN)
    env = {**os.environ, **environment(folder / "double"), "COVERAGE_RCFILE": str(settings)}
    out = ("--out", str(folder / "out"))
    train = ("train", "digits", "--model", "mlp", "--device", "cuda", "--nproc-per-node", "1")
    saved = ("--checkpoint-dir", str(folder / "saved"))
    failed = False
    for arguments in (
        ("run", str(folder / "small.toml"), *out),
        (*train, *saved, "--max-steps", "4", *out),
        (*train, "--max-steps", "4", "--amp", "fp16", *out),
        (*train, "--max-steps", "8", "--profile", str(folder / "profile.json"), *out),
    ):
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "seatrial", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
        if done.returncode not in (0, 1, 3) or "Traceback" in done.stderr:
            print(f"seatrial {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}", file=sys.stderr)
            failed = True
    return failed


def executed_lines(folder: Path) -> dict[str, set[int]]:
    """Return the executed lines of each file."""
    from coverage import CoverageData

    executed: dict[str, set[int]] = {}
    for part in folder.glob("data.*"):
        data = CoverageData(str(part))
        data.read()
        for file in data.measured_files():
            executed.setdefault(file, set()).update(data.lines(file) or ())
    return executed


def lines_behind_questions(text: str) -> set[int]:
    """Return the first lines of all statements that are executed only for a GPU, or only for a CPU."""
    return {statement.lineno for statement in _statements(ast.parse(text), asked=False)}


def _statements(node: ast.AST, *, asked: bool) -> Iterator[ast.stmt]:
    is_question = isinstance(node, ast.If) and bool(_QUESTION.search(ast.unparse(node.test)))
    for child in ast.iter_child_nodes(node):
        behind = asked or is_question
        if isinstance(child, ast.stmt) and behind and not isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from _statements(child, asked=behind)


if __name__ == "__main__":
    sys.exit(main())
