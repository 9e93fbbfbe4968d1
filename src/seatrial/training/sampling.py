"""The samples of a rank at a step: a pure function of (seed, step, rank), so there is no sampler state to save."""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a global batch."""

    indices: Tensor
    """Sample numbers, int64 of shape (n,), on the CPU; may be empty."""
    global_count: int
    """Samples in the whole batch, over all ranks."""


@functools.lru_cache(maxsize=1)
def epoch_order(num_samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch, int64 of shape (num_samples,). Cached: do not write to it."""
    # torch uses only the low 32 bits of a seed, so seed and epoch are mixed into 32 bits.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {epoch}".encode()))
    return torch.randperm(num_samples, generator=generator)


def shard(*, num_samples: int, global_batch_size: int, seed: int, step: int, rank: int, world_size: int) -> Shard:
    """Return the samples of one rank at a step, counted from 0 over all epochs.

    Nothing is padded, repeated or dropped: the last batch of an epoch has the remaining samples. The n-th sample drawn
    since the training began goes to rank n % world_size, so the ranks take turns where a batch does not divide evenly.
    """
    epoch, batch = divmod(step, -(-num_samples // global_batch_size))
    start = batch * global_batch_size
    stop = min(start + global_batch_size, num_samples)
    first = (rank - epoch * num_samples - start) % world_size
    order = epoch_order(num_samples, seed, epoch)
    return Shard(indices=order[start:stop][first::world_size], global_count=stop - start)
