"""The process that carries out a node's steps, with a stand-in for ``worker.node_main``."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.agent.node_process import NodeProcess
from seatrial.protocol.commands import NodeStep
from seatrial.protocol.events import Event

Start = Callable[[str], NodeProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def start(program: str) -> NodeProcess:
        folder = tmp_path / "seatrial" / "worker"
        folder.mkdir(parents=True)
        (tmp_path / "seatrial" / "__init__.py").touch()
        (folder / "__init__.py").touch()
        (folder / "node_main.py").write_text(program)
        started.append(NodeProcess({**os.environ, "PYTHONPATH": str(tmp_path)}))
        return started[-1]

    yield start
    for process in started:
        process.end()


def _step(given: Any = None) -> NodeStep:
    return NodeStep(
        kind="node_step",
        gen=0,
        step=1,
        check="network",
        stage="measure",
        timeout_s=10.0,
        params={},
        given=given or {},
        env={},
        backend="gloo",
        device="cpu",
        node=0,
        hostname="h",
        address="127.0.0.1",
        watches=False,
        local_rank=None,
    )


def _read(process: NodeProcess) -> list[Event]:
    give_up = time.monotonic() + 30
    events: list[Event] = []
    ended = False
    while not ended:
        assert time.monotonic() < give_up
        select.select([process.fd], [], [], 1)
        piece, ended = process.read()
        events += piece
    return events


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("import sys; sys.stdin.readline(); sys.exit(7)", "ended with exit code 7"),
        ("import os, time; os.close(1); time.sleep(60)", "closed its output and still runs"),
    ],
)
def test_a_step_without_a_result_fails(start: Start, program: str, how: str) -> None:
    process = start(program)
    process.send(_step())
    (event,) = _read(process)
    assert event["kind"] == "node_done"
    assert event["error"] == f"its process {how}"


def test_a_process_that_reads_nothing_blocks_nobody(start: Start) -> None:
    process = start("import time; time.sleep(60)")
    for _ in range(4):
        process.send(_step({"addresses": ["10.0.0.1"] * 40_000}))


def test_a_step_larger_than_the_pipe_arrives_whole(start: Start) -> None:
    process = start(
        "import sys, time\n"
        "time.sleep(0.5)\n"
        "bytes_read = 0\n"
        "for line in sys.stdin.buffer:\n"
        "    bytes_read += len(line)\n"
        "    if b'last' in line:\n"
        "        sys.exit(9)\n"
    )
    process.send(_step({"addresses": ["10.0.0.1"] * 400_000, "end": "last"}))
    give_up = time.monotonic() + 30
    while not select.select([process.fd], [], [], 0.01)[0]:
        assert time.monotonic() < give_up
        process.flush()
    assert [event.get("error") for event in _read(process)] == ["its process ended with exit code 9"]
