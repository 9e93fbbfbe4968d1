"""An agent that starts programs instead of workers."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.stub_conductor import StubConductor

from seatrial.agent.program_ranks import Relay
from seatrial.probe.process import read_process
from seatrial.request.comm_profiles import comm_settings
from seatrial.util.job_signals import those_for_ranks_held_back
from seatrial.util.ports import free_port

_PROGRAM: dict[str, Any] = {"watched": False, "shown": [0, 1], "world_size": 4, "group_rank": 1, "nnodes": 2}
_PROGRAM |= {"master_addr": "10.0.0.1", "master_port": 5000, "args": [], "spawns": 0, "cwd": "/no/such"}
_NOBODY: dict[str, list[Any]] = {"owners": [], "mounters": [], "open_places": []}
_PROGRAM |= {"max_restarts": 0, "script": "", "cwd_trust": _NOBODY, "script_trust": _NOBODY}


@pytest.fixture
def conductor(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StubConductor]:
    stub = StubConductor(tmp_path, before=getattr(request, "param", ""))
    stub.send({"kind": "welcome", "run": "x"})
    yield stub
    stub.close()


def start(conductor: StubConductor, code: str, **changes: Any) -> None:
    """Two ranks that each execute this code."""
    env = changes.pop("env", {})
    program = {**_PROGRAM, "argv": [sys.executable, "-c", code], **changes}
    command = {"kind": "start_program", "run": "x", "gen": 0, "places": [[2, 0], [3, 1]], "env": env}
    conductor.send({**command, "program": {**program, "shown": [rank + 2 for rank in program["shown"]]}})


_SAVES = """import os, signal, time
def save(number, frame): print("saves at", number, flush=True)
for number in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(number, save)
print("ready", flush=True)
while True: time.sleep(0.1)
"""


def test_a_signal_to_save_reaches_the_ranks_of_a_script(conductor: StubConductor) -> None:
    """sbatch --signal=USR1@120, and mpirun, send it to each process that they have started."""
    start(conductor, _SAVES)
    until_shown(conductor, "ready")
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        conductor.agent.send_signal(number)
        until_shown(conductor, f"saves at {number:d}")
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    assert conductor.of("signal") == []


def test_an_agent_hears_signals_for_ranks_that_were_held_back(tmp_path: Path) -> None:
    with those_for_ranks_held_back():
        stub = StubConductor(tmp_path)
    stub.send({"kind": "welcome", "run": "x"})
    start(stub, _SAVES)
    until_shown(stub, "ready")
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        stub.agent.send_signal(number)
        until_shown(stub, f"saves at {number:d}")
    stub.send({"kind": "stop"})
    assert stub.hear_out() == 0
    stub.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_a_signal_that_ends_programs_lets_ranks_save_first(number: signal.Signals, conductor: StubConductor) -> None:
    start(conductor, _SAVES)
    until_shown(conductor, "ready")
    conductor.agent.send_signal(number)
    assert conductor.until_kind("signal")["number"] == number
    assert conductor.until_kind("status")["ranks"].keys() == {"2", "3"}
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0


@pytest.mark.parametrize(
    ("mode", "is_open_there", "enters"), [(0o755, False, True), (0o777, False, False), (0o777, True, True)]
)
def test_ranks_start_in_no_folder_that_others_could_have_filled(
    mode: int, is_open_there: bool, enters: bool, conductor: StubConductor, tmp_path: Path
) -> None:
    """Also the agent's own folder may be one: srun goes to /tmp where the user's folder is not there."""
    (typed := tmp_path / "typed").mkdir()
    typed.chmod(mode)
    there = {**_NOBODY, "open_places": [str(typed)] if is_open_there else []}
    start(conductor, "import os; print('in', os.getcwd(), flush=True)", cwd=str(typed), cwd_trust=there)
    until_shown(conductor, "in ")
    said = {line for output in conductor.of("output") for line in output["lines"]}
    notes = [note["text"] for note in conductor.of("note")]
    assert said == {f"in {typed if enters else Path.cwd()}"}
    assert [note.partition(";")[0] for note in notes] == (
        [] if enters else [f"all users can write to {typed} on this host, so the ranks start in {Path.cwd()}"]
    )


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_script_that_others_could_have_written_is_not_started(
    is_missing: bool, conductor: StubConductor, tmp_path: Path
) -> None:
    """Also one that is missing in a folder like /tmp: another user could put it there in time."""
    (above := tmp_path / "above").mkdir()
    script = above / "train.py"
    script.write_text("open('started', 'w')")
    script.chmod(0o666)
    if is_missing:
        script.unlink()
        above.chmod(0o1777)
    start(conductor, "", argv=[sys.executable, "above/train.py"], cwd=str(tmp_path), script="above/train.py")
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    assert {error["cause"] for error in conductor.of("error")} == {"request"}
    found = f"{script} is missing, and all users can write to {above}" if is_missing else ""
    found = found or f"all users can write to {script}"
    assert {error["message"].partition(";")[0] for error in conductor.of("error")} == {
        f"above/train.py on this host: {found}"
    }
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("typed", ["", "/mine_"])
def test_ranks_that_record_have_a_place_for_the_files(typed: str, conductor: StubConductor, tmp_path: Path) -> None:
    """``--comm-debug`` turns the recorder on, and older versions of torch write to a name in /tmp."""
    place = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    env = {**comm_settings(None, debug=True), "XDG_CACHE_HOME": str(tmp_path), **({place: typed} if typed else {})}
    start(conductor, f"import os; print('to', os.environ['{place}'], flush=True)", env=env)
    until_shown(conductor, "to ")
    said = {line for output in conductor.of("output") for line in output["lines"]}
    assert said == {f"to {typed or tmp_path / 'torch' / 'comm_lib_trace_rank_'}"}


def until_shown(conductor: StubConductor, text: str) -> None:
    while sum(line.startswith(text) for said in conductor.of("output") for line in said["lines"]) < 2:
        conductor.until_kind("output")


def test_the_environment_and_the_exit_of_each_rank(conductor: StubConductor) -> None:
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
    assert shown[2][1] == ""
    assert shown[2][2] == "[0, 1, 2, 3] True"  # the last is the listing's own
    assert shown[2][3].startswith("int")
    exits = {event["rank"]: event for event in conductor.of("exit")}
    assert {rank: (event["code"], event["ours"]) for rank, event in exits.items()} == {2: (2, False), 3: (3, False)}
    assert exits[2]["last_lines"] == shown[2]
    assert (conductor.keep / "rank3.gen0.log").read_text().splitlines() == shown[3]


def test_each_rank_fills_the_placeholders(conductor: StubConductor) -> None:
    args = ["{rank}:{local_rank}", "{node_rank}/{nnodes}", "{nproc_per_node}", "{master_addr}:{master_port}"]
    args += ["{{rank}}", "{Rank}", '{"a": {rank}}', "{{{rank}}}"]
    code = "import os, sys; print(*sys.argv[1:], os.environ['OMP_NUM_THREADS'], sep='|')"
    for spawns in (0, 4096):
        start(conductor, code, args=args, spawns=spawns)
        while len(conductor.of("exit")) < (2 if spawns == 0 else 4):
            conductor.until_kind("exit")
    shown = [line for said in conductor.of("output") if said["rank"] == 3 for line in said["lines"]]
    expected = ["3:1|1/2|2|10.0.0.1:5000", '|{rank}|{Rank}|{"a": 3}|{{rank}}|']
    assert shown[0].startswith("".join(expected))
    assert shown[1].startswith("3:1|1/2|4096|")
    assert shown[1].endswith("|1"), "what it starts shares the cores"


def test_terminate_reaches_the_rank_and_not_its_children(conductor: StubConductor) -> None:
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


def test_deaths_are_reported_in_their_order(conductor: StubConductor) -> None:
    code = (
        "import os, time; rank = int(os.environ['RANK'])\n"
        "print('pid', os.getpid(), flush=True)\n"
        "if rank == 3: time.sleep(600)\n"
        f"path = {str(conductor.keep / 'go')!r}\n"
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


def test_a_first_signal_is_reported_and_a_second_ends_all(conductor: StubConductor) -> None:
    start(conductor, "import time; print('up', flush=True); time.sleep(600)")
    until_shown(conductor, "up")
    pids = conductor.ranks()
    conductor.agent.send_signal(signal.SIGTERM)
    assert conductor.until_kind("signal")["number"] == signal.SIGTERM
    assert all(read_process(pid) for pid in pids)
    time.sleep(1.1)
    conductor.agent.send_signal(signal.SIGTERM)
    assert conductor.hear_out() == 3
    assert [event["ours"] for event in conductor.of("exit")] == [True, True]


def signal_all(conductor: StubConductor, *numbers: int) -> None:
    """As slurmstepd, systemd and PBS do: to the guardian and to the agent. The pauses have all of them counted."""
    for number in numbers:
        for pid in (conductor.agent.pid, conductor.agent_pid):
            os.kill(pid, number)
            time.sleep(0.15)


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGHUP)])
def test_one_signal_to_guardian_and_agent_is_one(conductor: StubConductor, numbers: tuple[int, ...]) -> None:
    start(conductor, _SAVES)
    until_shown(conductor, "ready")
    signal_all(conductor, *numbers)
    assert conductor.until_kind("signal")["number"] == signal.SIGTERM
    for _ in range(2):
        assert conductor.until_kind("status")["ranks"].keys() == {"2", "3"}
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0


def test_ranks_save_once_where_guardian_and_agent_are_signaled(conductor: StubConductor) -> None:
    start(conductor, _SAVES)
    until_shown(conductor, "ready")
    signal_all(conductor, signal.SIGUSR1, signal.SIGUSR2)
    until_shown(conductor, f"saves at {signal.SIGUSR2:d}")
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    said = [line for output in conductor.of("output") for line in output["lines"] if line.startswith("saves")]
    assert sorted(said) == sorted([f"saves at {number:d}" for number in (signal.SIGUSR1, signal.SIGUSR2)] * 2)


def test_the_port_that_it_names_is_free(conductor: StubConductor) -> None:
    conductor.send({"kind": "port", "gen": 4})
    answer = conductor.until_kind("port")
    assert (answer["gen"], answer["address"]) == (4, "127.0.0.1")
    with socket.create_server(("", answer["port"])):
        assert free_port() != answer["port"]


def test_the_log_has_all_output_and_the_relay_is_bounded(conductor: StubConductor) -> None:
    start(conductor, "import os\nfor n in range(30000): print(f'line {n:06}', 'x' * 300)\nos.write(1, b'no end')")
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    text = (conductor.keep / "rank2.gen0.log").read_bytes()
    assert len(text) == 30000 * 313 + 6
    assert text.endswith(b"no end")
    shown = [said for said in conductor.of("output") if said["rank"] == 2]
    forwarded = sum(len(said["lines"]) for said in shown)
    assert forwarded + sum(said["left_out"] for said in shown) == 30001
    assert 200 < forwarded < 10000


def _output(conductor: StubConductor, rank: int) -> bytes:
    """What the pieces of a rank give together; none is missing."""
    output, pieces = b"", [log for log in conductor.of("log") if log["rank"] == rank]
    for log in pieces:
        assert log["at"] == len(output)
        output += zlib.decompress(base64.b64decode(log["data"]))
    assert [log["last"] for log in pieces] == [*([False] * (len(pieces) - 1)), True]
    return output


def test_without_a_folder_the_whole_output_is_sent(conductor: StubConductor) -> None:
    conductor.until_kind("node")  # it has made its file
    shutil.rmtree(conductor.keep)
    code = "import os\nfor n in range(9000): print(f'line {n:06}', 'x' * 300)\nos.write(1, b'no \\xff end')"
    start(conductor, code)
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    expected = "".join(f"line {n:06} {'x' * 300}\n" for n in range(9000)).encode() + b"no \xff end"
    assert _output(conductor, 2) == _output(conductor, 3) == expected


def test_output_is_sent_while_the_rank_runs(conductor: StubConductor) -> None:
    """So that it is there when the node is lost."""
    conductor.until_kind("node")
    shutil.rmtree(conductor.keep)
    start(conductor, "import time\nprint('begun', flush=True)\ntime.sleep(600)")
    piece = conductor.until_kind("log")
    assert zlib.decompress(base64.b64decode(piece["data"])) == b"begun\n"
    assert not piece["last"]


_LOOKS_OFTEN = "import seatrial.agent.standstill\nseatrial.agent.standstill._POLL_S = 1.5"


@pytest.mark.parametrize("conductor", [_LOOKS_OFTEN], indirect=True, ids=["looks often"])
def test_where_ranks_are_that_stand_still(conductor: StubConductor) -> None:
    """The first waits for a child that sleeps; the second prints now and then, and then loops."""
    code = (
        "import os, subprocess, sys, time\nprint('begins')\nsys.stdout.write('step 5')\n"
        "if os.environ['RANK'] == '2': subprocess.run(['sleep', '600'])\n"
        "while not os.path.exists('quiet'): time.sleep(0.3); print('works')\n"
        "print('is quiet')\nwhile True: pass"
    )
    start(conductor, code, cwd=str(conductor.keep))
    until_shown(conductor, "begins")
    seen = conductor.until(lambda message: message["kind"] == "status" and message["still"]["2"][0] > 2)
    assert seen["still"]["3"][1] < 2, "it prints"
    (conductor.keep / "quiet").touch()
    conductor.send({"kind": "heartbeat"})  # an agent that hears nothing for 30 s ends
    # It loops: no output, and at every look it has used CPU time.
    seen = conductor.until(lambda message: message["kind"] == "status" and message["still"]["3"][1] > 4)
    assert seen["still"]["3"][0] < seen["still"]["3"][1]
    conductor.send({"kind": "dump_stack", "number": 3, "ranks": [2, 3, 0]})
    first, second = conductor.until_kind("stack"), conductor.until_kind("stack")
    assert [(event["rank"], event["last_line"]) for event in (first, second)] == [(2, "step 5"), (3, "is quiet")]
    assert first["number"] == second["number"] == 3
    assert (first["state"], second["state"]) == ("S", "R")
    assert first["quiet_s"] > second["quiet_s"] > 3
    conductor.send({"kind": "stop"})
    conductor.hear_out()


_SHORT_GRACE = "import seatrial.agent.orphans\nseatrial.agent.orphans._GRACE_S = 0.5"


@pytest.mark.parametrize("conductor", [_SHORT_GRACE], indirect=True, ids=["short grace"])
def test_daemons_of_a_script_end_with_its_last_rank(conductor: StubConductor) -> None:
    """Each has a session of its own and no parent; one that has ended meanwhile stays no zombie."""
    code = (
        "import os, subprocess, sys, time\n"
        "def daemon(*argv):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); child = subprocess.Popen(argv)\n"
        "        open(f'{argv[-1]}.{os.environ[\"RANK\"]}', 'w').write(str(child.pid)); os._exit(0)\n"
        "daemon('sleep', '3602'); daemon('sleep', '0.1')\n"
        "daemon('sh', '-c', 'trap \"\" TERM; sleep 3603', '3603')\n"
        "while not os.path.exists('end'): time.sleep(0.02)\n"
        "sys.exit(int(os.environ['RANK']))"
    )
    start(conductor, code, cwd=str(conductor.keep))

    def pid_of(name: str) -> int:
        path = conductor.keep / name
        conductor.until(lambda message: message["kind"] == "status" and path.exists() and path.read_text())
        return int(path.read_text())

    daemons = [pid_of(f"{name}.{rank}") for name in ("3602", "3603") for rank in (2, 3)]
    short = [pid_of(f"0.1.{rank}") for rank in (2, 3)]
    conductor.until(lambda message: message["kind"] == "status" and not any(read_process(pid) for pid in short))
    assert all(read_process(pid) for pid in daemons)
    (conductor.keep / "end").touch()
    conductor.until_kind("exit")
    conductor.until_kind("exit")
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    assert not [pid for pid in daemons if read_process(pid)]


class _Clocked:
    """A relay, its clock, and what it has sent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[tuple[list[str], int]] = []
        self.relay = Relay(lambda lines, left_out: self.sent.append((lines, left_out)), lambda: self.now)


def test_lines_beyond_the_rate_are_dropped_and_counted() -> None:
    clocked = _Clocked()
    clocked.relay.take([b"x" * 999] * 100, b"")
    assert [(len(lines), left_out) for lines, left_out in clocked.sent] == [(65, 35)]
    clocked.now += 1.0
    clocked.relay.take([b"x" * 999], b"")
    assert clocked.sent[1][1] == 0
    clocked.relay.take([b"x" * 999] * 100, b"")
    clocked.relay.close()
    assert sum(len(lines) + left_out for lines, left_out in clocked.sent) == 201


def test_of_lines_without_credit_the_number_is_all_that_is_looked_at() -> None:
    """A rank that prints blank lines at full speed must not keep its agent busy."""
    looked_at = []

    class Line(bytes):
        def rstrip(self, chars: object = None) -> bytes:
            looked_at.append(self)
            return b""

    clocked = _Clocked()
    clocked.relay.take([Line()] * 1_000_000, b"")
    clocked.relay.take([Line()] * 1_000_000, b"")
    clocked.relay.close()
    assert len(looked_at) == 1 << 16
    assert [len(lines) for lines, _ in clocked.sent] == [1 << 16, 0]
    assert sum(left_out for _, left_out in clocked.sent) == 2_000_000 - (1 << 16)


def test_a_progress_bar_is_shown_once_a_second() -> None:
    clocked = _Clocked()
    for percent in range(100):
        clocked.now += 0.05
        clocked.relay.take([], b"\r".join(b"%d%%" % at for at in range(percent + 1)) + b"\r")
    states = [lines for lines, _ in clocked.sent]
    assert 4 <= len(states) <= 6
    assert states[0] == ["0%"]
    clocked.relay.take([b"98%\r99%\r100%"], b"")
    assert clocked.sent[-1][0] == ["100%"]


def test_long_lines_and_bytes_that_are_no_text() -> None:
    clocked = _Clocked()
    clocked.relay.take([b"a" * 5000, b"\xff\xfe"], b"")
    ((lines, _),) = clocked.sent
    assert (len(lines[0]), lines[1]) == (2000, "��")
