"""DNS, network policies and quotas of the double of a cluster are as unkind as real ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kubernetes.double.dns import Names
from kubernetes.double.policies import rules_of
from kubernetes.double.quotas import quota_refusal
from kubernetes.double.store import Store
from kubernetes.workloads import workload, workload_object

from seatrial.targets.kubernetes.manifest.render import manifest

_NAME = "trial-1-0.trial-1.default.svc.cluster.local"


def _question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def _code_and_addresses(answer: bytes) -> tuple[int, list[str]]:
    _, flags, _, count, _, _ = struct.unpack_from(">HHHHHH", answer)
    ends = [answer[len(answer) - 16 * number + 12 :][:4] for number in range(count, 0, -1)]
    return flags & 15, [".".join(map(str, address)) for address in ends]


def test_a_name_that_was_asked_for_too_early_is_denied_for_a_while() -> None:
    now = 100.0
    names = Names(denial_s=30.0, clock=lambda: now)
    assert _code_and_addresses(names.answer(_question(_NAME))) == (3, [])
    names.zone = {_NAME: ("10.78.0.3", "10.78.0.4")}
    now += 29.0
    assert _code_and_addresses(names.answer(_question(_NAME))) == (3, [])
    now += 2.0
    assert _code_and_addresses(names.answer(_question(_NAME.upper()))) == (0, ["10.78.0.3", "10.78.0.4"])
    # There is no AAAA, but the name exists.
    assert _code_and_addresses(names.answer(_question(_NAME, kind=28))) == (0, [])


@pytest.mark.parametrize("garbage", [b"", b"\0" * 12, _question(_NAME)[:-3]])
def test_what_is_no_question_is_not_answered(garbage: bytes) -> None:
    with pytest.raises((ValueError, IndexError, struct.error)):
        Names(denial_s=30.0).answer(garbage)


def _pod(store: Store, name: str, labels: dict[str, str], address: str) -> dict[str, Any]:
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {"containers": []}}
    return store.add({**made, "status": {"podIP": address, "phase": "Running"}}, "default")


@pytest.mark.parametrize("allow_egress", [False, True])
def test_the_policy_of_a_run_lets_only_its_pods_in(allow_egress: bool) -> None:
    store = Store()
    objects = manifest("job", workload(allow_egress=allow_egress))
    labels = workload_object(objects)["spec"]["template"]["metadata"]["labels"]
    first, _ = (_pod(store, f"trial-1-{number}", labels, f"10.78.0.{number + 3}") for number in (0, 1))
    stranger = _pod(store, "stranger", {}, "10.78.0.9")
    (policy,) = [thing for thing in objects if thing["kind"] == "NetworkPolicy"]
    store.add(policy, "default")
    rules = rules_of(store, first).splitlines()
    incoming = [rule for rule in rules if rule.startswith("-A INPUT")]
    assert "-A INPUT -s 10.78.0.4 -j ACCEPT" in incoming
    assert incoming[-1] == "-A INPUT -j DROP"
    assert not any("10.78.0.9" in rule for rule in rules)
    assert ("-A OUTPUT -p udp --dport 53 -j ACCEPT" in rules) == allow_egress
    assert ("-A OUTPUT -j DROP" in rules) == allow_egress
    assert rules_of(store, stranger) == ""


def _quota(**hard: str) -> dict[str, Any]:
    made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}
    return {**made, "spec": {"hard": {name.replace("__", "."): amount for name, amount in hard.items()}}}


@pytest.mark.parametrize(
    ("hard", "refusal"),
    [
        ({"pods": "2", "limits__cpu": "5"}, ""),
        ({"pods": "1"}, "exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1"),
        (
            {"limits__cpu": "3"},
            "exceeded quota: team, requested: limits.cpu=2, used: limits.cpu=2, limited: limits.cpu=3",
        ),
        ({"limits__memory": "1Gi"}, "failed quota: team: must specify limits.memory for: main"),
    ],
)
def test_a_quota_says_what_it_lacks(hard: dict[str, str], refusal: str) -> None:
    store = Store()
    container = {"name": "main", "resources": {"limits": {"cpu": "2000m"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container]}}
    pod |= {"status": {"phase": "Pending"}}
    store.add(pod, "default")
    store.add(_quota(**hard), "default")
    assert quota_refusal(store, pod, "default") == refusal
