"""Scripts of others, and ways to fail, under ``seatrial launch``: one row a case, with what was seen.

    python bench/scripts.py

Local, two or four ranks on the CPU. Frameworks join where SEATRIAL_TEST_FRAMEWORKS names the folder that ``.ci/run``
fills; ssh, mpirun and Slurm have the same cases in ``tests/launchers``. Writes ``results/scripts.json``; it takes some
minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import write_result

_ROOT = Path(__file__).parents[1]
_SCRIPTS = _ROOT / "tests" / "scripts"
_HEAD = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
_GLOO = "import torch, torch.distributed as dist\ndist.init_process_group('gloo'"
_TIMEOUT_S = 150


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One command and its expected end."""

    name: str
    words: tuple[str, ...]
    """After ``seatrial launch``."""
    expected: str
    """Pattern of both streams together."""
    code: int = 0
    text: str = ""
    """What script.py holds."""
    env: tuple[tuple[str, str], ...] = ()


_ENV = ("RANK", "WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS")
_CASES = (
    _Case(
        name="env:// script",
        words=("--nproc-per-node", "2", str(_SCRIPTS / "env_ddp.py")),
        expected=r"rank 0 of 2 has [0-9a-f]{64}",
    ),
    _Case(
        name="torchrun's variables, 2 nodes x 2",
        words=("--nodes", "2", "--nproc-per-node", "2", "--output", "all", "script.py"),
        text=f"print(*(os.environ[name] for name in {_ENV}))",
        expected=r"\[rank 3\] 3 4 3 default \S+ 0",
    ),
    _Case(
        name="a script knows that it was restarted",
        words=("--max-restarts", "2", "script.py"),
        text="n = os.environ['TORCHELASTIC_RESTART_COUNT']; print('restarts', n); sys.exit(n == '0' and rank == 1)",
        expected="restarts 1",
    ),
    _Case(
        name="rank 1 raises",
        words=("script.py",),
        code=1,
        text="if rank: raise ValueError('bad batch')\ntime.sleep(60)",
        expected=r"rank 0 was still running.*Error: rank 1 on \S+ failed with exit code 1: ValueError: bad batch",
    ),
    _Case(
        name="rank 1 is killed",
        words=("script.py",),
        code=1,
        text="if rank: os.kill(os.getpid(), 9)\ntime.sleep(60)",
        expected=r"see dmesg on .*memory limit.*Error: rank 1 on \S+ was killed by signal 9",
    ),
    _Case(
        name="rank 1 ends with 0 early",
        words=("script.py",),
        code=1,
        text=f"{_GLOO})\nif rank: time.sleep(1); os._exit(0)\ndist.all_reduce(torch.ones(1))",
        expected=r"connection between ranks lost; rank 0 .*; rank 1 had ended with exit code 0",
    ),
    _Case(
        name="a peer times out, rank 1 sleeps",
        words=("script.py",),
        code=1,
        text=f"from datetime import timedelta\n{_GLOO}, timeout=timedelta(seconds=4))\n"
        "if rank: time.sleep(100)\ndist.barrier()",
        expected=r"Error: rank 0 on \S+ failed .*; rank 1 was still running",
    ),
    _Case(
        name="connection refused by a data server",
        words=("script.py",),
        code=1,
        text="import urllib.request\nif rank: urllib.request.urlopen('http://127.0.0.1:9')\ntime.sleep(60)",
        expected=r"Error: rank 1 on \S+ failed with exit code 1: urllib.error.URLError",
    ),
    _Case(
        name="daemons",
        words=("script.py",),
        text="import subprocess\nsubprocess.Popen(['sleep', '3602'], start_new_session=True); print('left')",
        expected="left",
    ),
    _Case(name="--no-python", words=("--no-python", "echo", "{rank}", "of 2"), expected="0 of 2"),
    _Case(
        name="a shell script without --no-python",
        words=("ok.sh",),
        code=2,
        expected="is a script of /bin/sh, not of Python; add --no-python",
    ),
    _Case(name="-dash.py", words=("--", "-dash.py"), expected="dash 0"),
    _Case(name="a missing script", words=("none.py",), code=2, expected="none.py: no such script"),
    _Case(
        name="colors into a pipe that asks",
        words=("script.py",),
        env=(("FORCE_COLOR", "1"),),
        text="print('\\x1b[32mgreen\\x1b[0m')",
        expected="\x1b\\[32mgreen\x1b\\[0m",
    ),
    _Case(
        name="mpi:// without mpirun",
        words=("script.py",),
        code=1,
        text="import seatrial.mpi, torch.distributed as dist\n"
        "dist.init_process_group(seatrial.mpi.BACKEND, init_method='mpi://')",
        expected="mpirun did not start this process|needs mpi4py",
    ),
)
_FRAMEWORKS = (
    _Case(
        name="Lightning Fabric, 2 nodes x 2",
        words=("--nodes", "2", "--nproc-per-node", "2", "--output", "all", str(_SCRIPTS / "fabric_ddp.py"), "2", "2"),
        expected="rank 3 of 4 is RANK 3, sum 10",
    ),
    _Case(
        name="ignite, 2 nodes x 2",
        words=("--nodes", "2", "--nproc-per-node", "2", "--output", "all", str(_SCRIPTS / "ignite_ddp.py")),
        expected="rank 3 of 4 is RANK 3, sum 10",
    ),
    _Case(
        name="accelerate's test script",
        words=("-m", "accelerate.test_utils.scripts.test_script"),
        expected=r"\*\*Test reinstantiated state\*\*",
    ),
)


def _ran(case: _Case, environ: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "script.py").write_text(_HEAD + case.text)
        (Path(folder) / "-dash.py").write_text("import os\nprint('dash', os.environ['RANK'])")
        (Path(folder) / "ok.sh").write_text("#!/bin/sh\necho ok\n")
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "seatrial", "launch", "--device", "cpu", *case.words],
            cwd=folder,
            env={**environ, **dict(case.env)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        seconds = time.monotonic() - started
        left = _left_in(folder)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    ran = {
        "case": case.name,
        "command": " ".join(("seatrial launch", *case.words)).replace(f"{_ROOT}/", ""),
        "exit_code": done.returncode,
        "said": lines[-1].replace(f"{_ROOT}/", "")[:300] if lines else "",
        "left": left,
        "right": done.returncode == case.code and not left and bool(re.search(case.expected, done.stdout, re.DOTALL)),
        "seconds": round(seconds, 1),
    }
    print(json.dumps(ran), file=sys.stderr, flush=True)
    return ran


def _left_in(folder: str) -> int:
    """Return how many processes work in a folder, which belongs to one case."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            count += os.readlink(process / "cwd").startswith(folder)
        except OSError:
            continue
    return count


def main() -> None:
    environ = dict(os.environ)
    cases: tuple[_Case, ...] = _CASES
    frameworks = os.environ.get("SEATRIAL_TEST_FRAMEWORKS")
    if frameworks:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (frameworks, environ.get("PYTHONPATH", ""))))
        environ |= {"PYTHONWARNINGS": "ignore", "ACCELERATE_USE_CPU": "true"}
        cases += _FRAMEWORKS
    print(write_result("scripts", "python bench/scripts.py", {"rows": [_ran(case, environ) for case in cases]}))


if __name__ == "__main__":
    main()
