"""One rank of a training by itself: its threads, its exit code."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from seatrial.errors import RequestError, SeatrialError
from seatrial.protocol import phase_page
from seatrial.protocol.wire import Decoder
from seatrial.training import sync_points
from seatrial.training.recipe import Recipe
from seatrial.training.resume import DisturbedError, FirstRankError
from seatrial.worker import train_rank
from seatrial.worker.rendezvous import form_world
from seatrial.worker.train_report import TrainReporter
from seatrial.worker.train_spec import TrainSpec

WELL: dict[str, Any] = {"nonfinite": None, "difference": "", "stopped": False, "missed": None}


@pytest.mark.parametrize(
    ("environ", "ranks", "threads"),
    [
        ({}, 1, 8),
        ({}, 3, 2),
        # The wrong way: at least one thread a core in each rank, hundreds of times slower than one.
        ({}, 64, 1),
        ({"OMP_NUM_THREADS": "5"}, 4, 5),
        ({"OMP_NUM_THREADS": "1"}, 4, 1),
        # torchrun says 1 where the user has said nothing.
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, 4, 2),
        ({"OMP_NUM_THREADS": "many"}, 4, 2),
        ({"OMP_NUM_THREADS": "0"}, 4, 2),
    ],
    ids=str,
)
def test_a_rank_uses_its_share_of_the_cores_or_the_users_number(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], ranks: int, threads: int
) -> None:
    monkeypatch.setattr(train_rank, "usable_cores", lambda: 8)
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert train_rank._threads(ranks) == threads


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"missed": 0.9}, 1),
        ({"stopped": True}, 130),
        ({"stopped": True, "missed": 0.9}, 130),
        ({"difference": "rank 1 has other parameters"}, 1),
        ({"difference": "rank 1 has other parameters", "stopped": True}, 1),
        ({"nonfinite": {"what": "loss", "own": False}}, 1),
    ],
    ids=str,
)
def test_the_exit_code_never_hides_a_fault(changes: dict[str, Any], code: int) -> None:
    assert train_rank._exit_code({**WELL, **changes}) == code


@pytest.fixture
def one_rank() -> Iterator[train_rank.RankIdentity]:
    """The identity of the only rank, in this process; changed settings are restored afterwards."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    yield train_rank.RankIdentity(rank=0, world_size=1, local_rank=0, local_world_size=1)
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("planted", "code"), [((), 0), (("raise@train/step 1 forward:0",), 1)], ids=["clean", "failed"]
)
def test_the_group_is_destroyed_on_the_clean_path_only(
    one_rank: train_rank.RankIdentity, tmp_path: Path, planted: tuple[str, ...], code: int
) -> None:
    # The wrong way: after a failure the rank waits, within destroy, for others that are stuck or gone.
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1)
    spec = TrainSpec(recipe=recipe, device="cpu", init=f"file://{tmp_path}/meet", planted=planted)
    assert train_rank.run_rank(spec, one_rank) == code
    assert dist.is_initialized() == (code != 0)


def test_a_torch_that_cannot_be_imported_is_reported(
    one_rank: train_rank.RankIdentity, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1)
    assert train_rank.run_rank(TrainSpec(recipe=recipe, device="cpu"), one_rank) == 2
    assert capfd.readouterr().err.startswith("Error: ModuleNotFoundError: import of torch halted")


def test_a_meeting_file_that_was_refused_stays(one_rank: train_rank.RankIdentity, tmp_path: Path) -> None:
    """It leads to a file of the user's, or is a link of somebody else."""
    ours, meet = tmp_path / "ours", tmp_path / "meet"
    ours.write_text("kept")
    meet.symlink_to(ours)
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1)
    assert train_rank.run_rank(TrainSpec(recipe=recipe, device="cpu", init=f"file://{meet}"), one_rank) != 0
    assert meet.is_symlink()
    assert ours.read_text() == "kept"


@pytest.mark.parametrize("planted", [(), ("raise@train/step 1 forward:0",)], ids=["clean", "failed"])
def test_a_meeting_folder_that_is_exchanged_costs_no_other_file(
    one_rank: train_rank.RankIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: tuple[str, ...]
) -> None:
    """Who can rename the folder could have a file of this name removed wherever this user has one."""
    (home := tmp_path / "home").mkdir()
    (home / "meet").write_text("precious")
    (team := tmp_path / "team").mkdir()

    def exchanging(*arguments: Any, **options: Any) -> dist.Store:
        store = form_world(*arguments, **options)
        team.rename(tmp_path / "moved")
        team.symlink_to(home)
        return store

    monkeypatch.setattr(train_rank, "form_world", exchanging)
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1)
    spec = TrainSpec(recipe=recipe, device="cpu", init=f"file://{team}/meet", planted=planted)
    assert train_rank.run_rank(spec, one_rank) == len(planted)
    assert (home / "meet").read_text() == "precious"
    assert list((tmp_path / "moved").iterdir()) == []


def test_a_meeting_folder_that_does_not_exist_is_a_wrong_request(
    one_rank: train_rank.RankIdentity, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch would wait for it until its deadline, in a loop that Ctrl-C does not end."""
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1)
    for folder, words in (("none", "No such file or directory"), ("file", "Not a directory")):
        (tmp_path / "file").touch()
        init = f"file://{tmp_path}/{folder}/meet"
        assert train_rank.run_rank(TrainSpec(recipe=recipe, device="cpu", init=init, timeout_s=1.0), one_rank) == 2
        said = capfd.readouterr().err
        assert said.startswith(f"Error: --init {init}: {tmp_path}/{folder} cannot be opened on ")
        assert f" ({words}); " in said


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("has_agent", [True, False])
def test_a_rank_reports_nan_in_its_own_numbers_and_names_no_other_one(
    one_rank: train_rank.RankIdentity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_own: bool,
    has_agent: bool,
) -> None:
    """In the sum of the losses any rank, and any link, can change the number of another one: here that of rank 1."""

    def damaged(work: object, table: torch.Tensor) -> list[list[float]]:
        return [[0.5, math.nan], *([[0.0, 0.0]] * (len(table) - 1))]

    read_fd, write_fd = os.pipe()
    if has_agent:
        for name, fd in (("EVENT", write_fd), ("PHASE", phase_page.create()), ("STACK", write_fd)):
            monkeypatch.setenv(f"SEATRIAL_{name}_FD", str(fd))
    monkeypatch.setattr(sync_points, "_wait_for_others", damaged)
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1)
    if is_own:
        real = torch.Tensor.isfinite
        monkeypatch.setattr(torch.Tensor, "isfinite", lambda tensor: real(tensor * math.nan))
    spec = TrainSpec(recipe=recipe, device="cpu", init=f"file://{tmp_path}/meet")
    assert train_rank.run_rank(spec, one_rank) == 1
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as lines:
        events = [event for event in map(Decoder().line, lines) if event is not None]
    results = [event for event in events if event["kind"] == "result"]
    printed = capfd.readouterr()
    said = "".join(results[0]["lines"]) if has_agent else printed.out
    assert "the loss was NaN or Inf;" in said
    assert "rank 1" not in said + printed.err
    assert [result["nonfinite"] for result in results] == [is_own] * has_agent
    assert ("rank 0 of 1 reports NaN or Inf in its own loss" in printed.err) == (is_own and not has_agent)


@pytest.mark.parametrize("has_agent", [True, False])
def test_an_overflow_that_all_ranks_count_is_no_failure_of_rank_0(
    one_rank: train_rank.RankIdentity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    has_agent: bool,
) -> None:
    """Here another rank adds an overflow to each sum."""
    real = dist.all_reduce

    def raised(tensor: torch.Tensor, *rest: Any, **more: Any) -> Any:
        work = real(tensor, *rest, **more)
        if tensor.dtype == torch.int64 and tensor.shape == (1,):
            tensor += 1
        return work

    read_fd, write_fd = os.pipe()
    if has_agent:
        for name, fd in (("EVENT", write_fd), ("PHASE", phase_page.create()), ("STACK", write_fd)):
            monkeypatch.setenv(f"SEATRIAL_{name}_FD", str(fd))
    monkeypatch.setattr(dist, "all_reduce", raised)
    recipe = Recipe(workload="digits", model="toy", max_steps=60, global_batch_size=64, lr=0.1, amp="fp16")
    spec = TrainSpec(recipe=recipe, device="cpu", init=f"file://{tmp_path}/meet")
    assert train_rank.run_rank(spec, one_rank) == 1
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as lines:
        events = [event for event in map(Decoder().line, lines) if event is not None]
    assert [event for event in events if event["kind"] == "error"] == []
    (said, nonfinite) = next(
        (("".join(event["lines"]), event["nonfinite"]) for event in events if event["kind"] == "result"),
        (capfd.readouterr().out, False),
    )
    assert said.startswith("stopped at step 31 of 60: gradients overflow in fp16")
    assert nonfinite is False
    assert "failed in" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "device"),
        (
            dist.DistBackendError("NCCL error in: x.cpp:1, internal error\nLast error:\nCuda failure 719 'launch'"),
            "device",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
        (RuntimeError("Distributed package doesn't have NCCL built in"), "request"),
        (
            dist.DistBackendError("NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nFailed to bind NVLink"),
            "fabric",
        ),
        (dist.DistStoreError("wait timeout after 1000ms, keys: /0"), "fabric"),
        # False answers of the store end in these.
        (MemoryError(), "fabric"),
        (RuntimeError("CUDA of another rank"), "fabric"),
        (RuntimeError("std::bad_alloc"), "fabric"),
        (ValueError("invalid literal"), "fabric"),
        (IndexError("out of range"), "fabric"),
        (ConnectionRefusedError(111, "refused"), "fabric"),
        (FileNotFoundError(2, "no such file"), "fabric"),
    ],
    ids=str,
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_meet_says_whose_fault_it_is(
    error: Exception, cause: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(train_rank, "form_world", fail)
    said = list[tuple[str, str]]()
    monkeypatch.setattr(TrainReporter, "error", lambda self, error, cause, message: said.append((cause, message)))
    identity = train_rank.RankIdentity(rank=rank, world_size=2, local_rank=0, local_world_size=1)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1)
    code = train_rank.run_rank(TrainSpec(recipe=recipe, device="cpu", init="tcp://[::1]:1"), identity)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    ((found, message),) = said
    assert found == cause
    assert message.startswith(f"rank {rank} of 2 could not meet the other ranks at ")
    assert code == (2 if cause == "request" else 1)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SeatrialError("digits.gz is damaged; install seatrial again."), "own"),
        (FirstRankError("rank 0 could not read a checkpoint; its message gives the reason."), "fabric"),
        (DisturbedError("the checkpoint that rank 0 has sent arrives changed"), "fabric"),
        (RequestError("no such data"), "request"),
    ],
    ids=str,
)
def test_a_rank_says_whose_fault_its_own_errors_are(
    error: Exception, cause: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(train_rank, "_train", fail)
    causes = list[str]()
    monkeypatch.setattr(TrainReporter, "error", lambda self, error, cause, message: causes.append(cause))
    identity = train_rank.RankIdentity(rank=rank, world_size=2, local_rank=0, local_world_size=1)
    recipe = Recipe(workload="digits", model="toy", max_steps=2, global_batch_size=64, lr=0.1)
    handler = signal.getsignal(signal.SIGINT)
    train_rank.run_rank(TrainSpec(recipe=recipe, device="cpu", init="tcp://[::1]:1"), identity)
    signal.signal(signal.SIGINT, handler)
    assert causes == [cause]
