"""Sampling: every sample once per epoch, whatever the number of ranks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from seatrial.training.sampling import epoch_order, shard

SIZES = st.integers(1, 40)


def _batch(num_samples: int, global_batch_size: int, seed: int, step: int, world_size: int) -> list[list[int]]:
    shards = [
        shard(
            num_samples=num_samples,
            global_batch_size=global_batch_size,
            seed=seed,
            step=step,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]
    assert {part.global_count for part in shards} == {sum(len(part.indices) for part in shards)}
    return [part.indices.tolist() for part in shards]


@given(num_samples=SIZES, global_batch_size=SIZES, world_size=st.integers(1, 9), seed=st.integers(0, 3))
def test_each_epoch_holds_every_sample_once(
    num_samples: int, global_batch_size: int, world_size: int, seed: int
) -> None:
    global_batch_size = min(global_batch_size, num_samples)
    num_batches = -(-num_samples // global_batch_size)
    for epoch in range(2):
        steps = range(epoch * num_batches, (epoch + 1) * num_batches)
        drawn = [
            index
            for step in steps
            for part in _batch(num_samples, global_batch_size, seed, step, world_size)
            for index in part
        ]
        assert sorted(drawn) == list(range(num_samples))


@given(num_samples=SIZES, global_batch_size=SIZES, step=st.integers(0, 100), world_size=st.integers(2, 9))
def test_a_batch_does_not_depend_on_the_number_of_ranks(
    num_samples: int, global_batch_size: int, step: int, world_size: int
) -> None:
    global_batch_size = min(global_batch_size, num_samples)
    alone = _batch(num_samples, global_batch_size, 0, step, 1)[0]
    parts = _batch(num_samples, global_batch_size, 0, step, world_size)
    assert sorted(index for part in parts for index in part) == sorted(alone)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_ranks_take_turns_where_a_batch_does_not_divide() -> None:
    # 7 ranks, batches of 9 out of 63: two ranks have two samples at each step, each rank as often as the others.
    sizes = [[len(part) for part in _batch(63, 9, 0, step, 7)] for step in range(7)]
    assert [sum(step[rank] for step in sizes) for rank in range(7)] == [9] * 7


def test_orders_differ_by_epoch_and_seed_and_are_the_same_again() -> None:
    orders = [epoch_order(100, seed, epoch).clone() for seed, epoch in ((1, 0), (1, 1), (2, 0), (1, 0))]
    assert torch.equal(orders[0], orders[3])
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert not torch.equal(orders[1], orders[2])
