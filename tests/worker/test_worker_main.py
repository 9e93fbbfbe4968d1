"""The start of a rank: the ``rank`` event, or the cause of its failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from seatrial.environment.mps import FOLDER
from seatrial.protocol.phase_page import PhaseWriter, create
from seatrial.worker.worker_main import _open_rank

Open = Callable[..., tuple[Any, dict[str, Any]]]


@pytest.fixture
def open_rank() -> Iterator[Open]:
    """Opens rank 3 in this process; returns its context and the one event that it sent."""
    fd = create()

    def run(**changes: Any) -> tuple[Any, dict[str, Any]]:
        start: Any = {"run": "x", "gen": 0, "rank": 3, "local_rank": 1, "node_rank": 1, "node": "b"}
        start |= {"address": "127.0.0.1", "ranks": [[1, 1], [3, 3]], "device": "cpu", "backend": "auto", "threads": 1}
        sent: list[Any] = []
        start |= {"local_world_size": 2, "planted": [], **changes}
        me = _open_rank(start, PhaseWriter(fd), sent.append)
        (event,) = sent
        assert (event["gen"], event["rank"]) == (0, 3)
        return me, event

    yield run
    os.close(fd)


def test_a_rank_that_is_there_says_what_it_runs_on(open_rank: Open) -> None:
    me, event = open_rank()
    assert (event["kind"], event["device_type"], event["device_id"], event["backend"]) == ("rank", "cpu", "", "gloo")
    assert (event["device"], event["pid"]) == (me.device.name, os.getpid())
    assert (me.group_rank, me.world_size, me.backend) == (1, 2, "gloo")


def test_a_rank_compiles_nothing_and_has_no_folder_for_it(open_rank: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    open_rank()
    with pytest.raises(OSError, match=r"No such file|denied"):
        os.mkdir(f"{os.environ['TORCHINDUCTOR_CACHE_DIR']}/code")


@pytest.mark.skipif(os.path.lexists(FOLDER), reason=f"somebody has made {FOLDER} on this machine")
def test_a_rank_asks_no_neighbor_for_a_share_of_its_gpu(open_rank: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    open_rank()
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/proc"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has accelerators")
@pytest.mark.parametrize("device", ["cuda", "rocm"])
def test_a_device_that_the_controller_saw_and_torch_does_not_is_missing(open_rank: Open, device: str) -> None:
    me, event = open_rank(device=device)
    assert (me, event["kind"], event["cause"], event["step"]) == (None, "error", "setup", -1)
    assert "torch finds none usable" in event["message"]
    assert event["phase"] == "start-up/open device"


def test_a_device_error_while_it_is_opened_is_the_devices(open_rank: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int) -> None:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", fail)
    me, event = open_rank(device="cuda")
    assert (me, event["cause"], event["type"]) == (None, "device", "RuntimeError")
    assert "uncorrectable ECC" in event["message"]
    assert "in fail" in event["stack"]


def test_an_invalid_request_and_a_bug_have_different_causes(open_rank: Open) -> None:
    assert open_rank(planted=["no such fault"])[1]["cause"] == "request"
    assert open_rank(ranks=[0, 1])[1]["cause"] == "own"


def test_a_torch_that_cannot_be_imported_is_a_wrong_request(open_rank: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    me, event = open_rank()
    assert (me, event["cause"]) == (None, "request")
    assert event["message"].startswith("torch cannot be imported: ")
