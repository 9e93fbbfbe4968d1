"""Set up .venv: ``set_up.py run`` with the Python to build it from, then ``set_up.py dev`` with its own.

Called by the Makefile, in the root of the repository; standard library only. pip's arguments come from the environment:
PIP_ARGS for every call and TORCH_PIP_ARGS for the one that installs torch.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__: list[str] = []

_VENV = Path(".venv")
_COMMAND = str(_VENV / "bin" / "seatrial")
_PYTHON = str(_VENV / "bin" / "python")
_HAS_PIP = "import pip, sys; sys.exit(sys.version_info < (3, 10))"
# Pre-releases such as 2.4.0a0, which the images of vendors carry, count.
_HAS_TORCH = "import torch, sys; sys.exit(tuple(int(part) for part in torch.__version__.split('.')[:2]) < (2, 4))"


def main() -> None:
    """Do the part that the first argument names."""
    if sys.argv[1:] == ["run"]:
        _make_venv()
        _install_seatrial()
        _install_torch()
        _prove_that_it_starts()
    elif sys.argv[1:] == ["dev"]:
        _say("installing what checks and tests")
        _pip_hashed("dev")
    else:
        sys.exit("usage: set_up.py run | dev")


def _make_venv() -> None:
    """Make .venv unless there is a whole one, over the torch of this Python where it has one."""
    if _succeeds(_PYTHON, _HAS_PIP):
        return
    has_torch = _succeeds(sys.executable, _HAS_TORCH)
    _say(f"making {_VENV} from {sys.executable}{' and its torch' if has_torch else ''}")
    venv.create(_VENV, system_site_packages=has_torch, clear=True, symlinks=True)
    if has_torch and not _succeeds(_PYTHON, _HAS_TORCH):
        # This Python is in a virtual environment itself, as in images that keep torch in one: the new environment
        # sees the packages of the Python below both, but not those of this one.
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = Path(subprocess.check_output([_PYTHON, "-c", code], text=True).strip())
        lines = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
        (packages / "python_below.pth").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    # Last, because an environment with pip counts as whole.
    if subprocess.run([_PYTHON, "-m", "ensurepip", "--default-pip"], stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"make: {sys.executable} cannot put pip into {_VENV} (see above); name another: make PYTHON=...")


def _install_seatrial() -> None:
    _say("installing seatrial and what it needs")
    _pip_hashed("build")
    _pip_hashed("run")
    _pip("--no-deps", "--no-build-isolation", "--editable", ".")


def _install_torch() -> None:
    if _succeeds(_PYTHON, _HAS_TORCH):
        return
    _say("installing torch; this may take minutes (TORCH_PIP_ARGS chooses the index)")
    _pip_hashed("torch")
    _pip("torch", *shlex.split(os.environ.get("TORCH_PIP_ARGS", "")))


def _prove_that_it_starts() -> None:
    """Say where the command is; exit with a sentence where it lacks what only PYTHONPATH has, set now and not later."""
    started = subprocess.run([_COMMAND, "--version"], env=_own_environment(), capture_output=True, text=True)
    if started.returncode != 0:
        last = (started.stderr.strip().splitlines() or [f"exit code {started.returncode}"])[-1]
        sys.exit(f"make: {_COMMAND} --version does not start ({last}); remove {_VENV}, and repeat this command.")
    code = "import torch; print(torch.__version__)"
    torch = subprocess.run([_PYTHON, "-c", code], capture_output=True, text=True).stdout.strip() or "none"
    _say(f"{_COMMAND} is ready: {started.stdout.strip()}; torch {torch}")


def _own_environment() -> dict[str, str]:
    """Return the environment without what makes packages of others look installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _pip_hashed(name: str) -> None:
    """Install from requirements/NAME.txt: only files with the SHA-256 that is written there."""
    _pip("--require-hashes", "--requirement", f"requirements/{name}.txt")


def _pip(*arguments: str) -> None:
    # Images with torch of their own may pin half of the index by PIP_CONSTRAINT, against our pins.
    environment = {name: value for name, value in _own_environment().items() if name != "PIP_CONSTRAINT"}
    command = [_PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    extra = shlex.split(os.environ.get("PIP_ARGS", ""))
    finished = subprocess.run([*command, "--constraint", "constraints.txt", *extra, *arguments], env=environment)
    if finished.returncode != 0:
        sys.exit(f"make: pip could not install {arguments[-1]}; PIP_ARGS and TORCH_PIP_ARGS choose the index.")


def _succeeds(python: str, code: str) -> bool:
    try:
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError:
        return False


def _say(text: str) -> None:
    print(f"make: {text}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("make: stopped; the next call begins again.")
