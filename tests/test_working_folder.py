"""Nothing is imported from the working folder, which may be a repository of somebody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from by_day import by_day

from seatrial.bundle import bundle

_NAMES = (
    *("json", "socket", "random", "selectors", "ctypes", "secrets", "tempfile", "hashlib", "click", "torch", "yaml"),
    *("sitecustomize", "usercustomize", "seatrial/__init__", "seatrial/cli/__init__", "encodings/__init__"),
)
_LAUNCH = ("launch", "--device", "cpu", "--nproc-per-node", "1", "--no-python", "/bin/true")


@pytest.mark.parametrize(
    "argv",
    by_day([(("--version",),), (("plan", "show", "smoke"),), (_LAUNCH,)], 0, 2),
    ids=["version", "plan", "launch"],
)
@pytest.mark.parametrize("way", ["installed", "bundle"])
def test_no_module_of_the_working_folder_is_imported(tmp_path: Path, way: str, argv: tuple[str, ...]) -> None:
    folder, marker = tmp_path / "repository", tmp_path / "imported"
    for name in _NAMES:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(marker)!r}, 'a').write({name!r} + ' ')\n")
    if way == "bundle":
        (tmp_path / "seatrial.pyz").write_bytes(bundle())
        command = [sys.executable, str(tmp_path / "seatrial.pyz")]
    else:
        command = [str(Path(sys.executable).with_name("seatrial"))]
    out = ["--out", str(tmp_path / "out")] if argv is _LAUNCH else []
    command += [argv[0], *out, *argv[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not marker.exists(), marker.read_text()
    # They are hostile: Python's own -m imports them.
    if argv == ("--version",):
        subprocess.run([sys.executable, "-m", "json"], cwd=folder, capture_output=True, timeout=50, check=False)
        assert marker.exists()
