"""Only ranks open files of data: a request that did would end its process, and the ranks of all others would wait."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from cli.test_plan_show import show
from request.test_training_request import TORCHRUN, ask
from targets.test_ranks_of_a_node import job, rank
from training.small_files import write_cifar10, write_mnist

from seatrial.errors import RequestError
from seatrial.training.data.data_file import open_data_file

_watched: list[Path] = []
_opened: list[str] = []


def _see(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watched and isinstance(arguments[0], str | bytes):
        name = arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0]
        _opened.extend([name] if Path(name).name in {file.name for file in _watched} else [])


sys.addaudithook(_see)  # it stays until the end of the process


@pytest.fixture(params=["mnist", "fashion-mnist", "cifar10"])
def workload(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The name of a workload whose files, in the folder of SEATRIAL_DATA, are damaged from their first byte on."""
    place = write_cifar10(tmp_path, 20, 4) if request.param == "cifar10" else write_mnist(tmp_path, 20, 4)
    place.rename(tmp_path / request.param)
    files = list((tmp_path / request.param).iterdir())
    for file in files:
        file.write_bytes(b"no data")
    monkeypatch.setenv("SEATRIAL_DATA", str(tmp_path))
    _watched[:], _opened[:] = files, []
    yield request.param
    _watched.clear()


def test_the_hook_sees_a_file_of_data(workload: str) -> None:
    with open_data_file(_watched[0]):
        pass
    assert _opened


def test_no_request_opens_a_file_of_data(workload: str) -> None:
    for identity, agents in ((rank(4), 4), (rank(4), None)):
        asked = job(identity, agents, None, "--workload", workload)
        assert asked.plan.checks
    for environ, given in ((TORCHRUN, {}), ({}, {}), ({}, {"spawn": True})):
        assert ask(environ, workload=workload, **given).spec.recipe.workload == workload
    show("smoke", "-v", "--workload", workload)
    assert _opened == []


def test_batches_that_no_published_set_fills_are_refused(workload: str) -> None:
    words = ("--workload", workload, "--batch-size", "20000")
    with pytest.raises(RequestError, match=r"larger than the [56]0000 training samples .* batch_size 20000"):
        job(rank(4), 4, None, *words)
    with pytest.raises(RequestError, match=r"larger than the [56]0000 training samples"):
        ask(workload=workload, global_batch_size=80_000)
    assert _opened == []
