"""Fleets that hosts are in by their own word: one that leaves or joins decides nothing about the others."""

from __future__ import annotations

import random
from functools import partial

import pytest

from seatrial.evidence.fleets import judge_fleets
from seatrial.evidence.statistics import CONTESTED_EFFECT, FleetRuling, judge_fleet

ELSEWHERE = "says that it has another model"


def judged(speeds: list[list[float]], *, in_part: bool, device_type: str = "cuda") -> tuple[FleetRuling, ...]:
    """Judge the speeds of these hosts; ``in_part``: beside one host that says that it has other devices."""
    values, hosts = dict[int, float](), dict[int, str]()
    for host, own in enumerate(speeds):
        for speed in own:
            hosts[len(values)] = f"host-{host}"
            values[len(values)] = speed
    judge = partial(judge_fleet, better="high", device_type=device_type)
    rulings = judge_fleets(values, judge, hosts, all_hosts={*hosts.values(), *({ELSEWHERE} if in_part else ())})
    assert sorted(rank for ruling in rulings for rank in ruling.ranks) == sorted(values), "each is judged once"
    return rulings


def outliers(rulings: tuple[FleetRuling, ...]) -> set[int]:
    return {rank for ruling in rulings for rank in ruling.outliers}


def doubted(rulings: tuple[FleetRuling, ...]) -> set[int]:
    return {rank for ruling in rulings for rank in (*ruling.apart, *ruling.contested)}


@pytest.mark.parametrize("per_host", [1, 2, 3, 8])
@pytest.mark.parametrize("num_hosts", [3, 4, 5, 8])
@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_a_host_that_names_another_model_hides_no_slow_one(num_hosts: int, per_host: int, device_type: str) -> None:
    source = random.Random(num_hosts * per_host)
    for share in (0.45, 0.6, 0.75, 0.85):
        speeds = [[source.gauss(100.0, 0.5) for _ in range(per_host)] for _ in range(num_hosts)]
        speeds[0] = [speed * share for speed in speeds[0]]
        with_all = judged(speeds, in_part=False, device_type=device_type)
        without = judged(speeds[:-1], in_part=True, device_type=device_type)
        assert outliers(with_all) <= outliers(without) | doubted(without)


@pytest.mark.parametrize("lie", [50.0, 101.0, 130.0, 900.0])
@pytest.mark.parametrize(("others", "per_host"), [(1, 1), (1, 2), (1, 3), (1, 8), (2, 1)])
def test_a_host_that_joins_a_small_fleet_makes_nobody_slow(others: int, per_host: int, lie: float) -> None:
    rulings = judged([*([100.0] * per_host for _ in range(others)), [lie] * per_host], in_part=True)
    assert not {rank for rank in outliers(rulings) if rank < others * per_host}


def test_a_slow_device_beside_equal_ones_of_its_host_is_named() -> None:
    assert outliers(judged([[100.0] * 7 + [70.0], [100.0] * 8], in_part=True)) == {7}
    assert outliers(judged([[100.0] * 7 + [70.0]], in_part=True)) == {7}


def test_most_of_three_hosts_still_name_a_slow_one() -> None:
    assert outliers(judged([[100.0] * 8, [99.0] * 8, [70.0] * 8], in_part=True)) == {*range(16, 24)}
    assert outliers(judged([[100.0], [99.0], [70.0]], in_part=True)) == {2}


@pytest.mark.parametrize("per_host", [1, 2, 4, 8])
@pytest.mark.parametrize("num_hosts", [2, 3, 4, 6, 20])
def test_healthy_hosts_of_one_of_two_models_are_all_judged(num_hosts: int, per_host: int) -> None:
    source = random.Random(num_hosts * per_host)
    for _ in range(20):
        speeds = [[source.gauss(100.0, 1.2) for _ in range(per_host)] for _ in range(num_hosts)]
        rulings = judged(speeds, in_part=True)
        assert not outliers(rulings)
        assert not doubted(rulings)
        assert not any(ruling.is_only_host for ruling in rulings)


def test_the_only_host_of_its_model_is_compared_with_no_other() -> None:
    assert all(ruling.is_only_host for ruling in judged([[100.0] * 8], in_part=True))
    assert not any(ruling.is_only_host for ruling in judged([[100.0] * 8], in_part=False))


def test_a_host_that_is_like_any_other_hides_no_slow_one_of_unlike_ranks() -> None:
    """None of the extreme or middle hosts is like the one that left."""
    source = random.Random(0)
    hidden = 0
    for _ in range(400):
        speeds = [[source.choice((82.0, 91.0, 100.0)) + source.random() for _ in range(2)] for _ in range(8)]
        with_all = judged([*speeds, speeds[source.randrange(8)]], in_part=False)
        without = judged(speeds, in_part=True)
        slow = {rank for rank in outliers(with_all) if rank < 16}
        seen = outliers(without) | doubted(without)
        hidden += any(rank not in seen for rank in slow if _is_far(rank, speeds, with_all[0].reference))
    assert hidden == 0


def _is_far(rank: int, speeds: list[list[float]], reference: float) -> bool:
    return abs(speeds[rank // 2][rank % 2] / reference - 1) > CONTESTED_EFFECT
