"""``seatrial launch``: what is asked for, what a rank that was started elsewhere becomes, and refusals."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.cli.argparse_app import parse
from seatrial.cli.command import commands, num_own_words, options_of
from seatrial.cli.commands.launch import run
from seatrial.cli.exit import split_debug
from seatrial.environment.identity import Identity, identify
from seatrial.errors import RequestError
from seatrial.probe.torch_install import find_torch
from seatrial.request.script_options import misplaced
from seatrial.request.script_request import job_of, rank_of, script_target_request
from seatrial.request.target_options import target_request_of
from seatrial.run.run_program import dry_run
from seatrial.targets import resources
from seatrial.targets.job import ProgramJob
from seatrial.targets.target import TargetRequest

NOBODY = Identity(launcher="none", level="none")
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.7", "MASTER_PORT": "5000"}
OPENMPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "2"), ("SIZE", "4"), ("LOCAL_RANK", "0"))}
OPENMPI |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "5", "MASTER_ADDR": "127.0.0.7"}
_find_torch = functools.cache(find_torch)


@pytest.fixture(autouse=True)
def _ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "find_torch", _find_torch)


def typed(*words: str) -> dict[str, Any]:
    return parse("x.pyz", "launch", ["--device", "cpu", *words])


def job(*words: str, environ: dict[str, str] | None = None) -> ProgramJob:
    return job_of(typed(*words), where(typed(*words)), NOBODY, None, environ or {})[0]


def where(values: dict[str, Any]) -> TargetRequest:
    return target_request_of({**values, "backend": "auto"})


def rank(environ: dict[str, str], *words: str) -> tuple[dict[str, str], tuple[str, ...]]:
    values = parse("x.pyz", "launch", list(words))
    return rank_of(values, where(values), identify(environ), environ)


def test_what_follows_the_script_is_its_own() -> None:
    asked = job("--nproc-per-node", "3", "train.py", "--nproc-per-node", "8", "-m", "{rank}", "--", "--debug")
    assert (asked.nproc_per_node, asked.watched, asked.output) == (3, False, "rank0")
    assert asked.argv == (sys.executable, "train.py")
    assert asked.args == ("--nproc-per-node", "8", "-m", "{rank}", "--", "--debug")
    # Without a path before it, Python takes it for an option.
    assert job("--", "--odd name.py", "x").argv == (sys.executable, "./--odd name.py")


@pytest.mark.parametrize("target", ["mpirun", "slurm"])
def test_a_secret_argument_crosses_no_network_unencrypted(target: str) -> None:
    values = typed("--on", target, "train.py", "--api-key=hunter2")
    with pytest.raises(RequestError, match=f"--api-key: with --on {target}, this argument would cross") as raised:
        job_of(values, where(values), NOBODY, None, {})
    assert "hunter2" not in str(raised.value)
    assert "only you can read, on a disk of the nodes, or use --on ssh" in str(raised.value)
    assert job("train.py", "--api-key=hunter2").args == ("--api-key=hunter2",)


def test_ranks_of_slurm_keep_what_their_agents_must_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative entry means another folder where an agent starts; ranks start in one that is looked at before."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    words = ("--on", "slurm", "--nproc-per-node", "1", "train.py")
    assert job(*words, environ={"PYTHONPATH": "src:/a"}).env["PYTHONPATH"] == "src:/a"
    assert job("--env", "PYTHONPATH=/b", *words, environ={"PYTHONPATH": "src:/a"}).env["PYTHONPATH"] == "/b"
    assert "PYTHONPATH" not in job(*words, environ={"PYTHONPATH": "/a"}).env


def test_what_is_not_python(tmp_path: Path) -> None:
    assert job("--no-python", "--pass-local-rank", "./a.out", "x").argv == ("./a.out",)
    assert job("--no-python", "./a.out", "{rank}").args == ("{rank}",)
    assert rank(TORCHRUN, "--no-python", "./a.out", "{rank}")[1] == ("./a.out", "3")
    head = {
        "a.out": b"\x7fELF\2\1",
        "ok.sh": b"#!/bin/sh\necho",
        "x.py": b"#!/usr/bin/env -S uv run\n",
        "y": b"#!/p/python3",
    }
    for name, data in head.items():
        (tmp_path / name).write_bytes(data)
    for name in ("x.py", "y"):
        script_target_request(typed(str(tmp_path / name)))
    for words, told in (
        (("a.out",), "a.out is an executable, not of Python; add --no-python"),
        (("ok.sh",), "ok.sh is a script of /bin/sh, not of Python; add --no-python"),
        (("--no-python", "ok.sh"), "ok.sh: not executable; run chmod"),
        (("--no-python", "none"), "none: no such program"),
        (("--no-python", "-m", "y"), "-m with --no-python"),
    ):
        with pytest.raises(RequestError) as refused:
            script_target_request(typed(*words[:-1], str(tmp_path / words[-1])))
        assert told in str(refused.value)
    (tmp_path / "ok.sh").chmod(0o755)
    script_target_request(typed("--no-python", str(tmp_path / "ok.sh")))


def test_a_path_that_is_not_in_the_image_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(RequestError, match=r"no such script; it is not in the image of this pod; put it into"):
        script_target_request(typed("src/train.py"))


def test_a_module_and_a_local_rank() -> None:
    asked = job("-m", "--pass-local-rank", "--python", sys.executable, "package.train", "--epochs=3")
    assert asked.argv == (sys.executable, "-m", "package.train")
    assert asked.args == ("--local_rank={local_rank}", "--epochs=3")


def test_per_node_starts_one_process_on_each_node() -> None:
    asked = job("--per-node", "--nproc-per-node", "4", "train.py")
    assert (asked.nproc_per_node, asked.per_node, asked.world_size) == (4, True, 4)
    assert "# the one process of each of 1 nodes, started by its agent" in dry_run(asked, Path("reports"))[1]


def test_what_the_user_has_set_is_kept() -> None:
    assert job("train.py").env == {"GLOO_SOCKET_IFNAME": "lo"}
    assert job("train.py", environ={"GLOO_SOCKET_IFNAME": "eth7"}).env == {}
    told = job("--env", "GLOO_SOCKET_IFNAME=eth8", "train.py", environ={"GLOO_SOCKET_IFNAME": "eth7"}).env
    assert told == {"GLOO_SOCKET_IFNAME": "eth8"}


def test_a_dry_run_in_a_folder_with_controls_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "a\x1b[2J\nb").mkdir()
    monkeypatch.chdir(folder)
    assert [line for line in dry_run(job("train.py"), Path("reports")) if not line.isprintable()] == []


def test_a_dry_run_prints_what_runs() -> None:
    *_, last = dry_run(job("train.py", "a b", "{rank}"), Path("reports"))
    assert last == f"env GLOO_SOCKET_IFNAME=lo {sys.executable} train.py 'a b' '{{rank}}'"


def test_a_rank_of_torchrun_gets_nothing_that_it_has() -> None:
    env, argv = rank({**TORCHRUN, "OMP_NUM_THREADS": "1"}, "train.py", "{rank}/{nnodes}", "{master_addr}:{master_port}")
    assert env == {"PYTHONUNBUFFERED": "1"}
    assert argv == (sys.executable, "train.py", "3/2", "127.0.0.7:5000")


def test_a_rank_of_open_mpi_gets_what_torch_reads() -> None:
    env, argv = rank(OPENMPI, "--pass-local-rank", "train.py", "{nproc_per_node}")
    assert int(env.pop("OMP_NUM_THREADS")) >= 1
    assert 0 < int(env.pop("MASTER_PORT")) < 65536
    place = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert env == {**place, "PYTHONUNBUFFERED": "1"}
    assert argv == (sys.executable, "train.py", "--local_rank=0", "2")
    alone = {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}
    assert rank(alone, "train.py")[0]["GROUP_RANK"] == "0"


def test_a_variable_that_open_mpi_lacks_is_not_guessed() -> None:
    with pytest.raises(RequestError, match="openmpi does not set the GROUP_RANK of this process"):
        rank(OPENMPI, "train.py", "{node_rank}")
    assert rank({**OPENMPI, "GROUP_RANK": "1"}, "train.py", "{node_rank}")[1][-1] == "1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a script"),
        (["no such script.py"], "no such script.py: no such script"),
        (["--nproc-per-node", "0", __file__], "--nproc-per-node 0"),
        (["--max-restarts", "-1", __file__], "--max-restarts -1"),
        (["--grace", "nan", __file__], "--grace nan"),
        (["--pass-local-rank", "--per-node", __file__], "no local rank"),
        (["--on", "moon", __file__], "--on moon: no such target"),
    ],
)
def test_a_wrong_request_is_refused_in_one_sentence(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*TORCHRUN, *OPENMPI):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RequestError) as refused:
        run(typed(*words), debug=False)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [["--per-node"], ["--nproc-per-node", "2"], ["--nodes", "2"], ["--max-restarts", "1"], ["--out", "x"]],
    ids=" ".join,
)
def test_what_the_launcher_has_decided_is_refused(words: list[str]) -> None:
    with pytest.raises(RequestError, match=rf"^{words[0]}.* under torchrun: "):
        rank(TORCHRUN, *words, "train.py")


def test_debug_after_the_script_belongs_to_the_script() -> None:
    before = ["launch", "--nproc-per-node", "2", "--debug", "--per-node"]
    assert split_debug([*before, "x.py", "--debug"]) == (
        ["launch", "--nproc-per-node", "2", "--per-node", "x.py", "--debug"],
        True,
    )
    assert split_debug(["launch", "--python", "p", "x.py", "--debug"])[1] is False
    assert split_debug(["launch", "--", "--debug"]) == (["launch", "--", "--debug"], False)
    assert split_debug(["run", "smoke", "--debug"]) == (["run", "smoke"], True)
    assert num_own_words(["--debug", "launch", "--out=x", "-m", "m", "y"]) == 4
    assert [name for name, command in commands().items() if any(option.rest for option in options_of(command))] == [
        name for name, command in commands().items() if command.passes_rest
    ]


def test_the_scripts_of_these_tests_know_nothing_of_us() -> None:
    scripts = list((Path(__file__).parents[1] / "scripts").glob("*.py"))
    assert len(scripts) > 4
    assert not [path for path in scripts if "seatrial" in path.read_text()]


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["train.py", "--epochs", "3", "--output", "x"], ""),
        (["train.py"], ""),
        (
            ["train.py", "--on", "ssh", "--nproc_per_node=4"],
            "--on, --nproc_per_node go to the script; to give such an option to seatrial, type it before train.py",
        ),
    ],
)
def test_options_of_ours_after_the_script_are_told(words: list[str], note: str) -> None:
    assert misplaced(words) == note


def test_options_that_are_told_are_options_of_launch() -> None:
    own = {flag for option in options_of(commands()["launch"]) for flag in option.flags}
    assert {flag for flag in own if misplaced(["x.py", flag])} >= {"--on", "--hosts", "--no-python", "--nodes"}
