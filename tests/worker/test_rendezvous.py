"""Ranks that rendezvous at a store in which an earlier attempt has left its keys."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from seatrial.worker.rendezvous import fresh_prefix


def meet(store: dist.Store, world_size: int, ranks: range, timeout_s: float = 20.0) -> dict[int, str]:
    """Rendezvous of these ranks, each in a thread; the prefix of each, or the error that it raised."""
    results: dict[int, str] = {}

    def come(rank: int) -> None:
        try:
            results[rank] = fresh_prefix(store, rank, world_size, timeout_s)
        except RuntimeError as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_each_life_agrees_on_a_name_that_no_former_one_had() -> None:
    store = dist.HashStore()
    names = [meet(store, 3, range(3)) for _ in range(5)]
    assert all(len(set(results.values())) == 1 for results in names)
    assert len({results[0] for results in names}) == 5


@pytest.mark.parametrize("came", [range(1), range(1, 3), range(2)], ids=str)
def test_keys_of_an_earlier_attempt_are_ignored(came: range) -> None:
    store = dist.HashStore()
    before = set(meet(store, 3, came, timeout_s=0.1).values())
    assert any("did not" in text for text in before)
    after = set(meet(store, 3, range(3)).values())
    assert len(after) == 1
    assert not after & before


def test_a_missing_rank_is_named() -> None:
    assert meet(dist.HashStore(), 4, range(3), timeout_s=0.2)[0] == "rank 3 did not come within 0 s"
