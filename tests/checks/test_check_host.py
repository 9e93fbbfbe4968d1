"""The host check: on simulated fleets of 1 to 1,000 nodes, and its facts about this machine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checks.fake_context import FakeContext
from checks.simulated_hosts import host_fleet, rank_of

from seatrial.checks.host import CHECK
from seatrial.checks.host.measure import leftover_variables
from seatrial.checks.host.params import Params
from seatrial.evidence.findings import Finding
from seatrial.rank.device import Device, open_device

CPU: dict[str, Any] = {"device_type": "cpu", "backend": "gloo"}


def judge(*fleet: Any, params: Params | None = None, **options: Any) -> tuple[Finding, ...]:
    return CHECK.judge(host_fleet(*fleet, **options), params or Params()).findings


def shrink(**measurements: float) -> Any:
    """Measurements of node 1, or of the only one."""

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == 1 or measurements.get("everywhere"):
            facts["measurements"] |= {name: value for name, value in measurements.items() if name != "everywhere"}

    return bend


@pytest.mark.parametrize("nodes", [1, 2, 1000])
@pytest.mark.parametrize("options", [{}, CPU])
def test_fleets_that_are_set_up_well_pass(nodes: int, options: dict[str, Any]) -> None:
    ruling = CHECK.judge(host_fleet(nodes, 2, **options), Params())
    assert (ruling.findings, ruling.absent, ruling.unjudged) == ((), (), ())
    assert len(ruling.judged) == nodes * (3 if options else 5)
    assert all(entry.passed for entry in ruling.judged)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_node_that_does_not_reach_itself_is_named(nodes: int) -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["has_loopback"] = node != nodes - 1

    (finding,) = judge(nodes, 2, bend, **CPU)
    assert (finding.severity, finding.culprit.nodes) == ("fail", (f"n{nodes - 1}",))
    assert finding.what == f"the loopback interface of node n{nodes - 1} is down"


# Shared memory


def small_shm(environment: str) -> Any:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts |= {"environment": environment, "shm": {"size_bytes": 64 << 20, "free_bytes": 64 << 20}}
        facts["measurements"]["shm_free"] = 0.067

    return bend


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ("docker", "--shm-size=2g"),
        ("podman", "--shm-size=2g"),
        ("kubernetes", "emptyDir with medium: Memory"),
        ("slurm", "remount"),
        ("none", "/etc/fstab"),
        ("another", "/etc/fstab"),
    ],
)
def test_a_small_shm_fails_several_gpus_with_a_remedy_for_the_environment(environment: str, words: str) -> None:
    (finding,) = judge(1, 8, small_shm(environment))
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("n0",))
    assert finding.what.startswith("/dev/shm of node n0 is too small")
    assert finding.measured == "0.067 GB free of 0.0671 GB"
    assert words in finding.action


def test_a_small_shm_only_warns_where_it_is_harmless() -> None:
    for fleet, options in (((1, 1), {}), ((1, 2), CPU), ((4, 1), {}), ((4, 8), CPU)):
        (finding,) = judge(*fleet, small_shm("docker"), **options)
        assert finding.severity == "warn"


def test_a_full_shm_must_be_emptied() -> None:
    (finding,) = judge(2, 8, shrink(shm_free=0.1))
    assert finding.what.startswith("/dev/shm of node n1 is nearly full")
    assert "remove what earlier runs have left" in finding.action


def test_no_shm_at_all() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["shm"] = None
        facts["measurements"]["shm_free"] = None

    (finding,) = judge(1, 8, bend)
    assert finding.what.startswith("node n0 has no /dev/shm")
    assert finding.severity == "fail"


def test_a_thousand_nodes_from_one_image_have_one_mistake() -> None:
    (finding,) = judge(1000, 2, small_shm("kubernetes"))
    assert len(finding.culprit.nodes) == 1000
    assert "nodes n0, n1, n2, n3 and 996 more" in finding.what
    assert len(finding.evidence) == 8


# Memory, files, locked memory, cores


def test_memory_that_may_run_out_warns() -> None:
    (finding,) = judge(2, 8, shrink(memory_available=3.9))
    assert (finding.severity, finding.culprit.nodes) == ("warn", ("n1",))
    assert finding.limit is not None
    assert (finding.limit.value, finding.limit.origin) == (4.0, "host.min_memory_per_rank_gb x 8 on the node")
    assert judge(2, 8, shrink(memory_available=4.0)) == ()


def test_memory_limited_by_a_control_group_has_its_remedy() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["environment"] = "kubernetes"
        facts["cgroup"] |= {"memory_limit_bytes": 2 * 10**9, "memory_left_bytes": 10**9}
        facts["measurements"]["memory_available"] = 1.0

    (finding,) = judge(1, 8, bend, **CPU)
    assert "resources.limits.memory" in finding.action
    assert finding.evidence == ("the control group allows 2 GB",)


def test_the_limit_of_open_files_grows_with_the_world() -> None:
    assert judge(2, 8, shrink(open_files=1024)) == ()
    (finding,) = judge(8, 8, shrink(open_files=1024))
    assert (finding.severity, finding.culprit.nodes) == ("warn", ("n1",))
    assert finding.limit is not None
    assert finding.limit.value == 512 + 16 * 64
    assert "limits.conf" in finding.action


@pytest.mark.parametrize(
    ("reported", "warns"),
    [
        ({"memlock_bytes": 8 << 20}, True),
        ({"memlock_bytes": 2 * 10**9}, False),
        ({"memlock_bytes": None}, False),
        ({"memlock_bytes": 8 << 20, "rdma": []}, False),
        ({"memlock_bytes": 8 << 20, "locks_any": True}, False),
    ],
)
def test_locked_memory_counts_where_there_are_rdma_devices(reported: dict[str, Any], warns: bool) -> None:
    findings = judge(1, 8, lambda node, local_rank, facts: facts.update({"environment": "docker", **reported}))
    assert [finding.severity for finding in findings] == (["warn"] if warns else [])
    assert all("--ulimit memlock=-1" in finding.action for finding in findings)


def cores(masks: list[str], quota: float | None = None) -> Any:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["process"]["affinity"] = masks[local_rank]
        facts["cgroup"]["quota_cores"] = quota

    return bend


@pytest.mark.parametrize(
    ("masks", "quota", "measured"),
    [
        (["0", "0"], None, "1 core in the affinity masks"),
        (["0-7", "0-7"], 1.5, "1.5 cores by the CPU quota of the control group"),
        (["0", "0"], 8.0, "1 core in the affinity masks"),
        (["0", "1"], None, None),
        (["0-1", "0-1"], 2.0, None),
        (["3", "3-4"], 8.0, None),
    ],
)
def test_fewer_than_one_core_a_rank_warns(masks: list[str], quota: float | None, measured: str | None) -> None:
    findings = judge(1, 2, cores(masks, quota), **CPU)
    assert [(finding.severity, finding.measured) for finding in findings] == ([("warn", measured)] if measured else [])


def test_a_mask_that_is_not_known_is_not_judged() -> None:
    assert judge(1, 2, lambda node, rank, facts: facts["process"].update(affinity=None), **CPU) == ()


@pytest.mark.parametrize("mask", [",".join(["0-65535"] * 2), "65536", "0-999999", ",".join(["0"] * 5_000)])
def test_a_mask_that_no_machine_has_is_damage(mask: str) -> None:
    evidence = host_fleet(1, 2, cores([mask, "0-7"]), **CPU)
    assert CHECK.judge(evidence, CHECK.params()).absent == (
        "a readable process of rank 0",
        "process facts of rank 0",
    )


def test_a_mask_of_every_other_core_is_read() -> None:
    mask = ",".join(str(core) for core in range(0, 2_048, 2))
    assert judge(1, 2, cores([mask, mask]), **CPU) == ()


def test_more_choices_of_interfaces_than_there_are_variables_are_damage() -> None:
    choice = {"value": "x", "taken": [], "unknown": [], "has_own": False, "leaves_host": False}
    many = {f"V{number}": choice for number in range(17)}
    evidence = host_fleet(1, 2, lambda node, rank, facts: facts.update(chosen=many), **CPU)
    assert "a readable host of rank 0" in CHECK.judge(evidence, CHECK.params()).absent


# Devices


def test_a_device_in_use_fails_and_is_named() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if (node, local_rank) == (1, 5):
            facts["measurements"]["device_memory_used"] = 21.5

    (finding,) = judge(2, 8, bend)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "device", (13,))
    assert (finding.measured, finding.culprit.nodes) == ("21.5 GB in use", ("n1",))
    assert finding.limit is not None
    assert finding.limit.origin == "1 GB for our own context + host.max_device_used_gb"
    assert judge(2, 8, bend, params=Params(max_device_used_gb=30)) == ()


def test_a_rank_that_repeats_the_memory_in_use_is_one_finding() -> None:
    fleet = host_fleet(1, 1, lambda node, rank, facts: facts["measurements"].update(device_memory_used=21.5))
    (told,) = [entry for entry in fleet.measurements if entry.name == "device_memory_used"]
    ruling = CHECK.judge(replace(fleet, measurements=(*fleet.measurements, *[told] * 50)), Params())
    assert len(ruling.findings) == 1


@pytest.mark.parametrize(("integrated", "used_gb"), [(0, 2.5), (1, None)])
def test_memory_reserved_by_torch_is_not_in_use_by_others(
    integrated: int, used_gb: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a stand-in for a device: this machine has none."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(is_integrated=integrated))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (77 * 10**9, 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 5 * 10**8)
    device = Device(type="cuda", vendor="nvidia", index=3, name="x", backend="nccl", memory_bytes=1, libraries="torch")
    context = FakeContext(check="host", device=device, local_rank=1)
    CHECK.measure(context, Params())
    assert {measurement.name: measurement.value for measurement in context.measurements}.get(
        "device_memory_used"
    ) == used_gb
    assert context.facts[0].value["device_used_known"] == (used_gb is not None)


def test_devices_that_share_the_memory_of_the_host_leave_it_unjudged() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["process"]["device_used_known"] = False
        facts["measurements"]["device_memory_used"] = None

    ruling = CHECK.judge(host_fleet(1, 1, bend), Params())
    assert ruling.findings == ()
    assert ruling.unjudged == ("device memory in use: unknown where a device shares the host's memory",)


# Leftovers


def test_variables_of_another_launcher_are_named() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node != 1:
            facts["leftovers"] = ["RANK", "MASTER_ADDR"]

    (finding,) = judge(3, 2, bend)
    assert (finding.severity, finding.culprit.nodes) == ("warn", ("n0", "n2"))
    assert "has RANK, MASTER_ADDR, which no launcher of this trial has set" in finding.what


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, []),
        ({"MASTER_ADDR": "a", "SEATRIAL_NODE_RANK": "0"}, ["MASTER_ADDR"]),
        ({"MASTER_ADDR": "a", "SEATRIAL_NODE_RANK": "1", "SEATRIAL_NNODES": "2"}, []),
        ({"MASTER_ADDR": "a", "RANK": "7", "SEATRIAL_NODE_RANK": "1", "SEATRIAL_NNODES": "2"}, ["RANK"]),
        ({"RANK": "3", "WORLD_SIZE": "8"}, ["RANK", "WORLD_SIZE"]),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a"}, ["RANK", "WORLD_SIZE", "MASTER_ADDR"]),
        ({"RANK": "x", "WORLD_SIZE": "1", "MASTER_ADDR": "a"}, ["RANK", "WORLD_SIZE", "MASTER_ADDR"]),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, []),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "a"}, []),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "a"}, []),
        ({"PET_NODE_RANK": "1", "PET_NNODES": "2", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, []),
        ({"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "a"}, []),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "RANK": "5", "WORLD_SIZE": "2"}, ["RANK"]),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "RANK": "1", "WORLD_SIZE": "2"}, []),
    ],
)
def test_variables_set_by_the_launcher_are_no_leftovers(environ: dict[str, str], left: list[str]) -> None:
    """For rank 1 of 2."""
    assert leftover_variables(environ, 1, 2) == left


# What is missing


def test_a_node_without_report_is_absent_and_a_dead_one_is_not() -> None:
    fleet = host_fleet(3, 2, dead={rank_of(2, 0, 2), rank_of(2, 1, 2)})
    facts = tuple(fact for fact in fleet.facts if fact.rank != 2)
    ruling = CHECK.judge(
        type(fleet)(ranks=fleet.ranks, asked=fleet.asked, measurements=fleet.measurements, facts=facts), Params()
    )
    assert ruling.absent == ("process facts of rank 2", "host facts of node n1")
    assert ruling.findings == ()
    assert CHECK.judge(host_fleet(1, 1, dead={0}), Params()).absent == ("any rank that finished",)


def test_a_node_whose_first_rank_died_is_absent() -> None:
    assert CHECK.judge(host_fleet(2, 2, dead={2}), Params()).absent == ("host facts of node n1",)


def test_agents_on_one_network_reach_each_other_under_any_hostname() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["process"]["network"] = "the same"
        facts |= {"name": {"name": "n", "addresses": ["127.0.1.1"], "own": "127.0.1.1"}, "mtu": 1500 + node}

    (finding,) = judge(2, 1, bend, **CPU)
    assert finding.severity == "info"


@pytest.mark.parametrize("repeated", ["network", "machine"])
def test_a_host_that_repeats_the_network_of_another_one_hides_nothing(repeated: str) -> None:
    """The controller knows that they are two hosts."""

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["process"][repeated] = facts["process"]["network"] = "the same"
        if node == 0:
            facts["name"] = {"name": "n0", "addresses": ["127.0.1.1"], "own": "127.0.1.1"}

    told = replace(host_fleet(2, 1, bend, **CPU), places_of_nodes={0: "10.0.0.1", 1: "10.0.0.2"})
    (finding,) = CHECK.judge(told, Params()).findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("n0",))


@pytest.mark.parametrize("nodes", [1, 2])
def test_agents_of_one_rank_each_on_one_machine_are_one_node(nodes: int) -> None:
    """Its ranks share the memory, and a name that resolves to the loopback harms only from the second node on."""

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["name"]["own"] = "127.0.1.1"
        facts["measurements"]["memory_available"] = 1.0

    memory, name = judge(nodes, 8, bend, agent_per_rank=True)
    assert memory.limit is not None
    assert memory.limit.value == 4.0
    assert name.severity == ("info" if nodes == 1 else "warn")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"min_shm_gb": -1}, "min_shm_gb is -1"),
        ({"resolve_timeout_s": 40}, "resolve_timeout_s is 40; it must be above 0 and fit into timeout_s, 30 s"),
        ({"resolve_timeout_s": 0}, "resolve_timeout_s is 0"),
    ],
)
def test_invalid_values_are_refused(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Params(**params)


@pytest.mark.parametrize("local_rank", [0, 1])
def test_the_facts_about_this_machine(local_rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nothing0")
    monkeypatch.setenv("WORLD_SIZE", "7")
    context = FakeContext(check="host", device=open_device("cpu", 0, 1), local_rank=local_rank, clock=(1.5, 0.25))
    CHECK.measure(context, Params())
    names = [fact.name for fact in context.facts]
    measurements = {measurement.name: measurement.value for measurement in context.measurements}
    if local_rank:
        assert (names, measurements) == (["process"], {})
        return
    assert names == ["process", "host"]
    facts = context.facts[1].value
    assert measurements["clock_offset"] == 1.5
    assert facts["clock"] == [1.5, 0.25]
    assert measurements["memory_available"] > 0
    assert (facts["interface"], facts["mtu"]) == (None, None), "the loopback leads to no other node"
    assert "WORLD_SIZE" in facts["leftovers"]
    gloo, nccl = facts["chosen"]["GLOO_SOCKET_IFNAME"], facts["chosen"]["NCCL_SOCKET_IFNAME"]
    assert (gloo["taken"], gloo["unknown"], gloo["leaves_host"]) == (["lo"], ["nothing0"], False)
    assert "lo" not in nccl["taken"]
