"""``seatrial launch``: what is asked for, what a rank that was started elsewhere becomes, and refusals."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import RequestError
from seatrial.launch import place
from seatrial.launch.ending import without_debug
from seatrial.launch.job import ProgramJob
from seatrial.launch.options import SUBCOMMANDS, own_words
from seatrial.launch.program import dry_run
from seatrial.launch.pyz import parse
from seatrial.launch.script import job_of, rank_of, run
from seatrial.launch.target import Where
from seatrial.launch.where import where_of
from seatrial.probe.identity import Identity, identify
from seatrial.probe.torch_install import find_torch

NOBODY = Identity(launcher="none", level="none")
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "5000"}
OPENMPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "2"), ("SIZE", "4"), ("LOCAL_RANK", "0"))}
OPENMPI |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "5", "MASTER_ADDR": "h"}
_find_torch = functools.cache(find_torch)


@pytest.fixture(autouse=True)
def _ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "find_torch", _find_torch)


def typed(*words: str) -> dict[str, Any]:
    return parse("x.pyz", "launch", ["--device", "cpu", *words])


def job(*words: str, environ: dict[str, str] | None = None) -> ProgramJob:
    return job_of(typed(*words), where(typed(*words)), NOBODY, None, environ or {})[0]


def where(values: dict[str, Any]) -> Where:
    return where_of({**values, "backend": "auto"})


def rank(environ: dict[str, str], *words: str) -> tuple[dict[str, str], tuple[str, ...]]:
    values = parse("x.pyz", "launch", list(words))
    return rank_of(values, where(values), identify(environ), environ)


def test_what_follows_the_script_is_its_own() -> None:
    asked = job("--nproc-per-node", "3", "train.py", "--nproc-per-node", "8", "-m", "{rank}", "--", "--debug")
    assert (asked.nproc_per_node, asked.watched, asked.output) == (3, False, "rank0")
    assert asked.argv == (sys.executable, "train.py")
    assert asked.args == ("--nproc-per-node", "8", "-m", "{rank}", "--", "--debug")
    assert job("--", "--odd name.py", "x").argv == (sys.executable, "--odd name.py")


def test_a_module_and_a_local_rank() -> None:
    asked = job("-m", "--pass-local-rank", "--python", sys.executable, "package.train", "--epochs=3")
    assert asked.argv == (sys.executable, "-m", "package.train")
    assert asked.args == ("--local_rank={local_rank}", "--epochs=3")


def test_once_a_node_means_one_process_that_is_told_of_the_others() -> None:
    asked = job("--per-node", "--nproc-per-node", "4", "train.py")
    assert (asked.nproc_per_node, asked.per_node, asked.world_size) == (4, True, 4)
    assert "# the one process of each of 1 nodes, started by its agent" in dry_run(asked, Path("reports"))[1]


def test_what_the_user_has_set_is_kept() -> None:
    assert job("train.py").env == {"GLOO_SOCKET_IFNAME": "lo"}
    assert job("train.py", environ={"GLOO_SOCKET_IFNAME": "eth7"}).env == {}
    told = job("--env", "GLOO_SOCKET_IFNAME=eth8", "train.py", environ={"GLOO_SOCKET_IFNAME": "eth7"}).env
    assert told == {"GLOO_SOCKET_IFNAME": "eth8"}


def test_a_dry_run_prints_what_runs() -> None:
    *_, last = dry_run(job("train.py", "a b", "{rank}"), Path("reports"))
    assert last == f"env GLOO_SOCKET_IFNAME=lo {sys.executable} train.py 'a b' '{{rank}}'"


def test_a_rank_of_torchrun_gets_nothing_that_it_has() -> None:
    env, argv = rank({**TORCHRUN, "OMP_NUM_THREADS": "1"}, "train.py", "{rank}/{nnodes}", "{master_addr}:{master_port}")
    assert env == {"PYTHONUNBUFFERED": "1"}
    assert argv == (sys.executable, "train.py", "3/2", "h:5000")


def test_a_rank_of_open_mpi_gets_what_torch_reads() -> None:
    env, argv = rank(OPENMPI, "--pass-local-rank", "train.py", "{nproc_per_node}")
    assert int(env.pop("OMP_NUM_THREADS")) >= 1
    assert 0 < int(env.pop("MASTER_PORT")) < 65536
    place = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert env == {**place, "PYTHONUNBUFFERED": "1"}
    assert argv == (sys.executable, "train.py", "--local_rank=0", "2")
    alone = {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}
    assert rank(alone, "train.py")[0]["GROUP_RANK"] == "0"


def test_what_open_mpi_does_not_tell_is_not_guessed() -> None:
    with pytest.raises(RequestError, match="openmpi does not tell the GROUP_RANK of this process"):
        rank(OPENMPI, "train.py", "{node_rank}")
    assert rank({**OPENMPI, "GROUP_RANK": "1"}, "train.py", "{node_rank}")[1][-1] == "1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name what to launch"),
        (["no such script.py"], "no such script.py: there is no such script here"),
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


def test_debug_is_ours_before_the_script_and_the_scripts_after_it() -> None:
    before = ["launch", "--nproc-per-node", "2", "--debug", "--per-node"]
    assert without_debug([*before, "x.py", "--debug"]) == (
        ["launch", "--nproc-per-node", "2", "--per-node", "x.py", "--debug"],
        True,
    )
    assert without_debug(["launch", "--python", "p", "x.py", "--debug"])[1] is False
    assert without_debug(["launch", "--", "--debug"]) == (["launch", "--", "--debug"], False)
    assert without_debug(["run", "smoke", "--debug"]) == (["run", "smoke"], True)
    assert own_words(["--debug", "launch", "--out=x", "-m", "m", "y"]) == 4
    assert [name for name, told in SUBCOMMANDS.items() if any(option.rest for option in told.options)] == ["launch"]


def test_the_scripts_of_these_tests_know_nothing_of_us() -> None:
    scripts = list((Path(__file__).parent / "scripts").glob("*.py"))
    assert len(scripts) > 4
    assert not [path for path in scripts if "seatrial" in path.read_text()]
