"""Data: the digits that ship, also from a zip, damaged or missing; synthetic images; names."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import seatrial
from seatrial.errors import RequestError
from seatrial.training.data import WORKLOADS, find_workload
from seatrial.training.data.digits import read_digits
from seatrial.training.models import MODELS, build_model, find_model

PACKAGE = Path(seatrial.__file__).parent


def test_digits_are_the_known_set() -> None:
    images, labels = read_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == torch.uint8
    assert int(images.max()) == 16
    # Published with the set: the number of images of each class.
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_look_like_digits() -> None:
    images, labels = read_digits()
    zeros, ones = (images[labels == digit].float().mean(dim=0)[0] for digit in (0, 1))
    # A zero has a hole where a one has its stroke.
    assert float(zeros[3:5, 3:5].mean()) < 4 < 10 < float(ones[3:5, 3:5].mean())


def test_the_parts_of_digits_do_not_overlap_and_are_normalised() -> None:
    workload = find_workload("digits", num_samples=1)
    data = workload.load()
    assert (len(data.train_labels), len(data.test_labels)) == (workload.num_train, workload.num_test) == (1437, 360)
    pixels = (data.train_images.float() - workload.mean) / workload.std
    assert abs(float(pixels.mean())) < 0.01
    assert abs(float(pixels.std()) - 1) < 0.01


def _zip(path: Path, change: Callable[[bytes], bytes | None]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*")):
            name = file.relative_to(PACKAGE.parent).as_posix()
            if file.is_dir() or "__pycache__" in name:
                continue
            content: bytes | None = file.read_bytes()
            if file.name == "digits.bin":
                content = change(file.read_bytes())
            if content is not None:
                archive.writestr(name, content)
    return path


def test_a_zip_holds_the_digits_and_a_bad_file_is_named(tmp_path: Path) -> None:
    archives = [
        _zip(tmp_path / "good.zip", lambda content: content),
        _zip(tmp_path / "damaged.zip", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        _zip(tmp_path / "missing.zip", lambda content: None),
    ]
    code = """
import importlib, sys
for archive in sys.argv[1:]:
    for name in [name for name in sys.modules if name.startswith("seatrial")]:
        del sys.modules[name]
    sys.path.insert(0, archive)
    digits = importlib.import_module("seatrial.training.data.digits")
    assert archive in digits.__file__, digits.__file__
    try:
        print(len(digits.read_digits()[1]))
    except importlib.import_module("seatrial.errors").SeatrialError as error:
        print(error)
"""
    command = [sys.executable, "-c", code, *map(str, archives)]
    good, damaged, missing = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert good == "1797"
    assert "digits.bin is damaged" in damaged
    assert "digits.bin is missing" in missing


def test_synthetic_images_come_from_the_seed_alone() -> None:
    workload = find_workload("synthetic-3x4x5", num_samples=200)
    data, again = workload.load(), workload.load()
    assert data.train_images.shape == (200, 3, 4, 5)
    assert torch.equal(data.train_images, again.train_images)
    assert torch.equal(data.test_labels, again.test_labels)
    assert not torch.equal(data.train_images, data.test_images[:200])
    assert abs(float(data.train_images.float().mean()) - workload.mean) < 3


def test_the_synthetic_test_set_is_the_same_for_any_num_samples() -> None:
    small, large = (find_workload("synthetic-1x8x8", num_samples=num_samples).load() for num_samples in (10, 3_000))
    assert torch.equal(small.test_images, large.test_images)


def test_a_synthetic_set_has_10_classes_or_as_many_as_its_name_says() -> None:
    plain, ten, five = (find_workload(f"synthetic-1x4x5{end}", num_samples=300) for end in ("", "-10", "-5"))
    assert (plain.num_classes, ten.num_classes, five.num_classes) == (10, 10, 5)
    assert set(five.load().train_labels.tolist()) == set(range(5))
    assert torch.equal(plain.load().train_images, ten.load().train_images)
    # What the stored references were trained on must stay: these bits are those of the first version.
    assert (int(plain.load().train_images.long().sum()), int(plain.load().train_labels.sum())) == (769_312, 1_388)
    toy = build_model("toy", find_workload("synthetic-10x1x1-5", num_samples=1).shape, 5, seed=1)
    assert [tuple(layer.shape) for layer in toy.parameters()] == [(10, 10), (10,), (5, 10), (5,)]


def test_synthetic_classes_generalize_to_unseen_images() -> None:
    data = find_workload("synthetic-1x8x8", num_samples=4_000).load()
    train, test = (images.float().flatten(1) for images in (data.train_images, data.test_images))
    centres = torch.stack([train[data.train_labels == label].mean(dim=0) for label in range(10)])
    nearest = torch.cdist(test, centres).argmin(dim=1)
    assert float((nearest == data.test_labels).float().mean()) > 0.95


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("digit", "digits"),
        ("synthetic-1x8", "synthetic-CxHxW-K"),
        ("synthetic-1x8x0", "synthetic-CxHxW-K"),
        ("synthetic-1x8x8-1", "synthetic-CxHxW-K"),  # one class cannot be learned
        ("synthetic-1x8x8-1000", "synthetic-CxHxW-K"),
    ],
)
def test_an_unknown_workload_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(RequestError, match=f"did you mean '{nearest}'"):
        find_workload(name, num_samples=100)


def test_the_placeholder_itself_is_no_workload() -> None:
    assert "synthetic-CxHxW-K" in WORKLOADS
    with pytest.raises(RequestError, match="synthetic-1x8x8"):
        find_workload("synthetic-CxHxW-K", num_samples=100)


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean 'convnet'"):
        find_model("convnets")


@pytest.mark.parametrize(
    "shape", [*(pytest.param(shape, marks=pytest.mark.nightly) for shape in ((3, 32, 32), (1, 1, 1))), (2, 7, 5)]
)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_takes_any_shape_and_an_empty_batch(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape, 10, seed=1)
    assert model(torch.zeros(2, *shape)).shape == (2, 10)
    model(torch.zeros(0, *shape)).sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
