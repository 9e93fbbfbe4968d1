"""Reports of ranks about a training, made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

from seatrial.checks.training.params import Params, recipe_for
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.training.data import published_sizes

__all__ = ["KEY", "SMOKE", "a_batch", "a_measurement", "trained"]

SMOKE = Params(max_steps=60, global_batch_size=64, timeout_s=30)
KEY = recipe_for(SMOKE, 4)[1]
LOSSES = tuple(2.3 * 0.95**step for step in range(60))


def a_measurement(
    name: str, value: float, rank: int, *, step: int | None = None, stage: str = "measure"
) -> Measurement:
    """Return one measurement of one rank."""
    return Measurement(check="training", name=name, value=value, unit="1", rank=rank, step=step, stage=stage)


def a_batch(rank: int, gradients: str, *, scores: str = "scores", alike: str = "alike", stage: str = "measure") -> Fact:
    """Return the report of one rank about the batch that all ranks compute."""
    value = {"scores": scores, "gradients": gradients, "alike": alike}
    return Fact(check="training", name="one_batch", value=value, rank=rank, stage=stage)


def trained(
    num_ranks: int = 4,
    *,
    compute_s: dict[int, float] | None = None,
    alone_s: dict[int, float] | None = None,
    digests: dict[int, str] | None = None,
    batches: Mapping[int, tuple[str, ...]] | None = None,
    alike: dict[int, str] | None = None,
    kinds: dict[int, str] | None = None,
    accuracy: float = 0.95,
    losses: tuple[float, ...] = LOSSES,
    evaluated: dict[int, int] | None = None,
    own_correct: dict[int, int] | None = None,
    own_loss: dict[int, tuple[float, float]] | None = None,
    runs: int = 1,
    params: Params = SMOKE,
    images: tuple[int, int] | None = None,
    key: str | None = None,
) -> Evidence:
    """Return the evidence of ranks that all finished, healthy but for the arguments.

    ``batches``: by rank, its gradients each time. ``own_correct``: by rank, of its share of the test samples in all
    runs. ``own_loss``: by rank, of its 160 samples at the beginning and the end. ``images``: how many the files
    have to train and to test. ``key``: what the first rank says in place of its reference.
    """
    ranks = {
        rank: RankRecord(
            rank=rank,
            node=f"node-{rank // 2}",
            node_rank=rank // 2,
            local_rank=rank % 2,
            device=(kinds or {}).get(rank, "A CPU"),
            kind=(kinds or {}).get(rank, "A CPU"),
        )
        for rank in range(num_ranks)
    }
    measurements = [a_measurement("loss", loss, 0, step=step) for step, loss in enumerate(losses)]
    fitted, own_key = recipe_for(params, num_ranks, images and images[0])
    _, num_test = images or published_sizes(fitted.workload, num_samples=fitted.num_samples)
    recipe = {"key": own_key if key is None else key, "workload": fitted.workload, "num_test": num_test}
    facts = [Fact(check="training", name="recipe", value=recipe, rank=0)]
    for rank in ranks:
        measurements += [
            a_measurement("compute_s", {**(compute_s or {})}.get(rank, 0.010 + rank * 1e-5), rank),
            a_measurement("accuracy", accuracy, rank),
            a_measurement("evaluated", (evaluated or {}).get(rank, num_test * runs), rank),
            a_measurement("runs", runs, rank),
        ]
        digest = {"runs": runs, "digest": (digests or {}).get(rank, "aa" * 32)}
        facts.append(Fact(check="training", name="digest", value=digest, rank=rank))
        size = len(range(rank, num_test, num_ranks)) * runs
        counted = {"correct": (own_correct or {}).get(rank, math.ceil(accuracy * size)), "evaluated": size}
        first, last = (own_loss or {}).get(rank, (2.0, 1.0))
        fell = {"first_sum": 160 * first, "first_samples": 160, "last_sum": 160 * last, "last_samples": 160}
        facts += [
            Fact(check="training", name="own_counts", value=counted, rank=rank),
            Fact(check="training", name="own_loss", value=fell, rank=rank),
        ]
        facts += [
            a_batch(rank, gradients, alike=(alike or {}).get(rank, "alike"))
            for gradients in (batches or {}).get(rank, ("bits", "bits"))
        ]
    measurements += [a_measurement("compute_s", value, rank, stage="repeat") for rank, value in (alone_s or {}).items()]
    return Evidence(
        ranks=ranks,
        asked=tuple(ranks),
        measurements=tuple(measurements),
        facts=tuple(facts),
        backend="gloo",
        device_type="cpu",
    )
