"""Real measurements of ranks in one round: pairs one after the other, and a group."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from by_day import by_day
from checks.fake_context import CPU, FakeContext
from checks.links_ranks import measured
from checks.lying_store import Lie, false_port, late_once

from seatrial.checks.links import measure as of_links
from seatrial.rank import groups

links: Any = of_links


@pytest.mark.slow
def test_a_pair_and_a_group_on_two_fabrics() -> None:
    group = {"fabric": "others", "groups": [[0, 1, 2]], "list_below_gbps": 1e9}
    answers = measured(3, {"pairs": [[0, 1], [2, 0]], "turns": 2}, group)
    rates = [(each["rank"], each["peer"]) for rank, _ in answers for each in rank if each["name"] == "gbps"]
    every = {(a, b) for a in range(3) for b in range(3) if a != b}
    assert sorted(rates) == sorted([*every, (0, 1), (1, 0), (0, 2), (2, 0)])
    shares = [(each["rank"], each["peer"]) for rank, _ in answers for each in rank if each["name"] == "cpu_share"]
    # A kernel may not count how long a thread waited for a core.
    assert sorted(shares) in ([], [(0, 1), (0, 2), (1, 0), (2, 0)])
    assert all(each["value"] > 0 for rank, _ in answers for each in rank if each["name"] != "cpu_share")
    late = {(each["rank"], each["peer"]) for rank, _ in answers for each in rank if each["name"] == "latency_us"}
    assert late == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert [[each["rank"] for each in rank if each["name"] == "group_gbps"] for rank, _ in answers] == [[0], [1], [2]]
    assert [[fact["name"] for fact in facts] for _, facts in answers] == [["asked", "asked"], [], []]


_LIES = {
    "early": "the answer to a transfer was not made of what had been sent",
    "other bytes": "rank 0 sent back other bytes than it was sent",
    "many transfers": "1000000 transfers were announced, which nobody asked for",
    "late": "it had not ended after 8.1 s",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "reason"),
    [pytest.param(*each, marks=pytest.mark.nightly if number else ()) for number, each in enumerate(_LIES.items())],
)
def test_a_rank_that_lies_to_its_peer_fails_their_pair_only(lie: str, reason: str) -> None:
    answers = measured(3, {"pairs": [[0, 1], [1, 2]], "turns": 2}, lie=lie)
    assert [fact["value"] for fact in answers[1][1]] == [{"peer": 0, "reason": reason}]
    # A neighbor may have had its core: what it measured before the failure counts only where it had one itself.
    assert 0 in [each["peer"] for each in answers[1][0] if each["name"] == "cpu_share"]
    assert [(each["rank"], each["peer"]) for each in answers[2][0] if each["name"] == "gbps"] == [(2, 1)]


@pytest.mark.slow
def test_a_large_group_does_not_wait_for_a_small_one() -> None:
    """Three have three turns, two have one."""
    answers = measured(5, {"groups": [[0, 1, 2], [3, 4]], "list_below_gbps": 1e9})
    assert [sum(each["name"] == "gbps" for each in rank) for rank, _ in answers] == [2, 2, 2, 1, 1]
    assert [sum(each["name"] == "group_gbps" for each in rank) for rank, _ in answers] == [1] * 5


@pytest.mark.slow
def test_a_late_group_says_so_and_reports_no_median() -> None:
    answers = measured(2, {"groups": [[0, 1]]}, round_s=0.0)
    for rank, facts in answers:
        assert [each["name"] for each in rank] == []
        assert [each["value"] for each in facts if each["name"] == "late"] == [{"fabric": "nodes", "exchanges": [0, 1]}]


_TOO_LATE = late_once(6.5)
_ON_PAIRS: dict[str, dict[str, Any]] = {
    "a false port": {"lies": {1: false_port}},
    "a beginning that one end hears late": {"lies": {2: late_once(6.0)}},
    "addresses of a neighbor": {"poisoned_pair": "1-2"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "liar", [pytest.param(liar, marks=pytest.mark.nightly if number else ()) for number, liar in enumerate(_ON_PAIRS)]
)
def test_no_liar_at_the_store_keeps_two_ranks_apart(liar: str) -> None:
    answers = measured(3, {"pairs": [[1, 2]]}, **_ON_PAIRS[liar])
    assert [facts for _, facts in answers[1:]] == [[answers[1][1][0]], []]
    assert [(each["rank"], each["peer"]) for rank, _ in answers for each in rank if each["name"] == "gbps"] == [
        (1, 2),
        (2, 1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "liar",
    [
        pytest.param(false_port, id="false port", marks=pytest.mark.nightly),
        pytest.param(late_once(3.0), id="late"),
        pytest.param(_TOO_LATE, id="too late", marks=pytest.mark.nightly),
    ],
)
def test_no_liar_at_the_store_has_two_members_accuse_each_other(liar: Lie) -> None:
    """One that comes too late is named by its peer alone, as one that did not come."""
    answers = measured(3, {"groups": [[0, 1, 2]], "list_below_gbps": 1e9}, lies={2: liar})
    said = [fact["name"] for _, facts in answers for fact in facts if fact["name"] != "asked"]
    assert set(said) <= {"unmet"}
    assert bool(said) == (liar is _TOO_LATE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "said"), by_day([([1, 2], ["unreachable"] * 2), ([2], ["unreachable", "unmet"])], 1)
)
def test_a_page_that_cannot_be_reached(closed: list[int], said: list[str]) -> None:
    answers = measured(3, {"pairs": [[1, 2]]}, closed=closed)
    assert [fact["name"] for _, facts in answers for fact in facts if fact["name"] != "asked"] == said
    reason = "no connection to the page of rank 2 (refused)"
    assert [fact["value"] for fact in answers[1][1][1:]] == [{"peer": 2, "reason": reason}]


_PAIR: dict[str, Any] = {"pairs": [[0, 1]]}
_GROUP: dict[str, Any] = {"groups": [[0, 1, 2]], "list_below_gbps": 1e9}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "part"),
    [
        pytest.param("no port", _PAIR, id="before a pair meets", marks=pytest.mark.nightly),
        pytest.param("no port for the group", _PAIR, id="for a pair"),
        # The members of a group take their ports without a word before.
        pytest.param("no port for the group", _GROUP, id="for a group"),
        pytest.param("no thread", _PAIR, id="a thread for a pair"),
    ],
)
def test_a_rank_whose_host_lacks_a_port_or_a_thread_accuses_nobody(lie: str, part: dict[str, Any]) -> None:
    """Another process of its host may hold them all. Its peer waits in vain, and only says so."""
    answers = measured(3, part, lie=lie)
    said = [(fact["name"], str(fact["value"])) for fact in answers[0][1] if fact["name"] != "asked"]
    assert [name for name, _ in said] == ["unmet"]
    lack = "Resource temporarily unavailable" if lie == "no thread" else "Address already in use"
    assert lack in said[0][1]
    if lie == "no port":
        assert [fact["name"] for fact in answers[1][1]] == ["unmet"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("[/pytorch/gloo/listener.cc:38] bind: Address already in use", "bind: Address already in use"),
        ("NCCL error, 2.21\nLast error:\nsocket: Too many open files", "Too many open files: NCCL error, 2.21"),
        ("Resource temporarily unavailable", "Resource temporarily unavailable"),
        ("[/pytorch/gloo/pair.cc:144] Timed out waiting", "Timed out waiting"),
    ],
)
def test_what_the_host_lacked_comes_first(error: str, reason: str) -> None:
    assert links._first_line(RuntimeError(error)) == reason


@pytest.mark.parametrize(
    ("is_world", "handling", "timeout"), [(False, "2", timedelta(seconds=5)), (True, "3", timedelta(days=1))]
)
def test_the_handling_of_nccl_errors_on_a_link_and_in_the_world(
    monkeypatch: pytest.MonkeyPatch, is_world: bool, handling: str, timeout: timedelta
) -> None:
    """A stand-in for NCCL's group, which needs a GPU: its arguments, and its environment."""
    dumps = ("DUMP_ON_TIMEOUT", "PROPAGATE_ERROR", "WAIT_TIMEOUT_DUMP_MILSEC")
    variables = [f"TORCH_NCCL_{each}" for each in ("ASYNC_ERROR_HANDLING", *dumps, "RANKS_PER_ROOT")]
    seen = dict[str, Any]()

    def stand_in(backend: str, **options: Any) -> None:
        seen.update(options, backend=backend, environ=[os.environ[variable] for variable in variables])

    for variable in variables:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(dist, "init_process_group", stand_in)
    store: Any = dist.HashStore()
    context = FakeContext(
        check="links", store=store, backend="nccl", device=replace(CPU, type="cuda", backend="nccl", index=3)
    )
    if is_world:
        monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=None))
        groups.form_world(context)
    else:
        groups.form(context, store, range(300), timedelta(seconds=5))
    # With more ranks than this, several of them would set an id.
    assert int(seen["environ"].pop()) >= (1 if is_world else 300)
    assert seen["environ"] == [handling, "0", "0", "0"]
    assert (seen["backend"], seen["timeout"], str(seen["device_id"])) == ("nccl", timeout, "cuda:3")
