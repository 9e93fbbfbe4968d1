"""Data sets in files: read as they were written, and refused when anything about them is wrong."""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import os
import re
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hostile_files import HOSTILE
from hypothesis import given
from hypothesis import strategies as st
from training import small_files

from seatrial import folders
from seatrial.errors import RequestError
from seatrial.folders import own_folder_name
from seatrial.training.data import cifar, dataset_files, find_workload, idx
from seatrial.training.data.datasets import DATASETS
from seatrial.training.data.digits import read_digits

IMAGES = small_files.idx_bytes(torch.arange(2 * 3 * 4).view(2, 3, 4))
LABELS = small_files.idx_bytes(torch.tensor([3, 1, 4]))
CIFAR_MEMBERS = small_files.cifar_members(10, 2)
RECORD_BYTES = 3_073
GROWN = 4_000_000


def pack(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def file_of(folder: Path, content: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_as_they_were_written(tmp_path: Path, packed: bool) -> None:
    form = pack if packed else bytes
    images = idx.read_images(file_of(tmp_path, form(IMAGES), "images"))
    assert images.dtype == torch.uint8
    assert torch.equal(images, torch.arange(24, dtype=torch.uint8).view(2, 1, 3, 4))
    labels = idx.read_labels(file_of(tmp_path, form(LABELS), "labels"), 10)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [3, 1, 4]
    assert idx.read_sizes(tmp_path / "images", 3) == (2, 3, 4)


def header(*sizes: int) -> bytes:
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "at byte 0: it is empty"),
        (IMAGES[:3], "at byte 0: the IDX header would end at byte 4, and it has 3"),
        (IMAGES[:9], "the IDX header would end at byte 16, and it has 9"),
        (
            b"<!DOCTYPE html>",
            "at byte 0: it begins with 3c21444f, expected 00000803 (IDX, unsigned bytes, 3 dimensions)",
        ),
        (LABELS, "it begins with 00000801, expected 00000803"),
        (b"\0\0\x0d\x03" + IMAGES[4:], "it begins with 00000d03"),
        (IMAGES[:-1], "at byte 4: its header says a file of 40 bytes, but it has 39"),
        (IMAGES + b"x", "at byte 4: its header says a file of 40 bytes, but it has 41"),
        (header(2**32 - 1, 2**32 - 1, 2**32 - 1), "expected from 1 to 1073741824"),
        (header(0, 28, 28), "its header says 0 x 28 x 28 bytes, expected from 1"),
        (pack(IMAGES[:-1]), "at byte 39 of what is unpacked from it: it ends within the images, which has 24"),
        (pack(IMAGES + b"x"), "at byte 40 of what is unpacked from it: there is more content"),
        (pack(IMAGES)[:-9], "it is cut short: its gzip stream does not end"),
        (pack(IMAGES)[:-8] + bytes(8), "it cannot be read (Error -3 while decompressing data: incorrect data check"),
        (pack(IMAGES)[:10] + b"\xff" * 30, "it cannot be read (Error -3"),
        (pack(b""), "it ends within the IDX header"),
        (pack(header(2**20, 2**9, 1) + bytes(100)), "it ends within the images, which has 536870912 bytes"),
    ],
    ids=range(17),
)
def test_a_damaged_idx_file_is_named_with_offset_and_what_was_found(tmp_path: Path, content: bytes, words: str) -> None:
    path = file_of(tmp_path, content)
    with pytest.raises(RequestError) as caught:
        idx.read_images(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


_HOLE = 2**40


def with_hole(folder: Path, content: bytes, name: str = "file") -> Path:
    """A file with a terabyte of zeros behind its content, which takes no disk."""
    path = file_of(folder, content, name)
    try:
        os.truncate(path, _HOLE)
    except OSError:
        pytest.skip("this file system has no files of a terabyte")
    return path


@pytest.mark.timeout(60)
@pytest.mark.parametrize("begin", ["member", "nothing", "header", "tar"])
def test_a_hole_in_a_packed_file_is_not_read(tmp_path: Path, begin: str) -> None:
    """``gzip`` reads zeros between its members one by one: three days for a terabyte."""
    content = {"member": pack(IMAGES), "nothing": pack(b""), "header": pack(IMAGES)[:10], "tar": pack(bytes(1024))}
    path = with_hole(tmp_path, content[begin])
    for read in (lambda: idx.read_sizes(path, 3), lambda: idx.read_images(path), lambda: cifar.read_sizes(path)):
        with pytest.raises(RequestError, match=r"the packed file has 1099511627776 bytes, too many for"):
            read()


@pytest.mark.parametrize("more", [b"\0", b"x", pack(b""), pack(IMAGES), bytes(2**17)], ids=range(5))
def test_one_member_of_gzip_is_all_of_a_file(tmp_path: Path, more: bytes) -> None:
    with pytest.raises(RequestError, match="there is more in the file after its gzip stream"):
        idx.read_images(file_of(tmp_path, pack(IMAGES) + more))
    with pytest.raises(RequestError, match="there is more in the file after its gzip stream"):
        idx.read_sizes(file_of(tmp_path, pack(b"") + more), 3)
    with pytest.raises(RequestError, match="there is more in the file after its gzip stream"):
        cifar.read_sizes(file_of(tmp_path, small_files.archive(CIFAR_MEMBERS) + more))


@pytest.mark.parametrize("begin", [b"", IMAGES[:20]])
def test_packed_bytes_that_give_nothing_end(tmp_path: Path, begin: bytes) -> None:
    """Blocks without content, or a name of any length in the header; a file may take no disk for them (reflinks)."""
    packer = zlib.compressobj(wbits=31)
    blocks = packer.compress(begin) + packer.flush(zlib.Z_SYNC_FLUSH) + b"\0\0\0\xff\xff" * 10**6
    name = b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 4_000_000
    for content in (blocks, name):
        with pytest.raises(RequestError, match=r"packed bytes (are too many for what they hold|file has)"):
            cifar.read_sizes(file_of(tmp_path, content))
        with pytest.raises(RequestError, match=r"(packed bytes are too many for what they hold|packed file has)"):
            idx.read_images(file_of(tmp_path, content))


@pytest.mark.parametrize("level", [0, 1, 9])
def test_a_file_packed_by_any_level_is_read(tmp_path: Path, level: int) -> None:
    values = torch.randint(256, (2_000, 28, 28), generator=torch.Generator().manual_seed(1))
    path = file_of(tmp_path, gzip.compress(small_files.idx_bytes(values), level))
    assert torch.equal(idx.read_images(path)[:, 0], values.to(torch.uint8))


def test_a_header_that_promises_much_costs_no_memory(tmp_path: Path) -> None:
    path = file_of(tmp_path, pack(header(2**19, 2**5, 2**5) + bytes(1_000)))
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="it ends within the images, which has 536870912 bytes"):
            idx.read_images(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_label_too_high_is_named_with_its_offset(tmp_path: Path) -> None:
    path = file_of(tmp_path, small_files.idx_bytes(torch.tensor([9, 0, 10])))
    with pytest.raises(RequestError, match="at byte 10: label 10, expected 0 to 9"):
        idx.read_labels(path, 10)


@pytest.mark.parametrize("kind", ["absent", "folder"])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path if kind == "folder" else tmp_path / "absent"
    with pytest.raises(RequestError, match="Is a directory" if kind == "folder" else "No such file"):
        idx.read_images(path)


@given(cut=st.integers(0, 200), at=st.integers(0, 199), byte=st.integers(0, 255), packed=st.booleans())
def test_no_damage_of_an_idx_file_is_more_than_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, byte: int, packed: bool
) -> None:
    content = bytearray(pack(IMAGES) if packed else IMAGES)[: len(IMAGES) + 40 - cut]
    if at < len(content):
        content[at] = byte
    path = file_of(tmp_path_factory.getbasetemp(), bytes(content), "fuzzed")
    with contextlib.suppress(RequestError):
        assert idx.read_images(path).numel() == 24


def written_cifar(folder: Path, members: dict[str, bytes], form: str) -> Path:
    if form == "archive":
        return file_of(folder, small_files.archive(members), small_files.CIFAR_ARCHIVE)
    for name, content in members.items():
        file_of(folder, content, name)
    return folder


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_cifar_is_read_as_it_was_written(tmp_path: Path, form: str) -> None:
    path = written_cifar(tmp_path, CIFAR_MEMBERS, form)
    train_images, train_labels, test_images, test_labels = cifar.read_images(path)
    assert cifar.read_sizes(path) == (len(train_images), len(test_images)) == (10, 2)
    assert train_images.shape[1:] == cifar.SHAPE
    assert (train_images.dtype, train_labels.dtype) == (torch.uint8, torch.int64)
    digits, labels = read_digits()
    assert torch.equal(train_labels, labels[:10])
    assert torch.equal(test_labels, labels[1437:1439])
    assert torch.equal(train_images[3, 0, ::4, ::4], digits[3, 0] * 15)
    assert torch.equal(train_images[9, 2], 255 - train_images[9, 0])
    assert torch.equal(test_images[1, 1], test_images[1, 0] // 2)


@pytest.mark.parametrize("form", ["archive", "folder"])
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "data_batch_2.bin",
            lambda content: content[:-1],
            "data_batch_2.bin has 6145 bytes, expected a multiple of 3073",
        ),
        ("test_batch.bin", lambda content: b"", "empty|has 0 bytes"),
        (
            "data_batch_5.bin",
            lambda content: content[:RECORD_BYTES] + b"\x0a" + content[RECORD_BYTES + 1 :],
            "at byte 3073 of data_batch_5.bin: label 10, expected 0 to 9",
        ),
    ],
)
def test_a_damaged_cifar_file_is_named(
    tmp_path: Path, form: str, name: str, change: Callable[[bytes], bytes], words: str
) -> None:
    path = written_cifar(tmp_path, {**CIFAR_MEMBERS, name: change(CIFAR_MEMBERS[name])}, form)
    with pytest.raises(RequestError, match=words) as caught:
        cifar.read_images(path)
    assert str(path) in str(caught.value)


def test_an_archive_cut_anywhere_is_one_sentence(tmp_path: Path) -> None:
    content = small_files.archive(CIFAR_MEMBERS)
    for size_bytes in range(1, len(content), len(content) // 40):
        path = file_of(tmp_path, content[:size_bytes])
        for read in (cifar.read_images, cifar.read_sizes):
            with pytest.raises(RequestError, match=f"{path}.*byte"):
                read(path)


def test_an_archive_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    content = small_files.archive(CIFAR_MEMBERS)
    path = file_of(tmp_path, content[:-8] + bytes(4) + content[-4:])
    with pytest.raises(RequestError, match="incorrect data check"):
        cifar.read_images(path)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as file:
        for member, content in members:
            file.addfile(member, io.BytesIO(content))
    return pack(packed.getvalue())


def test_an_archive_that_lacks_or_repeats_or_links_is_refused(tmp_path: Path) -> None:
    lacking = {name: content for name, content in CIFAR_MEMBERS.items() if name != "data_batch_4.bin"}
    with pytest.raises(RequestError, match=r"lacks data_batch_4\.bin"):
        cifar.read_images(written_cifar(tmp_path, lacking, "archive"))
    member = tarfile.TarInfo("../../test_batch.bin")
    member.size = RECORD_BYTES
    link = tarfile.TarInfo("x/data_batch_1.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    twice = tar_of((member, bytes(RECORD_BYTES)), (member, bytes(RECORD_BYTES)))
    sparse = tarfile.TarInfo("x/data_batch_1.bin")
    sparse.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(RECORD_BYTES)}
    sparse.size = 1
    refusals = (
        (twice, "is there twice or is no regular file"),
        (tar_of((link, b"")), "is there twice or is no regular file"),
        (tar_of((sparse, b"1")), "has 1 bytes, expected a multiple of 3073"),
    )
    for content, words in refusals:
        with pytest.raises(RequestError, match=words):
            cifar.read_images(file_of(tmp_path, content))
    assert sorted(path.name for path in tmp_path.iterdir()) == [small_files.CIFAR_ARCHIVE, "file"], "nothing extracted"


@pytest.mark.parametrize(("count", "side"), [(60_001, 1), (1, 29)])
def test_more_or_larger_images_than_the_published_are_refused(tmp_path: Path, count: int, side: int) -> None:
    """With 2**30 of one pixel the labels alone would take 8 GiB on each rank."""
    for part, number in (("train", count), ("t10k", 1)):
        for kind, sizes in (("images-idx3", (number, side, side)), ("labels-idx1", (number,))):
            path = tmp_path / "mnist" / f"{part}-{kind}-ubyte"
            path.parent.mkdir(exist_ok=True)
            header = bytes((0, 0, 8, len(sizes))) + b"".join(size.to_bytes(4, "big") for size in sizes)
            path.write_bytes(header + bytes(math.prod(sizes)))
    with pytest.raises(RequestError, match="and the published ones 60000 10000 28 28"):
        find_workload("mnist", num_samples=1, data_dir=tmp_path)


def test_headers_that_extend_others_are_not_followed(tmp_path: Path) -> None:
    """tarfile calls itself for each of them, and takes minutes for the attributes in a few megabytes."""
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 5
    chain = (name.tobuf(tarfile.GNU_FORMAT) + b"name".ljust(512, b"\0")) * 900
    attributes = tarfile.TarInfo("more")
    attributes.type, attributes.size = tarfile.XHDTYPE, 6 * 2**21
    for content in (chain, attributes.tobuf() + b"6 a=b\n" * 2**21):
        with pytest.raises(RequestError, match=r"lacks data_batch_1\.bin"):
            cifar.read_sizes(file_of(tmp_path, pack(content)))
        whole = content + gzip.decompress(small_files.archive(CIFAR_MEMBERS))
        assert cifar.read_sizes(file_of(tmp_path, pack(whole))) == cifar.read_sizes(
            file_of(tmp_path, small_files.archive(CIFAR_MEMBERS))
        )


def test_an_archive_that_promises_gigabytes_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    member.size = RECORD_BYTES * 2**30
    content = pack(member.tobuf() + bytes(5_000))
    with pytest.raises(RequestError, match="at most 1073741824"):
        cifar.read_images(file_of(tmp_path, content))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("layout", ["fetched", "unpacked", "torchvision"])
def test_every_known_layout_is_found(tmp_path: Path, name: str, layout: str) -> None:
    place = small_files.write_mnist(tmp_path, 20, 10, name=name)
    if layout == "torchvision":
        raw = tmp_path / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] / "raw"
        raw.parent.mkdir()
        place = place.rename(raw)
    if layout != "fetched":
        for path in place.iterdir():
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    assert [path.parent for path in dataset_files.require(name, tmp_path)] == [place] * 4
    workload = find_workload(name, num_samples=1, data_dir=tmp_path)
    assert (workload.num_train, workload.num_test, workload.shape) == (20, 10, (1, 28, 28))
    data = workload.load()
    assert data.train_images.shape == (20, 1, 28, 28)
    assert torch.equal(data.test_labels, read_digits()[1][1437:1447])


@pytest.mark.parametrize("layout", ["cifar10/cifar-10-binary.tar.gz", "cifar-10-binary.tar.gz", "cifar-10-batches-bin"])
def test_cifar_is_found_in_every_layout(tmp_path: Path, layout: str) -> None:
    path = tmp_path / layout
    path.parent.mkdir(exist_ok=True)
    if layout.endswith("-bin"):
        path.mkdir()
        written_cifar(path, CIFAR_MEMBERS, "folder")
    else:
        path.write_bytes(small_files.archive(CIFAR_MEMBERS))
    assert dataset_files.require("cifar10", tmp_path) == (path,)
    workload = find_workload("cifar10", num_samples=1, data_dir=tmp_path)
    assert (workload.num_train, workload.num_test, workload.shape) == (10, 2, (3, 32, 32))
    assert len(workload.load().train_labels) == 10


@pytest.mark.parametrize("there", ["", ".gz", ".bin"])
@pytest.mark.parametrize("name", DATASETS)
def test_every_file_that_is_looked_for_is_known(
    tmp_path: Path, name: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def exists(path: Path, folder: Path) -> bool:
        asked.append(path)
        return path.suffix == there

    monkeypatch.setattr(dataset_files, "has_entry", exists)
    dataset_files.find(name, tmp_path)
    assert set(asked) <= set(dataset_files.candidates(name, tmp_path))


def test_what_is_not_there_is_one_sentence_with_the_ways_out(tmp_path: Path) -> None:
    for name in DATASETS:
        with pytest.raises(RequestError) as caught:
            find_workload(name, num_samples=1, data_dir=tmp_path / "my data").load()
        text = str(caught.value)
        assert f"{name} is not in {tmp_path}/my data on " in text
        assert f"`seatrial data fetch {name} --data '{tmp_path}/my data'`" in text
        assert "SEATRIAL_DATA (or --data)" in text
        assert "synthetic-" in text
    assert list(tmp_path.iterdir()) == [], "nothing was fetched"


def test_a_controller_without_the_files_knows_the_published_sizes(tmp_path: Path) -> None:
    sizes = {name: find_workload(name, num_samples=1, data_dir=tmp_path) for name in DATASETS}
    assert {name: (found.num_train, found.num_test) for name, found in sizes.items()} == {
        "mnist": (60_000, 10_000),
        "fashion-mnist": (60_000, 10_000),
        "cifar10": (50_000, 10_000),
    }


def test_an_incomplete_set_says_what_is_missing(tmp_path: Path) -> None:
    (small_files.write_mnist(tmp_path, 20, 10) / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(RequestError, match=r"mnist lacks t10k-labels-idx1-ubyte\.gz\)"):
        dataset_files.require("mnist", tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(
        RequestError, match="cifar-10-batches-py is the Python version, a pickle, which seatrial does not read"
    ):
        dataset_files.require("cifar10", tmp_path)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    place = small_files.write_mnist(tmp_path, 20, 10)
    (place / "t10k-labels-idx1-ubyte.gz").write_bytes(LABELS)
    with pytest.raises(
        RequestError, match="do not belong together: 20 images with 20 labels to train, 10 with 3 to test"
    ):
        find_workload("mnist", num_samples=1, data_dir=tmp_path)


def test_files_that_change_before_they_are_read_are_refused(tmp_path: Path) -> None:
    workload = find_workload("mnist", num_samples=1, data_dir=tmp_path)
    small_files.write_mnist(tmp_path, 20, 10)
    words = "its header says 20 x 28 x 28, expected 60000 x 28 x 28: it is not the published one, or has changed"
    with pytest.raises(RequestError, match=words):
        workload.load()


@pytest.mark.parametrize("number", range(4))
def test_a_file_that_grows_is_not_read_into_memory(number: int, tmp_path: Path) -> None:
    place = small_files.write_mnist(tmp_path, 20, 10)
    workload = find_workload("mnist", num_samples=1, data_dir=tmp_path)
    path = sorted(place.iterdir(), key=lambda path: ("t10k" in path.name, "labels" in path.name))[number]
    sizes = (GROWN,) if "labels" in path.name else (GROWN // 28**2, 28, 28)
    path.write_bytes(pack(header(*sizes) + bytes(math.prod(sizes))))
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=f"its header says {sizes[0]}.*, expected [12]0"):
            workload.load()
        assert tracemalloc.get_traced_memory()[1] < GROWN // 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["archive", "folder"])
@pytest.mark.parametrize(("num_train", "num_test"), [(2_000, 2), (10, 2_000), (5, 2), (10, 1)])
def test_another_number_of_records_is_not_read(num_train: int, num_test: int, form: str, tmp_path: Path) -> None:
    path = written_cifar(tmp_path, small_files.cifar_members(num_train, num_test), form)
    tracemalloc.start()
    try:
        with pytest.raises(
            RequestError, match=r"images to train and .* to test, expected 10 and 2: it is not the publ"
        ):
            cifar.read_images(path, None, (10, 2))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_small_sets_can_be_learned_and_are_normalised(tmp_path: Path) -> None:
    small_files.write_mnist(tmp_path, 1_000, 200)
    workload = find_workload("mnist", num_samples=1, data_dir=tmp_path)
    data = workload.load()
    train, test = (images.float().flatten(1) for images in (data.train_images, data.test_images))
    nearest = data.train_labels[torch.cdist(test, train).argmin(dim=1)]
    assert float((nearest == data.test_labels).float().mean()) > 0.9
    assert 0 < workload.mean < workload.std < 255


def test_digits_keep_what_the_stored_references_were_trained_with() -> None:
    workload = find_workload("digits", num_samples=1)
    assert (workload.mean, workload.std) == (4.88, 6.01)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"SEATRIAL_DATA": "/shared", "XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}, "/shared"),
        ({"SEATRIAL_DATA": "", "XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}, "/cache/seatrial/data"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/seatrial/data"),
    ],
)
def test_the_default_folder_comes_from_the_environment(environ: dict[str, str], folder: str) -> None:
    assert dataset_files.default_folder(environ) == Path(folder)


def test_the_default_folder_needs_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    # As for a user that nobody knows, which containers on OpenShift have.
    monkeypatch.setattr(folders, "pwd", SimpleNamespace(getpwuid={}.__getitem__))
    folder = dataset_files.default_folder({})
    assert folder.is_absolute()
    assert folder.parts[-2:] == (f"seatrial-{os.getuid()}", "data")


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind not in ("link", "hard link")])
@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_a_file_that_cannot_be_read_is_named_at_once(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "data"
    (
        small_files.write_cifar10(folder, 10, 2)
        if name == "cifar10"
        else small_files.write_mnist(folder, 4, 2, name=name)
    )
    planted = min(path for path in folder.rglob("*") if path.is_file())
    planted.unlink()
    HOSTILE[kind][0](planted)
    with pytest.raises(RequestError) as refused:
        find_workload(name, num_samples=1, data_dir=folder).load()
    assert str(planted) in str(refused.value)


def test_a_temporary_folder_of_another_user_gives_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "pwd", SimpleNamespace(getpwuid={}.__getitem__))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = dataset_files.default_folder({})
    assert folder.parent.parent == tmp_path
    assert dataset_files.find("mnist", folder) is None
    assert not folder.parent.exists()
    folder.parent.mkdir(mode=0o755)
    folder.parent.chmod(0o777)
    with pytest.raises(RequestError, match=r"must be a folder that only user \d+ can use"):
        dataset_files.find("mnist", folder)
    with pytest.raises(RequestError, match="name a directory with --data"):
        dataset_files.make_default_folder({})


def test_a_temporary_folder_that_others_could_exchange_gives_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and the reading."""
    monkeypatch.setattr(folders, "pwd", SimpleNamespace(getpwuid={}.__getitem__))
    (link := tmp_path / "link").symlink_to("tmp")
    (tmp_path / "tmp").mkdir()
    for place in (tmp_path / "tmp", link):
        monkeypatch.setattr("tempfile.tempdir", str(place))
        for mode in (0o700, 0o1777):
            (tmp_path / "tmp").chmod(mode)
            folder = dataset_files.make_default_folder({})
            assert dataset_files.find("mnist", folder) is None
        (tmp_path / "tmp").chmod(0o777)
        said = f"other users can write to {tmp_path / 'tmp'}, so {folder.parent} may be exchanged; set TMPDIR"
        monkeypatch.chdir(place)
        for way in (folder, folder.relative_to(place)):
            with pytest.raises(RequestError, match=re.escape(said.replace(str(folder.parent), str(way.parent)))):
                dataset_files.find("mnist", way)
        with pytest.raises(RequestError, match="name a directory with --data"):
            dataset_files.make_default_folder({})


def test_a_temporary_folder_that_appears_after_its_check_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbor lets one of that name come and go."""
    folder = tmp_path / own_folder_name() / "data"

    def come(place: Path) -> None:
        small_files.write_mnist(folder, 20, 10)
        raise FileNotFoundError(place)

    monkeypatch.setattr(dataset_files, "require_private", come)
    assert dataset_files.find("mnist", folder) is None
    with pytest.raises(RequestError, match=r"mnist is not in .*: fetch it with"):
        dataset_files.require("mnist", folder)


@pytest.mark.root
def test_root_with_the_home_of_a_user_uses_another_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "elsewhere").symlink_to("/usr/share")
    (tmp_path / "made_by_root").mkdir()
    names = ("", "new", "new/cache", "link", "elsewhere", "made_by_root", "made_by_root/new")
    for folder in (tmp_path / name for name in names):
        for name in ("HOME", "XDG_CACHE_HOME"):
            assert tmp_path not in dataset_files.default_folder({name: str(folder)}).parents
