"""References: every level has one, and the limit made of it is neither too tight nor useless."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist, mean, stdev

import pytest

from seatrial.checks.training.params import Params, recipe_for
from seatrial.plan.plan_file import read_level
from seatrial.training.references import Reference, find_reference

ROOT = Path(__file__).parents[2]
LEVELS = sorted((ROOT / "src/seatrial/plan/levels").glob("*.json"))


def _reference(**changes: float) -> Reference:
    values = {"mean": 0.95, "sigma": 0.02, "num_seeds": 20, "num_test": 1_000, **changes}
    return Reference(
        mean=values["mean"],
        sigma=values["sigma"],
        num_seeds=int(values["num_seeds"]),
        num_test=int(values["num_test"]),
    )


def test_the_limit_of_one_run_is_three_sigma_below_the_mean() -> None:
    assert _reference().limit(1) == pytest.approx(0.95 - 3 * 0.02)


def test_the_limit_of_many_runs_keeps_the_chance_of_a_false_alarm() -> None:
    reference = _reference()
    for num_runs in (10, 2_000):
        below = NormalDist(reference.mean, reference.sigma).cdf(reference.limit(num_runs))
        assert below * num_runs == pytest.approx(NormalDist().cdf(-3), rel=1e-6)


def test_a_sigma_that_is_too_small_to_be_true_is_not_believed() -> None:
    assert _reference(sigma=0.0).spread() == pytest.approx((0.95 * 0.05 / 1_000) ** 0.5)
    assert _reference(mean=1.0, sigma=0.0).limit(1) == pytest.approx(1 - 3 / 1_000)


@pytest.mark.parametrize("world_size", [1, 2, 32, 33, 1_000])
@pytest.mark.parametrize("level", LEVELS, ids=lambda path: path.stem)
def test_every_level_has_a_reference_at_every_world_size(level: Path, world_size: int) -> None:
    params = Params(**read_level(level.stem)["training"])
    reference = find_reference(recipe_for(params, world_size)[1])
    assert reference is not None
    assert reference.num_seeds >= 20
    # Guessing reaches 0.1; a training that learned half of it must not pass.
    assert 0.7 < reference.limit(1) < reference.mean


def test_what_ships_is_what_was_measured() -> None:
    measured = json.loads((ROOT / "bench/results/training_references.json").read_text(encoding="utf-8"))
    shipped = json.loads((ROOT / "src/seatrial/training/references.json").read_text(encoding="utf-8"))
    assert shipped == measured["references"]
    for key, reference in shipped.items():
        rows = [row for row in measured["rows"] if row["key"] == key and row["use"] == "reference"]
        accuracies = [row["accuracy"] for row in rows]
        assert len({row["seed"] for row in rows}) == reference["seeds"]
        assert mean(accuracies) == pytest.approx(reference["mean"], abs=1e-6)
        assert stdev(accuracies) == pytest.approx(reference["sigma"], abs=1e-6)


def test_two_and_four_processes_end_as_one_does() -> None:
    measured = json.loads((ROOT / "bench/results/training_references.json").read_text(encoding="utf-8"))
    others = [row for row in measured["rows"] if row["processes"] > 1]
    assert {row["processes"] for row in others} == {2, 4}
    for row in others:
        same = [
            one["accuracy"]
            for one in measured["rows"]
            if (one["key"], one["seed"], one["processes"]) == (row["key"], row["seed"], 1)
        ]
        assert row["accuracy"] == pytest.approx(same[0], abs=0.02)
