"""The agent's own process, with a stand-in for the conductor on the other end of a real connection."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.stub_conductor import TOKEN, StubConductor

from seatrial.probe.process import read_process
from seatrial.protocol.handshake import proves
from seatrial.protocol.job_digest import digest_of_job
from seatrial.protocol.wire import encode

_START: dict[str, Any] = {"kind": "start_workers", "run": "x", "gen": 0, "ranks": [[0, 1]], "places": [[0, 0], [1, 1]]}
_START |= {"device": "cpu", "backend": "auto", "interface": "", "env": {}}


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[StubConductor]:
    stub = StubConductor(tmp_path)
    yield stub
    stub.close()


def _gone(pids: list[int]) -> bool:
    return len(pids) == 2 and all((seen := read_process(pid)) is None or seen.state in "ZX" for pid in pids)


def test_hello_is_all_that_it_sends_before_the_welcome(conductor: StubConductor) -> None:
    hello = conductor.hello
    assert hello["node_rank"] == 0
    process = conductor.proof["process"]
    assert len(process) == 32
    assert proves(conductor.proof["proof"], TOKEN, "agent", hello["nonce"], "c", 0, process=process)
    assert TOKEN not in str(conductor.heard)
    conductor.send({"kind": "welcome", "run": "x"})
    node = conductor.until_kind("node")
    assert (node["src"], node["seq"], node["run"], node["address"]) == ("node0", 0, "x", "127.0.0.1")
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    assert {message["kind"] for message in conductor.heard} <= {"hello", "proof", "node", "time", "status", "end"}
    assert conductor.kept() == conductor.of("node") + conductor.of("end")


def test_the_variables_of_a_rank(conductor: StubConductor, tmp_path: Path) -> None:
    conductor.send({"kind": "welcome", "run": "x"})
    typed = conductor.until_kind("node")["cores"] + 1
    env = {"OMP_NUM_THREADS": str(typed), "PYTHONPATH": ":/nowhere"}
    env |= {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "XDG_CACHE_HOME": str(tmp_path)}
    conductor.send({**_START, "ranks": [[0, 0]], "places": [[0, 0]], "env": env})
    rank = conductor.until_kind("rank")
    assert rank["threads"] == typed
    environ = b"\0" + Path(f"/proc/{rank['pid']}/environ").read_bytes()
    # The agent may stand where others can put modules.
    assert b"\0PYTHONPATH=/nowhere\0" in environ
    # Older versions of torch would write to a name in /tmp.
    assert f"\0TORCH_NCCL_DEBUG_INFO_TEMP_FILE={tmp_path}/torch/comm_lib_trace_rank_\0".encode() in environ
    conductor.send({"kind": "stop"})


def test_it_asks_for_the_time_eight_times(conductor: StubConductor) -> None:
    conductor.send({"kind": "welcome", "run": "x"})
    asked = []
    for _ in range(8):
        question = conductor.until_kind("time")
        asked.append(question["number"])
        conductor.send({"kind": "time", "number": question["number"], "at": time.time()})
    conductor.until_kind("status")
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    assert asked == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(conductor.of("time")) == 8


def test_a_trial_with_killed_hanging_and_stopped_ranks(conductor: StubConductor) -> None:
    """One start of torch for all that needs the real worker."""
    conductor.send({"kind": "welcome", "run": "x"})
    conductor.send(
        {
            **_START,
            "ranks": [[0, 3]],
            "places": [[n, n] for n in range(4)],
            "env": {"SEATRIAL_PLANT": "hang@bootstrap:0"},
        }
    )
    while len(conductor.of("rank")) < 4:
        conductor.until_kind("rank")
    pids = {event["rank"]: event["pid"] for event in conductor.of("rank")}
    assert b"SEATRIAL_TOKEN" not in Path(f"/proc/{pids[0]}/environ").read_bytes()

    os.kill(pids[3], signal.SIGKILL)
    ended = conductor.until_kind("exit")
    assert (ended["rank"], ended["code"], ended["ours"], ended["phase"]) == (3, -9, False, "ready")
    assert isinstance(ended["last_lines"], list)

    step = {"kind": "step", "gen": 0, "step": 0, "check": "bootstrap", "stage": "store", "timeout_s": 60.0}
    conductor.send({**step, "params": {"timeout_s": 60.0}, "given": {}, "ranks": [0]})
    conductor.until_phase(0, "bootstrap/begin store")
    os.kill(pids[1], signal.SIGSTOP)
    conductor.until(lambda message: message["kind"] == "status" and message["ranks"]["1"][0] == "T")
    conductor.send({"kind": "dump_stack", "number": 7, "ranks": [0, 3]})
    stack = conductor.until_kind("stack")
    assert (stack["rank"], stack["number"]) == (0, 7)
    assert "rank/faults.py" in stack["text"]
    assert "worker/worker_main.py" in stack["text"]

    conductor.send({"kind": "kill", "gen": 0, "stacks": [0, 1]})
    assert conductor.until_kind("killed")["gen"] == 0
    stacks = {event["rank"]: event for event in conductor.of("stack")[1:]}
    assert "rank/faults.py" in stacks[0]["text"]
    assert "number" not in stacks[0]
    assert (stacks[1]["state"], stacks[1]["text"]) == ("T", "")
    exits = {event["rank"]: (event["code"], event["ours"]) for event in conductor.of("exit")}
    assert exits == {0: (-9, True), 1: (-9, True), 2: (-9, True), 3: (-9, False)}
    assert conductor.ranks() == []
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    own = [message for message in conductor.heard if message.get("src") == "node0"]
    assert [message for message in conductor.kept() if message["src"] == "node0"] == own
    assert [message["seq"] for message in own] == list(range(len(own)))


def test_ranks_that_quit_end_by_themselves(conductor: StubConductor) -> None:
    conductor.send({"kind": "welcome", "run": "x"}, _START)
    while len(conductor.of("rank")) < 2:
        conductor.until_kind("rank")
    conductor.send({"kind": "quit"})
    while len(conductor.of("exit")) < 2:
        conductor.until_kind("exit")
    assert {(event["code"], event["ours"], event["phase"]) for event in conductor.of("exit")} == {(0, True, "end")}
    # What a rank said last comes before the news of its end.
    kinds = [(message["kind"], message.get("rank", message.get("src"))) for message in conductor.heard]
    assert all(kinds.index(("end", f"rank{rank}.0")) < kinds.index(("exit", rank)) for rank in (0, 1))
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0


@pytest.mark.parametrize("stacks", [[], [0, 1]])
def test_ranks_that_are_killed_while_they_start(conductor: StubConductor, stacks: list[int]) -> None:
    conductor.send({"kind": "welcome", "run": "x"}, _START, {"kind": "kill", "gen": 0, "stacks": stacks})
    conductor.until_kind("killed")
    assert [(event["code"], event["ours"]) for event in conductor.of("exit")] == [(-9, True)] * 2
    assert {event["rank"] for event in conductor.of("stack")} == set(stacks)


def test_a_death_that_arrives_with_the_kill_command(conductor: StubConductor) -> None:
    conductor.send({"kind": "welcome", "run": "x"}, _START)
    conductor.until_both_are_up()
    pids = conductor.ranks()
    os.kill(conductor.agent_pid, signal.SIGSTOP)
    while (seen := read_process(conductor.agent_pid)) is not None and seen.state != "T":
        pass
    conductor.send({"kind": "kill", "gen": 0, "stacks": []})
    os.kill(pids[0], signal.SIGKILL)
    while not ((seen := read_process(pids[0])) is None or seen.state in "ZX"):
        pass
    os.kill(conductor.agent_pid, signal.SIGCONT)
    conductor.until_kind("killed")
    assert {(event["code"], event["ours"]) for event in conductor.of("exit")} == {(-9, False), (-9, True)}
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0


def test_a_rank_that_cannot_open_its_device_says_why(conductor: StubConductor) -> None:
    conductor.send({"kind": "welcome", "run": "x"}, {**_START, "places": [[0, 0]], "device": "rocm"})
    error = conductor.until_kind("error")
    assert (error["cause"], error["step"]) == ("setup", -1)
    assert "HIP error" in error["message"]
    assert conductor.until_kind("exit")["code"] == 1


def test_without_its_conductor_it_ends_its_ranks_and_itself(conductor: StubConductor) -> None:
    conductor.send({"kind": "welcome", "run": "x"}, _START)
    conductor.until_both_are_up()
    pids = conductor.ranks()
    conductor.connection.shutdown(socket.SHUT_RDWR)
    assert conductor.agent.wait(20) == 3
    assert _gone(pids)
    kept = conductor.kept()
    assert [event["kind"] for event in kept if event["src"] == "node0"] == ["node", "note", "exit", "exit", "end"]
    assert "lost the control connection" in kept[-4]["text"]


def test_a_peer_that_is_no_conductor_is_left(conductor: StubConductor) -> None:
    conductor.connection.sendall(b"x" * 100_000)
    assert conductor.agent.wait(20) == 3


def test_an_injected_command_is_not_obeyed(conductor: StubConductor, tmp_path: Path) -> None:
    conductor.send({"kind": "welcome", "run": "x"})
    conductor.until_kind("node")
    written = tmp_path / "written"
    program = {"argv": ["touch", str(written)], "args": [], "spawns": 0, "watched": False, "cwd": "/", "shown": []}
    nobody: dict[str, list[object]] = {"owners": [], "mounters": [], "open_places": []}
    program |= {"script": "", "cwd_trust": nobody, "script_trust": nobody}
    program |= {"world_size": 1, "nnodes": 1, "group_rank": 0, "master_addr": "127.0.0.1", "master_port": 1}
    start = {"kind": "start_program", "run": "x", "gen": 0, "places": [[0, 0]], "env": {}, "program": program}
    # Somebody in the path has passed the handshake on, and knows no token.
    conductor.connection.sendall(b"".join(encode(start)))
    assert conductor.agent.wait(20) == 3
    assert not written.exists()
    note = next(event for event in conductor.kept() if event["kind"] == "note")
    assert "changed, repeated or left out on the way" in note["text"]


@pytest.mark.parametrize("kind", ["node_step", "start_workers", "start_program"])
def test_an_agent_starts_nothing_but_its_own_job(kind: str, tmp_path: Path) -> None:
    """Who conducts may be the host of the first process, which is trusted with the verdict alone."""
    conductor = StubConductor(tmp_path, job=digest_of_job({"OMP_NUM_THREADS": "1"}))
    try:
        written = tmp_path / "written"
        # A module of Python that starts a browser, which BROWSER names.
        env = {"PYTHONWARNINGS": "all:0:antigravity.x:0:0", "BROWSER": f"/bin/sh -c 'touch {written}' #%s"}
        program: dict[str, Any] = {"argv": ["touch", str(written)], "args": [], "cwd": "/", "script": ""}
        program |= {"watched": False, "spawns": 0}
        step = {"step": 0, "check": "network", "stage": "measure", "timeout_s": 5.0, "params": {}, "given": {}}
        commands = {
            "node_step": {"gen": 0, **step, "backend": "gloo", "device": "cpu", "watches": False, "env": env},
            "start_workers": {**_START, "env": env},
            "start_program": {"run": "x", "gen": 0, "places": [[0, 0]], "env": {}, "program": program},
        }
        conductor.send({"kind": "welcome", "run": "x"}, {**commands[kind], "kind": kind})
        assert conductor.hear_out() == 3
        assert not written.exists()
        assert "was asked to start what its own command line does not name" in conductor.of("note")[-1]["text"]
        assert conductor.kept()[-2] == conductor.of("note")[-1]
    finally:
        conductor.close()


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_ranks_of_a_trial_stay_nowhere_where_others_can_put_files(mode: int, tmp_path: Path) -> None:
    """Libraries read files of the working folder; UCX executes what its ucx.conf names."""
    (typed := tmp_path / "typed").mkdir()
    typed.chmod(mode)
    conductor = StubConductor(tmp_path, cwd=typed)
    try:
        conductor.send({"kind": "welcome", "run": "x"}, _START)
        conductor.until_both_are_up()
        at = str(typed) if mode == 0o755 else "/"
        assert {os.readlink(f"/proc/{pid}/cwd") for pid in conductor.ranks()} == {at}
    finally:
        conductor.close()


def test_its_token_is_not_in_proc(conductor: StubConductor) -> None:
    conductor.send({"kind": "welcome", "run": "x"}, _START)
    conductor.until_both_are_up()
    for pid in (conductor.agent.pid, conductor.agent_pid, *conductor.ranks()):
        assert TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_repeated_command_is_not_obeyed(conductor: StubConductor) -> None:
    assert conductor.tags is not None
    (welcome,) = (conductor.tags.add(line) for line in encode({"kind": "welcome", "run": "x"}))
    conductor.connection.sendall(welcome + welcome)
    assert conductor.agent.wait(20) == 3


def test_a_signal_ends_it_in_order(conductor: StubConductor) -> None:
    conductor.send({"kind": "welcome", "run": "x"}, _START)
    conductor.until_both_are_up()
    pids = conductor.ranks()
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # they are for scripts
        conductor.agent.send_signal(number)
    for _ in range(2):
        assert conductor.until_kind("status")["ranks"].keys() == {"0", "1"}
    conductor.agent.send_signal(signal.SIGTERM)
    assert conductor.hear_out() == 3
    assert _gone(pids)
    kinds = [message["kind"] for message in conductor.heard]
    assert kinds.index("signal") < kinds.index("exit")
    assert "signal 15 (SIGTERM) ended" in conductor.of("note")[0]["text"]
    assert [event["ours"] for event in conductor.of("exit")] == [True, True]


def test_its_ranks_do_not_outlive_it(conductor: StubConductor) -> None:
    conductor.send({"kind": "welcome", "run": "x"}, _START)
    conductor.until_both_are_up()
    pids = conductor.ranks()
    assert len(pids) == 2
    conductor.agent.kill()
    conductor.agent.wait()
    # The kernel ends them at once; the fixture of all tests waits for that and fails if one is left.
    assert conductor.hear_out() == -signal.SIGKILL


@pytest.mark.parametrize("missing", ["SEATRIAL_CONTROL", "SEATRIAL_TOKEN", "SEATRIAL_NODE_RANK", "SEATRIAL_JOB"])
def test_an_agent_started_by_hand_names_the_missing_variable(missing: str) -> None:
    environ = {"SEATRIAL_CONTROL": "127.0.0.1:1", "SEATRIAL_TOKEN": TOKEN, "SEATRIAL_NODE_RANK": "0", missing: None}
    code, text = _agent(environ)
    assert code == 2
    assert missing in text


def test_a_controller_that_cannot_be_reached_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    code, text = _agent({"SEATRIAL_CONTROL": address, "SEATRIAL_TOKEN": TOKEN, "SEATRIAL_NODE_RANK": "3"})
    assert code == 3
    assert "node 3" in text
    assert address in text


def _agent(changes: dict[str, str | None]) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEATRIAL_") or "TEST" in name}
    environ = {name: value for name, value in {"SEATRIAL_JOB": "x", **changes}.items() if value is not None}
    command = [sys.executable, "-m", "seatrial.agent.agent_main"]
    done = subprocess.run(command, env={**clean, **environ}, capture_output=True, text=True, timeout=50, check=False)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.returncode, done.stderr
