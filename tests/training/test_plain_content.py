"""Content of a checkpoint that another user has put there, or another rank has changed on the way."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from seatrial.errors import SeatrialError
from seatrial.training import plain_content, resume
from seatrial.training.checkpoint import CheckpointFolder
from seatrial.training.plain_content import MOST_BYTES, RefusedContentError, load_plain
from seatrial.training.resume import Checkpointing, find_state

CPU = torch.device("cpu")


class _Program(torch.nn.Module):
    """A module whose archive writes a file into the working folder when torch reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.weight = state[0]  # type: ignore[assignment]
        self.training = state[1]
        torch.save(state[0], "was-here")


def _load_like_torch_2_5(file: io.BytesIO, **options: Any) -> Any:
    """Double of ``torch.load`` before 2.6, which gives any archive of TorchScript to ``torch.jit.load``."""
    return torch.jit.load(file, map_location="cpu")  # type: ignore[no-untyped-call]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Archive of a program; torch is one that would run it."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(_Program()), file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "load", _load_like_torch_2_5)
    assert not (tmp_path / "was-here").exists()
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_program_among_checkpoints_is_refused_and_not_run(program: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c" / f"step-{2:012d}.{hashlib.sha256(program).hexdigest()}.pt"
    path.parent.mkdir()
    path.write_bytes(program)
    with CheckpointFolder(path.parent) as store, pytest.raises(SeatrialError, match="asks for TorchScript, which no"):
        store.load(path)
    assert not (tmp_path / "was-here").exists()
    torch.load(io.BytesIO(program))  # the double would have run it
    assert (tmp_path / "was-here").exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_program_from_another_rank_is_refused_and_not_run(
    program: bytes, alone: dist.ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank can change the sum in which rank 0 sends its checkpoint."""
    monkeypatch.setattr(resume, "_bytes", lambda content: program)
    with CheckpointFolder(tmp_path / "c") as store:
        monkeypatch.setattr(store, "newest", lambda: (1, {"a": 1}))
        with pytest.raises(SeatrialError, match=r"rank 0 has sent is refused: it asks for TorchScript.*test the links"):
            find_state(Checkpointing(store=store), alone, CPU)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize(
    "received", [b"PK\x03\x04 damaged", b"", {"name": 1, "state": {}}, {"state": {}}, [1]], ids=str
)
def test_what_arrives_damaged_is_one_sentence(
    received: Any, alone: dist.ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(received, bytes):
        file = io.BytesIO()
        torch.save(received, file)
        received = file.getvalue()
    monkeypatch.setattr(resume, "_bytes", lambda content: received)
    with CheckpointFolder(tmp_path) as store:
        store.save(1, {"a": 1})
        with pytest.raises(SeatrialError, match="the checkpoint that rank 0 has sent is refused"):
            find_state(Checkpointing(store=store), alone, CPU)


@pytest.mark.parametrize("size_bytes", [-1, MOST_BYTES + 1, 2**62])
def test_a_size_that_cannot_be_is_refused(
    size_bytes: int, alone: dist.ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: tensor.fill_(size_bytes) * 0)
    monkeypatch.setattr(resume, "_on_rank_0", lambda *_: None)
    with (
        CheckpointFolder(tmp_path) as store,
        pytest.raises(SeatrialError, match=f"of {size_bytes} bytes was announced"),
    ):
        find_state(Checkpointing(store=store), alone, CPU)


def test_a_sparse_file_of_terabytes_is_not_read(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path, note=lambda text: None) as store:
        store.save(1, {"a": 1})
        path = tmp_path / f"step-{2:012d}.{'0' * 64}.pt"
        with path.open("wb") as file:
            file.truncate(MOST_BYTES + 1)
        with pytest.raises(SeatrialError, match="cannot be read: it has more than 16 GiB"):
            store.load(path)
        store.save(3, {"a": 3})
        assert store.newest() == (3, {"a": 3})


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("doubled", [False, True])
def test_parts_that_are_larger_than_the_file_are_refused(
    older: bool, doubled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch inflates what is compressed, to a thousand times its size."""
    saved, planted = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.zeros(1 << 16)}, saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(planted, "w") as target:
        for name in source.namelist():
            kind = zipfile.ZIP_DEFLATED if name.endswith("/data/0") else zipfile.ZIP_STORED
            target.writestr(name, source.read(name), compress_type=zipfile.ZIP_STORED if doubled else kind)
        if doubled:  # many names of the same bytes
            (entry,) = (entry for entry in target.filelist if entry.filename.endswith("/data/0"))
            target.filelist += [entry] * 3
    if older:
        monkeypatch.setattr(plain_content, "hasattr", lambda *_: False, raising=False)
    with pytest.raises(RefusedContentError, match=r"its parts have more than its \d+ bytes"):
        load_plain(planted.getvalue())
    assert load_plain(saved.getvalue())["a"].numel() == 1 << 16


def test_what_torch_saved_comes_back() -> None:
    file = io.BytesIO()
    torch.save({"a": torch.arange(3)}, file)
    assert load_plain(bytearray(file.getvalue()))["a"].tolist() == [0, 1, 2]
    with pytest.raises(RefusedContentError, match="not a zip file"):
        load_plain(b"\x80\x02}")
