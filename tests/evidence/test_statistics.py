"""Outliers of a fleet: properties, borders, healthy fleets, and the effect of a repeat."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Literal

import pytest
from by_day import by_day
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial.evidence.findings import Limit
from seatrial.evidence.fleets import compare_rates, judge_fleets
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.rates import FleetRates, RateOutcome
from seatrial.evidence.statistics import host_median, judge_fleet, median, minority, reference_ranks

Better = Literal["high", "low"]
DEVICE_TYPES = st.sampled_from(["cpu", "cuda"])
BETTER: st.SearchStrategy[Better] = st.sampled_from(["high", "low"])
RATES = st.floats(min_value=1e-6, max_value=1e9)
FLEETS = st.dictionaries(st.integers(0, 10_000), RATES, min_size=1, max_size=40)
ANY_FLEETS = st.dictionaries(st.integers(0, 100), st.floats(), max_size=20)


@given(FLEETS, BETTER, DEVICE_TYPES)
def test_only_the_bad_side_of_the_limit_is_an_outlier(
    values: dict[int, float], better: Better, device_type: str
) -> None:
    ruling = judge_fleet(values, better=better, device_type=device_type)
    if ruling.limit is None:
        assert len(values) == 1 or ruling.apart
        assert not ruling.outliers
        return
    worse = {
        rank for rank, value in values.items() if (value < ruling.limit if better == "high" else value > ruling.limit)
    }
    assert set(ruling.outliers) == worse
    assert all(
        values[rank] < ruling.reference if better == "high" else values[rank] > ruling.reference for rank in worse
    )


@given(FLEETS, BETTER, DEVICE_TYPES, st.randoms())
def test_the_order_of_the_ranks_does_not_matter(
    values: dict[int, float], better: Better, device_type: str, source: random.Random
) -> None:
    mixed = list(values.items())
    source.shuffle(mixed)
    ruling = judge_fleet(values, better=better, device_type=device_type)
    assert judge_fleet(dict(mixed), better=better, device_type=device_type) == ruling


@given(st.integers(1, 40), RATES, BETTER, DEVICE_TYPES)
def test_equal_values_blame_nobody(num_ranks: int, value: float, better: Better, device_type: str) -> None:
    ruling = judge_fleet(dict.fromkeys(range(num_ranks), value), better=better, device_type=device_type)
    assert ruling.outliers == ()
    assert (ruling.limit is None) == (num_ranks == 1)


@given(ANY_FLEETS, BETTER, DEVICE_TYPES)
def test_a_value_that_is_no_measurement_is_an_outlier(
    values: dict[int, float], better: Better, device_type: str
) -> None:
    measured = {rank: value for rank, value in values.items() if math.isfinite(value) and value > 0}
    ruling = judge_fleet(values, better=better, device_type=device_type)
    clean = judge_fleet(measured, better=better, device_type=device_type)
    assert set(ruling.outliers) == set(clean.outliers) | (values.keys() - measured.keys())
    assert ruling.limit == clean.limit


@given(st.integers(4, 60), st.integers(0, 59), BETTER, DEVICE_TYPES)
def test_one_bad_rank_among_equals_is_named(num_ranks: int, bad: int, better: Better, device_type: str) -> None:
    bad %= num_ranks
    values = {rank: 100 + 0.01 * (rank % 3) for rank in range(num_ranks)}
    values[bad] *= 0.5 if better == "high" else 2.0
    assert judge_fleet(values, better=better, device_type=device_type).outliers == (bad,)


@pytest.mark.parametrize(
    ("values", "device_type", "copies", "limit", "outliers"),
    [
        ([100], "cuda", False, None, ()),
        ([120, 100], "cuda", False, 100, ()),
        ([120, 99.9], "cuda", False, 100, (1,)),
        ([50.1, 100], "cpu", False, 50, ()),
        ([49.9, 100, 90], "cpu", False, 50, (0,)),
        ([100, 100, 100, 95.1], "cuda", False, 95, ()),
        ([100, 100, 100, 94.9], "cuda", False, 95, (3,)),
        ([100, 100, 100, 90.1], "cuda", True, 90, ()),
        ([100, 100, 100, 89.9], "cuda", True, 90, (3,)),
        ([69.9, 100, 100, 100], "cpu", False, 70, (0,)),
        ([70.1, 100, 100, 100], "cpu", True, 70, ()),
        ([300, 100, 100, 100], "cuda", False, 95, ()),
    ],
)
def test_the_borders(
    values: list[float], device_type: str, copies: bool, limit: float | None, outliers: tuple[int, ...]
) -> None:
    ruling = judge_fleet(dict(enumerate(values)), better="high", device_type=device_type, copies=copies)
    assert ruling.outliers == outliers
    assert ruling.limit == (None if limit is None else pytest.approx(limit))


def test_times_are_limited_from_above() -> None:
    assert judge_fleet({0: 1.0, 1: 1.21}, better="low", device_type="cuda").outliers == (1,)
    ruling = judge_fleet({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.31}, better="low", device_type="cpu")
    assert ruling.limit == pytest.approx(1.3)
    assert ruling.outliers == (3,)


def test_the_spread_of_the_fleet_widens_the_limit() -> None:
    ruling = judge_fleet(dict(enumerate([97.0, 98.5, 100, 101.5, 103])), better="high", device_type="cuda")
    assert ruling.limit == pytest.approx(100 - 6 * 1.4826 * 1.5)
    assert ruling.method == "median 6 MAD and 5 % of 5"
    for slowest, slow in ((90.0, ()), (80.0, (0,))):
        far = judge_fleet(dict(enumerate([slowest, 95, 100, 105, 110])), better="high", device_type="cuda")
        assert far.limit == pytest.approx(100 / 1.2)
        assert far.outliers == slow
        assert far.method == "ratio 1.2 to the median of 5, which lie far apart"


def test_no_spread_makes_a_limit_that_every_value_reaches() -> None:
    ruling = judge_fleet(dict(enumerate([100.0, 100, 60, 60])), better="high", device_type="cpu")
    assert (ruling.limit, ruling.outliers) == (50.0, ())


@pytest.mark.parametrize(
    ("values", "slow", "apart"),
    [
        ([25.0, 25, 12, 12], (), (2, 3)),
        ([25.0] * 4 + [12.0] * 4, (), (4, 5, 6, 7)),
        ([26.0] * 4 + [19.5] * 4, (), (4, 5, 6, 7)),
        ([25.0, 25, 16, 8], (), (2, 3)),
        ([25.0, 25, 25, 22.3, 22.3, 27.7, 27.7, 5], (7,), ()),
        ([25.0, 25, 22, 22], (), ()),
    ],
)
@pytest.mark.parametrize("better", ["high", "low"])
def test_no_spread_hides_what_is_beyond_the_ratio(
    values: list[float], slow: tuple[int, ...], apart: tuple[int, ...], better: Better
) -> None:
    """Half of the devices of a host, behind slow links or by design, make a MAD as large as their difference."""
    by_rank = {rank: value if better == "high" else 1 / value for rank, value in enumerate(values)}
    ruling = judge_fleet(by_rank, better=better, device_type="cuda")
    assert (ruling.outliers, tuple(ruling.apart)) == (slow, apart)


def test_the_method_names_the_number_of_values() -> None:
    assert judge_fleet({0: 2.0, 1: 1.0}, better="high", device_type="cpu").method == "ratio 2.0 to the best of 2"
    assert math.isnan(judge_fleet({}, better="high", device_type="cpu").reference)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8, 16, 32, 32768])
def test_healthy_fleets_are_not_blamed(num_ranks: int) -> None:
    """The small version of bench/healthy_fleets.py."""
    source = random.Random(num_ranks)
    for _ in range(max(1, min(300, 20_000 // num_ranks))):
        values = {rank: source.gauss(1.0, 0.01) for rank in range(num_ranks)}
        assert judge_fleet(values, better="high", device_type="cuda").outliers == ()


def on_hosts(*speeds: list[float]) -> tuple[dict[int, float], dict[int, str]]:
    """Return values and hosts by rank, of hosts with these values of their ranks."""
    ranks = [(f"host {host}", value) for host, values in enumerate(speeds) for value in values]
    return dict(enumerate(value for _, value in ranks)), dict(enumerate(host for host, _ in ranks))


@given(st.lists(st.lists(RATES, min_size=1, max_size=9), min_size=2, max_size=6), st.lists(RATES, max_size=40))
def test_one_host_of_three_moves_the_median_to_values_of_others_only(
    honest: list[list[float]], lie: list[float]
) -> None:
    values, hosts = on_hosts(*honest, lie)
    every = [value for own in honest for value in own]
    assert min(every) <= host_median(values, hosts) <= max(every)


@pytest.mark.parametrize("lie", [250.0, 40.0, 10.0, 150.0])
@pytest.mark.parametrize("better", ["high", "low"])
@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("honest", "slow"),
    [
        ([[100.0], [101.0], [40.0]], {2}),
        ([[100.0] * 8, [101.0] * 8, [40.0] * 8], set(range(16, 24))),
        ([[100.0], [101.0], [40.0], [99.0], [40.0]], {2, 4}),
        ([[100.0] * 8, [40.0] * 8], set(range(8, 16))),
        ([[100.0] * 8, [40.0] * 4 + [100.0] * 4], set(range(8, 12))),
    ],
)
def test_no_single_host_hides_a_slow_one(
    honest: list[list[float]], slow: set[int], device_type: str, better: Better, lie: float
) -> None:
    """Of an even number of hosts, or of three, one moves the median and the MAD up to the values of a slow one."""
    values, hosts = on_hosts(*honest, [lie] * len(honest[0]))
    if better == "low":
        values = {rank: 1 / value for rank, value in values.items()}
    ruling = judge_fleet(values, better=better, device_type=device_type, hosts=hosts)
    assert slow <= {*ruling.outliers, *ruling.contested}
    honest_ranks = {rank for rank, host in hosts.items() if host != f"host {len(honest)}"}
    assert not set(ruling.outliers) & (honest_ranks - slow)


@pytest.mark.parametrize("better", ["high", "low"])
@pytest.mark.parametrize(("device_type", "slow"), [("cuda", 85.0), ("cpu", 55.0)])
@pytest.mark.parametrize("per_host", [2, 3, 4, 8])
def test_of_three_hosts_none_hides_a_slow_rank(per_host: int, device_type: str, slow: float, better: Better) -> None:
    """Without the liar it is slow, and so it is where that host is honest."""
    for lie in ([slow] * per_host, [100.0, slow] * (per_host // 2) + [slow] * (per_host % 2), [slow / 2] * per_host):
        values, hosts = on_hosts([100.0] * per_host, [slow, *[100.0] * (per_host - 1)], lie)
        if better == "low":
            values = {rank: 1 / value for rank, value in values.items()}
        ruling = judge_fleet(values, better=better, device_type=device_type, hosts=hosts)
        assert per_host in {*ruling.outliers, *ruling.contested}


@pytest.mark.parametrize(("device_type", "sigma"), [("cuda", 0.012), ("cpu", 0.06)])
@pytest.mark.parametrize("hosts", by_day([3, 4, 5, 8], 0, 3))
@pytest.mark.parametrize("per_host", by_day([1, 8]))
def test_no_host_of_a_healthy_fleet_is_contested(device_type: str, sigma: float, hosts: int, per_host: int) -> None:
    source = random.Random(hosts)
    for _ in range(200):
        speeds = [[source.gauss(1.0, sigma) for _ in range(per_host)] for _ in range(hosts)]
        values, places = on_hosts(*speeds)
        assert not judge_fleet(values, better="high", device_type=device_type, hosts=places).contested


def test_uneven_hosts_whose_ranks_share_cores_are_not_contested() -> None:
    """The more ranks share the cores of a host, the slower is each of them by design."""
    values, hosts = on_hosts([100.0], [30.0] * 8, [250.0])
    assert judge_fleet(values, better="high", device_type="cpu", hosts=hosts).contested
    assert not judge_fleet(values, better="high", device_type="cpu", hosts=hosts, share_cores=True).contested


@pytest.mark.parametrize("better", ["high", "low"])
@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
@pytest.mark.parametrize("per_host", [1, 8])
@pytest.mark.parametrize("slow", [1, 2, 7])
def test_no_host_makes_a_slow_minority_a_majority(slow: int, per_host: int, device_type: str, better: Better) -> None:
    speeds = [[100.0] * per_host] * slow + [[40.0] * per_host] * slow
    values, hosts = on_hosts(*speeds, [40.0] * per_host)
    if better == "low":
        values = {rank: 1 / value for rank, value in values.items()}
    ruling = judge_fleet(values, better=better, device_type=device_type, hosts=hosts)
    found = {*ruling.outliers, *ruling.contested, *ruling.apart}
    assert set(range(slow * per_host, 2 * slow * per_host)) <= found or len(values) <= 3


def test_of_four_hosts_none_hides_what_three_show() -> None:
    for values in ([70.0, 70.1, 100], [70.0, 70.1, 100, 84], [70.0, 70.1, 100, 100.2]):
        by_rank, hosts = on_hosts(*([value] for value in values))
        ruling = judge_fleet(by_rank, better="high", device_type="cuda", hosts=hosts)
        assert {0, 1} <= {*ruling.outliers, *ruling.contested, *ruling.apart}


def test_a_contest_is_the_same_whatever_the_hosts_are_called() -> None:
    speeds = [84.0, 86.0, 84.0, 110.0, 70.0]
    limits = set()
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        values = {host: speeds[host] for host in range(5)}
        hosts = {host: f"host {order[host]}" for host in range(5)}
        ruling = judge_fleet(values, better="high", device_type="cuda", hosts=hosts)
        limits.add(tuple(sorted((rank, contest.limit) for rank, contest in ruling.contested.items())))
    assert len(limits) == 1


@pytest.mark.parametrize("num_hosts", [3, 4, 6])
def test_hosts_whose_devices_are_wired_alike_hide_nothing(num_hosts: int) -> None:
    for other, num_apart in ((25.0, 4 * num_hosts), (44.0, 0)):
        values, hosts = on_hosts(*[[50.0] * 4 + [other] * 4] * num_hosts)
        ruling = judge_fleet(values, better="high", device_type="cuda", hosts=hosts)
        assert (ruling.outliers, {*ruling.contested}, len(ruling.apart)) == ((), set(), num_apart)


@pytest.mark.parametrize(("slow", "lie"), [(85.0, 85.0), (85.0, 86.7), (87.0, 87.0)])
@pytest.mark.parametrize("per_host", [1, 8])
@pytest.mark.parametrize("num_hosts", [3, 4, 5, 6])
def test_healthy_differences_do_not_let_a_host_hide(num_hosts: int, per_host: int, slow: float, lie: float) -> None:
    healthy = [[100.0 - 1.3 * host] * per_host for host in range(num_hosts - 2)]
    values, hosts = on_hosts([slow] * per_host, *healthy, [lie] * per_host)
    ruling = judge_fleet(values, better="high", device_type="cuda", hosts=hosts)
    assert set(range(per_host)) <= {*ruling.outliers, *ruling.contested, *ruling.apart} or len(values) <= 3


def test_uneven_hosts_whose_ranks_share_cores_acquit_nobody() -> None:
    """Alone a rank of a full host gains more than those that it is compared with."""
    speeds = [37.0 * 0.4, *[37.0] * 7], [100.0, 100.0], [100.0, 100.0]
    values, hosts = on_hosts(*speeds)
    readings = readings_of([*values.values()], dict.fromkeys(values, 100.0) | {0: 40.0})
    [seen] = compare_rates(readings, limits=(), device_type="cpu", hosts=hosts, share_cores=True)
    assert outcome(seen, 0).state in ("slow", "incomparable")


SCATTERED = ([5.0, 5, 45, 45], [22.3, 22.3, 27.7, 27.7], [5.0] * 4, [24.0] * 4, [1.0, 2, 3, 4], [45.0] * 8, [5.0] * 8)


@pytest.mark.parametrize("lie", SCATTERED)
@pytest.mark.parametrize("better", ["high", "low"])
def test_the_other_one_of_two_hosts_hides_no_slow_rank(lie: list[float], better: Better) -> None:
    values, hosts = on_hosts([25.0, 25, 25, 5], lie)
    if better == "low":
        values = {rank: 1 / value for rank, value in values.items()}
    rulings = judge_fleets(values, partial(judge_fleet, better=better, device_type="cuda"), hosts)
    assert 3 in {rank for ruling in rulings for rank in ruling.outliers}
    assert sorted(rank for ruling in rulings for rank in ruling.ranks) == sorted(values), "each is judged once"
    [ruling] = [ruling for ruling in rulings if 3 in ruling.ranks]
    assert reference_ranks(values, ruling, hosts) == (0, 1, 2)


@pytest.mark.parametrize(
    ("one", "other", "slow", "apart"),
    [
        # A fast rank makes its only neighbors no slow ones.
        ([26.0, 20], [20, 20.1], (), (1,)),
        ([26.0, 20], [20.0] * 6, (), (1,)),
        ([25.0, 5], [25.0] * 4, (1,), ()),
        # The host with more ranks decides, however they vary.
        ([70.0], [94.0, 96, 98, 100, 102, 104, 106], (0,), ()),
        ([70.0] * 2, [94.0, 96, 98, 100, 100, 102, 104, 106], (0, 1), ()),
        (
            [26.0, 26, 26, 26, 19.5, 19.5, 19.5, 19.5],
            [26.0, 26, 26, 26, 19.5, 19.5, 19.5, 19.5],
            (),
            (*range(4, 8), *range(12, 16)),
        ),
    ],
)
def test_small_and_mixed_hosts(
    one: list[float], other: list[float], slow: tuple[int, ...], apart: tuple[int, ...]
) -> None:
    values, hosts = on_hosts(one, other)
    rulings = judge_fleets(values, partial(judge_fleet, better="high", device_type="cuda"), hosts)
    assert tuple(rank for ruling in rulings for rank in ruling.outliers) == slow
    assert tuple(rank for ruling in rulings for rank in ruling.apart) == apart
    assert sorted(rank for ruling in rulings for rank in ruling.ranks) == sorted(values), "each is judged once"


@pytest.mark.parametrize(
    ("device_type", "other", "apart"),
    [("cuda", 12.0, True), ("cuda", 24.0, False), ("cpu", 14.0, False), ("cpu", 5.0, True)],
)
def test_two_hosts_that_are_far_apart_name_nobody(device_type: str, other: float, apart: bool) -> None:
    values, hosts = on_hosts([25.0] * 4, [other] * 4)
    rulings = judge_fleets(values, partial(judge_fleet, better="high", device_type=device_type), hosts)
    assert not any(ruling.outliers for ruling in rulings)
    assert [rank for ruling in rulings for rank in ruling.apart] == ([4, 5, 6, 7] if apart else [])


@pytest.mark.parametrize(("busy", "idle"), [(8, 4), (6, 1), (12, 4)])
def test_uneven_hosts_whose_ranks_share_cores_are_not_apart(busy: int, idle: int) -> None:
    """The more ranks share the cores of a host, the slower is each of them by design."""
    source = random.Random(busy)
    for _ in range(200):
        speeds = ([source.gauss(1.0, 0.06) / count for _ in range(count)] for count in (busy, idle))
        values, hosts = on_hosts(*speeds)
        rulings = judge_fleets(values, partial(judge_fleet, better="high", device_type="cpu", share_cores=True), hosts)
        assert not any(ruling.apart or ruling.outliers for ruling in rulings)


@pytest.mark.parametrize("per_host", [2, 4, 8])
@pytest.mark.parametrize(("device_type", "sigma"), [("cuda", 0.012), ("cpu", 0.06)])
def test_two_healthy_hosts_are_not_apart(device_type: str, sigma: float, per_host: int) -> None:
    source = random.Random(per_host)
    for _ in range(500):
        values, hosts = on_hosts(*([source.gauss(1.0, sigma) for _ in range(per_host)] for _ in range(2)))
        rulings = judge_fleets(values, partial(judge_fleet, better="high", device_type=device_type), hosts)
        assert not any(ruling.apart for ruling in rulings)


@given(st.lists(st.lists(RATES, min_size=3, max_size=3), min_size=1, max_size=9), st.booleans())
def test_hosts_with_as_many_ranks_have_the_median_of_all(speeds: list[list[float]], several: bool) -> None:
    values, hosts = on_hosts(*speeds)
    assert host_median(values, hosts if several else None) == median(list(values.values()))


_LIE = [200.0] * 8


@pytest.mark.parametrize("share_cores", [False, True])
@pytest.mark.parametrize(
    ("speeds", "outliers"),
    [
        ((_LIE, [100.0], [100.0], [101.0], [99.0]), ()),
        (([200.0] * 4, [100.0], [100.0]), ()),
        (([200.0] * 6, [100.0, 101.0], [99.0, 100.0]), ()),
        ((_LIE, [100.0], [100.0], [100.0], [50.0]), (11,)),
        (([100.0] * 3, [100.0], [100.0]), ()),
        (([100.0] * 8, [100.0], [50.0]), (9,)),
        (([100.0] * 7 + [50.0], [100.0], [100.0]), (7,)),
        (([100.0] * 7 + [50.0], [100.0] * 8), (7,)),
        (([100.0] * 8, [50.0] * 8, [100.0] * 8), tuple(range(8, 16))),
        (([100.0] * 8, [50.0]), (8,)),
    ],
)
def test_a_fleet_of_uneven_hosts(speeds: tuple[list[float], ...], outliers: tuple[int, ...], share_cores: bool) -> None:
    values, hosts = on_hosts(*speeds)
    times = {rank: 1e4 / value for rank, value in values.items()}
    rates = judge_fleet(values, better="high", device_type="cpu", hosts=hosts, share_cores=share_cores)
    assert rates.outliers == outliers
    assert (
        judge_fleet(times, better="low", device_type="cpu", hosts=hosts, share_cores=share_cores).outliers == outliers
    )


def test_most_of_the_ranks_that_are_slow_on_one_host() -> None:
    values, hosts = on_hosts([50.0] * 8, [100.0], [100.0], [100.0], [50.0])
    assert judge_fleet(values, better="high", device_type="cuda").outliers == ()
    ruling = judge_fleet(values, better="high", device_type="cuda", hosts=hosts)
    assert ruling.outliers == (*range(8), 11)
    assert ruling.method == "median 6 MAD and 5 % of 12, one vote for each of 5 hosts"
    by_design = judge_fleet(values, better="high", device_type="cpu", hosts=hosts, share_cores=True)
    assert by_design.outliers == (), "8 ranks may share the cores that each of the others has"


def readings_of(first: list[float], again: dict[int, float]) -> list[Measurement]:
    """Return the rates, rank by rank."""
    stages = {"measure": dict(enumerate(first)), "repeat": again}
    return [
        Measurement(check="c", name="tflops", value=value, unit="TFLOP/s", better="high", rank=rank, stage=stage)
        for stage, values in stages.items()
        for rank, value in values.items()
    ]


def rates(first: list[float], again: dict[int, float] | None = None, limits: tuple[Limit, ...] = ()) -> FleetRates:
    """Rates of GPUs, rank by rank."""
    [compared] = compare_rates(readings_of(first, again or {}), limits=limits, device_type="cuda")
    return compared


def outcome(compared: FleetRates, rank: int, starved: dict[int, float] | None = None) -> RateOutcome:
    """What one of the rates comes to."""
    return dict(compared.outcomes(starved))[rank]


def test_suspects_are_the_slow_ones_and_three_typical_ones() -> None:
    assert rates([100, 101, 99, 104, 60]).suspects() == (0, 1, 2, 4)
    assert rates([100, 101, 99, 104, 98]).suspects() == ()
    assert rates([100, 60]).suspects() == (0, 1)
    assert rates([100]).suspects() == ()


def test_a_fixed_limit_needs_no_reference_rank() -> None:
    limit = Limit(value=100, unit="TFLOP/s", origin="user")
    alone = rates([99], limits=(limit,))
    assert alone.suspects() == (0,)
    assert outcome(alone, 0).state == "unrepeated"
    assert outcome(rates([99], {0: 99}, limits=(limit,)), 0).state == "slow"
    assert outcome(rates([99], {0: 100}, limits=(limit,)), 0).state == "recovered"


def test_a_repeat_is_slow_or_has_recovered() -> None:
    first = [100.0, 100, 100, 100, 60]
    assert outcome(rates(first), 4).state == "unrepeated"
    assert outcome(rates(first, {4: 60}), 4).state == "unrepeated", "the reference rank was not measured again"
    assert outcome(rates(first, {0: 100, 4: 60}), 4).state == "slow"
    assert outcome(rates(first, {0: 100, 4: 96}), 4).state == "recovered"
    assert outcome(rates(first, {0: 100, 4: 96}), 0).state == "passed"


def test_the_limit_of_a_repeat_scales_with_the_reference() -> None:
    first = [100.0, 100, 100, 100, 60]
    faster = outcome(rates(first, {0: 200, 4: 120}), 4)
    assert faster.state == "slow"
    assert faster.limit is not None
    assert faster.limit.value == pytest.approx(190)
    assert outcome(rates(first, {0: 96, 1: 96, 2: 96, 4: 92}), 4).state == "recovered", "the machine is hotter"
    assert outcome(rates(first, {0: 96, 4: 92}), 4).state == "incomparable", "or one rank is disturbed"


def test_a_reference_that_is_slower_alone_acquits_nobody() -> None:
    for first, slow in (([400.0, 400, 400, 200], 3), ([400.0, 200], 1), ([400.0, 390, 200], 2)):
        alone = outcome(rates(first, {0: 100, slow: 200}), slow)
        assert alone.state == "incomparable"
        assert "rank 0: 400 TFLOP/s with all ranks, 100 TFLOP/s alone" in alone.evidence[2]
        assert outcome(rates(first, {0: 100, slow: 70}), slow).state == "slow", "even beside the disturbed one"
        assert outcome(rates(first, {0: 100, slow: 400}), slow).state == "incomparable", "all may be faster alone"
    lone = outcome(rates([400.0, 400, 400, 200], {0: 800, 1: 400, 2: 400, 3: 400}), 3, {1: 0.5, 2: 0.4})
    assert lone.state == "incomparable", "the two without CPU time may be twice as fast, too"


@pytest.mark.parametrize("lie", [1e-3, 100.0, 399.0, 1e4])
def test_one_reference_of_three_decides_nothing(lie: float) -> None:
    first = [400.0, 400, 400, 200]
    for liar in range(3):
        again = dict.fromkeys(range(3), 400.0) | {liar: lie}
        assert outcome(rates(first, again | {3: 200.0}), 3).state == "slow"
        assert outcome(rates(first, again | {3: 400.0}), 3).state == "recovered"


def test_two_references_that_contradict_one_another_decide_nothing() -> None:
    first = [400.0, 400, 200]
    assert outcome(rates(first, {0: 400, 1: 4000, 2: 400}), 2).state == "incomparable"
    assert outcome(rates(first, {0: 400, 1: 4000, 2: 200}), 2).state == "slow"


def test_a_starved_reference_proves_nobody_slow() -> None:
    first = [400.0, 200]
    assert outcome(rates(first, {0: 400, 1: 200}), 1, starved={0: 0.5}).state == "incomparable"
    assert outcome(rates(first, {0: 400, 1: 400}), 1, {0: 0.5}).state == "incomparable", "it may be twice as fast"
    assert outcome(rates(first, {0: 200, 1: 400}), 1, starved={0: 0.5}).state == "recovered"
    assert outcome(rates(first, {0: 400, 1: 400}), 1, starved={0: 0.0}).state == "incomparable"
    user = Limit(value=300, unit="TFLOP/s", origin="user")
    assert outcome(rates(first, {0: 800, 1: 200}, (user,)), 1, {0: 0.5}).state == "slow", "the user's limit decides"
    many = rates([400.0, 400, 400, 400, 200], {0: 100, 1: 400, 2: 400, 3: 400, 4: 200})
    assert outcome(many, 4, {0: 0.5}).state == "slow", "the next typical rank takes its place"


def test_the_references_are_of_different_hosts() -> None:
    values = {0: 100.0, 1: 100.0, 2: 100.0, 3: 99.0, 4: 98.0, 5: 50.0}
    ruling = judge_fleet(values, better="high", device_type="cuda")
    assert reference_ranks(values, ruling) == (0, 1, 2, 3, 4)
    assert reference_ranks(values, ruling, dict.fromkeys(values, "a")) == (0, 1, 2, 3, 4)
    assert reference_ranks(values, ruling, {0: "a", 1: "a", 2: "a", 3: "b", 4: "c", 5: "c"}) == (0, 3, 4)


def test_behind_one_address_the_references_are_of_different_nodes() -> None:
    values = {0: 100.0, 1: 100.0, 2: 100.0, 3: 99.0, 4: 98.0, 5: 50.0}
    ruling = judge_fleet(values, better="high", device_type="cuda")
    nodes = {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 2}
    behind_one = dict.fromkeys(values, "10.0.0.9")
    assert reference_ranks(values, ruling, behind_one, nodes) == (0, 3, 4, 1, 2)
    assert reference_ranks(values, ruling, behind_one, dict.fromkeys(values, 0)) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("stage", ["measure", "repeat"])
def test_an_impossible_rate_is_compared_with_nothing(stage: str) -> None:
    ceiling = Limit(value=1000, unit="TFLOP/s", origin="datasheet")
    first, again = ([400.0, 1e9], {}) if stage == "measure" else ([400.0, 200.0], {0: 1e9, 1: 200.0})
    [seen] = compare_rates(readings_of(first, again), limits=(), device_type="cuda", ceiling=ceiling)
    assert [(each.value, each.stage) for each in seen.impossible] == [(1e9, stage)]
    assert outcome(seen, 0).state == ("unjudged" if stage == "measure" else "passed")
    assert stage == "measure" or outcome(seen, 1).state == "unrepeated"


def test_the_best_of_a_few_is_no_standard_beyond_its_model() -> None:
    measured = readings_of([700, 980], {})
    assert rates([700, 980]).fleet.outliers == (0,)
    [seen] = compare_rates(measured, limits=(), device_type="cuda", best_known=794.5)
    assert seen.fleet.outliers == ()
    assert seen.fleet.limit == pytest.approx(794.5 / 1.2)
    assert "what its model can" in seen.fleet.method
    [slow] = compare_rates(readings_of([600, 780], {}), limits=(), device_type="cuda", best_known=794.5)
    assert slow.fleet.outliers == (0,)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@example([5e-324, 5e-324])
@example([1.7e308, 1.7e308])
def test_the_median_has_as_many_below_as_above(values: list[float]) -> None:
    middle = median(values)
    assert sum(value < middle for value in values) <= len(values) / 2
    assert sum(value > middle for value in values) <= len(values) / 2


def test_a_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median([])


@pytest.mark.parametrize(
    ("votes", "majority", "odd"),
    [
        ("", None, ()),
        ("a", "a", ()),
        ("ab", None, ()),
        ("aab", "a", (2,)),
        ("baa", "a", (0,)),
        ("aabb", None, ()),
        ("aabc", None, ()),
        ("aaabc", "a", (3, 4)),
    ],
)
def test_votes(votes: str, majority: str | None, odd: tuple[int, ...]) -> None:
    vote = minority(dict(enumerate(votes)))
    assert (vote.majority, vote.odd) == (majority, odd)


@pytest.mark.parametrize(
    ("votes", "hosts", "majority", "odd"),
    [
        ("aaabb", "xxxyz", "b", (0, 1, 2)),
        ("aaab", "xxxy", None, ()),
        ("aaab", "xxyy", "a", (3,)),
        ("aab", "xxx", "a", (2,)),
    ],
)
def test_each_host_has_one_vote(votes: str, hosts: str, majority: str | None, odd: tuple[int, ...]) -> None:
    vote = minority(dict(enumerate(votes)), dict(enumerate(hosts)))
    assert (vote.majority, vote.odd) == (majority, odd)
