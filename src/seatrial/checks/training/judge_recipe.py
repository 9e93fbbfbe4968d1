"""Which recipe the accuracy is held against: that of the plan, which that of the first rank must equal. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.checks.training.params import Params, recipe_for
from seatrial.errors import RequestError
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.statistics import minority
from seatrial.training.data import published_sizes
from seatrial.training.data.datasets import DATASETS

_MOST_IMAGES = 10**9
"""More than the files of a data set have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The recipe that the plan means for the ranks of the trial."""

    key: str
    """The key of its reference; empty: the plan cannot be trained."""
    workload: str
    num_test: int
    absent: tuple[str, ...] = ()
    """What ranks did not say, or say otherwise."""


def is_images(value: object) -> bool:
    """Return whether a rank tells how many images it has read to train and to test."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(number, int) and 0 < number <= _MOST_IMAGES for number in value)
    )


def trained(evidence: Evidence, params: Params) -> Trained:
    """Return what the ranks trained, by the plan, the number of ranks, and the files that most hosts have read.

    No rank chooses it alone: a false key would replace the limit of all, or give one where there is no reference.
    """
    said = next((fact.value for fact in evidence.facts if (fact.name, fact.rank) == ("recipe", _first(evidence))), None)
    sizes, absent = published_sizes(params.workload, num_samples=params.num_samples), tuple[str, ...]()
    is_known = params.workload not in DATASETS
    if not is_known:
        images = {fact.rank: fact.value.get("images") for fact in evidence.facts if fact.name == "data"}
        read = {rank: (each[0], each[1]) for rank in evidence.ranks if (each := images.get(rank))}
        # Earlier versions had the number of the first rank alone: one that lies takes back no other one's.
        is_known = bool(read)
        most = minority(read, evidence.hosts()).majority
        sizes = next((each for each in read.values() if each == most), sizes)
        absent = tuple(
            f"the number of images of rank {rank} as most hosts have read it"
            for rank in evidence.asked
            if is_known and read.get(rank) != sizes
        )
    try:
        recipe, key = recipe_for(params, len(evidence.ranks), sizes[0])
    except RequestError:  # the events of a trial may contain anything
        workload, key = params.workload, ""
    else:
        workload = recipe.workload
        if workload != params.workload:
            sizes = published_sizes(workload, num_samples=recipe.num_samples)
    num_test = sizes[1]
    if said is None:
        absent += ("the recipe that was trained",)
    elif not is_known:
        num_test = said["num_test"]
    elif said != {**said, "key": key, "workload": workload, "num_test": num_test}:
        absent += (f"the recipe of the plan, of rank {_first(evidence)}",)
    return Trained(key=key, workload=workload, num_test=num_test, absent=absent)


def _first(evidence: Evidence) -> int:
    return min(evidence.ranks, default=0)
