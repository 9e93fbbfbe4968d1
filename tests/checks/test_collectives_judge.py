"""The judge of the collectives check on hand-made evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from seatrial.checks.collectives import CHECK
from seatrial.checks.collectives.operations import array_sizes, busbw_factor
from seatrial.checks.collectives.params import Params
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.measurement import Fact, Measurement

OPERATIONS = ("all_gather", "broadcast", "all_to_all", "send_recv", "all_reduce", "reduce_scatter", "barrier")
NEEDED = ("time_us", "wrong_elements", "busbw")
BUSBW_GBPS = 5.0
SMALL = Params(cpu_sizes=(8, 4096), repeats=2)


def reading(
    name: str, value: float, unit: str, rank: int, operation: str, size_bytes: int | None = None
) -> Measurement:
    return Measurement(
        check="collectives", name=name, value=value, unit=unit, rank=rank, variant=operation, size_bytes=size_bytes
    )


def healthy(num_ranks: int, params: Params = SMALL) -> Evidence:
    """Return the measurements of a healthy world."""
    measurements = []
    for rank in range(num_ranks):
        for operation in OPERATIONS:
            for size in array_sizes(operation, params.cpu_sizes, num_ranks):
                time_us = size * busbw_factor(operation, num_ranks) / (BUSBW_GBPS * 1e3) if size > 1024 else 10.0
                measurements.append(reading("time_us", time_us, "us", rank, operation, size or None))
                if size and rank == 0:
                    measurements.append(reading("busbw", BUSBW_GBPS, "GB/s", rank, operation, size))
            if operation != "barrier":
                measurements.append(reading("wrong_elements", 0, "1", rank, operation))
    return Evidence(
        ranks={
            rank: RankRecord(rank=rank, node=f"n{rank}", node_rank=rank, local_rank=0, device="a CPU", kind="a CPU")
            for rank in range(num_ranks)
        },
        asked=tuple(range(num_ranks)),
        measurements=tuple(measurements),
        facts=(),
        backend="gloo",
        device_type="cpu",
    )


def corrupted(num_ranks: int, wrong: dict[tuple[str, int], list[int]]) -> Evidence:
    """Return facts by (operation, rank that reports it), each with the ranks whose contributions were wrong."""
    evidence = healthy(num_ranks)
    measurements = tuple(
        replace(measurement, value=3)
        if measurement.name == "wrong_elements" and (measurement.variant, measurement.rank) in wrong
        else measurement
        for measurement in evidence.measurements
    )
    facts = tuple(
        Fact(
            check="collectives",
            name="wrong_values",
            value={"operation": operation, "count": 3, "contributors": givers},
            rank=rank,
        )
        for (operation, rank), givers in wrong.items()
    )
    return replace(evidence, measurements=measurements, facts=facts)


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_healthy_world_passes_and_all_values_are_judged(num_ranks: int) -> None:
    ruling = CHECK.judge(healthy(num_ranks), SMALL)
    assert (ruling.findings, ruling.absent) == ((), ())
    assert len(ruling.judged) == 6 * num_ranks


def test_one_rank_is_not_checked() -> None:
    ruling = CHECK.judge(replace(healthy(1), measurements=()), SMALL)
    (finding,) = ruling.findings
    assert (finding.severity, ruling.judged) == ("info", ())


@pytest.mark.parametrize("bad", [0, 2])
def test_a_rank_that_sees_its_own_contribution_wrong_is_named(bad: int) -> None:
    wrong = {("all_gather", rank): [bad] for rank in range(3)} | {("all_reduce", rank): [] for rank in range(3)}
    (finding,) = CHECK.judge(corrupted(3, wrong), SMALL).findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (bad,))
    assert finding.what == "wrong values in all_gather, all_reduce"
    assert finding.measured == "18 wrong elements on 3 ranks"


@pytest.mark.parametrize(
    ("wrong", "kind", "name", "ranks"),
    [
        ({("send_recv", 1): [0]}, "link", "link rank 0 on node n0–rank 1 on node n1, endpoints not", (0, 1)),
        ({("send_recv", 1): [0], ("all_to_all", 0): [1]}, "link", "link rank 0 on node n0–rank 1 on node n1", (0, 1)),
        (
            {("all_to_all", 1): [0], ("all_to_all", 2): [0]},
            "fabric",
            "rank 0 on node n0 or the links that leave it",
            (0,),
        ),
        ({("all_to_all", 1): [0, 2]}, "fabric", "rank 1 on node n1 or the links that lead to it", (1,)),
        ({("all_to_all", 1): [0, 2], ("all_to_all", 0): [2]}, "fabric", "not separable", ()),
        ({("all_reduce", 1): []}, "fabric", "not separable", ()),
    ],
)
def test_wrong_values_that_are_not_separable_blame_no_rank(
    wrong: dict[tuple[str, int], list[int]], kind: str, name: str, ranks: tuple[int, ...]
) -> None:
    (finding,) = CHECK.judge(corrupted(3, wrong), SMALL).findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", kind, ranks)
    assert name in finding.culprit.name
    assert "not separable" in finding.culprit.name


def _on_two_hosts(evidence: Evidence) -> Evidence:
    """The last rank is alone on its host, and all others share one."""
    last = max(evidence.ranks)
    ranks = {rank: replace(seen, node_rank=int(rank == last)) for rank, seen in evidence.ranks.items()}
    return replace(evidence, ranks=ranks, places_of_nodes={0: "10.0.0.1", 1: "10.0.0.2"})


def test_the_ranks_of_one_host_accuse_no_rank_of_another_one() -> None:
    evidence = _on_two_hosts(corrupted(8, {("all_to_all", rank): [7] for rank in range(7)}))
    (finding,) = CHECK.judge(evidence, SMALL).findings
    assert (finding.culprit.kind, finding.culprit.ranks) == ("link", tuple(range(8)))
    assert finding.culprit.name == "link rank 7 on node n7–n0, endpoints not separable"


def _on_hosts(evidence: Evidence, hosts: Sequence[int]) -> Evidence:
    ranks = {
        rank: replace(seen, node=f"host{hosts[rank]}", node_rank=hosts[rank]) for rank, seen in evidence.ranks.items()
    }
    return replace(evidence, ranks=ranks, places_of_nodes={host: f"10.0.0.{host}" for host in hosts})


@pytest.mark.parametrize(
    ("hosts", "wrong", "kind", "name", "ranks"),
    [
        # Ranks 2 and 3 are of a host that lies: what they send to rank 0 is wrong.
        ("0011", {0: [2, 3]}, "link", "link rank 0 on node host0–host1, endpoints", (0, 2, 3)),
        ("00112", {0: [2, 3]}, "link", "link rank 0 on node host0–host1, endpoints", (0, 2, 3)),
        ("00112", {0: [2, 3], 1: [2]}, "link", "link host0–host1, endpoints not separable", (0, 1, 2, 3)),
        ("00112", {0: [2], 2: [1], 3: [0]}, "link", "link host0–host1, endpoints not separable", (0, 1, 2, 3)),
        # To ranks of two hosts, and back as its own report says.
        (
            "00112",
            {0: [2, 3], 4: [2]},
            "fabric",
            "rank 2 on node host1 and rank 3 on node host1 or the links that leave them",
            (2, 3),
        ),
        ("00112", {0: [2], 2: [4]}, "fabric", "rank 2 on node host1 or the links that lead to or leave it", (2,)),
        ("00112", {0: [2], 3: [4]}, "fabric", "rank 2 on node host1 and rank 3 on node host1 or the links", (2, 3)),
        ("00112", {0: [2], 4: [1]}, "fabric", "rank 0 on node host0 and rank 1 on node host0 or the links", (0, 1)),
        ("01234", {0: [2], 4: [1]}, "fabric", "one of the ranks or the links between them", ()),
        ("0000", {1: [0], 2: [0]}, "fabric", "rank 0 or the links that leave it", (0,)),
        ("0000", {1: [0], 2: [3]}, "fabric", "one of the ranks or the links between them", ()),
    ],
)
def test_wrong_values_are_between_the_fewest_hosts(
    hosts: str, wrong: dict[int, list[int]], kind: str, name: str, ranks: tuple[int, ...]
) -> None:
    evidence = corrupted(len(hosts), {("all_to_all", rank): givers for rank, givers in wrong.items()})
    (finding,) = CHECK.judge(_on_hosts(evidence, list(map(int, hosts))), SMALL).findings
    assert (finding.culprit.kind, finding.culprit.ranks, finding.culprit.nodes) == (kind, ranks, ())
    assert finding.culprit.name.startswith(name)
    assert "out of service" not in finding.action


@pytest.mark.parametrize("operation", ["all_gather", "broadcast"])
def test_a_block_that_others_forwarded_names_nobody(operation: str) -> None:
    """Rank 1 changes, on its way round the ring, the block of rank 3 that it passes on."""
    (finding,) = CHECK.judge(corrupted(4, {(operation, 2): [3]}), SMALL).findings
    assert (finding.culprit.kind, finding.culprit.ranks) == ("fabric", ())
    assert "path of a wrong one is not known" in finding.evidence[0]
    assert finding.evidence[1] == "what these ranks receive directly is right (all_to_all, send_recv)"
    (finding,) = CHECK.judge(corrupted(4, {(operation, 2): [3], ("send_recv", 2): [1]}), SMALL).findings
    assert (finding.culprit.kind, finding.culprit.ranks) == ("link", (1, 2))
    (finding,) = CHECK.judge(corrupted(2, {(operation, 0): [1]}), SMALL).findings
    assert (finding.culprit.kind, finding.culprit.ranks) == ("link", (0, 1)), "nobody is between two ranks"


def test_an_mpi_may_return_its_own_block_to_a_rank() -> None:
    wrong = {("all_gather", rank): [2] for rank in range(4)}
    (finding,) = CHECK.judge(replace(corrupted(4, wrong), backend="mpi"), SMALL).findings
    assert (finding.culprit.kind, finding.culprit.ranks) == ("fabric", ())
    (finding,) = CHECK.judge(corrupted(4, wrong), SMALL).findings
    assert (finding.culprit.kind, finding.culprit.ranks) == ("rank", (2,))


def test_contributors_that_are_no_ranks_count_for_nothing() -> None:
    wrong = [[], {}, True, 0.0, "0", 10**200, -1, 99, *range(100_000, 300_000)]
    (finding,) = CHECK.judge(corrupted(3, {("all_to_all", 1): wrong}), SMALL).findings
    assert (finding.culprit.kind, finding.culprit.ranks) == ("fabric", ())


@pytest.mark.parametrize(
    ("told_gbps", "times_faster", "is_believed"),
    [
        (5.0, 1.0, True),
        (10.0, 2.0, True),
        (5.1, 1.0, False),
        (1e300, 1.0, False),
        (math.inf, 1.0, False),
        (math.inf, 0.0, False),
        (1e300, math.inf, False),
    ],
)
def test_the_bandwidth_of_the_first_rank_fits_its_time(
    told_gbps: float, times_faster: float, is_believed: bool
) -> None:
    evidence = healthy(3)

    def told(entry: Measurement) -> Measurement:
        if entry.rank or entry.variant != "all_reduce" or entry.size_bytes != 4096:
            return entry
        if entry.name == "busbw":
            return replace(entry, value=told_gbps)
        return replace(entry, value=entry.value / times_faster if times_faster else math.inf)

    measurements = tuple(map(told, evidence.measurements))
    absent = CHECK.judge(replace(evidence, measurements=measurements), replace(SMALL, min_busbw_gbps=5.0)).absent
    assert (absent == ()) == is_believed


@pytest.mark.parametrize(("limit_gbps", "is_believed"), [(5.0, True), (7.0, True), (7.2, False), (20.0, False)])
def test_the_first_rank_alone_passes_no_limit_of_bandwidth(limit_gbps: float, is_believed: bool) -> None:
    """All others wait for as long; only the first rank reports the bandwidth. CPUs differ by up to 30 %."""
    evidence = healthy(3)
    values = {"busbw": lambda value: value * 5, "time_us": lambda value: value / 5}
    measurements = tuple(
        replace(entry, value=values[entry.name](entry.value))
        if entry.name in values and (entry.rank, entry.size_bytes) == (0, 4096)
        else entry
        for entry in evidence.measurements
    )
    limited = replace(SMALL, min_busbw_gbps=limit_gbps)
    absent = CHECK.judge(replace(evidence, measurements=measurements), limited).absent
    assert (absent == ()) == is_believed


@pytest.mark.parametrize(
    ("busbw", "time", "is_believed"),
    [(1, 1, True), (0.6, 1 / 0.6, True), (1.9, 1 / 1.9, True), (100, 1, False), (0.01, 1, False), (100, 0.01, False),
     (0.01, 100, False)],
)  # fmt: skip
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_the_first_rank_alone_makes_no_bandwidth_for_limits(
    num_ranks: int, busbw: float, time: float, is_believed: bool
) -> None:
    """Limits come from a run without one: its bandwidth fits its time, and its time those of the others."""
    evidence = healthy(num_ranks)
    factors = {"busbw": busbw, "time_us": time}
    measurements = tuple(
        replace(entry, value=entry.value * factors[entry.name])
        if entry.name in factors and (entry.rank, entry.variant) == (0, "all_reduce")
        else entry
        for entry in evidence.measurements
    )
    ruling = CHECK.judge(replace(evidence, measurements=measurements), SMALL)
    assert (ruling.absent == ()) == is_believed


@pytest.mark.parametrize(("time_us", "is_believed"), [(5.0, True), (4.9, False), (0.001, False)])
def test_the_first_rank_alone_passes_no_limit_of_latency(time_us: float, is_believed: bool) -> None:
    evidence = healthy(3)
    measurements = tuple(
        replace(entry, value=time_us) if (entry.name, entry.rank, entry.size_bytes) == ("time_us", 0, 8) else entry
        for entry in evidence.measurements
    )
    limited = replace(SMALL, max_latency_us=9.0)
    ruling = CHECK.judge(replace(evidence, measurements=measurements), limited)
    assert (ruling.absent == ()) == is_believed
    # Nor does it pass where nobody else says how long it took.
    alone = tuple(entry for entry in measurements if not entry.rank or entry.size_bytes != 8)
    assert CHECK.judge(replace(evidence, measurements=alone), limited).absent


@pytest.mark.parametrize(
    ("counts", "slow_hosts", "is_believed"),
    [
        ((8, 1, 1), {0}, True),
        ((8, 1, 1), {1}, True),
        ((1, 8, 1), {1}, True),
        ((8, 1, 1), {1, 2}, False),
        ((8, 1), {1}, False),
        ((8, 1), set(), True),
    ],
)
def test_each_host_has_one_vote_on_the_time(counts: tuple[int, ...], slow_hosts: set[int], is_believed: bool) -> None:
    """On slow hosts each operation takes ten times as long as the first rank says."""
    node_of = [node for node, count in enumerate(counts) for _ in range(count)]
    evidence = healthy(len(node_of))
    ranks = {rank: replace(seen, node_rank=node_of[rank]) for rank, seen in evidence.ranks.items()}
    measurements = tuple(
        replace(entry, value=100.0) if entry.rank and node_of[entry.rank] in slow_hosts else entry
        for entry in evidence.measurements
    )
    places = {node: f"10.0.0.{node}" for node in range(len(counts))}
    told = replace(evidence, ranks=ranks, measurements=measurements, places_of_nodes=places)
    assert (CHECK.judge(told, replace(SMALL, min_busbw_gbps=5.0)).absent == ()) == is_believed


@pytest.mark.parametrize("count", [0, -1, 2**1000])
def test_a_count_that_cannot_be_is_no_pass(count: int) -> None:
    value = {"operation": "all_reduce", "count": count, "contributors": []}
    facts = (Fact(check="collectives", name="wrong_values", value=value, rank=1),)
    ruling = CHECK.judge(replace(healthy(2), facts=facts), SMALL)
    assert (ruling.findings, ruling.absent) == ((), ("a readable wrong_values of rank 1",))


def test_the_name_of_an_operation_is_one_of_ours() -> None:
    """It stands in the headline, which must not be the sentence of a rank about another one."""
    words = "all_reduce; rank 1 on node n1 sends them, replace its device"
    wrong = Fact(
        check="collectives", name="wrong_values", value={"operation": words, "count": 1, "contributors": []}, rank=2
    )
    told = reading("wrong_elements", 5, "1", 2, words)
    evidence = healthy(3)
    ruling = CHECK.judge(replace(evidence, facts=(wrong,), measurements=(*evidence.measurements, told)), SMALL)
    assert words not in str(ruling)
    assert (ruling.findings, ruling.absent) == ((), ("a readable wrong_values of rank 2",))


def test_two_faults_are_two_findings() -> None:
    wrong = {("all_gather", rank): [0] for rank in range(4)} | {("all_to_all", 3): [2]}
    culprits = [finding.culprit.ranks for finding in CHECK.judge(corrupted(4, wrong), SMALL).findings]
    assert culprits == [(0,), (2, 3)]


@pytest.mark.parametrize("asked", [(), (1, 2), (0, 1, 2)])
def test_wrong_values_fail_without_their_measurements(asked: tuple[int, ...]) -> None:
    whole = corrupted(3, {("all_gather", rank): [0] for rank in range(3)})
    (finding,) = CHECK.judge(replace(whole, measurements=(), asked=asked), SMALL).findings
    assert (finding.severity, finding.culprit.ranks, finding.what) == ("fail", (0,), "wrong values in all_gather")
    least = "" if len(asked) == 3 else "at least "
    assert finding.measured == f"{least}9 wrong elements on 3 ranks"


def test_missing_measurements_are_absent() -> None:
    full = healthy(2)
    for gone in full.measurements:
        less = replace(
            full, measurements=tuple(measurement for measurement in full.measurements if measurement is not gone)
        )
        absent = CHECK.judge(less, SMALL).absent
        if gone.rank == 1 and gone.size_bytes == 8:
            assert absent == (), "only rank 0 tells its small sizes"
            continue
        (name,) = absent
        assert name.startswith(f"{gone.name} {gone.variant} of rank {gone.rank}")
    assert CHECK.judge(replace(full, asked=(), measurements=()), SMALL).absent == ("any operation, from any rank",)


def test_wrong_values_that_cannot_be_read_are_no_pass() -> None:
    evidence = healthy(2)
    facts = (Fact(check="collectives", name="wrong_values", value={"operation": "all_reduce", "count": "3"}, rank=1),)
    ruling = CHECK.judge(replace(evidence, facts=facts), SMALL)
    assert (ruling.findings, ruling.absent) == ((), ("a readable wrong_values of rank 1",))


def test_limits_apply_to_the_stated_sizes_of_rank_0() -> None:
    evidence = healthy(2)
    good = Params(cpu_sizes=(8, 4096), min_busbw_gbps=5.0, max_latency_us=10.0)
    assert CHECK.judge(evidence, good).findings == ()
    assert len(CHECK.judge(evidence, good).judged) == 12 + 2
    bad = Params(cpu_sizes=(8, 4096), min_busbw_gbps=5.1, max_latency_us=9.9)
    latency, busbw = CHECK.judge(evidence, bad).findings
    assert busbw.limit is not None
    assert latency.limit is not None
    assert (busbw.severity, busbw.limit.origin) == ("fail", "user collectives.min_busbw_gbps")
    assert (latency.severity, latency.limit.origin) == ("fail", "user collectives.max_latency_us")
    assert "4 KiB" in busbw.what
    assert " 8 B" in latency.what
    assert busbw.culprit.ranks == latency.culprit.ranks == (), "all wait for the slowest"


def lacking(ranks: tuple[int, ...], operation: str = "all_to_all") -> tuple[Fact, ...]:
    value = {"operation": operation, "reason": "Backend gloo does not support it"}
    return tuple(Fact(check="collectives", name="unsupported", value=value, rank=rank) for rank in ranks)


def test_an_operation_is_only_lacking_when_every_rank_says_so() -> None:
    full = healthy(2)
    less = replace(
        full,
        measurements=tuple(measurement for measurement in full.measurements if measurement.variant != "all_to_all"),
    )
    ruling = CHECK.judge(replace(less, facts=lacking((0, 1))), SMALL)
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.kind) == ("warn", "none")
    assert finding.what == "all_to_all was not checked: backend gloo does not have it"
    assert finding.evidence == ("Backend gloo does not support it",)
    assert (ruling.absent, len(ruling.judged)) == ((), 10)
    assert ruling.unjudged == ("collectives: all_to_all not checked",), "a PASS is partial"
    one = CHECK.judge(replace(less, facts=lacking((0,))), SMALL)
    assert one.findings == ()
    assert {name.split(" of ")[0] for name in one.absent} == {f"{name} all_to_all" for name in NEEDED}


@pytest.mark.parametrize("asked", [(), (0,)])
def test_a_backend_lacks_only_operations_that_a_rank_reported(asked: tuple[int, ...]) -> None:
    nobody = replace(healthy(2), asked=asked, measurements=())
    ruling = CHECK.judge(nobody, SMALL)
    assert ruling.findings == ()
    assert ruling.absent != ()
    ruling = CHECK.judge(replace(nobody, facts=lacking((0,))), SMALL)
    (finding,) = ruling.findings
    assert (finding.severity, finding.what.split()[0]) == ("warn", "all_to_all")
    assert ruling.absent != ()


def test_a_backend_without_any_operation_is_inconclusive() -> None:
    facts = tuple(fact for operation in OPERATIONS for fact in lacking((0, 1), operation))
    ruling = CHECK.judge(replace(healthy(2), measurements=(), facts=facts), SMALL)
    assert {finding.severity for finding in ruling.findings} == {"warn"}
    assert ruling.absent == ("any operation, from any rank",)


def test_blocks_are_whole_elements() -> None:
    assert array_sizes("all_gather", (8, 4096), 3) == (12, 4104)
    assert array_sizes("all_gather", (8, 16, 4096), 8) == (32, 4096)
    assert array_sizes("all_reduce", (8, 4096), 3) == (8, 4096)
    assert array_sizes("barrier", (8, 4096), 3) == (0,)


@pytest.mark.parametrize(("busy_s", "waited_s", "loaded"), [(18.0, 40.0, True), (8.2, 40.0, False), (18.0, 0.5, False)])
def test_a_limit_missed_beside_other_work_accuses_nobody(busy_s: float, waited_s: float, loaded: bool) -> None:
    """Ranks that only wait for one another's cores are slow as they were started; other processes are no fault."""
    value = {"wall_s": 10.0, "cpu_s": 4.0, "busy_s": busy_s, "waited_s": waited_s}
    facts = tuple(Fact(check="collectives", name="contention", value=value, rank=rank) for rank in (0, 1))
    evidence = healthy(2)
    ranks = {rank: replace(record, node="n0", node_rank=0) for rank, record in evidence.ranks.items()}
    ruling = CHECK.judge(replace(evidence, facts=facts, ranks=ranks), replace(SMALL, min_busbw_gbps=6.0))
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.kind) == (("warn", "none") if loaded else ("fail", "fabric"))
    assert ("other processes held the CPU" in finding.what) == loaded
    assert bool(ruling.absent) == loaded
    # A limit that holds in spite of the load is held.
    assert not CHECK.judge(replace(evidence, facts=facts, ranks=ranks), replace(SMALL, min_busbw_gbps=4.0)).absent
