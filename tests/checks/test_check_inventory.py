"""The inventory check: on simulated fleets of 1 to 1,000 nodes, and its facts about this machine."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch
from checks.fake_context import FakeContext
from checks.simulated_hosts import H200, inventory_fleet, rank_of

from seatrial.checks.inventory import CHECK
from seatrial.checks.inventory.params import Params
from seatrial.evidence.findings import Finding
from seatrial.rank.device import open_device


def judge(*fleet: Any, params: Params | None = None, **options: Any) -> tuple[Finding, ...]:
    return CHECK.judge(inventory_fleet(*fleet, **options), params or Params()).findings


@pytest.mark.parametrize("nodes", [1, 2, 3, 1000])
def test_fleets_that_are_alike_pass(nodes: int) -> None:
    ruling = CHECK.judge(inventory_fleet(nodes), Params())
    assert (ruling.findings, ruling.absent, ruling.unjudged) == ((), (), ())


def test_one_rank_alone_is_not_compared() -> None:
    ruling = CHECK.judge(inventory_fleet(1, 1), Params())
    assert (ruling.findings, ruling.absent) == ((), ())
    assert ruling.unjudged == ("inventory not compared (1 rank)",)


@pytest.mark.parametrize("identity", ["9d1f-uuid", "0000:1b:00"])
def test_two_ranks_on_one_device_are_both_named(identity: str) -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["device_id"] = identity if (node, local_rank) in ((1, 2), (1, 5)) else f"{node:04x}:{local_rank:02x}:00"
        facts |= {"index": 0, "visibility": "CUDA_VISIBLE_DEVICES=0"}

    (finding,) = judge(3, 8, bend)
    assert (finding.severity, finding.culprit.ranks, finding.culprit.nodes) == ("fail", (10, 13), ("n1",))
    assert finding.culprit.kind == "device"
    assert finding.what == "ranks 10 and 13 on node n1 use the same device"
    assert identity in finding.measured


@pytest.mark.parametrize("boot", ["boot", None])
def test_equal_pci_addresses_of_two_machines_are_two_devices(boot: str | None) -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts |= {"device_id": f"0000:{local_rank:02x}:00", "boot_id": boot and f"{boot}{node}"}

    assert judge(2, 8, bend) == ()


def test_parts_of_one_device_differ_in_their_index() -> None:
    """Compute partitions: one id, and each process sees all of them."""
    fleet = inventory_fleet(2, 8, lambda node, local_rank, facts: facts.update(device_id=f"of-node-{node}"))
    assert CHECK.judge(fleet, Params()).findings == ()


def test_a_device_that_two_containers_of_one_machine_share() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts |= {"device_id": "0000:1b:00", "boot_id": "one", "index": 0, "visible": 1}

    (finding,) = judge(2, 1, bend)
    assert finding.what == "ranks 0 and 1 on nodes n0 and n1 use the same device"
    # They joined from different places: one may claim the device of the other one.
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")
    assert finding.culprit.name == "one of ranks 0 and 1 on nodes n0 and n1, not separable"


def test_missing_device_ids_are_unjudged() -> None:
    ruling = CHECK.judge(inventory_fleet(2, 2, lambda node, local_rank, facts: facts.update(device_id="")), Params())
    assert ruling.findings == ()
    assert ruling.unjudged == ("inventory without device IDs: this torch does not report them",)


@pytest.mark.parametrize("nodes", [2, 3, 1000])
def test_a_node_with_fewer_devices_than_the_others_is_named(nodes: int) -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["visible"] = 7 if node == 1 else 8

    (finding,) = judge(nodes, 4, bend)
    assert finding.what == "node n1 shows 7 devices where 8 are expected"
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "node", ("n1",))
    assert judge(nodes, 4, bend, params=Params(allow_mixed=("devices",))) == ()


def test_one_larger_node_does_not_accuse_the_others() -> None:
    (finding,) = judge(5, 4, lambda node, rank, facts: facts.update(visible=16 if node == 3 else 8))
    assert finding.what == "node n3 shows 16 devices where 8 are expected"
    assert "request nodes of one kind" in finding.action
    assert finding.limit is not None
    assert finding.limit.origin == "fleet, majority of the nodes"


@pytest.mark.parametrize(
    ("shown", "named"),
    [((8, 8, 8, 7), {3}), ((8, 8, 128, 7), {2, 3}), ((8, 8, 9, 7), {2, 3}), ((8, 8, 8, 9, 7, 6), {3, 4, 5})],
)
def test_a_number_that_one_node_claims_is_no_standard(shown: tuple[int, ...], named: set[int]) -> None:
    """Another node has lost a device, so that no number has a majority."""
    found = judge(len(shown), 4, lambda node, rank, facts: facts.update(visible=shown[node]))
    assert {finding.culprit.nodes for finding in found} == {(f"n{node}",) for node in named}


def test_an_impossible_number_of_devices_is_no_standard() -> None:
    fleet = inventory_fleet(2, 1, lambda node, local_rank, facts: facts.update(visible=10**9 if node else 8))
    ruling = CHECK.judge(fleet, Params())
    assert ruling.findings == ()
    assert "a readable inventory of rank 1" in ruling.absent


def test_a_wrong_expectation_is_corrected_in_the_plan() -> None:
    (finding,) = judge(1, 8, params=Params(devices_per_node=16))
    assert finding.action.endswith("or correct inventory.devices_per_node in the plan.")


def test_devices_that_each_process_sees_alone_count_together() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts |= {"visible": 1, "index": 0}

    assert judge(2, 8, bend, params=Params(devices_per_node=8)) == ()


@pytest.mark.parametrize(("expected", "failing"), [(8, 0), (16, 3), (4, 3)])
def test_the_number_that_the_user_expects(expected: int, failing: int) -> None:
    findings = judge(3, 8, params=Params(devices_per_node=expected))
    assert len(findings) == failing
    assert all("user inventory.devices_per_node" in str(finding.limit) for finding in findings)


def test_a_cpu_trial_has_no_devices_and_misses_none() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts |= {"device": "a CPU", "device_id": "", "index": 0, "visible": 0, "driver": None, "nccl": None}

    ruling = CHECK.judge(inventory_fleet(4, 2, bend, device_type="cpu"), Params())
    assert (ruling.findings, ruling.absent, ruling.unjudged) == ((), (), ())
    assert len(judge(4, 2, bend, device_type="cpu", params=Params(devices_per_node=8))) == 4


@pytest.mark.parametrize(
    ("nodes", "key", "value", "word", "severity"),
    [
        (3, "device", "NVIDIA H100 80GB HBM3", "device model", "fail"),
        (1000, "device", "NVIDIA H100 80GB HBM3", "device model", "fail"),
        (3, "memory_bytes", 145_000_000_000, "memory", "fail"),
        (3, "torch", "2.6.0+cu126", "torch", "fail"),
        (3, "toolkit", "CUDA 12.6", "CUDA or ROCm", "fail"),
        (3, "nccl", "2.21.5", "NCCL", "fail"),
        (3, "driver", "550.54.15", "driver", "warn"),
        (3, "kernel", "5.15.0", "kernel", "warn"),
        (3, "python", "3.11.2", "Python", "warn"),
        (3, "cpu", "AMD EPYC 9654", "CPU model", "warn"),
        (5, "cores", 12, "cores of a process", "warn"),
    ],
)
def test_the_node_that_is_unlike_the_others_is_named(
    nodes: int, key: str, value: object, word: str, severity: str
) -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == 2:
            facts[key] = value

    (finding,) = judge(nodes, 2, bend)
    assert (finding.severity, finding.culprit.nodes) == (severity, ("n2",))
    assert finding.what == f"node n2 differs from the rest in {word}"
    assert "on node n2" in finding.evidence[0]
    name = "memory" if key == "memory_bytes" else key
    assert judge(nodes, 2, bend, params=Params(allow_mixed=(name,))) == ()


def test_one_device_of_another_model_is_named() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if (node, local_rank) == (0, 3):
            facts["device"] = "NVIDIA H100 80GB HBM3"

    for nodes in (1, 2, 1000):
        (finding,) = judge(nodes, 8, bend)
        assert (finding.culprit.kind, finding.culprit.ranks) == ("device", (3,))


def test_the_words_of_a_host_stay_its_words() -> None:
    lie = "NVIDIA H200 on nodes n0 and n1; torch: 1.0"

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == 2:
            facts |= {"device": lie, "device_id": "0 and of n0", "visibility": "x), uses number 1 (y", "index": 0}

    shared, differs = judge(3, 2, bend)
    assert differs.evidence == (f'device model: "{lie}" on node n2; "{H200}" on nodes n0 and n1',)
    assert shared.measured == '2 ranks on device "0 and of n0"'
    assert shared.evidence[0].startswith('rank 4: sees 2 devices ("x), uses number 1 (y"), uses number ')
    _, asked = judge(3, 2, bend, params=Params(device=H200))
    assert asked.what == f'device model of node n2 is "{lie}" where {H200} is requested'


def test_two_equal_halves_name_nobody() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node % 2:
            facts["torch"] = "2.6.0"

    for nodes in (2, 4, 1000):
        (finding,) = judge(nodes, 4, bend)
        assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "none", ())
        assert "not separable" in finding.what
        assert "2.6.0 on node" in finding.evidence[0]


def test_three_kinds_without_a_majority_name_nobody() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["kernel"] = f"6.{min(node // 2, 2)}"  # 2, 2 and 1 of 5 nodes

    (finding,) = judge(5, 1, bend)
    assert (finding.severity, finding.culprit.kind) == ("warn", "none")


def test_nodes_decide_and_not_ranks() -> None:
    """Two nodes with one rank each against one node: each machine has one vote, whatever their number of ranks."""

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == 0:
            facts["torch"] = "2.6.0"

    (finding,) = judge(3, 8, bend, dead={rank_of(1, at) for at in range(1, 8)} | {rank_of(2, at) for at in range(1, 8)})
    assert finding.culprit.nodes == ("n0",)


def test_one_old_image_is_one_finding_and_its_kernel_another() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == 1:
            facts |= {"torch": "2.6.0", "toolkit": "CUDA 12.6", "nccl": "2.21.5", "kernel": "5.15"}

    gravest, other = judge(4, 8, bend)
    assert gravest.what == "node n1 differs from the rest in torch, CUDA or ROCm, NCCL"
    assert len(gravest.evidence) == 3
    assert (other.severity, other.what) == ("warn", "node n1 differs from the rest in kernel")


def test_a_hundred_odd_nodes_are_one_finding() -> None:
    (finding,) = judge(1000, 1, lambda node, rank, facts: facts.update(torch="2.6.0") if node % 10 == 3 else None)
    assert len(finding.culprit.nodes) == 100
    assert finding.culprit.name == "nodes n3, n13, n23, n33 and 96 more"


@pytest.mark.parametrize(("share", "named"), [(1.009, False), (0.991, False), (1.02, True), (0.98, True)])
def test_memory_may_differ_by_less_than_one_percent(share: float, named: bool) -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == 2:
            facts["memory_bytes"] = int(facts["memory_bytes"] * share)

    found = judge(5, 2, bend)
    assert [finding.culprit.nodes for finding in found] == ([("n2",)] if named else [])


def test_every_node_a_little_different_is_alike() -> None:
    assert judge(1000, 1, lambda node, rank, facts: facts.update(memory_bytes=10**12 + node * 10**6)) == ()


def test_memory_is_compared_inside_of_one_model() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node >= 3:
            facts |= {"device": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_000_000_000}

    (finding,) = judge(5, 1, bend)
    assert finding.what == "nodes n3 and n4 differ from the rest in device model"


def test_memory_goes_by_the_votes_of_machines_too() -> None:
    """One node with 8 ranks against two with one each, which are a little different from each other."""

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["memory_bytes"] = (80_000, 96_000, 96_500)[node] * 10**6

    (finding,) = judge(3, 8, bend, dead={rank_of(node, at) for node in (1, 2) for at in range(1, 8)})
    assert finding.culprit.nodes == ("n0",)


_MIB = 2**20


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 32])
@pytest.mark.parametrize("liar_is_low", [False, True])
@pytest.mark.parametrize("few_devices", [0, 1, 4, 8])
def test_a_claim_just_beyond_one_percent_has_no_honest_host_named(
    nodes: int, liar_is_low: bool, few_devices: int
) -> None:
    """Node 0, or some of its devices, differs by 0.6 % from most others; the last one claims 0.4 % beyond these."""
    sign = -1 if liar_is_low else 1

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        usual = 81_559 * _MIB
        facts["memory_bytes"] = usual
        if node == 0 and local_rank >= 8 - few_devices:
            facts["memory_bytes"] = usual - sign * 480 * _MIB
        if node == nodes - 1:
            facts["memory_bytes"] = usual + sign * 380 * _MIB

    found = judge(nodes, 8, bend)
    if few_devices == 0:
        assert found == ()
        return
    (finding,) = found
    assert finding.severity == "fail"
    assert (finding.culprit.kind, finding.culprit.ranks) == ("none", ())
    assert "not separable" in finding.what
    assert "most are within 1 % of either" in finding.what
    assert finding.evidence[0].count(";") == 2


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_a_device_that_lacks_memory_is_named_beside_a_chain(nodes: int) -> None:
    """Two ends are more than 1 % apart, and most are within 1 % of either; another device is within 1 % of none."""

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        share = {(0, 0): 1.006, (nodes - 1, 1): 0.994, (nodes - 1, 2): 0.95}.get((node, local_rank), 1.0)
        facts["memory_bytes"] = int(10**11 * share)

    (finding,) = judge(nodes, 8, bend)
    assert finding.culprit.ranks == (rank_of(nodes - 1, 2, 8),)


def test_two_halves_of_the_votes_name_nobody() -> None:
    for shares in ((1.0, 1.0, 1.2, 1.2), (1.0, 1.0, 1.2, 1.2, 1.4), (1.0, 1.005, 1.2, 1.205, 1.4)):
        values = [int(10**11 * share) for share in shares]
        (finding,) = judge(len(values), 1, lambda node, rank, facts, v=values: facts.update(memory_bytes=v[node]))
        assert finding.culprit.kind == "none"
        assert "no kind has more than half of the nodes" in finding.what


def test_the_cpu_of_a_cpu_trial_is_named_once() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts |= {"device": "a CPU", "cpu": "a CPU"} if node else {"device": "another", "cpu": "another"}

    (finding,) = judge(3, 2, bend, device_type="cpu")
    assert finding.what == "node n0 differs from the rest in device model"


def test_a_tie_in_memory_names_nobody() -> None:
    (finding,) = judge(2, 2, lambda node, rank, facts: facts.update(memory_bytes=(80 + 16 * node) * 2**30))
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")
    assert finding.evidence == ("memory: 80.0 GiB on node n0; 96.0 GiB on node n1",)


@pytest.mark.parametrize(
    ("params", "ok"),
    [
        ({"device": H200, "torch": "2.7.0+cu128", "nccl": "2.26.2", "cores": 24, "kernel": "6.8.0-60-generic"}, True),
        ({"memory_gib": 140.4}, True),
        ({"memory_gib": 80}, False),
        ({"device": "NVIDIA B200"}, False),
        ({"driver": "570"}, False),
        ({"toolkit": "ROCm 6.4"}, False),
        ({"python": "3.12.4"}, False),
        ({"cpu": "another"}, False),
        ({"cores": 25}, False),
    ],
)
def test_the_users_own_values(params: dict[str, Any], ok: bool) -> None:
    findings = judge(2, 8, params=Params(**params))
    if ok:
        assert findings == ()
        return
    (finding,) = findings
    assert finding.severity == "fail"
    assert finding.culprit.nodes == ("n0", "n1")
    assert finding.limit is not None
    assert finding.limit.origin == f"user inventory.{next(iter(params))}"


def test_one_node_without_the_requested_value_is_named_once() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == 0:
            facts["driver"] = "550"

    (finding,) = judge(2, 8, bend, params=Params(driver="570.86.15"))
    assert finding.what == "driver of node n0 is 550 where 570.86.15 is requested"


def test_a_requested_value_that_no_rank_knows_is_absent() -> None:
    fleet = inventory_fleet(1, 2, lambda node, local_rank, facts: facts.update(driver=None))
    assert CHECK.judge(fleet, Params()).absent == ()
    assert CHECK.judge(fleet, Params(driver="570")).absent == ("driver of rank 0", "driver of rank 1")


def test_an_unknown_value_accuses_nobody() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node != 1:
            facts["driver"] = None

    assert judge(3, 2, bend) == ()


def test_a_rank_without_report_is_absent_and_a_dead_one_is_not() -> None:
    ruling = CHECK.judge(inventory_fleet(2, 2, unreported={3}, dead={0}), Params())
    assert ruling.absent == ("inventory of rank 3",)
    assert ruling.findings == ()
    assert CHECK.judge(inventory_fleet(2, 1, dead={0, 1}), Params()).absent == ("any rank that finished",)


def test_ranks_of_one_machine_with_an_agent_each_are_one_node() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == 0:
            facts["torch"] = "2.6.0"

    fleet = inventory_fleet(2, 4, bend, agent_per_rank=True)
    (finding,) = CHECK.judge(fleet, Params()).findings
    assert finding.culprit.kind == "none", "one node against one node"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"allow_mixed": ("kernal",)}, "allow_mixed is \\['kernal'\\]; it takes devices, device, memory"),
        ({"devices_per_node": -1}, "devices_per_node is -1"),
        ({"memory_gib": 0.0}, "memory_gib is 0"),
        ({"cores": 0}, "cores is 0"),
    ],
)
def test_invalid_values_are_refused(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Params(**params)


def test_rules_name_requested_values_and_allowed_differences() -> None:
    assert CHECK.rules is not None
    params = Params(device=H200, allow_mixed=("kernel",), devices_per_node=8)
    rules = {rule.subject: rule for rule in CHECK.rules(params)}
    assert (rules["device"].requirement, rules["device"].origin) == (H200, "user inventory.device")
    assert rules["kernel"].requirement == "none: may differ"
    assert rules["devices of a node"].requirement == "exactly 8 devices"
    assert rules["driver"].requirement == "alike, only warns"


def test_the_facts_about_this_machine() -> None:
    context = FakeContext(check="inventory", device=open_device("cpu", 0, 1))
    CHECK.measure(context, Params())
    (fact,) = context.facts
    assert (fact.value["torch"], fact.value["python"]) == (torch.__version__, platform.python_version())
    assert fact.value["device"] == context.device.name
    assert fact.value["cores"] >= 1
    assert (fact.value["visible"], fact.value["device_id"]) == (0, "")
