"""Containers of `worker`, of `launcher` and of the Dockerfile at the root: their users, and the results."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from by_day import by_day
from images.containers import MARKS, NO_RIGHTS, Ended, image, podman, report_in, run, started
from passes import passes

pytestmark = MARKS
_SHM = "/dev/shm of node"
_LAUNCHER = ("launcher", "slim")
"""The image, and what it is built on: a stand-in for debian:bookworm-slim."""


def _folder(path: Path, *, user: int) -> tuple[Path, list[str]]:
    """A folder for reports that belongs to the user, and how it is mounted."""
    path.chmod(0o755)
    made = path / "reports"
    made.mkdir()
    os.chown(made, user, 0)
    made.chmod(0o775)
    return made, ["--volume", f"{made}:/reports"]


# As user 10001 the pod of a manifest runs by day (kubernetes/test_containers_run.py).
@pytest.mark.parametrize("user", by_day(["10001", "1000680000:0"], 1))
def test_a_trial_passes_without_any_right(user: str, tmp_path: Path) -> None:
    reports, mount = _folder(tmp_path, user=0 if ":" in user else 10001)
    options = [*NO_RIGHTS, "--user", user, "--network", "none", "--shm-size", "1g", *mount]
    ended = run("worker", "run", "smoke", "--out", "/reports", options=options)
    assert ended.code == 0, ended.output
    assert passes(ended.output), ended.output
    assert _SHM not in ended.output
    assert (report_in(reports)["world_size"], report_in(reports)["status"]) == (2, "success")
    assert {path.stat().st_uid for path in reports.rglob("*")} == {int(user.partition(":")[0])}


@pytest.mark.parametrize("user", by_day([1234, 10001]))
def test_the_reports_belong_to_the_user_of_the_trial(user: int, tmp_path: Path) -> None:
    """Arguments pass through; shared memory of a container is too small, and the finding says so."""
    reports, mount = _folder(tmp_path, user=user)
    named = [] if user == 10001 else ["--user", str(user)]
    ended = run("machine", "run", "smoke", "--validation-only", "--skip", "collectives", options=[*named, *mount])
    assert ended.code == 0, ended.output
    assert "FINAL ACCEPTANCE: PASS (partial" in ended.output
    assert {path.stat().st_uid for path in reports.rglob("*")} == {user}
    (shm,) = [finding for finding in report_in(reports)["findings"] if "/dev/shm" in finding["what"]]
    assert "--shm-size=2g" in shm["action"]


def test_one_machine_trains(tmp_path: Path) -> None:
    reports, mount = _folder(tmp_path, user=1234)
    ended = run("machine", "train", "digits", "--epochs", "2", options=["--user", "1234", *mount])
    assert ended.code == 0, ended.output
    assert "digests of all ranks equal: " in ended.output
    assert list(reports.iterdir())


def test_it_drops_root_and_obeys_sigterm(tmp_path: Path) -> None:
    _, mount = _folder(tmp_path, user=10001)
    with started("machine", "train", "digits", "--epochs", "10000", options=mount) as name:
        until = time.monotonic() + 30
        while "rank 0 of 2 on" not in podman("logs", name).output:
            assert time.monotonic() < until, podman("logs", name).output
            time.sleep(0.5)
        status = podman("exec", "--user", "10001", name, "cat", "/proc/1/status").output
        values = {line.split(":")[0]: line.split()[1:] for line in status.splitlines()}
        assert values["Name"] == ["tini"]
        assert set(values["Uid"]) == {"10001"}
        assert (values["CapEff"], values["CapBnd"], values["NoNewPrivs"]) == (["0" * 16], ["0" * 16], ["1"])
        # Killed after the time that is given here, it would end with 137.
        assert podman("stop", "-t", "25", name, timeout_s=40).code == 0
        assert podman("inspect", "--format", "{{.State.ExitCode}}", name).output == "130\n"


def test_the_launcher_image_is_small_and_has_no_torch() -> None:
    size, base = (int(podman("image", "inspect", "--format", "{{.Size}}", image(name)).output) for name in _LAUNCHER)
    # 250 MB on debian:bookworm-slim, which has 75.
    assert size - base <= 175e6, f"{size} bytes, {base} of them in its base"
    for words in (["mpirun", "--version"], ["ssh", "-V"], ["seatrial", "--version"]):
        assert _inside("launcher", *words).code == 0, words
    assert "No module named 'torch'" in _inside("launcher", "python3", "-c", "import torch").output


def test_the_torch_of_the_base_image_is_used() -> None:
    """In the stand-in of a vendor's image, with its Python in an environment and its pins for pip."""
    where = "import pathlib, {0}; print({0}.__file__)"
    assert _inside("vendor-worker", "python3", "-c", where.format("of_the_base")).output.startswith("/opt/venv/")
    assert _inside("vendor-worker", "python3", "-c", where.format("seatrial")).output.startswith("/opt/trial-venv/")
    listed = (
        "import os; print(sorted(os.listdir('/opt/venv/lib/' + os.listdir('/opt/venv/lib')[0] + '/site-packages')))"
    )
    assert _inside("vendor-worker", "python3", "-c", listed).output == "['of_the_base.py']\n"
    assert _inside("vendor-worker", "seatrial", "--version").code == 0


def _inside(target: str, program: str, *words: str) -> Ended:
    return run(target, *words, options=["--entrypoint", program, "--network", "none"])
