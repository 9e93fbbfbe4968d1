"""An agent that starts programs instead of workers."""

from __future__ import annotations

import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.stub_conductor import StubConductor

from seatrial.agent.program import Relay, free_port
from seatrial.probe.process import look

_PROGRAM: dict[str, Any] = {"watched": False, "shown": [0, 1], "world_size": 4, "group_rank": 1, "nnodes": 2}
_PROGRAM |= {"master_addr": "10.0.0.1", "master_port": 5000, "args": [], "spawns": 0, "cwd": "/no/such"}


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[StubConductor]:
    stub = StubConductor(tmp_path)
    stub.send({"kind": "welcome", "run": "x"})
    yield stub
    stub.close()


def start(conductor: StubConductor, code: str, **changes: Any) -> None:
    """Two ranks that each execute this code."""
    program = {**_PROGRAM, "argv": [sys.executable, "-c", code], **changes}
    command = {"kind": "start", "run": "x", "gen": 0, "places": [[2, 0], [3, 1]], "env": {}}
    conductor.send({**command, "program": {**program, "shown": [rank + 2 for rank in program["shown"]]}})


def until_shown(conductor: StubConductor, text: str) -> None:
    while sum(line.startswith(text) for said in conductor.of("output") for line in said["lines"]) < 2:
        conductor.until_kind("output")


def test_each_rank_gets_its_place_nothing_of_ours_and_its_end_is_told(conductor: StubConductor) -> None:
    code = (
        "import os, sys; names = sorted(os.environ)\n"
        "print(*(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK',"
        " 'MASTER_ADDR', 'MASTER_PORT')))\n"
        "print(*(n for n in names if n.startswith('SEATRIAL_') and 'TEST' not in n))\n"
        "print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4], sys.stdin.read() == '')\n"
        "print('int' + os.environ['OMP_NUM_THREADS'])\n"
        "import signal; print(os.environ['RANK'], open('/proc/self/status').read().split('SigIgn:')[1].split()[0])\n"
        "sys.exit(int(os.environ['RANK']))"
    )
    start(conductor, code)
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    shown = {
        rank: [line for said in conductor.of("output") if said["rank"] == rank for line in said["lines"]]
        for rank in (2, 3)
    }
    assert [shown[rank][0] for rank in (2, 3)] == ["2 0 4 2 1 10.0.0.1 5000", "3 1 4 2 1 10.0.0.1 5000"]
    assert shown[2][1] == "SEATRIAL_KEEP"
    assert shown[2][2] == "[0, 1, 2, 3] True"  # the last is the listing's own
    assert shown[2][3].startswith("int")
    exits = {event["rank"]: event for event in conductor.of("exit")}
    assert {rank: (event["code"], event["ours"]) for rank, event in exits.items()} == {2: (2, False), 3: (3, False)}
    assert exits[2]["last_lines"] == shown[2]
    assert (conductor.keep / "rank3.gen0.log").read_text().splitlines() == shown[3]


def test_arguments_with_places_are_those_of_each_rank(conductor: StubConductor) -> None:
    args = ["{rank}:{local_rank}", "{node_rank}/{nnodes}", "{nproc_per_node}", "{master_addr}:{master_port}"]
    args += ["{{rank}}", "{Rank}", '{"a": {rank}}', "{{{rank}}}"]
    code = "import os, sys; print(*sys.argv[1:], os.environ['OMP_NUM_THREADS'], sep='|')"
    for spawns in (0, 4096):
        start(conductor, code, args=args, spawns=spawns)
        while len(conductor.of("exit")) < (2 if spawns == 0 else 4):
            conductor.until_kind("exit")
    shown = [line for said in conductor.of("output") if said["rank"] == 3 for line in said["lines"]]
    told = ["3:1|1/2|2|10.0.0.1:5000", '|{rank}|{Rank}|{"a": 3}|{{rank}}|']
    assert shown[0].startswith("".join(told))
    assert shown[1].startswith("3:1|1/2|4096|")
    assert shown[1].endswith("|1"), "what it starts shares the cores"


def test_terminate_reaches_the_rank_and_not_what_it_started(conductor: StubConductor) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "def stop(*_):\n    print('child', child.poll(), flush=True); sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, stop); print('up', flush=True)\nwhile True: time.sleep(0.05)\n"
    )
    start(conductor, code)
    until_shown(conductor, "up")
    conductor.send({"kind": "terminate", "gen": 0})
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    assert [(event["code"], event["ours"]) for event in conductor.of("exit")] == [(130, True)] * 2
    assert [event["last_lines"] for event in conductor.of("exit")] == [["up", "child None"]] * 2
    # What a rank started is ended with it: the fixture of all tests fails if one is left.


def test_deaths_are_told_in_their_order(conductor: StubConductor) -> None:
    code = (
        "import os, time; rank = int(os.environ['RANK'])\n"
        "print('pid', os.getpid(), flush=True)\n"
        "if rank == 3: time.sleep(600)\n"
        "path = os.environ['SEATRIAL_KEEP'] + '/go'\n"
        "while not os.path.exists(path): time.sleep(0.001)\n"
        "other = int(open(path).read()); os.kill(other, 9)\n"
        "try:\n    while open(f'/proc/{other}/stat').read().rpartition(')')[2].split()[0] != 'Z': pass\n"
        "except OSError: pass\n"
        "os.kill(os.getpid(), 9)"
    )
    start(conductor, code)
    until_shown(conductor, "pid")
    pids = {said["rank"]: said["lines"][0].split()[1] for said in conductor.of("output")}
    (conductor.keep / "new").write_text(pids[3])
    (conductor.keep / "new").rename(conductor.keep / "go")
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    assert [event["rank"] for event in conductor.of("exit")] == [3, 2]


def test_a_program_that_is_not_there_is_named(conductor: StubConductor) -> None:
    start(conductor, "", argv=["/no/such/program"])
    ended = conductor.until_kind("exit")
    assert ended["code"] == 1
    assert ended["last_lines"] == ["/no/such/program cannot be started: No such file or directory"]


def test_programs_do_not_outlive_their_agent(conductor: StubConductor) -> None:
    start(conductor, "import os, time; print('up', os.getpid(), flush=True); time.sleep(600)")
    until_shown(conductor, "up")
    assert len(conductor.ranks()) == 2
    conductor.agent.kill()
    conductor.agent.wait()
    assert conductor.hear_out() == -signal.SIGKILL


def test_a_signal_is_told_to_the_conductor_first_and_a_second_one_ends_all(conductor: StubConductor) -> None:
    start(conductor, "import time; print('up', flush=True); time.sleep(600)")
    until_shown(conductor, "up")
    pids = conductor.ranks()
    conductor.agent.send_signal(signal.SIGTERM)
    assert conductor.until_kind("signal")["number"] == signal.SIGTERM
    assert all(look(pid) for pid in pids)
    conductor.agent.send_signal(signal.SIGTERM)
    assert conductor.hear_out() == 3
    assert [event["ours"] for event in conductor.of("exit")] == [True, True]


def test_it_names_a_port_that_is_free(conductor: StubConductor) -> None:
    conductor.send({"kind": "port", "gen": 4})
    told = conductor.until_kind("port")
    assert (told["gen"], told["address"]) == (4, "127.0.0.1")
    with socket.create_server(("", told["port"])):
        assert free_port() != told["port"]


def test_all_output_is_in_the_file_and_what_is_shown_is_bounded(conductor: StubConductor) -> None:
    start(conductor, "import os\nfor n in range(60000): print(f'line {n:06}', 'x' * 300)\nos.write(1, b'no end')")
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    text = (conductor.keep / "rank2.gen0.log").read_bytes()
    assert len(text) == 60000 * 313 + 6
    assert text.endswith(b"no end")
    shown = [said for said in conductor.of("output") if said["rank"] == 2]
    told = sum(len(said["lines"]) for said in shown)
    assert told + sum(said["left_out"] for said in shown) == 60001
    assert 200 < told < 20000


def test_without_a_folder_the_last_of_the_output_is_sent_at_the_end(conductor: StubConductor) -> None:
    conductor.until_kind("node")  # it has made its file
    shutil.rmtree(conductor.keep)
    start(conductor, "import os\nfor n in range(2000): print(f'line {n:06}', 'x' * 300)\nos.write(1, b'no end')")
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    assert conductor.of("log") == []
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    logs = {log["name"]: log["text"] for log in conductor.of("log")}
    assert sorted(logs) == ["rank2.gen0.log", "rank3.gen0.log"]
    assert {len(text) for text in logs.values()} == {1 << 18}
    assert all(text.endswith("x\nno end") for text in logs.values())


class _Clocked:
    """A relay, its clock, and what it has sent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[tuple[list[str], int]] = []
        self.relay = Relay(lambda lines, left_out: self.sent.append((lines, left_out)), lambda: self.now)


def test_what_is_too_much_is_left_out_and_counted() -> None:
    clocked = _Clocked()
    clocked.relay.take([b"x" * 999] * 100, b"")
    assert [(len(lines), left_out) for lines, left_out in clocked.sent] == [(65, 35)]
    clocked.now += 1.0
    clocked.relay.take([b"x" * 999], b"")
    assert clocked.sent[1][1] == 0
    clocked.relay.take([b"x" * 999] * 100, b"")
    clocked.relay.close()
    assert sum(len(lines) + left_out for lines, left_out in clocked.sent) == 201


def test_a_progress_bar_is_shown_once_a_second_and_as_its_last_state() -> None:
    clocked = _Clocked()
    for percent in range(100):
        clocked.now += 0.05
        clocked.relay.take([], b"\r".join(b"%d%%" % at for at in range(percent + 1)) + b"\r")
    told = [lines for lines, _ in clocked.sent]
    assert 4 <= len(told) <= 6
    assert told[0] == ["0%"]
    clocked.relay.take([b"98%\r99%\r100%"], b"")
    assert clocked.sent[-1][0] == ["100%"]


def test_a_line_is_cut_and_bytes_that_are_no_text_are_shown_as_such() -> None:
    clocked = _Clocked()
    clocked.relay.take([b"a" * 5000, b"\xff\xfe"], b"")
    ((lines, _),) = clocked.sent
    assert (len(lines[0]), lines[1]) == (2000, "��")
