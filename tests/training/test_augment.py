"""Random crops and flips that belong to the sample, and seeds that belong to (seed, step, rank)."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from seatrial.training.augment import _draw, augment
from seatrial.training.randomness import LOW_BITS, derive, mix, seed_step
from seatrial.training.recipe import Augmentation

CPU = torch.device("cpu")
CIFAR = Augmentation(crop_padding=4, flip=True)
IMAGES = torch.randint(1, 256, (64, 3, 9, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
INDICES = torch.randperm(50_000, generator=torch.Generator().manual_seed(2))[:64]


def by_hand(image: Tensor, augmentation: Augmentation) -> list[Tensor]:
    """All that can become of one image."""
    p = augmentation.crop_padding
    height, width = image.shape[1:]
    padded = torch.nn.functional.pad(image, (p, p, p, p))
    crops = [
        padded[:, top : top + height, left : left + width] for top in range(2 * p + 1) for left in range(2 * p + 1)
    ]
    return [*crops, *(crop.flip(2) for crop in crops)] if augmentation.flip else crops


@pytest.mark.parametrize("augmentation", [CIFAR, Augmentation(flip=True), Augmentation(crop_padding=2)])
def test_each_image_becomes_one_of_its_crops_and_mirror_images(augmentation: Augmentation) -> None:
    varied = augment(IMAGES, INDICES, augmentation, seed=3, epoch=0)
    assert (varied.shape, varied.dtype) == (IMAGES.shape, IMAGES.dtype)
    assert not torch.equal(varied, IMAGES)
    for before, after in zip(IMAGES, varied, strict=True):
        assert any(torch.equal(after, possible) for possible in by_hand(before, augmentation))


def test_without_an_augmentation_nothing_is_touched() -> None:
    assert augment(IMAGES, INDICES, Augmentation(), seed=3, epoch=0) is IMAGES


def test_a_sample_is_varied_alike_whatever_batch_and_rank_it_is_in() -> None:
    whole = augment(IMAGES, INDICES, CIFAR, seed=3, epoch=5)
    for world_size in (2, 3, 7):
        for rank in range(world_size):
            part = slice(rank, None, world_size)
            assert torch.equal(augment(IMAGES[part], INDICES[part], CIFAR, seed=3, epoch=5), whole[part])
    assert augment(IMAGES[:0], INDICES[:0], CIFAR, seed=3, epoch=5).shape == (0, 3, 9, 7)


def test_seed_epoch_and_sample_all_matter() -> None:
    same = IMAGES[:1].expand(500, -1, -1, -1)
    numbers = torch.arange(500)
    seen = [
        augment(same, numbers + shift, CIFAR, seed=seed, epoch=epoch)
        for seed, epoch, shift in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**40, 0, 0), (-1, 0, 0))
    ]
    for one, other in itertools.combinations(seen, 2):
        alike = (one == other).flatten(1).all(dim=1).float().mean()
        assert float(alike) < 0.05, "162 outcomes, so about one in 162 is alike by chance"


def test_all_places_and_both_directions_are_about_equally_likely() -> None:
    # One bright pixel in the middle tells where the image went; two more tell its direction.
    image = torch.zeros(1, 1, 17, 17, dtype=torch.uint8)
    image[0, 0, 8, 8], image[0, 0, 8, 9] = 2, 1
    count = 40_500
    varied = augment(image.expand(count, -1, -1, -1), torch.arange(count), CIFAR, seed=1, epoch=1)[:, 0]
    place = (varied == 2).flatten(1).float().argmax(dim=1)
    mirrored = (varied == 1).flatten(1).float().argmax(dim=1) < place
    rows, columns = place // 17 - 4, place % 17 - 4
    assert int(rows.min()) == int(columns.min()) == 0
    assert int(rows.max()) == int(columns.max()) == 8
    counts = torch.bincount((rows * 9 + columns) * 2 + mirrored, minlength=162).float()
    expected = count / 162
    # Chi-squared with 161 degrees of freedom: mean 161, deviation 18.
    assert 100 < float(((counts - expected) ** 2 / expected).sum()) < 240


def test_the_numbers_are_the_ones_that_were_always_drawn() -> None:
    """Resumed trainings and stored references depend on them. Expected: from a program in C with uint32_t."""
    assert [mix(value) for value in (0, 1, 2, LOW_BITS)] == [0, 2261973619, 229111015, 2578835075]
    assert (derive(1, 2, 3), derive(3, 5), derive(-1, 5)) == (3564870899, 641448358, 138097361)
    sample = mix(mix(torch.arange(5) * 9_999) ^ derive(3, 5))
    drawn = torch.stack([_draw(sample, number, below) for number, below in enumerate((2, 9, 9))], dim=1)
    assert drawn.tolist() == [[1, 7, 1], [1, 6, 8], [1, 0, 5], [1, 6, 5], [0, 2, 6]]


def test_mixing_is_the_same_for_tensors_and_stays_within_32_bits() -> None:
    values = torch.randint(0, 2**32, (1_000,), generator=torch.Generator().manual_seed(1))
    mixed = mix(values)
    assert mixed.tolist() == [mix(value) for value in values.tolist()]
    assert 0 <= int(mixed.min()) <= int(mixed.max()) <= LOW_BITS


def test_mixing_is_a_permutation() -> None:
    values = torch.cat([torch.arange(200_000), torch.arange(2**32 - 200_000, 2**32)])
    assert int((mix(values).sort().values.diff() == 0).sum()) == 0


def test_one_flipped_bit_changes_half_of_the_bits() -> None:
    values = torch.randint(0, 2**32, (4_000,), generator=torch.Generator().manual_seed(1))
    for bit in range(32):
        changed = mix(values) ^ mix(values ^ (1 << bit))
        share = sum(float(((changed >> place) & 1).float().mean()) for place in range(32)) / 32
        assert 0.48 < share < 0.52


def dropped(seed: int, step: int, rank: int) -> Tensor:
    seed_step(seed, step, rank, CPU)
    return torch.nn.functional.dropout(torch.ones(64), 0.5)


def test_dropout_depends_on_seed_step_and_rank_and_on_nothing_before() -> None:
    first = dropped(1, 2, 3)
    torch.rand(1_000)
    assert torch.equal(dropped(1, 2, 3), first)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2)):
        assert not torch.equal(dropped(*other), first)


def test_no_two_ranks_or_steps_share_a_seed() -> None:
    assert len({derive(1, 7, rank) for rank in range(40_000)}) == 40_000
    assert len({derive(1, step, 7) for step in range(40_000)}) == 40_000


@pytest.mark.gpu
def test_an_accelerator_gives_the_same_bits() -> None:
    device = torch.device("cuda", 0)
    on_device = augment(IMAGES.to(device), INDICES.to(device), CIFAR, seed=3, epoch=5)
    assert torch.equal(on_device.cpu(), augment(IMAGES, INDICES, CIFAR, seed=3, epoch=5))


@pytest.mark.gpu
def test_dropout_on_an_accelerator_depends_on_the_same() -> None:
    device = torch.device("cuda", 0)

    def drop(step: int) -> Tensor:
        seed_step(1, step, 0, device)
        return torch.nn.functional.dropout(torch.ones(64, device=device), 0.5)

    first = drop(1)
    torch.rand(10, device=device)
    assert torch.equal(drop(1), first)
    assert not torch.equal(drop(2), first)
