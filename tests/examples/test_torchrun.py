"""torchrun as our examples and pages start it executes nothing that a stranger has written into its store."""

from __future__ import annotations

import ast
import base64
import contextlib
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from seatrial.util.ports import free_port

REPOSITORY = Path(__file__).parents[2]
PLACES = ("README.md", "docs/*.md", "examples/*", "deploy/**/*")
_SAFE = re.compile(r"--master-port\b")
_C10D = re.compile(r"--standalone|--rdzv-backend[ =]c10d")


def command_lines(text: str) -> list[str]:
    """Return each command of torchrun, with the lines that it goes on in."""
    joined = text.replace("\\\n", " ")
    pattern = re.compile(r"^[^#]*(?:torchrun|torch\.distributed\.run)\S*\s.*--(?:nproc|standalone|rdzv)")
    return [line for line in joined.splitlines() if pattern.search(line)]


def test_each_torchrun_that_we_write_down_has_a_port() -> None:
    pages = [path for place in PLACES for path in REPOSITORY.glob(place) if path.is_file()]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in pages}
    # The pages about security say what is unsafe.
    commands = {path: command_lines(text) for path, text in texts.items() if not path.name.startswith("security")}
    found = [line for lines in commands.values() for line in lines]
    assert len(found) >= 8
    assert [line for line in found if not _SAFE.search(line) or _C10D.search(line)] == []


def test_no_advice_of_ours_is_torchrun_without_a_port() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py")]
    nodes = [node for source in sources if "torchrun" in source for node in ast.walk(ast.parse(source))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    pages = [path for path in (REPOSITORY / "docs").glob("*.md") if not path.name.startswith("security")]
    texts += [path.read_text(encoding="utf-8") for path in pages]
    advice = re.compile(r"\b(?:start|run|launch)\b[^.;|]*\bwith\s+`?torchrun\b.{0,20}", re.IGNORECASE)
    found = [words for text in texts for words in advice.findall(text)]
    assert [words for words in found if not _SAFE.search(words)] == []
    assert found


class _Planted:
    """An object that makes a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.marker),)


def listening(process: int) -> set[int]:
    """Return the ports on which a process listens."""
    sockets = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(str(entry.readlink()))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


def overwrite(port: int, planted: str) -> int:
    """Write that into each key of the store at the port; return how many keys there were."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=2), wait_for_workers=False)
    keys = store.list_keys()
    for key in keys:
        store.set(key, planted)
    return len(keys)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["--master-port", "--standalone"])
def test_what_a_stranger_writes_into_its_store(form: str, tmp_path: Path) -> None:
    """The second form is how torch behaves that we avoid: without it the first one would prove nothing."""
    (script := tmp_path / "script.py").write_text("import time\ntime.sleep(10)\n")
    planted = base64.b64encode(pickle.dumps(_Planted(marker := tmp_path / "marker"))).decode()
    options = [form, str(free_port())] if form == "--master-port" else [form]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", "1", str(script)]
    with subprocess.Popen(torchrun, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as running:
        num_keys = 0
        while running.poll() is None and not marker.exists():
            for port in listening(running.pid) if Path(f"/proc/{running.pid}").exists() else ():
                with contextlib.suppress(dist.DistError, OSError, RuntimeError):
                    num_keys += overwrite(port, planted)
            time.sleep(0.3)
        running.terminate()
    assert num_keys > 0
    assert marker.exists() == (form == "--standalone")
