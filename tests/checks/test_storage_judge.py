"""The judge of the storage check on simulated fleets of nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from seatrial.checks.storage import CHECK
from seatrial.checks.storage.judge import suspects
from seatrial.checks.storage.params import Params
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Finding, Limit, Ruling
from seatrial.evidence.measurement import Fact, Measurement

NAMED = Params(folder="/ckpt")
YES = replace(NAMED, shared="yes")
SIZE_BYTES = 10**9


def measured(name: str, value: float, rank: int, variant: str = "", stage: str = "measure") -> Measurement:
    unit = {"fsync_ms": "ms", "free_bytes": "B", "wrong_bytes": "1"}.get(name, "GB/s")
    return Measurement(check="storage", name=name, value=value, unit=unit, rank=rank, variant=variant, stage=stage)


def fact(name: str, rank: int, value: Any, stage: str = "measure") -> Fact:
    return Fact(check="storage", name=name, value=value, rank=rank, stage=stage)


def moved(rank: int, what: str, rate: float, variant: str = "", began_s: float = 1e9) -> Fact:
    seconds = SIZE_BYTES / 1e9 / rate
    value = {"what": what, "variant": variant, "bytes": SIZE_BYTES, "began_s": began_s, "seconds": seconds}
    return fact("moved", rank, value)


def way(rank: int, places: list[str] | None, stage: str = "token") -> Fact:
    return fact("way", rank, {"folder": "/ckpt", "places": places}, stage)


def fleet(
    writes: Sequence[Sequence[float]],
    *,
    again: Mapping[int, float] | None = None,
    fsync_ms: Mapping[int, float] | None = None,
    shares: Mapping[int, float] | None = None,
    views: Mapping[int, Any] | None = None,
    kinds: Mapping[int, str] | None = None,
    own: Collection[int] = (),
    reads: str = "cold",
    in_memory: bool = False,
) -> Evidence:
    """Nodes with the GB/s that each of their ranks writes. All see one folder, unless ``views`` says otherwise.

    The way to the folder is that of other machines, too, but on the nodes in ``own``.
    """
    places = [(node, local) for node, rates in enumerate(writes) for local in range(len(rates))]
    measurements: list[Measurement] = []
    facts: list[Fact] = []
    for rank, (node, local) in enumerate(places):
        rate = writes[node][local]
        latency = (fsync_ms or {}).get(rank, 1.0)
        measurements += [
            measured("write_gbps", rate, rank),
            measured("read_gbps", 2.0, rank, reads),
            measured("wrong_bytes", 0, rank),
        ]
        measurements += [measured("fsync_ms", latency, rank, "median"), measured("fsync_ms", 2 * latency, rank, "p99")]
        measurements += [measured("free_bytes", 1e12, rank, stage="view")]
        kind = (kinds or {}).get(node, "nfs4")
        folder = {"path": "/ckpt", "named": True, "in_memory": in_memory, "kind": kind, "mount_point": "/ckpt"}
        facts += [fact("folder", rank, folder, "token")]
        facts += [way(rank, [f"boot {node}"] if node in own else None, stage) for stage in ("token", "measure")]
        facts += [fact("sees", rank, (views or {}).get(rank, [[0, len(places) - 1]]), "view")]
        facts += [fact("needs", rank, {"sharers": 2}, "view")]
        facts += [moved(rank, "write", rate), moved(rank, "read", 2.0, reads)]
    measurements += [measured("write_gbps", value, rank, stage="repeat") for rank, value in (again or {}).items()]
    measurements += [measured("cpu_share", value, rank, stage="repeat") for rank, value in (shares or {}).items()]
    ranks = {
        rank: RankRecord(rank=rank, node=f"n{node}", node_rank=node, local_rank=local, device="a CPU", kind="a CPU")
        for rank, (node, local) in enumerate(places)
    }
    return Evidence(
        ranks=ranks, asked=tuple(ranks), measurements=tuple(measurements), facts=tuple(facts), device_type="cpu"
    )


def grave(ruling: Ruling) -> list[Finding]:
    return [finding for finding in ruling.findings if finding.severity != "info"]


def test_a_healthy_fleet_passes_and_its_nodes_are_judged() -> None:
    healthy = fleet([[1.0, 1.0]] * 4)
    ruling = CHECK.judge(healthy, replace(NAMED, shared="yes"))
    assert (ruling.findings, ruling.absent, ruling.unjudged) == ((), (), ())
    judged = [entry.measurement for entry in ruling.judged if entry.measurement.name == "write_gbps"]
    assert [(measurement.node, measurement.rank, measurement.value) for measurement in judged] == [
        (f"n{node}", None, 2) for node in range(4)
    ]
    assert suspects(healthy, NAMED) == ()


def test_one_slow_node_of_eight_is_named_if_slow_alone_too() -> None:
    writes = [[1.0, 1.0]] * 5 + [[0.5, 0.5]] + [[1.0, 1.0]] * 2
    assert suspects(fleet(writes), NAMED) == (0, 2, 4, 10)
    (finding,) = grave(CHECK.judge(fleet(writes, again={0: 1.5, 2: 1.5, 10: 0.7}), NAMED))
    assert (finding.severity, finding.culprit.kind) == ("fail", "node")
    assert (finding.culprit.nodes, finding.culprit.ranks) == (("n5",), (10, 11))
    assert finding.what == "node n5 is slow in writing, with all ranks and alone"
    assert finding.limit is not None
    assert finding.limit.origin == "fleet, median 6 MAD and 30 % of 8"
    (finding,) = grave(CHECK.judge(fleet(writes, again={0: 1.5, 2: 1.5, 10: 1.4}), NAMED))
    assert finding.severity == "warn"
    assert len(CHECK.judge(fleet(writes), NAMED).absent) == 1


def test_a_host_with_many_agents_is_one_reference() -> None:
    fleet_of_8 = fleet([[1.0, 1.0]] * 5 + [[0.5, 0.5]] + [[1.0, 1.0]] * 2)
    one_host = {node: "10.0.0.9" if node < 3 else f"10.0.0.{node}" for node in range(8)}
    assert suspects(replace(fleet_of_8, places_of_nodes=one_host), NAMED) == (0, 6, 8, 10)


def test_a_host_with_many_names_is_no_standard_for_others() -> None:
    """Nodes 0 to 4 are agents of one host; nodes 5 to 8 are hosts, of which the last is slow."""
    places = {node: f"10.0.0.{max(node, 4)}" for node in range(9)}
    for claimed in (1.0, 0.25):
        whole = fleet([[claimed]] * 5 + [[0.5]] * 3 + [[0.25]])
        assert (8 in suspects(whole, NAMED)) == (claimed == 1.0)
        asked = suspects(replace(whole, places_of_nodes=places), NAMED)
        assert {rank for rank in asked if rank >= 5} >= {8}
        slow = dict.fromkeys(asked, 0.5) | {8: 0.25} | dict.fromkeys(range(5), claimed)
        again = replace(fleet([[claimed]] * 5 + [[0.5]] * 3 + [[0.25]], again=slow), places_of_nodes=places)
        named = {finding.culprit.nodes for finding in grave(CHECK.judge(again, NAMED)) if finding.severity == "fail"}
        assert named == {("n8",)} | ({(f"n{node}",) for node in range(5)} if claimed < 0.5 else set())


@pytest.mark.parametrize("lie", [0.3, 0.1, 9.0])
def test_one_node_of_four_hides_no_slow_one(lie: float) -> None:
    writes = [[2.0], [2.0], [0.3], [lie]]
    assert 2 in suspects(fleet(writes), NAMED)
    for again in ({2: 0.3, 3: lie}, {0: 2.0, 1: 2.0, 2: 0.3, 3: lie}):
        ruling = CHECK.judge(fleet(writes, again=again), NAMED)
        failed = {each.culprit.nodes for each in ruling.findings if each.severity == "fail"}
        assert ("n2",) in failed or any("write_gbps of node n2" in each for each in ruling.absent)
        assert failed <= {("n2",), ("n3",)}


def test_a_rank_is_not_blamed_for_its_neighbour() -> None:
    uneven = fleet([[1.9, 0.1], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    # The first one of them was done early; what counts is how long the node took for all.
    facts = tuple(
        moved(1, "write", 1.0) if (each.name, each.rank) == ("moved", 1) and each.value["what"] == "write" else each
        for each in uneven.facts
    )
    assert suspects(replace(uneven, facts=facts), NAMED) == ()


def test_two_nodes_are_compared_by_their_ratio() -> None:
    assert suspects(fleet([[1.0], [0.51]]), NAMED) == ()
    assert suspects(fleet([[1.0], [0.49]]), NAMED) == (0, 1)


def test_an_impossible_speed_is_damage_of_its_node() -> None:
    ruling = CHECK.judge(fleet([[1.0], [1e9]]), NAMED)
    assert grave(ruling) == []
    assert any(words.startswith("write_gbps of node n1 that can be: it reports 1e+09 GB/s") for words in ruling.absent)


def test_a_node_without_cpu_time_only_warns() -> None:
    starved = fleet([[1.0], [0.4]], again={0: 1.0, 1: 0.4}, shares={0: 1.0, 1: 0.3})
    ruling = CHECK.judge(starved, NAMED)
    (finding,) = grave(ruling)
    assert finding.severity == "warn"
    assert "other processes held the CPU" in finding.what
    assert ruling.unjudged == (finding.what,), "a PASS is partial"


def test_slow_appends_are_compared_and_quick_ones_are_alike() -> None:
    assert suspects(fleet([[1.0]] * 2, fsync_ms={0: 0.1, 1: 5.0}), NAMED) == ()
    assert suspects(fleet([[1.0]] * 2, fsync_ms={0: 0.1, 1: 10.1}), NAMED) == (0, 1)


def test_different_file_systems_are_not_compared_but_reported() -> None:
    mixed = fleet([[1.0], [0.2], [1.0], [1.0]], kinds={1: "ext4"}, own=[1])
    assert suspects(mixed, NAMED) == ()
    ruling = CHECK.judge(mixed, NAMED)
    (finding,) = grave(ruling)
    assert (finding.severity, finding.culprit.nodes) == ("warn", ("n1",))
    assert finding.what == "the folder is on nfs4 on 3 nodes and on ext4 on node n1"
    assert ruling.unjudged == ("speeds of nodes on different kinds of file system (ext4 and nfs4), by one another",)
    limited = replace(NAMED, min_write_gbps=0.1, min_read_gbps=0.1, max_fsync_ms=100.0)
    assert CHECK.judge(mixed, limited).unjudged == ()
    (finding,) = grave(CHECK.judge(fleet([[1.0]] * 4, kinds={1: "ext4"}), NAMED))
    assert (finding.severity, finding.culprit.kind) == ("warn", "none"), "by a link that another machine left"


def test_the_users_limits_count_for_a_node_with_all_its_ranks() -> None:
    params = Params(folder="/ckpt", min_write_gbps=1.5, min_read_gbps=3.5, max_fsync_ms=10.0)
    ruling = CHECK.judge(fleet([[1.0, 1.0], [1.0, 1.0]]), params)
    assert (grave(ruling), ruling.absent) == ([], ())
    (finding,) = grave(CHECK.judge(fleet([[1.0, 1.0], [0.7, 0.7]]), params))
    assert finding.what == "node n1 writes too slowly, with all its ranks at work"
    assert (finding.severity, finding.culprit.kind, finding.measured) == ("fail", "none", "1.4 GB/s")
    assert finding.limit == Limit(value=1.5, unit="GB/s", origin="user storage.min_write_gbps")
    (finding,) = grave(CHECK.judge(fleet([[1.0, 1.0]], fsync_ms={1: 5.1}), params))
    assert finding.what == "node n0 is too slow in fsync, with all its ranks at work"
    assert finding.measured == "10.2 ms"


def test_a_limit_on_reading_is_not_passed_by_the_page_cache() -> None:
    params = Params(folder="/ckpt", min_read_gbps=1.0)
    assert CHECK.judge(fleet([[1.0]], reads="warm"), params).absent == (
        "read_gbps of n0 from its storage: the page cache kept the file",
    )
    in_memory = fleet([[1.0]], reads="warm", in_memory=True, own=[0])
    assert CHECK.judge(in_memory, params).absent == ()
    (finding,) = grave(CHECK.judge(fleet([[1.0]], reads="warm"), replace(params, min_read_gbps=2.5)))
    assert finding.severity == "fail", "too slow even from memory"


def test_memory_to_which_others_led_proves_no_limit() -> None:
    """A link to a folder in memory is in the place of the shared folder."""
    limited = replace(NAMED, min_write_gbps=0.1, min_read_gbps=0.1, max_fsync_ms=100.0)
    assert CHECK.judge(fleet([[1.0]], reads="warm", in_memory=True), limited).absent == tuple(
        f"{name} of n0 on its storage: the folder is in memory there"
        for name in ("write_gbps", "read_gbps", "fsync_ms")
    )


def test_clocks_that_disagree_make_nobody_slow() -> None:
    seen = fleet([[1.0, 1.0]])
    hours = tuple(
        replace(each, value={**each.value, "began_s": each.value["began_s"] + 7200})
        if (each.name, each.rank) == ("moved", 1)
        else each
        for each in seen.facts
    )
    assert grave(CHECK.judge(replace(seen, facts=hours), replace(NAMED, min_write_gbps=0.9))) == []


def test_the_node_that_does_not_see_the_others_is_named() -> None:
    views = {rank: [[0, 5]] for rank in range(6)} | {6: [[6, 7]], 7: [[6, 7]]}
    apart = fleet([[1.0, 1.0]] * 4, views=views, own=[3])
    (finding,) = grave(CHECK.judge(apart, replace(NAMED, shared="yes")))
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("n3",))
    assert finding.limit == Limit(value=8, unit="ranks", origin="user storage.shared")
    assert finding.evidence[1] == "ranks 6, 7 see ranks 6, 7"
    (finding,) = CHECK.judge(apart, NAMED).findings
    assert (finding.severity, finding.what) == ("info", "the folder is not the same for all ranks")


def test_a_rank_that_sees_too_little_or_is_not_seen_is_named() -> None:
    for views in ({rank: [[0, 3]] for rank in range(3)} | {3: [[3, 3]]}, {rank: [[0, 2]] for rank in range(4)}):
        (finding,) = grave(CHECK.judge(fleet([[1.0]] * 4, views=views, own=range(4)), YES))
        assert finding.culprit.nodes == ("n3",)


@pytest.mark.parametrize(
    ("hidden_from", "kind", "nodes"),
    [
        ({2, 3}, "node", ("n4",)),
        ({0, 1, 2, 3}, "node", ("n4",)),
        ({1}, "none", ("n1", "n4")),
    ],
)
def test_a_host_that_hides_its_token_has_no_other_one_named(
    hidden_from: set[int], kind: str, nodes: tuple[str, ...]
) -> None:
    """Node 4 sees all, and some see all but its token."""
    views = {rank: [[0, 3 if rank in hidden_from else 4]] for rank in range(5)}
    (finding,) = grave(CHECK.judge(fleet([[1.0]] * 5, views=views, own=range(5)), YES))
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", kind, nodes)


def test_a_part_that_was_cut_short_is_one_of_ours() -> None:
    whole = fleet([[1.0]] * 2)
    value = {"what": "everything, because of node n0", "done": 1, "of": 2}
    ruling = CHECK.judge(replace(whole, facts=(*whole.facts, fact("cut", 1, value))), NAMED)
    assert "because of node n0" not in str(ruling)
    assert "a readable cut of rank 1" in ruling.absent


def test_a_host_with_many_views_is_named_however_they_split_the_others() -> None:
    """The views of its sixteen ranks split 2,032 others into a thousand kinds."""
    ranks, mine = 2048, range(2032, 2048)
    views = {rank: [[other, other] for other in range(ranks) if other >> (rank - 2032) & 1] for rank in mine}
    (finding,) = grave(CHECK.judge(fleet([[1.0] * 16] * 128, views=views, own=range(128)), YES))
    assert (finding.culprit.kind, finding.culprit.nodes) == ("node", ("n127",))


def test_a_removed_token_hides_no_other_fault() -> None:
    """Node 3 is elsewhere; the token of node 0, which the others miss, was removed."""
    views = {0: [[0, 2]], 1: [[1, 2]], 2: [[1, 2]], 3: [[3, 3]]}
    whole = fleet([[1.0]] * 4, views=views, own=range(4))
    assert {"n0"} <= {node for found in grave(CHECK.judge(whole, YES)) for node in found.culprit.nodes}
    ruling = CHECK.judge(replace(whole, facts=(*whole.facts, fact("token_lost", 0, True))), YES)
    (finding,) = grave(ruling)
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("n3",))
    assert "whether the folder is shared: somebody removed or moved the token of rank 0, or its folder" in ruling.absent


def test_a_host_that_lies_does_not_hide_a_real_fault() -> None:
    """Node 5 is elsewhere; node 4, which sees all, hides its token from 2 and 3, and then from 3 only."""
    for hidden_from, nodes in (({2, 3}, ("n4", "n5")), ({3}, ("n5",))):
        views = {rank: [[0, 3 if rank in hidden_from else 4]] for rank in range(5)} | {5: [[5, 5]]}
        (finding,) = grave(CHECK.judge(fleet([[1.0]] * 6, views=views, own=range(6)), YES))
        if len(nodes) == 1:
            assert (finding.culprit.kind, finding.measured) == ("none", "at most 4 of 6 ranks see one another")
        else:
            assert finding.culprit.nodes == nodes


def test_views_of_any_length_and_order_count_for_the_ranks_that_there_are() -> None:
    odd = [[3, 10**18], [-(10**18), 1], [2, 2], [5, 1], [0, 1], *([number, number] for number in range(100, 10_000))]
    views: dict[int, Any] = {rank: [[0, 3]] for rank in range(3)} | {3: odd}
    assert grave(CHECK.judge(fleet([[1.0]] * 4, views=views), replace(NAMED, shared="yes"))) == []
    views[3] = odd[2:]
    (finding,) = grave(CHECK.judge(fleet([[1.0]] * 4, views=views, own=range(4)), YES))
    assert finding.culprit.nodes == ("n3",)


def test_a_host_with_many_names_has_one_vote() -> None:
    views = {rank: [[0, 2]] for rank in range(3)} | {3: [[3, 4]], 4: [[3, 4]]}
    apart = fleet([[1.0]] * 5, views=views, own=range(5))
    places = {0: "10.0.0.9", 1: "10.0.0.9", 2: "10.0.0.9", 3: "10.0.0.3", 4: "10.0.0.4"}
    (finding,) = grave(CHECK.judge(replace(apart, places_of_nodes=places), replace(NAMED, shared="yes")))
    assert finding.culprit.nodes == ("n0", "n1", "n2")


def test_two_nodes_that_see_themselves_only_are_not_separable() -> None:
    views = {0: [[0, 1]], 1: [[0, 1]], 2: [[2, 3]], 3: [[2, 3]]}
    (finding,) = grave(CHECK.judge(fleet([[1.0, 1.0]] * 2, views=views), replace(NAMED, shared="yes")))
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "none", ("n0", "n1"))


def test_nodes_decide_about_the_wrong_folder_and_not_ranks() -> None:
    views = {rank: [[0, 3]] for rank in range(4)} | {4: [[4, 5]], 5: [[4, 5]]}
    (finding,) = grave(CHECK.judge(fleet([[1.0] * 4, [1.0], [1.0]], views=views, own=range(3)), YES))
    assert finding.culprit.nodes == ("n0",)
    (finding,) = grave(CHECK.judge(fleet([[1.0] * 4, [1.0] * 2], views=views), replace(NAMED, shared="yes")))
    assert finding.culprit.kind == "none"


@pytest.mark.parametrize("shared", ["yes", "no"])
def test_where_files_of_another_user_decide_nothing_is_judged(shared: Any) -> None:
    apart = {rank: [[rank, rank]] for rank in range(4)}
    views = apart if shared == "no" else {3: [[0, 2]]}
    evidence = fleet([[1.0]] * 4, views=views)
    foreign = fact("foreign", 3, [[2, 2]] if shared == "no" else [[3, 3]], "view")
    ruling = CHECK.judge(replace(evidence, facts=(*evidence.facts, foreign)), replace(NAMED, shared=shared))
    assert grave(ruling) == []
    assert ruling.unjudged == (
        "storage: whether the folder is shared, as files of another user are in the place of tokens in the folder on "
        "node n3",
    )


def test_files_of_another_user_excuse_no_other_node() -> None:
    evidence = fleet([[1.0]] * 4, views={0: [[0, 0]], **{rank: [[1, 3]] for rank in (1, 2, 3)}}, own=range(4))
    foreign = fact("foreign", 3, [[0, 0]], "view")
    (finding,) = grave(CHECK.judge(replace(evidence, facts=(*evidence.facts, foreign)), replace(NAMED, shared="yes")))
    assert finding.culprit.nodes == ("n0",)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_name_that_is_taken_is_no_fault_of_the_node(is_named: bool) -> None:
    evidence = fleet([[1.0]] * 3)
    taken = {"named": is_named, "folder": "/tmp", "doing": "create a file", "phase": "measure", "code": "EEXIST"}
    trouble = fact("trouble", 0, {**taken, "reason": "File exists"})
    rest = tuple(measurement for measurement in evidence.measurements if measurement.rank != 0)
    ruling = CHECK.judge(replace(evidence, facts=(*evidence.facts, trouble), measurements=rest), NAMED)
    assert grave(ruling) == []
    assert ruling.unjudged == (
        "storage: /tmp on node n0 cannot be used (create a file): File exists (another user may have put a file in the "
        "place of ours)",
    )


def failed(ruling: Ruling) -> list[tuple[str, tuple[str, ...]]]:
    """Return the kind and the nodes of the culprit of each failure."""
    return [(each.culprit.kind, each.culprit.nodes) for each in ruling.findings if each.severity == "fail"]


FULL = {"named": True, "folder": "/ckpt", "doing": "append", "phase": "measure", "code": "ENOSPC", "reason": "x"}


def faults(rank: int, code: str) -> dict[str, list[Fact]]:
    """Return what a rank reports of a folder that refuses its token, of one that fails later, and of a wrong byte."""
    refused = {"named": True, "folders": [["/ckpt", code, "x"]]}
    trouble = {**FULL, "code": code}
    return {
        "refused": [fact("refused", rank, refused, "token")],
        "trouble": [fact("trouble", rank, trouble, "view"), fact("trouble", rank, trouble)],
        "wrong": [fact("wrong_bytes", rank, {"count": 7, "first_offset": 0})],
    }


@pytest.mark.parametrize("code", ["ENOSPC", "ENOENT", "ESTALE", "EIO", ""])
@pytest.mark.parametrize("kind", ["refused", "trouble", "wrong"])
def test_a_node_is_named_where_the_way_to_its_folder_is_its_own(kind: str, code: str) -> None:
    """Whatever tokens tell. Ranks 1 and 3 meet the fault; the way of rank 3 is its machine's."""
    nobody, by_name = ("none", ()), ("node", ("n3",))
    for views in (None, {rank: [[rank, rank]] for rank in range(4)}, {3: [[3, 3]]}):
        whole = fleet([[1.0]] * 4, views=views, own=[3])
        met = (*faults(1, code)[kind], *faults(3, code)[kind], fact("token_lost", 0, True))
        ruling = CHECK.judge(replace(whole, facts=(*whole.facts, *met)), NAMED)
        failures = [each for each in ruling.findings if each.severity == "fail"]
        assert [(each.culprit.kind, each.culprit.nodes) for each in failures] == [nobody, by_name]
        assert failures[0].culprit.name == "the file system at /ckpt, which other nodes may share"
        assert all(f"node n{rank}" in failures[at].what for at, rank in enumerate((1, 3)) if kind != "wrong")


def test_a_full_folder_and_a_limit_name_a_node_by_its_way_alone() -> None:
    whole = fleet([[1.0]] * 4, own=[3])
    short = tuple(
        replace(entry, value=1.0) if entry.name == "free_bytes" and entry.rank in (1, 3) else entry
        for entry in whole.measurements
    )
    assert failed(CHECK.judge(replace(whole, measurements=short), NAMED)) == [("none", ()), ("node", ("n3",))]
    limited = replace(NAMED, min_write_gbps=1.5)
    assert failed(CHECK.judge(whole, limited)) == [("none", ())] * 3 + [("node", ("n3",))]
    assert failed(CHECK.judge(fleet([[1.0], [1.6]]), limited)) == [("none", ())]


@pytest.mark.parametrize(
    ("more", "is_own"),
    [
        ([], True),
        ([way(1, None, "measure")], False),
        ([way(1, ["boot 1", "boot 2"], "measure")], True),
        ([way(0, ["boot 1"])], False),
        ([replace(way(0, None), value={"folder": "/other", "places": ["boot 1"]})], False),
    ],
)
def test_a_way_is_own_in_each_report_and_no_other_machine_has_it(more: list[Fact], is_own: bool) -> None:
    """As two pods of one machine have a folder of its disk."""
    whole = fleet([[1.0]] * 2, own=[1])
    ruling = CHECK.judge(replace(whole, facts=(*whole.facts, fact("trouble", 1, FULL), *more)), NAMED)
    assert failed(ruling) == [("node", ("n1",)) if is_own else ("none", ())]


def test_agents_of_one_machine_have_its_places_in_common() -> None:
    whole = fleet([[1.0]] * 2, own=[0, 1])
    ranks = {rank: replace(seen, node="n0") for rank, seen in whole.ranks.items()}
    more = way(0, ["boot 1"]), *(fact("trouble", rank, FULL) for rank in (0, 1))
    ruling = CHECK.judge(replace(whole, ranks=ranks, facts=(*whole.facts, *more)), NAMED)
    assert failed(ruling) == [("node", ("n0",))]


@pytest.mark.parametrize(("shared", "kind"), [("any", "none"), ("yes", "none"), ("no", "node")])
def test_the_user_says_that_folders_are_the_nodes_own(shared: Any, kind: str) -> None:
    whole = fleet([[1.0]] * 2, views={rank: [[rank, rank]] for rank in range(2)} if shared == "no" else None)
    params = replace(NAMED, shared=shared)
    for met in faults(1, "ENOSPC").values():
        ruling = CHECK.judge(replace(whole, facts=(*whole.facts, *met, fact("token_lost", 0, True))), params)
        assert [culprit for culprit, _ in failed(ruling)] == [kind]


def test_a_node_elsewhere_is_named_where_its_mount_is_missing() -> None:
    """Nodes 4 and 5 are elsewhere: node 4 by its own machine, and node 5 by a way that others may have changed."""
    views = {rank: [[0, 3]] for rank in range(4)} | {rank: [[rank, rank]] for rank in (4, 5)}
    for own, named in (([4], [("node", ("n4",))]), ([], [("none", ())]), ([0], [("none", ())])):
        (finding,) = grave(CHECK.judge(fleet([[1.0]] * 6, views=views, own=own), YES))
        assert [(finding.culprit.kind, finding.culprit.nodes)] == named
        assert finding.what == "/ckpt on nodes n4, n5 is not the folder that most nodes see"


def test_words_of_a_rank_are_no_sentence_of_ours() -> None:
    evidence = fleet([[1.0]] * 3)
    told = "/x is fine; node n1 is broken"
    trouble = {"named": True, "folder": told, "doing": told, "phase": "measure", "code": told, "reason": told}
    (finding,) = grave(CHECK.judge(replace(evidence, facts=(*evidence.facts, fact("trouble", 0, trouble))), NAMED))
    assert finding.what == f'"{told}" on node n0 cannot be used ("{told}"): "{told}"'
    assert finding.measured == f'"{told}"'


def test_separate_folders_must_not_be_shared() -> None:
    own = {0: [[0, 1]], 1: [[0, 1]], 2: [[2, 3]], 3: [[2, 3]]}
    params = replace(NAMED, shared="no")
    assert grave(CHECK.judge(fleet([[1.0, 1.0]] * 2, views=own), params)) == []
    views = {**own, 4: [[4, 5]], 5: [[4, 5]], 2: [[0, 3]]}
    (finding,) = grave(CHECK.judge(fleet([[1.0, 1.0]] * 3, views=views), params))
    assert finding.culprit.nodes == ("n1",)


@pytest.mark.parametrize("gone", ["write_gbps", "read_gbps", "fsync_ms", "wrong_bytes"])
def test_missing_measurements_are_absent(gone: str) -> None:
    full = fleet([[1.0, 1.0]])
    rest = tuple(measurement for measurement in full.measurements if (measurement.name, measurement.rank) != (gone, 1))
    assert CHECK.judge(replace(full, measurements=rest), NAMED).absent == (f"{gone} of rank 1",)


def test_a_rank_without_folder_report_is_absent() -> None:
    full = fleet([[1.0, 1.0]])
    rest = tuple(each for each in full.facts if (each.name, each.rank) != ("needs", 1))
    assert CHECK.judge(replace(full, facts=rest), NAMED).absent == ("the folder of rank 1",)
    assert CHECK.judge(replace(full, asked=(), measurements=(), facts=()), NAMED).absent == ("any rank that finished",)


@pytest.mark.parametrize(("stage", "absent"), [("measure", ()), ("repeat", ("write_gbps of rank 1",))])
def test_a_rank_with_an_error_lacks_nothing_but_for_one_in_a_repeat(stage: str, absent: tuple[str, ...]) -> None:
    full = fleet([[1.0, 1.0]])
    error = {"named": True, "folder": "/ckpt", "doing": "write", "phase": stage, "code": "EIO", "reason": "an error"}
    rest = tuple(each for each in full.measurements if (each.name, each.rank) != ("write_gbps", 1))
    evidence = replace(full, measurements=rest, facts=(*full.facts, fact("trouble", 1, error, stage)))
    assert CHECK.judge(evidence, NAMED).absent == absent


def test_wrong_bytes_of_an_unfinished_rank_fail_all_the_same() -> None:
    full = fleet([[1.0], [1.0]])
    wrong = fact("wrong_bytes", 1, {"count": 3, "first_offset": 17})
    measurements = tuple(measurement for measurement in full.measurements if measurement.rank == 0)
    evidence = replace(full, asked=(0,), measurements=measurements, facts=(*full.facts, wrong))
    (finding,) = grave(CHECK.judge(evidence, NAMED))
    # What others of the user write to a removed file on NFS is as wrong.
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")
    own = fleet([[1.0], [1.0]], own=[1])
    (finding,) = grave(CHECK.judge(replace(evidence, facts=(*own.facts, wrong)), NAMED))
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("n1",))
    assert finding.measured == "3 wrong bytes, the first at offset 17"


@pytest.mark.parametrize("count", ["nan", "inf", 3.0])
def test_a_count_that_is_no_number_ends_no_judge(count: Any) -> None:
    full = fleet([[1.0], [1.0]])
    measurements = tuple(
        replace(entry, value=float(count)) if (entry.name, entry.rank) == ("wrong_bytes", 1) else entry
        for entry in full.measurements
    )
    ruling = CHECK.judge(replace(full, measurements=measurements), NAMED)
    assert [finding.measured for finding in grave(ruling)] == [f"{float(count):.0f} wrong bytes"]


@pytest.mark.parametrize("sharers", [0, -1, 10**6 + 1, 10**300 - 1])
def test_a_number_of_sharers_that_cannot_be_is_damage(sharers: int) -> None:
    healthy = fleet([[1.0, 1.0]] * 4)
    facts = tuple(
        replace(entry, value={"sharers": sharers}) if (entry.name, entry.rank) == ("needs", 3) else entry
        for entry in healthy.facts
    )
    ruling = CHECK.judge(replace(healthy, facts=facts), NAMED)
    assert grave(ruling) == []
    assert ruling.absent == ("a readable needs of rank 3", "the folder of rank 3")


def test_one_rank_has_four_refused_folders_and_one_trouble() -> None:
    healthy = fleet([[1.0, 1.0]] * 4, own=range(4))
    folders = [["/ckpt", "EIO", f"{number}"] for number in range(5)]
    many = fact("refused", 0, {"named": True, "folders": folders})
    assert "a readable refused of rank 0" in CHECK.judge(replace(healthy, facts=(*healthy.facts, many)), NAMED).absent
    value = {"named": True, "folder": "/ckpt", "code": "EIO", "doing": "append"}
    troubles = tuple(fact("trouble", rank, {**value, "reason": f"{n}"}) for rank in (0, 3) for n in range(9))
    refused = tuple(fact("refused", 1, {"named": True, "folders": [["/ckpt", "EIO", f"{n}"]]}) for n in range(9))
    ruling = CHECK.judge(replace(healthy, facts=(*healthy.facts, *troubles, *refused)), NAMED)
    assert [finding.culprit.nodes for finding in grave(ruling)] == [("n0", "n1"), ("n0",)]


def test_a_rank_has_one_kind_of_file_system() -> None:
    """It may report any number of them, and each would stand in the sentence about all."""
    evidence = fleet([[1.0], [1.0]], in_memory=True)
    own = next(entry for entry in evidence.facts if entry.name == "folder")
    more = tuple(replace(own, value={**own.value, "kind": f"kind{number}"}) for number in range(1000))
    told = " ".join(
        finding.what for finding in CHECK.judge(replace(evidence, facts=(*evidence.facts, *more)), Params()).findings
    )
    assert "kind999" in told
    assert "kind7," not in told
