"""``seatrial launch`` for real: scripts as people have them, on this machine."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from live.trainings import SEATRIAL, TORCHRUN, Ended, Training, train

SCRIPTS = Path(__file__).parents[1] / "scripts"
"""Scripts of a user, without anything of seatrial."""


def script(folder: Path, text: str) -> str:
    (folder / "script.py").write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + text)
    return "script.py"


def launch(folder: Path, *words: str, command: tuple[str, ...] = SEATRIAL) -> Training:
    return Training(folder, "launch", "--device", "cpu", "--out", "reports", *words, command=command)


def logs(folder: Path) -> dict[str, str]:
    """Output of each rank, by its file."""
    return {path.name: path.read_text() for path in sorted((folder / "reports").glob("*/rank*.log"))}


def digests(text: str) -> dict[int, str]:
    # Two ranks that share a stream may tear a line from its end.
    digests = {int(rank): digest for rank, digest in re.findall(r"rank (\d) of 2 has ([0-9a-f]{64})", text)}
    assert len(digests) == 2, text
    return digests


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What both ranks end with, whoever starts them."""
    folder = tmp_path_factory.mktemp("env")
    ended = launch(folder, "--nproc-per-node", "2", str(SCRIPTS / "env_ddp.py")).ended()
    assert ended.exit_code == 0, ended.errors
    _, last = ended.errors.splitlines()
    assert re.fullmatch(r"seatrial: 2 processes exited with 0 after [\d.]+ s; all output is in \S+\.", last)
    found = digests("\n".join(logs(folder).values()))
    assert ended.output.splitlines()[-1] == f"rank 0 of 2 has {found[0]}"
    assert found[0] == found[1]
    return found[0]


def test_a_script_for_torchrun_runs_as_it_is(alike: str) -> None:
    assert len(alike) == 64


def test_each_process_gets_its_rank_and_its_arguments(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        "(here := os.path.dirname(os.path.abspath(__file__))) in sys.path or sys.exit('not importable')\n"
        "print(*(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK')))\n"
        "print(sys.argv[1:], os.environ['MASTER_ADDR'], sys.argv[3] == os.environ['MASTER_PORT'])\n"
        "print(int(os.environ['OMP_NUM_THREADS']) > 0, 'PYTHONSAFEPATH' in os.environ)",
    )
    rest = ("{rank}/{nnodes}", "{master_port}", "--debug", "--nproc-per-node", "9", "{{rank}}", "{other}")
    ended = launch(tmp_path, "--output", "all", "--nproc-per-node", "3", "--pass-local-rank", name, *rest).ended()
    assert ended.exit_code == 0, ended.errors
    assert sorted(line for line in ended.output.splitlines() if line[8:].count(" ") == 5) == [
        f"[rank {rank}] {rank} {rank} 3 3 0" for rank in range(3)
    ]
    for rank, text in enumerate(logs(tmp_path).values()):
        _, args, flags = text.splitlines()
        port = re.findall(r"'(\d{4,5})'", args)[0]
        own = [f"--local_rank={rank}", f"{rank}/1", port, "--debug", "--nproc-per-node", "9", "{rank}", "{other}"]
        assert args == f"{own} 127.0.0.1 True"
        assert flags == "True False"


def test_the_first_failure_is_named_with_code_and_last_lines(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        "print('begins', flush=True)\n"
        "if rank == 0:\n    open('begun', 'w').close()\n"
        "while not os.path.exists('begun'): time.sleep(0.01)\n"
        "if rank == 1:\n    print('about to fail', flush=True); sys.exit(7)\n"
        "time.sleep(600)",
    )
    ended = launch(tmp_path, "--nproc-per-node", "2", name).ended()
    assert (ended.exit_code, ended.output) == (1, "begins\n")
    *_, whose, before, last_but_one, last = ended.errors.splitlines()
    assert (whose, before, last_but_one) == ("seatrial: the last output of rank 1:", "  begins", "  about to fail")
    assert re.fullmatch(
        r"Error: rank 1 on node \S+ failed with exit code 7 without a traceback; its last line: \"about to fail\";"
        r" all output is in \S+\.",
        last,
    )
    assert len(logs(tmp_path)) == 2


def test_a_rank_that_only_lost_its_peers_is_not_named(tmp_path: Path) -> None:
    """Rank 0 hears of the end of rank 1 and is gone first, as ranks are that need long to leave their device."""
    name = script(
        tmp_path,
        "if rank == 1:\n    time.sleep(1.2); sys.exit('the disk is full')\n"
        "raise RuntimeError('gloo/transport/tcp/pair.cc:534 Connection closed by peer')",
    )
    ended = launch(tmp_path, "--nproc-per-node", "2", name).ended()
    assert "Error: rank 1 on" in ended.errors
    assert 'exit code 1 without a traceback; its last line: "the disk is full"' in ended.errors


def test_the_traceback_of_a_rank_that_followed_comes_later(tmp_path: Path) -> None:
    """With both streams on one screen. Rank 0 loses rank 1, whose exit is told a moment later."""
    name = script(
        tmp_path,
        "print('step 1', flush=True)\n"
        "if rank == 0:\n"
        "    while not os.path.exists('failing'): time.sleep(0.01)\n"
        "    raise RuntimeError('gloo/transport/tcp/pair.cc:534 Connection closed by peer')\n"
        "open('failing', 'w').close(); time.sleep(0.5); sys.exit('the disk is full')",
    )
    words = ("launch", "--device", "cpu", "--nproc-per-node", "2", name)
    done = subprocess.run(
        [*SEATRIAL, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=50
    )
    lines = done.stdout.splitlines()
    first, followed = lines.index("  the disk is full"), lines.index("Traceback (most recent call last):")
    assert lines.index("step 1") < first < followed
    assert lines[followed - 1] == "seatrial: the last output of rank 0, which did not fail first:"
    assert lines[-1].startswith("Error: rank 1 on ")


def test_a_traceback_that_was_shown_is_not_shown_again(tmp_path: Path) -> None:
    """Rank 0 takes longer to exit than its traceback is held."""
    name = script(
        tmp_path,
        "import atexit\n"
        "if rank == 0:\n    atexit.register(time.sleep, 4)\n    raise ValueError('corrupt')\n"
        "time.sleep(600)",
    )
    ended = launch(tmp_path, "--nproc-per-node", "2", name).ended()
    assert (ended.output + ended.errors).count("Traceback (most recent call last):") == 1
    assert ended.errors.splitlines()[-1].startswith("Error: rank 0 on ")


@pytest.mark.nightly
def test_the_rank_for_which_another_gave_up_waiting_is_named(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        "if rank == 0:\n    time.sleep(2)\n"
        "    raise RuntimeError('Timed out waiting 2000ms for recv operation to complete')\n"
        "print('takes long', flush=True); time.sleep(600)",
    )
    ended = launch(tmp_path, "--nproc-per-node", "2", name).ended()
    heading = next(i for i, line in enumerate(ended.errors.splitlines()) if "some ranks gave up waiting" in line)
    assert '("takes long"); sleeps in ' in ended.errors.splitlines()[heading + 1]
    *_, whose, last_line, others, last = ended.errors.splitlines()
    assert (whose, last_line) == ("seatrial: the last output of rank 1:", "  takes long")
    assert others == "seatrial: the last output of rank 0, which gave up waiting:"
    assert re.match(
        r"Error: rank 0 gave up waiting \(timed out after 2 s\); rank 1 on node \S+ still ran, in \S*nanosleep; all",
        last,
    )


def test_all_ranks_restart_when_one_fails(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        "if rank == 1 and not os.path.exists('once'):\n    open('once', 'w').close(); os.kill(os.getpid(), 9)\n"
        "while not os.path.exists('once'): time.sleep(0.01)\n"
        "print('at', os.environ['MASTER_PORT'], sys.argv[1])",
    )
    ended = launch(tmp_path, "--nproc-per-node", "2", "--max-restarts", "2", name, "{master_port}").ended()
    assert ended.exit_code == 0, ended.errors
    assert "was killed by signal 9 (SIGKILL); all ranks restart (restart 1 of at most 2)" in ended.errors
    texts = logs(tmp_path)
    assert sorted(texts) == [f"rank{rank}.gen{generation}.log" for rank in (0, 1) for generation in (0, 1)]
    assert re.fullmatch(r"at (\d+) \1\n", texts["rank1.gen1.log"])


@pytest.mark.parametrize("heeds", [True, False], ids=["heeds", "ignores"])
def test_ctrl_c_gives_the_script_its_grace(tmp_path: Path, heeds: bool) -> None:
    name = script(
        tmp_path,
        "def stop(*_):\n    os.write(1, b'saved\\n')\n"
        + ("    sys.exit(0)\n" if heeds else "")
        + "signal.signal(signal.SIGTERM, stop); print('up', flush=True)\nwhile True: time.sleep(0.02)",
    )
    running = launch(tmp_path, "--nproc-per-node", "2", "--grace", "20" if heeds else "1.5", name)
    running.until(lambda: list(logs(tmp_path).values()) == ["up\n", "up\n"])
    running.process.send_signal(signal.SIGINT)
    ended = running.ended()
    assert ended.exit_code == 130, ended.errors
    assert list(logs(tmp_path).values()) == ["up\nsaved\n"] * 2
    assert f"{'20' if heeds else '1.5'} s (--grace) to save and to exit; a second Ctrl-C ends them at" in ended.errors
    ends = "ended by themselves" if heeds else r"were ended after \d.\d s"
    assert re.search(rf"\nseatrial: stopped by SIGINT; both ranks {ends}; all output is in", ended.errors)
    assert {event["code"] for event in running.events("exit")} == {0 if heeds else -signal.SIGKILL}


def test_no_file_of_a_run_has_an_argument_of_the_script(tmp_path: Path) -> None:
    """Also after a stack: for people py-spy writes the command line of the process above it, and colors if told to."""
    name = script(tmp_path, "print('up', flush=True)\nwhile not os.path.exists('seen'): time.sleep(0.02)")
    (py_spy := tmp_path / "bin" / "py-spy").parent.mkdir()
    heading = "printf \"Process \\033[1m$5\\033[0m: $(tr '\\0' ' ' </proc/$5/cmdline)\\n\""
    threads = '[{"os_thread_id": 1, "active": false, "frames": []}]'
    py_spy.write_text(f"#!/bin/sh\n{heading}; echo 'Python v3.11.7 (/usr/bin/python)'; echo; echo '{threads}'\n")
    py_spy.chmod(0o755)
    path = {"PATH": f"{py_spy.parent}:{os.environ['PATH']}"}
    options = ("--device", "cpu", "--nproc-per-node", "1", "--out", "reports")
    running = Training(tmp_path, "launch", *options, name, "--password=hunter2", "hunter2", env=path)
    running.until(lambda: list(logs(tmp_path).values()) == ["up\n"])
    running.process.send_signal(signal.SIGQUIT)
    running.until(lambda: {event["text"] for event in running.events("stack")} == {"Thread 1 (idle)\n"})
    (tmp_path / "seen").touch()
    ended = running.ended()
    assert ended.exit_code == 0, ended.errors
    assert "hunter2" not in ended.output + ended.errors
    assert [path for path in running.out.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()] == []


def test_nothing_of_the_bundle_reaches_the_script(tmp_path: Path, pyz: Path) -> None:
    name = script(tmp_path, "print(os.environ.get('PYTHONPATH'), os.environ.get('PYTHONSAFEPATH'))")
    before = os.environ.get("PYTHONPATH")
    ended = launch(tmp_path, "--nproc-per-node", "1", name, command=(sys.executable, str(pyz))).ended()
    assert (ended.exit_code, ended.output) == (0, f"{before} None\n"), ended.errors


def test_the_one_process_of_a_pod_starts_the_ranks_of_its_node(tmp_path: Path) -> None:
    name = script(tmp_path, "print(rank, *(os.environ[n] for n in ('LOCAL_RANK', 'WORLD_SIZE', 'GROUP_RANK')))")
    nodes = []
    for node_rank in range(2):
        environ = {"PET_NNODES": "2", "PET_NODE_RANK": str(node_rank), "PET_NPROC_PER_NODE": "2"}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "SEATRIAL_TOKEN": str(tmp_path)}
        words = ("launch", "--device", "cpu", "--output", "all", name)
        nodes.append(Training(tmp_path, *words, env=environ))
    first, second = [node.ended() for node in nodes]
    assert (first.exit_code, second.exit_code) == (0, 0), first.errors + second.errors
    assert sorted(first.output.splitlines()) == [f"[rank {n}] {n} {n % 2} 4 {n // 2}" for n in range(4)]
    assert second.output == ""


_SAVES = """def save(number, frame):
    print('saves', flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print('ready', flush=True)
while True: time.sleep(0.02)
"""


def test_a_signal_to_save_reaches_the_ranks_of_each_process(tmp_path: Path) -> None:
    """`sbatch --signal=USR1@120` sends it to each process of srun, that which conducts included."""
    nodes = []
    for node_rank in range(2):
        environ = {"PET_NNODES": "2", "PET_NODE_RANK": str(node_rank), "PET_NPROC_PER_NODE": "1"}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513", "SEATRIAL_TOKEN": str(tmp_path)}
        words = ("launch", "--device", "cpu", "--output", "all", script(tmp_path, _SAVES))
        nodes.append(Training(tmp_path, *words, env=environ))
    nodes[0].until(lambda: list(logs(tmp_path).values()) == ["ready\n", "ready\n"])
    for node in nodes:
        node.process.send_signal(signal.SIGUSR1)
    first, second = [node.ended() for node in nodes]
    assert (first.exit_code, second.exit_code) == (0, 0), first.errors + second.errors
    assert sorted(first.output.splitlines()) == [f"[rank {n}] {word}" for n in range(2) for word in ("ready", "saves")]


DOCS = Path(__file__).parents[2] / "docs"
PAGE = re.findall(
    r"^```sh\n# runs beside train.py\n(.*?)^```", (DOCS / "launching.md").read_text(), re.MULTILINE | re.DOTALL
)
SHOWS = """import os, sys
print(*sys.argv[1:], os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", "".join(PAGE).replace("\\\n", " ").splitlines())
def test_an_example_of_the_page(tmp_path: Path, line: str) -> None:
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/train.py"):
        (tmp_path / name).write_text(SHOWS)
    ended = Training(tmp_path, *shlex.split(line)[1:]).ended()
    assert ended.exit_code == 0, ended.errors
    assert "{" not in ended.output
    assert "--epochs 3" in ended.output or "2 0 of 1" in ended.output or "0 of 2" in ended.output


def ended_alike(ended: Ended, folder: Path, digest: str) -> None:
    assert ended.exit_code == 0, ended.errors
    text = "\n".join(logs(folder).values())
    assert set(digests(text).values()) == {digest}


@pytest.mark.slow
def test_a_script_for_torch_distributed_launch_is_given_its_local_rank(tmp_path: Path, alike: str) -> None:
    words = ("--nproc-per-node", "2", "--pass-local-rank", str(SCRIPTS / "local_rank_ddp.py"), "--epochs", "3")
    ended_alike(launch(tmp_path, *words).ended(), tmp_path, alike)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["tcp://{master_addr}:{master_port}", "file://FOLDER/meet"])
def test_a_script_with_a_rendezvous_address(tmp_path: Path, alike: str, url: str) -> None:
    options = ("--rank", "{rank}", "--world-size", "2", "--dist-url", url.replace("FOLDER", str(tmp_path)))
    ended = launch(tmp_path, "--nproc-per-node", "2", str(SCRIPTS / "url_ddp.py"), *options).ended()
    ended_alike(ended, tmp_path, alike)


@pytest.mark.slow
def test_a_script_that_starts_its_ranks_itself_is_started_once(tmp_path: Path, alike: str) -> None:
    options = ("--nnodes={nnodes}", "--node_rank={node_rank}", "--nproc_per_node={nproc_per_node}")
    where = "--dist-url=tcp://{master_addr}:{master_port}"
    words = ("--per-node", "--nproc-per-node", "2", str(SCRIPTS / "spawn_ddp.py"), *options, where)
    ended_alike(launch(tmp_path, *words).ended(), tmp_path, alike)


@pytest.mark.slow
def test_a_launcher_of_torch_may_be_what_is_launched(tmp_path: Path, alike: str) -> None:
    options = ("--nnodes={nnodes}", "--node-rank={node_rank}", "--nproc-per-node={nproc_per_node}")
    where = ("--master-addr={master_addr}", "--master-port={master_port}")
    words = ("--per-node", "--nproc-per-node", "2", "-m", TORCHRUN[-1], *options, *where, str(SCRIPTS / "env_ddp.py"))
    ended_alike(launch(tmp_path, *words).ended(), tmp_path, alike)


@pytest.mark.slow
def test_the_failed_rank_of_a_real_training_is_named(tmp_path: Path) -> None:
    words = ("launch", "--device", "cpu", "--nproc-per-node", "2", str(SCRIPTS / "env_ddp.py"))
    ended = train(tmp_path, *words, env={"TOY_FAILS": "1"})
    assert ended.exit_code == 1
    told = r'Error: rank 1 on node \S+ failed with exit code 1 .* its last line: "rank 1 fails as requested";'
    assert re.search(told, ended.errors)


@pytest.mark.slow
def test_typed_under_torchrun_each_process_becomes_the_script(tmp_path: Path, alike: str) -> None:
    command = (*TORCHRUN, "--nproc-per-node", "2", *SEATRIAL[1:])
    ended = train(tmp_path, "launch", str(SCRIPTS / "env_ddp.py"), command=command)
    assert ended.exit_code == 0, ended.errors
    assert set(digests(ended.output).values()) == {alike}
    assert ended.errors.count("seatrial launch") == 1
    assert not (tmp_path / "reports").exists()
