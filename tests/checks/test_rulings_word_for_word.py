"""What the judge of each check rules on made-up evidence, word for word. After an intended change, read the difference:

SEATRIAL_RENEW_GOLDEN=1 pytest tests/checks/test_rulings_word_for_word.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Judged, Ruling
from seatrial.evidence.measurement import Fact

_FOLDER = Path(__file__).parent / "golden"
_NUM_JUDGED = 6
"""Judged measurements that are shown, from each end."""
Rulings = Mapping[str, Ruling]


def _told(finding: Finding) -> list[str]:
    culprit, limit = finding.culprit, finding.limit
    return [
        f"{finding.severity}: {finding.what}",
        f"  {culprit.kind} {culprit.name!r} ranks {list(culprit.ranks)} nodes {list(culprit.nodes)}",
        *([f"  measured {finding.measured}"] if finding.measured else []),
        *([f"  limit {limit.value:.6g} {limit.unit}, {limit.origin}"] if limit else []),
        *(f"  | {line}" for text in finding.evidence for line in text.splitlines()),
        f"  > {finding.action}".rstrip(),
    ]


def _judged(entry: Judged) -> str:
    measurement, limit = entry.measurement, entry.limit
    words = [measurement.name, measurement.variant, "" if measurement.rank is None else f"rank {measurement.rank}"]
    said = f"{measurement.value:.6g} {measurement.unit} against {limit.value:.6g} {limit.unit}, {limit.origin}"
    return f"  {'passed' if entry.passed else 'FAILED'} {' '.join(filter(None, words))}: {said}"


def _text(name: str, ruling: Ruling) -> str:
    judged = [_judged(entry) for entry in ruling.judged]
    if len(judged) > 2 * _NUM_JUDGED:
        judged = [*judged[:_NUM_JUDGED], f"  ... {len(judged) - 2 * _NUM_JUDGED} more", *judged[-_NUM_JUDGED:]]
    return "\n".join(
        [
            f"== {name}{f': not applicable: {ruling.not_applicable}' if ruling.not_applicable else ''}",
            *(line for finding in ruling.findings for line in _told(finding)),
            *([f"judged {len(ruling.judged)}", *judged] if judged else []),
            *(f"absent: {each}" for each in ruling.absent),
            *(f"not judged: {each}" for each in ruling.unjudged),
            *(f"no limit: {each}" for each in ruling.unlimited),
            "",
        ]
    )


def _facts(evidence: Evidence, *facts: Fact) -> Evidence:
    return replace(evidence, facts=(*evidence.facts, *facts))


def _without(evidence: Evidence, *names: str, rank: int) -> Evidence:
    left = (entry for entry in evidence.measurements if (entry.name in names and entry.rank == rank) is False)
    return replace(evidence, measurements=tuple(left))


def collectives() -> Rulings:
    from checks.test_collectives_judge import OPERATIONS, SMALL, corrupted, healthy

    from seatrial.checks.collectives import CHECK
    from seatrial.checks.collectives.params import Params

    def lacking(operation: str, *ranks: int) -> tuple[Fact, ...]:
        value = {"operation": operation, "reason": "the backend has no such thing"}
        return tuple(Fact(check="collectives", name="unsupported", value=value, rank=rank) for rank in ranks)

    limits = replace(SMALL, min_busbw_gbps=6.0, max_latency_us=9.0)
    kept = replace(SMALL, min_busbw_gbps=4.0, max_latency_us=11.0)
    wrong = {("all_gather", rank): [0] for rank in range(3)} | {("send_recv", 2): [1]}
    unreported = replace(corrupted(3, {("all_gather", 1): []}), facts=())
    cases: dict[str, tuple[Evidence, Params]] = {
        "healthy": (healthy(3), SMALL),
        "one rank": (healthy(1), SMALL),
        "no rank": (replace(healthy(2), ranks={}, asked=(), measurements=()), SMALL),
        "below the user's limits": (healthy(2), limits),
        "above the user's limits": (healthy(2), kept),
        "wrong by itself and on a link": (corrupted(4, wrong), SMALL),
        "wrong, and nobody said where": (unreported, SMALL),
        "a forwarded block": (corrupted(3, {("all_gather", 1): [0]}), SMALL),
        "wrong, of ranks that did not finish": (replace(corrupted(3, wrong), asked=(0, 1)), SMALL),
        "an operation that all lack": (_facts(healthy(2), *lacking("all_gather", 0, 1)), SMALL),
        "an operation that one lacks": (_facts(healthy(2), *lacking("all_gather", 1)), SMALL),
        "no operation at all": (
            _facts(
                replace(healthy(2), measurements=()), *(fact for name in OPERATIONS for fact in lacking(name, 0, 1))
            ),
            SMALL,
        ),
        "nothing measured": (replace(healthy(2), measurements=()), SMALL),
        "an unreadable fact": (
            _facts(healthy(2), Fact(check="collectives", name="wrong_values", value={"count": "x"}, rank=1)),
            SMALL,
        ),
    }
    return {name: CHECK.judge(evidence, params) for name, (evidence, params) in cases.items()}


def compute() -> Rulings:
    from checks.test_check_compute import H100, ONE, evidence

    from seatrial.checks.compute import CHECK
    from seatrial.checks.compute.params import Params

    slow = [700.0, 701, 699, 500, 702, 703]
    two = Params(cpu_dtypes=("fp32", "bf16"), gpu_dtypes=("bf16", "fp16"))
    wrong = Fact(check="compute", name="wrong_values", value={"dtype": "bf16", "count": 3, "first": [0, 1]}, rank=1)
    cases: dict[str, tuple[Evidence, Params]] = {
        "healthy": (evidence([700, 701, 699, 702]), ONE),
        "healthy CPUs": (evidence([0.7, 0.71, 0.69], device_type="cpu"), ONE),
        "slow, and again alone": (evidence(slow, {0: 700, 1: 700, 3: 505}), ONE),
        "slow, but not alone": (evidence(slow, {0: 700, 1: 700, 3: 698}), ONE),
        "slow, but not alone, where all are faster": (evidence(slow, {0: 900, 1: 900, 3: 898}), ONE),
        "slow CPU with half a core": (
            evidence(slow, {0: 700, 1: 700, 3: 505}, device_type="cpu", shares={0: 1.0, 1: 1.0, 3: 0.5}),
            ONE,
        ),
        "slow, not repeated": (evidence(slow), ONE),
        "wrong": (_facts(evidence([700, 701], wrong={1: 3}), wrong), ONE),
        "below the user's limit": (evidence([700, 701], {0: 700, 1: 701}), replace(ONE, min_tflops=705.0)),
        "above the user's limit": (evidence([700, 701]), replace(ONE, min_tflops=650.0)),
        "a known device below what it attains": (evidence([300], {0: 301}, device=H100), replace(ONE, gpu_size=16384)),
        "two types, one measured": (evidence([700, 701]), two),
        "no speed of one rank": (_without(evidence([700, 701]), "tflops", rank=1), ONE),
        "not a number": (evidence([700, float("inf")]), ONE),
        "nobody finished": (replace(evidence([700]), asked=()), ONE),
        "an unreadable fact": (
            _facts(evidence([700]), Fact(check="compute", name="wrong_values", value={"dtype": 3}, rank=0)),
            ONE,
        ),
    }
    return {name: CHECK.judge(made, params) for name, (made, params) in cases.items()}


def memory() -> Rulings:
    from checks.test_check_memory import H200, MIB, ONE, fact, fleet, taken

    from seatrial.checks.memory import CHECK

    words = {"pattern": "0x55", "round": 1, "words": 2, "first_byte": 8, "last_byte": 24, "tested_bytes": 88}
    read = fact("wrong_words", 1, **words, expected="0x55", found="0x57")
    right = fact("wrong_words", 1, **words, expected="0x55", found="0x55")
    refused = {"refused_bytes": 10**9, "taken_bytes": 5 * 10**9, "reason": "out of memory"}
    ranks = [taken(0), taken(1)]
    cases: dict[str, Evidence] = {
        "healthy": fleet([20, 20.1], facts=ranks),
        "healthy devices": fleet([3000, 3010, 2990], device_type="cuda", facts=ranks),
        "wrong bits": fleet([20, 20], wrong={1: 2}, facts=[*ranks, read]),
        "wrong bits on a device": fleet([20, 20], wrong={1: 2}, facts=[*ranks, right], device_type="cuda"),
        "slow, and again alone": fleet([3000, 3010, 2990, 2000, 3005], {0: 3000, 1: 3000, 3: 2010}, device_type="cuda"),
        "slow together": fleet([3000, 3010, 2990, 2000, 3005], {0: 3000, 1: 3000, 3: 3001}, device_type="cuda"),
        "slow CPU": fleet([30, 30.1, 29.9, 12, 30], {0: 30, 1: 30, 3: 12}, shares={0: 1.0, 3: 1.0}),
        "far below its datasheet": fleet([1000], device=H200, device_type="cuda"),
        "just twice as much is free": fleet(
            [20, 20], facts=[*ranks, fact("refused", 1, what="patterns", free_bytes=2 * 10**9, **refused)]
        ),
        "less than that is free": fleet(
            [20, 20], facts=[*ranks, fact("refused", 1, what="patterns", free_bytes=2 * 10**9 - 1, **refused)]
        ),
        "host memory refused to a device": fleet(
            [20, 20],
            facts=[*ranks, fact("refused", 0, what="copies (host_to_device)", free_bytes=3 * 10**9, **refused)],
            device_type="cuda",
        ),
        "device memory refused": fleet(
            [20, 20],
            facts=[*ranks, fact("refused", 0, what="patterns", free_bytes=3 * 10**9, **refused)],
            device_type="cuda",
        ),
        "less tested than wanted": fleet([20, 20], facts=[taken(0, tested_bytes=80), taken(1, tested_bytes=72)]),
        "all but what makes no word": fleet([20], facts=[taken(0, wanted_bytes=95, tested_bytes=88)]),
        "more tested than wanted": fleet([20], facts=[taken(0, wanted_bytes=80, tested_bytes=88)]),
        "a fifth in use by others": fleet([20], facts=[taken(0, free_bytes=80)]),
        "more than a fifth": fleet([20], facts=[taken(0, free_bytes=79)]),
        "much in use": fleet([20], facts=[taken(0, device_bytes=10**10, free_bytes=7 * 10**9)]),
        "no room": replace(
            _without(fleet([20, 20], facts=ranks), "copy_gbps", rank=1),
            facts=(fact("no_room", 1, copy="device", needed_bytes=128 * MIB, room_bytes=5 * MIB),),
        ),
        "nothing tested": replace(
            fleet([20]),
            measurements=tuple(
                replace(entry, value=0.0) if entry.name == "tested_bytes" else entry
                for entry in fleet([20]).measurements
            ),
        ),
        "not said what was tested": _without(fleet([20, 20]), "tested_bytes", rank=1),
        "a pattern missing": _without(fleet([20, 20]), "wrong_words", rank=0),
        "nobody finished": replace(fleet([20]), asked=()),
    }
    limited = CHECK.judge(fleet([20, 20], {0: 20, 1: 20}), replace(ONE, min_copy_gbps=25.0))
    return {**{name: CHECK.judge(made, ONE) for name, made in cases.items()}, "below the user's limit": limited}


def storage() -> Rulings:
    from checks.test_storage_judge import NAMED, fact, fleet, measured

    from seatrial.checks.storage import CHECK

    def cut(rank: int, what: str = "append", stage: str = "measure") -> Fact:
        return fact("cut", rank, {"what": what, "done": 3, "of": 20}, stage)

    whole = fleet([[1.0], [1.01], [0.99], [1.0]])
    refused = fact("refused", 1, {"folders": [["/ckpt", "EACCES", "Permission denied"]], "named": True})
    wrong = replace(
        whole,
        measurements=tuple(
            replace(entry, value=5.0) if (entry.name, entry.rank) == ("wrong_bytes", 2) else entry
            for entry in whole.measurements
        ),
    )
    cases: dict[str, Evidence] = {
        "healthy": whole,
        "two ranks a node": fleet([[1.0, 1.0], [1.01, 0.99]]),
        "wrong bytes": wrong,
        "wrong bytes, and where": _facts(wrong, fact("wrong_bytes", 2, {"count": 7, "first_offset": 4096})),
        "a slow node": fleet([[1.0], [1.01], [0.99], [0.3], [1.0]], again={0: 1.0, 1: 1.01, 3: 0.31}),
        "slow once": fleet([[1.0], [1.01], [0.99], [0.3], [1.0]], again={0: 1.0, 1: 1.01, 3: 1.0}),
        "slow appends": fleet([[1.0], [1.01], [0.99], [1.0], [1.0]], fsync_ms={3: 400.0}),
        "cut in one part": _facts(whole, cut(1)),
        "cut in one part on three ranks": _facts(whole, cut(1), cut(2), cut(3), cut(0, "write")),
        "cut in the repeat alone": _facts(whole, cut(1, stage="repeat")),
        "not the same folder": fleet([[1.0], [1.0]], views={1: [[1, 1]]}),
        "in memory": fleet([[1.0], [1.0]], in_memory=True),
        "other file systems": fleet([[1.0], [1.0]], kinds={1: "ext4"}),
        "read from a cache": fleet([[1.0], [1.0]], reads="warm"),
        "no room": replace(whole, measurements=(*whole.measurements, measured("free_bytes", 1.0, 1, stage="view"))),
        "no folder": replace(
            whole, facts=tuple(entry for entry in whole.facts if (entry.name, entry.rank) != ("folder", 1))
        ),
        "no speed": _without(whole, "write_gbps", "fsync_ms", rank=2),
        "refused": _facts(whole, refused),
        "refused on its own machine": _facts(fleet([[1.0], [1.01], [0.99], [1.0]], own=[1]), refused),
        "nobody finished": replace(whole, asked=()),
    }
    return {name: CHECK.judge(made, NAMED) for name, made in cases.items()}


def links() -> Rulings:
    from checks.simulated_links import SimulatedCluster, slow_node

    from seatrial.checks.links.params import Params

    alone = SimulatedCluster(nodes=1, nproc_per_node=2)
    cases: dict[str, Callable[[], Ruling]] = {
        "healthy": lambda: SimulatedCluster(nodes=3).trial(),
        "healthy devices": lambda: SimulatedCluster(nodes=2, nproc_per_node=2, device_type="cuda").trial(),
        "one node of CPUs": alone.trial,
        "a slow node": lambda: SimulatedCluster(nodes=4, slow=slow_node(2, 0.1)).trial(),
        "a dead node": lambda: SimulatedCluster(nodes=4, slow=slow_node(2, 0.0)).trial(),
        "a slow link": lambda: SimulatedCluster(nodes=5, slow={(3, 1): 0.2}).trial(),
        "a dead link": lambda: SimulatedCluster(nodes=4, slow={(0, 3): 0.0, (3, 0): 0.0}).trial(),
        "a dead link of devices": lambda: SimulatedCluster(
            nodes=5, device_type="cuda", slow={(0, 3): 0.0, (3, 0): 0.0}
        ).trial(),
        "two nodes": lambda: SimulatedCluster(nodes=2, slow={(0, 1): 0.0, (1, 0): 0.0}).trial(),
        "below the user's limit": lambda: SimulatedCluster(nodes=3).trial(Params(min_gbps=20.0)),
        "above the user's limit": lambda: SimulatedCluster(nodes=3).trial(Params(min_gbps=5.0)),
        "a late node": lambda: SimulatedCluster(nodes=4, late_us={2: 5000.0}).trial(),
        "a node that loses segments": lambda: SimulatedCluster(nodes=4, resent={(None, 2): 0.05}).trial(),
        "a slow node that is late and loses": lambda: SimulatedCluster(
            nodes=4, slow=slow_node(2, 0.1), late_us={2: 5000.0}, resent={(None, 2): 0.05}
        ).trial(),
        "a slow device within its node": lambda: SimulatedCluster(
            nodes=2,
            nproc_per_node=4,
            device_type="cuda",
            slow={key: 0.5 for other in (4, 6, 7) for key in ((5, other), (other, 5))},
        ).trial(),
        "two nodes far better": lambda: SimulatedCluster(
            nodes=6, slow={(rank, None): 0.2 for rank in range(4)}
        ).trial(),
    }
    return {name: made() for name, made in cases.items()}


def training() -> Rulings:
    from checks.simulated_training import LOSSES, SMOKE, trained

    from seatrial.checks.training import CHECK

    def nonfinite(*ranks: int, count: int = 4, **more: Any) -> list[Fact]:
        value = {"step": 7, "seed": 1, "ranks": list(ranks), "ordinary": True, "samples": 16, **more}
        return [Fact(check="training", name="nonfinite", value=value, rank=rank) for rank in range(count)]

    bits, odd = ("bits", "bits"), ("odd", "odd")
    healthy = trained()
    cut = {0: {"fault": "", "digest": "aa" * 32}, 2: {"fault": "it ends early.", "digest": ""}}
    cases: dict[str, Evidence] = {
        "healthy": healthy,
        "twice": trained(runs=2),
        "too few points": trained(losses=LOSSES[:3]),
        "the loss rises": trained(losses=LOSSES[::-1]),
        "the loss stays": trained(losses=(2.3,) * 60),
        "low accuracy": trained(accuracy=0.2),
        "another recipe of the first rank": trained(accuracy=0.2, key="another recipe"),
        "samples missing": trained(evaluated={1: 359}),
        "replicas that differ": trained(digests={2: "bb" * 32}),
        "replicas in two halves": trained(digests={2: "bb" * 32, 3: "bb" * 32}),
        "kinds that differ": trained(
            kinds={2: "B CPU", 3: "B CPU"}, digests={2: "bb" * 32, 3: "bb" * 32}, alike={2: "other", 3: "other"}
        ),
        "a rank that computes otherwise": trained(batches={**dict.fromkeys(range(4), bits), 2: odd}),
        "a rank that computes otherwise each time": trained(batches={1: ("bits", "odd")}),
        "a slow rank": trained(6, compute_s={3: 0.05}, alone_s={0: 0.01, 3: 0.05}),
        "slow together only": trained(6, compute_s={3: 0.05}, alone_s={0: 0.01, 3: 0.01}),
        "not finite on one": _facts(healthy, *nonfinite(2)),
        "not finite on all": _facts(healthy, *nonfinite(0, 1, 2, 3, ordinary=False)),
        "not finite on none": _facts(healthy, *nonfinite()),
        "parameters not finite": _facts(healthy, *nonfinite(1, 2, what="parameters", ordinary=None)),
        "parameters not finite on one": _facts(trained(6), *nonfinite(1, count=6, what="parameters", ordinary=None)),
        "no accuracy of one rank": _without(healthy, "accuracy", "evaluated", rank=3),
        "no recipe": replace(healthy, facts=tuple(fact for fact in healthy.facts if fact.name != "recipe")),
        "nobody finished": replace(healthy, asked=()),
        "data cut on one node": _facts(
            healthy,
            *(
                Fact(check="training", name="data", value={**said, "places": [f"boot-{rank} 8:1 2"]}, rank=rank)
                for rank, said in cut.items()
            ),
        ),
        "data cut in a folder that nodes may share": _facts(
            healthy,
            *(
                Fact(check="training", name="data", value={**said, "places": None}, rank=rank)
                for rank, said in cut.items()
            ),
        ),
        "data on no node": _facts(
            healthy,
            *(
                Fact(check="training", name="data", value={"fault": "mnist is not in /data.", "digest": ""}, rank=rank)
                for rank in healthy.ranks
            ),
        ),
    }
    return {name: CHECK.judge(made, SMOKE) for name, made in cases.items()}


def network() -> Rulings:
    from checks.simulated_network import network_evidence
    from checks.test_network_judge import between, into, out_of

    from seatrial.checks.network.judge import judge
    from seatrial.checks.network.params import Params

    both = [f"10.{1 + node // 3}.0.{node}" for node in range(6)]
    cases: dict[str, Evidence] = {
        "open": network_evidence(3),
        "one node": network_evidence(1),
        "above the limit": network_evidence(12, max_nodes=10),
        "takes none": network_evidence(4, into(2), by_ssh=True),
        "takes none, in pods": network_evidence(4, into(2, how="refused"), environment="kubernetes"),
        "makes none": network_evidence(4, out_of(1)),
        "neither": network_evidence(4, lambda a, b: "no route" if 0 in (a, b) else None),
        "two take none": network_evidence(12, into(1, 2)),
        "all": network_evidence(12, lambda a, b: "refused" if b % 2 else "no answer"),
        "two of two": network_evidence(2, into(0)),
        "a pair": network_evidence(6, between({1}, {3}, back=True)),
        "subnets": network_evidence(6, between({0, 1, 2}, {3, 4, 5}), addresses=both),
        "among": network_evidence(5, between({1, 2, 3}, {1, 2, 3})),
        "silent and another answers": network_evidence(
            4, lambda a, b: {(0, 1): "silent", (2, 3): "another answers"}.get((a, b))
        ),
        "IPv6": network_evidence(3, into(1), addresses=["fd00::1", "fd00::2", "fd00::3"]),
        "large packets": network_evidence(4, lambda a, b: ("large to", 1400 - a) if b == 2 else None),
        "large packets of all": network_evidence(3, lambda a, b: ("large to", None)),
        "large packets of a pair": network_evidence(4, lambda a, b: ("large from", 1280) if (a, b) == (1, 3) else None),
        "large packets among": network_evidence(5, lambda a, b: ("large to", 1400) if {a, b} <= {1, 2, 3} else None),
        "large and closed": network_evidence(
            5, lambda a, b: "no answer" if b == 4 else ("large to", 1400) if b == 2 else None
        ),
        "a doubled address": network_evidence(3, addresses=["10.0.0.1", "10.0.0.2", "10.0.0.2"]),
        "names of all lead to one": network_evidence(3, names=["10.0.0.0", "172.17.0.1", "172.17.0.1"]),
        "own name is used and closed": network_evidence(4, into(1, 2, how="no route"), because="name"),
        "one hostname": network_evidence(3, hostnames=["worker"] * 3),
        "not tried": network_evidence(3, lambda a, b: "not tried" if a == 1 else None),
        "silent": network_evidence(3, silent=[1]),
        "deaf": network_evidence(3, deaf=[0]),
    }
    return {name: judge(made, Params()) for name, made in cases.items()}


CHECKS: Mapping[str, Callable[[], Rulings]] = {
    made.__name__: made for made in (collectives, compute, links, memory, network, storage, training)
}


@pytest.mark.parametrize("name", CHECKS)
def test_rulings_are_as_they_were(name: str) -> None:
    file = _FOLDER / f"{name}.txt"
    text = "\n".join(_text(case, ruling) for case, ruling in CHECKS[name]().items())
    if os.environ.get("SEATRIAL_RENEW_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()
