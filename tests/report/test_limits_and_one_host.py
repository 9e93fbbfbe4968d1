"""No host alone decides a limit that comes from runs that passed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import permutations

import pytest
from by_day import by_day
from report.test_plan_of_runs import plan, recorded

from seatrial.checks.collectives.operations import busbw_factor
from seatrial.errors import RequestError
from seatrial.evidence.evidence import RankRecord
from seatrial.evidence.findings import Judged, Limit, Ruling
from seatrial.evidence.measurement import Measurement
from seatrial.judge.conclude import Conclusion
from seatrial.report.plan_of_runs import plan_text, warnings

SPEEDS = {
    "min_tflops": ("compute", "tflops", "fp32", 600.0),
    "min_copy_gbps": ("memory", "copy_gbps", "device", 2600.0),
    "min_host_copy_gbps": ("memory", "copy_gbps", "host to device", 55.0),
    "min_gbps": ("links", "gbps", "", 45.0),
    "min_busbw_gbps": ("collectives", "time_us", "all_reduce", 180.0),
}
Rate = Callable[[int], float]


@cache
def passed() -> Conclusion:
    return recorded(change=plan(demands_limits=True))


def run(parameter: str, num_hosts: int, rate: Rate, *, per_host: int = 2) -> Conclusion:
    """Return a run that passed, with one speed: each rank says its rate, and of a link the one that measures it."""
    conclusion = passed()
    check, name, variant, usual = SPEEDS[parameter]
    host_of = {rank: rank // per_host for rank in range(num_hosts * per_host)}
    some = next(iter(conclusion.trial.ranks.values()))
    ranks: Mapping[int, RankRecord] = {
        rank: replace(some, rank=rank, node_rank=host, local_rank=rank % per_host) for rank, host in host_of.items()
    }
    size = 1 << 20
    told = Measurement(check=check, name=name, value=usual, unit="1", better="high", variant=variant, stage="measure")
    if parameter == "min_busbw_gbps":
        factor = size * busbw_factor("all_reduce", len(ranks)) / 1e3
        values = [replace(told, rank=r, value=factor / (usual * rate(r)), size_bytes=size) for r in ranks]
    elif check == "links":
        pairs = permutations(range(0, len(ranks), per_host), 2)
        values = [replace(told, rank=a, peer=b, value=usual * rate(a)) for a, b in pairs]
    else:
        values = [replace(told, rank=r, value=usual * rate(r)) for r in ranks]
    limit = Limit(value=0.1, unit="GB/s", origin="fleet")
    links = Ruling(judged=tuple(Judged(measurement=m, limit=limit, passed=True) for m in values if check == "links"))
    places = {host: f"10.0.0.{host}" for host in range(num_hosts)}
    trial = replace(conclusion.trial, ranks=ranks, places_of_nodes=places, measurements=tuple(values))
    return replace(conclusion, trial=trial, rulings={**conclusion.rulings, "links": links})


def limit_of(parameter: str, *conclusions: Conclusion) -> float:
    (line,) = (line for line in plan_text(conclusions).splitlines() if line.startswith(f"{parameter} = "))
    return float(line.rpartition(" ")[2]) / SPEEDS[parameter][3]


@pytest.mark.parametrize("parameter", SPEEDS)
@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("claim", by_day([0.01, 0.8, 1.9, 100.0], 0, 3))
def test_no_rank_alone_moves_a_limit_by_more_than_a_tenth(parameter: str, rank: int, claim: float) -> None:
    rank -= rank % 2 if parameter == "min_gbps" else 0

    def quiet(number: int) -> float:
        return 1 + 0.002 * number

    def told(number: int) -> float:
        return claim if number == rank else quiet(number)

    num_hosts = 4 if parameter == "min_gbps" else 3
    honest = limit_of(parameter, *[run(parameter, num_hosts, quiet)] * 3)
    for num_lies in (1, 3):
        lies = [run(parameter, num_hosts, told)] * num_lies + [run(parameter, num_hosts, quiet)] * (3 - num_lies)
        assert honest * 0.899 <= limit_of(parameter, *lies) <= honest * 1.1, num_lies


@pytest.mark.parametrize("parameter", SPEEDS)
@pytest.mark.parametrize("num_hosts", [2, 3])
def test_a_high_value_of_a_whole_host_lowers_no_limit(parameter: str, num_hosts: int) -> None:
    honest = limit_of(parameter, *[run(parameter, num_hosts, lambda _: 1.0)] * 3)
    for host in range(num_hosts) if (parameter, num_hosts) != ("min_gbps", 2) else ():
        rates = [1.9 if rank // 2 == host else 1.0 for rank in range(2 * num_hosts)]
        lies = [run(parameter, num_hosts, rates.__getitem__)] * 3
        assert honest * 0.99 <= limit_of(parameter, *lies) <= honest * 1.1


@pytest.mark.parametrize(("num_hosts", "words"), [(2, "too few hosts are left"), (4, "the limit allows 10 % for it")])
def test_a_host_that_alone_changes_a_limit_is_said(num_hosts: int, words: str) -> None:
    one_low = [run("min_tflops", num_hosts, lambda rank: 0.6 if rank == 1 else 1.0)] * 3
    (said,) = warnings(one_low)
    assert said.startswith("compute.min_tflops: the other hosts alone would give 540")
    assert words in said
    assert f"# Warning: {said}" in plan_text(one_low)
    assert not list(warnings([run("min_tflops", num_hosts, lambda rank: 0.95 if rank == 1 else 1.0)] * 3))


@pytest.mark.parametrize("speed", [1e-306, 1e12])
def test_a_speed_that_cannot_be_is_refused(speed: float) -> None:
    with pytest.raises(RequestError, match="which no device has; repeat that run without its node"):
        plan_text([run("min_busbw_gbps", 3, lambda rank: 1.0 if rank < 2 else speed)])


@pytest.mark.parametrize("num_hosts", by_day([1, 2, 4], 2))
def test_a_healthy_cluster_passes_its_limits(num_hosts: int) -> None:
    """As bench/healthy_fleets.py: of 20 clusters whose values differ by 5 %, few miss their limit in the next run."""
    source = random.Random(num_hosts)
    missed = 0
    for _ in range(20):
        *before, after = ([source.gauss(1.0, 0.05) for _ in range(2 * num_hosts)] for _ in range(4))
        limit = limit_of("min_tflops", *(run("min_tflops", num_hosts, values.__getitem__) for values in before))
        missed += min(after) < limit
    assert missed <= 1
