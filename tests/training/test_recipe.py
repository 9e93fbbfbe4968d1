"""Recipes: what is refused and how, defaults, schedules, and the way through JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from seatrial.errors import RequestError
from seatrial.training.defaults import DEFAULT_MODELS, DEFAULTS, make_recipe
from seatrial.training.models import MODELS
from seatrial.training.recipe import CHOICES, Recipe

PLAIN = Recipe(workload="digits", model="convnet", max_steps=100, global_batch_size=64, lr=0.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_steps": None}, "epochs is None and max_steps is None; give exactly one"),
        ({"epochs": 3}, "epochs is 3 and max_steps is 100; give exactly one"),
        ({"max_steps": -1}, "max_steps is -1; it must be 0 or more"),
        ({"global_batch_size": 0}, "global_batch_size is 0; it must be 1 or more"),
        ({"lr": float("nan")}, "lr is nan; it must be a positive number"),
        ({"momentum": 1.0}, "momentum is 1.0; it must be at least 0 and below 1"),
        ({"weight_decay": -1e-4}, "weight_decay is -0.0001; it must be 0 or a positive number"),
        ({"optimizer": "lion"}, "optimizer is 'lion'; known: sgd, adam, adamw"),
        ({"amp": "fp8"}, "amp is 'fp8'; known: off, bf16, fp16"),
        ({"strategy": "zero"}, "strategy is 'zero'; known: ddp, dp, fsdp, pipeline, tensor"),
        ({"model": "resnet"}, "did you mean 'resnet18'"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_its_value(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        replace(PLAIN, **wrong)


def test_a_batch_larger_than_the_training_part_is_refused() -> None:
    with pytest.raises(RequestError, match="global batch of 1438 is larger than the 1437 training samples of digits"):
        replace(PLAIN, global_batch_size=1438).data()
    assert replace(PLAIN, global_batch_size=1437).steps_per_epoch(1437) == 1


def test_epochs_are_whole_passes() -> None:
    recipe = replace(PLAIN, max_steps=None, epochs=3)
    assert recipe.num_steps(1437) == 3 * 23
    assert replace(recipe, epochs=0).num_steps(1437) == 0


def test_a_recipe_goes_through_json_and_back() -> None:
    recipe = replace(PLAIN, augment="crop-flip", amp="bf16", lr=1)
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again == recipe
    assert again.digest() == recipe.digest() != PLAIN.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown: colour"),
        ({"lr": "0.1"}, "lr is '0.1'; it must be of type float"),
        ({"epochs": True}, "epochs is True; it must be of type int"),
        ({"compile": 1}, "compile is 1; it must be of type bool"),
    ],
)
def test_foreign_json_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Recipe.from_json({**PLAIN.to_json(), **change})


def test_json_that_lacks_a_field_is_refused() -> None:
    with pytest.raises(RequestError, match="missing: lr, seed"):
        Recipe.from_json({name: value for name, value in PLAIN.to_json().items() if name not in ("lr", "seed")})


def test_schedules_are_what_their_names_say() -> None:
    recipes = {name: replace(PLAIN, schedule=name) for name in CHOICES["schedule"]}
    rates = {name: [recipe.lr_at(step, 100) for step in range(100)] for name, recipe in recipes.items()}
    assert set(rates["constant"]) == {0.5}
    assert rates["cosine"][0] == 0.5
    assert rates["cosine"][50] == pytest.approx(0.25)
    assert 0 < rates["cosine"][99] < 1e-3
    assert [rates["step"][step] for step in (49, 50, 74, 75)] == pytest.approx([0.5, 0.05, 0.05, 0.005])
    assert max(rates["ramp"]) == rates["ramp"][19] == 0.5
    assert rates["ramp"][:20] == sorted(rates["ramp"][:20])
    assert rates["ramp"][19:] == sorted(rates["ramp"][19:], reverse=True)
    assert all(min(values) > 0 for values in rates.values())


@pytest.mark.parametrize("schedule", CHOICES["schedule"])
def test_the_shortest_trainings_have_a_rate_too(schedule: str) -> None:
    recipe = replace(PLAIN, schedule=schedule)
    for num_steps in range(1, 6):
        assert all(0 < recipe.lr_at(step, num_steps) <= 0.5 for step in range(num_steps))


def test_each_model_has_defaults_on_each_workload() -> None:
    families = {"digits", "mnist", "fashion-mnist", "cifar10", "synthetic"}
    assert set(DEFAULTS) == {(family, model) for family in families for model in MODELS}
    assert set(DEFAULT_MODELS) == families


def test_convolutional_nets_use_the_usual_augmentation() -> None:
    usual = {"digits": "none", "mnist": "none", "fashion-mnist": "flip", "cifar10": "crop-flip"}
    for name, augment in usual.items():
        for model in ("convnet", "resnet18"):
            assert make_recipe(name, model=model).augment == augment


def test_what_is_given_takes_the_place_of_a_default() -> None:
    assert make_recipe("cifar10").model == "resnet18"
    recipe = make_recipe("synthetic-3x8x8", model="mlp", lr=0.7, seed=None, max_steps=11)
    assert (recipe.lr, recipe.seed, recipe.epochs, recipe.max_steps) == (0.7, 1, None, 11)
    with pytest.raises(RequestError, match="give exactly one"):
        make_recipe("digits", epochs=1, max_steps=1)
