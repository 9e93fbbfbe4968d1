"""Real trials from the bundle: the same verdicts as from an installation, in any folder."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from live.trials import SCHEMA, left_running

from seatrial.cli.click_app import cli


def held(file: Path, *arguments: str, cwd: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(file), "run", *arguments, "--device", "cpu", "--out", "out"],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert left_running(Path("out")) == []
    return done


@pytest.mark.slow
def test_a_trial_from_a_read_only_link_among_traps(pyz: Path, tmp_path: Path) -> None:
    """Called by a relative path through a link; a torch.py and a seatrial/ lie where the user stands; no HOME."""
    place = tmp_path / "a place with spaces"
    place.mkdir()
    shutil.copy(pyz, place / "real.pyz")
    (place / "real.pyz").chmod(0o444)
    (place / "link").symlink_to("real.pyz")
    here = place / "here"
    (here / "seatrial").mkdir(parents=True)
    for trap in ("torch.py", "random.py", "seatrial/__init__.py"):
        (here / trap).write_text(f"raise SystemExit('the wrong {trap}')")
    done = held(Path("../link"), "smoke", cwd=here, environ={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
    assert done.returncode == 0, done.stderr + done.stdout
    assert "FINAL ACCEPTANCE: PASS" in done.stdout.splitlines()
    (folder,) = (path for path in (here / "out").iterdir() if path.is_dir())
    names = {path.name for path in folder.iterdir()}
    assert names >= {"report.json", "report.html"}
    report = json.loads((folder / "report.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert f"report: out/{folder.name}/report.html" in done.stdout
    command = f"{shlex.join([sys.executable, str(here / '../link')])} run quick"
    assert done.stdout.splitlines()[-1] == f"next: to test more, run: {command} --out out --device cpu"
    again = CliRunner().invoke(cli, ["report", str(folder), "--out", str(tmp_path / "again")], standalone_mode=False)
    assert again.return_value == 0
    assert (tmp_path / "again" / folder.name / "report.html").read_text().count("PASS")


@pytest.mark.slow
def test_a_planted_fault_is_named(pyz: Path, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "SEATRIAL_PLANT": "kill@bootstrap:1"}
    done = held(pyz, "smoke", "--only", "bootstrap", "--json", cwd=tmp_path, environ=environ)
    assert done.returncode == 1, done.stderr
    assert [1] in [finding["culprit"]["ranks"] for finding in json.loads(done.stdout)["findings"]]


@pytest.mark.slow
def test_the_ranks_run_from_it_and_not_from_an_installation(pyz: Path, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "SEATRIAL_PLANT": "raise@bootstrap:1"}
    done = held(pyz, "smoke", "--only", "bootstrap", "-v", cwd=tmp_path, environ=environ)
    assert done.returncode == 3, done.stderr
    assert f'File "{pyz}/seatrial/worker/step.py", line ' in done.stdout


@pytest.mark.slow
def test_eight_ranks_read_it_at_once(pyz: Path, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"]}
    done = held(pyz, "smoke", "--only", "bootstrap", "--nproc-per-node", "8", cwd=tmp_path, environ=environ)
    assert done.returncode == 0, done.stderr + done.stdout
