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
from training.training_doubles import fits_always

from seatrial.errors import SeatrialError
from seatrial.training import plain_pickle, resume
from seatrial.training.checkpoint import CheckpointFolder
from seatrial.training.plain_content import MOST_BYTES, load_plain
from seatrial.training.plain_pickle import RefusedContentError
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
        monkeypatch.setattr(store, "newest", lambda most_bytes: (1, {"a": 1}))
        with pytest.raises(SeatrialError, match=r"rank 0 has sent is refused: it asks for TorchScript.*test the links"):
            find_state(Checkpointing(store=store), alone, CPU, fits_always)
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
            find_state(Checkpointing(store=store), alone, CPU, fits_always)


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
        find_state(Checkpointing(store=store), alone, CPU, fits_always)


def test_a_sparse_file_of_terabytes_is_not_read(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path, note=lambda text: None) as store:
        store.save(1, {"a": 1})
        path = tmp_path / f"step-{2:012d}.{'0' * 64}.pt"
        with path.open("wb") as file:
            file.truncate(MOST_BYTES + 1)
        with pytest.raises(SeatrialError, match="cannot be read: it has more than 2 GiB"):
            store.load(path)
        store.save(3, {"a": 3})
        assert store.newest() == (3, {"a": 3})


def _with_parts(saved: bytes, **parts: bytes) -> bytes:
    """What torch saved, with other contents of some parts, by the last word of their names."""
    planted = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as source, zipfile.ZipFile(planted, "w") as target:
        for name in source.namelist():
            target.writestr(name, parts.get(name.rpartition("/")[2].partition(".")[0], source.read(name)))
    return planted.getvalue()


def _saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


@pytest.mark.parametrize("doubled", [False, True])
def test_parts_that_are_larger_than_the_file_are_refused(doubled: bool) -> None:
    """Some readers inflate what is compressed, to a thousand times its size."""
    saved, planted = _saved({"a": torch.zeros(1 << 16)}), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as source, zipfile.ZipFile(planted, "w") as target:
        for name in source.namelist():
            kind = zipfile.ZIP_DEFLATED if name.endswith("/data/0") else zipfile.ZIP_STORED
            target.writestr(name, source.read(name), compress_type=zipfile.ZIP_STORED if doubled else kind)
        if doubled:  # many names of the same bytes
            (entry,) = (entry for entry in target.filelist if entry.filename.endswith("/data/0"))
            target.filelist += [entry] * 3
    with pytest.raises(RefusedContentError, match=r"its parts have more than its \d+ bytes"):
        load_plain(planted.getvalue())
    assert load_plain(saved)["a"].numel() == 1 << 16


def test_a_compressed_part_is_refused_though_it_is_small() -> None:
    planted = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_saved({"a": 1}))) as source, zipfile.ZipFile(planted, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name), compress_type=zipfile.ZIP_DEFLATED)
        target.writestr("archive/more", bytes(range(256)) * 16)
    with pytest.raises(RefusedContentError, match="compressed or encrypted"):
        load_plain(planted.getvalue())


def test_more_numbers_than_the_file_has_are_refused() -> None:
    """Before 2.10 torch reads, and with another order of bytes writes, beyond them."""
    saved = _saved({"a": torch.zeros(64)})
    for short in (b"", bytes(4), bytes(63 * 4), bytes(65 * 4), bytes(3)):
        with pytest.raises(RefusedContentError, match="it claims other numbers than those in the file"):
            load_plain(_with_parts(saved, **{"0": short}))
    with pytest.raises(RefusedContentError, match="another order of bytes"):
        load_plain(_with_parts(saved, byteorder=b"big"))


_STORAGE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQ"
_HOOKS = b"\x89ccollections\nOrderedDict\n)RtR"
_REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n("
_FOUR = _REBUILD + _STORAGE + b"K\0K\4\x85K\1\x85" + _HOOKS


@pytest.mark.parametrize(
    ("opcodes", "reason"),
    [
        # offset, shape and strides of four numbers
        (_REBUILD + _STORAGE + b"K\0K\5\x85K\1\x85" + _HOOKS, "larger than its numbers"),
        (_REBUILD + _STORAGE + b"K\4K\1\x85K\1\x85" + _HOOKS, "larger than its numbers"),
        (_REBUILD + _STORAGE + b"K\0K\2\x85K\4\x85" + _HOOKS, "larger than its numbers"),
        (_REBUILD + _STORAGE + b"K\0J\0\0\0\x7f\x85K\0\x85" + _HOOKS, "larger than its numbers"),
        (_REBUILD + _STORAGE + b"K\0J\xff\xff\xff\xff\x85K\1\x85" + _HOOKS, "no usable shape"),
        (_REBUILD + _STORAGE + b"K\0K\1K\1\x86K\1\x85" + _HOOKS, "no usable shape"),
        # a list in a list twice, and a key that is such a tuple: forty times over nobody prints or hashes it
        (b"]q\0]h\0ah\0a", "one part in two places"),
        (b"}K\1q\0h\0\x86K\1s", "one part in two places"),
        (b"}K\1K\2\x86K\1s", "a key that is no text and no small number"),
        # numbers of one hash: a dict of a million takes hours
        (
            b"}\x8a\x09" + ((1 << 61) - 1 << 8).to_bytes(9, "little") + b"K\1s",
            "a key that is no text and no small number",
        ),
        # a tensor where a tuple belongs: each of its numbers would become a tensor
        (_REBUILD + _STORAGE + b"K\0" + _FOUR + b"K\1\x85" + _HOOKS, "no usable shape"),
        (_REBUILD + _STORAGE + b"K\0K\4\x85" + _FOUR + _HOOKS, "no usable shape"),
        (_REBUILD[:-1] + _FOUR + b"R", "more than tensors and primitives"),
        (_FOUR + b"Q", "more than tensors and primitives"),
        # a product of so many numbers takes hours
        (_REBUILD + _STORAGE + b"K\0(" + b"K\7" * 17 + b"tK\1\x85" + _HOOKS, "no usable shape"),
        (b"(" + b"]" * (1 << 12) + b"t", "more than 4096 values"),
        (b"]" * 50 + b"a" * 49, "parts within parts without end"),
        # an element of a tensor is set, and more of what torch has names for
        (_REBUILD + _STORAGE + b"K\0K\4\x85K\1\x85" + _HOOKS + b"K\0K\1s", "more than tensors and primitives"),
        (_STORAGE, "more than tensors and primitives"),
        (b"ctorch\nFloatStorage\n", "more than tensors and primitives"),
        (b"ctorch._utils\n_rebuild_qtensor\n)R", "torch._utils._rebuild_qtensor"),
        (b"c\x1b[31m\nx\n)R", "more than tensors and primitives"),
        (b"K", "damaged"),
        (b"t", "damaged"),
        (b"R", "damaged"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_what_a_pickle_asks_for_beyond_tensors_and_primitives_is_refused(
    opcodes: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_pickle, "_MOST_VALUES", 1 << 12)
    planted = _with_parts(_saved({"a": torch.zeros(4)}), data=b"\x80\2" + opcodes + b".")
    with pytest.raises(RefusedContentError, match=reason):
        load_plain(planted)


@pytest.mark.parametrize(
    "key", [b"G\x7f\xf8" + bytes(6), b"G\x7f\xf8" + bytes(6) + b"\x85", b"K\0", b"N", b"X\3\0\0\0nan"], ids=repr
)
def test_numbers_are_copied_once_whatever_their_key_is(key: bytes) -> None:
    """NaN is equal to no earlier key, and so is a tuple that holds one."""
    storage = _STORAGE.replace(b"X\1\0\0\0000", key)
    planted = _with_parts(
        _saved({"a": torch.zeros(4)}), data=b"\x80\2" + _REBUILD + storage + b"K\0K\4\x85K\1\x85" + _HOOKS + b"."
    )
    with pytest.raises(RefusedContentError, match="numbers under a key of another form"):
        load_plain(planted)


def test_a_pickle_or_an_index_of_many_mebibytes_is_not_read() -> None:
    saved = _saved({"a": 1})
    with pytest.raises(RefusedContentError, match="its pickle has more than 16 MiB"):
        load_plain(_with_parts(saved, data=b"\x80\2(" + b"]" * (17 << 20) + b"l."))
    planted = io.BytesIO()
    with zipfile.ZipFile(planted, "w") as target:
        target.writestr("archive/data.pkl", b"\x80\2N.")
        target.filelist[0].comment = bytes(60_000)
        target.filelist *= 300
        target._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(RefusedContentError, match="its table of contents has more than 16 MiB"):
        load_plain(planted.getvalue())


def test_what_torch_saved_comes_back() -> None:
    shared = torch.arange(12).view(3, 4)
    content = {
        "a": torch.arange(3),
        "b": [shared.t(), shared[1:, ::2]],
        "c": (),
        "d": "\u00fc" * 300,
        -1: (1, 2.5, 3, 4),
    }
    read = load_plain(bytearray(_saved(content)))
    assert [read["a"].tolist(), *(one.tolist() for one in read["b"])] == [
        [0, 1, 2],
        shared.t().tolist(),
        [[4, 6], [8, 10]],
    ]
    assert [read["c"], read["d"], read[-1]] == [(), "\u00fc" * 300, (1, 2.5, 3, 4)]
    with pytest.raises(RefusedContentError, match="not a zip file"):
        load_plain(b"\x80\x02}")
