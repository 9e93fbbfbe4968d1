"""The judge of the diagnostics, on histories of nodes: what fails, what warns, and what healthy machines show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seatrial.checks.diagnostics.history import histories
from seatrial.checks.diagnostics.judge import judge
from seatrial.checks.diagnostics.params import Params
from seatrial.devices.kernel_log import parse
from seatrial.devices.plain_json import to_json
from seatrial.devices.state import DeviceState, DeviceWindow, KernelEvent, NetworkPort, NodeState, NodeWindow
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact

# Totals as healthy machines show them: an H100 has 106 to 150 replays, an idle A10G generation 1 of 4, and an H100 NVL
# 12 of 18 links (NVIDIA/k8s-test-infra hardware captures; Azure/azurehpc-health-checks issue 142).
HEALTHY = DeviceState(
    vendor="nvidia",
    index=0,
    uuid="GPU-0",
    bus="0000:17:00",
    model="NVIDIA H100 NVL",
    temperature_c=30,
    margin_k=60,
    counters={"pcie_replays": 150, "ecc_corrected": 99, "rows_remapped_corrected": 3, "rows_remapped_uncorrected": 1},
    pcie_generation=1,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    nvlinks=18,
    nvlinks_active=12,
    fabric_state="completed",
    recovery_action="none",
)
QUIET = DeviceWindow(
    uuid="GPU-0", samples=10, utilization_percent=95, temperature_max_c=60, pcie_generation=5, pcie_width=16
)


def rule(
    *nodes: tuple[NodeState, tuple[NodeWindow, ...]],
    ranks: dict[int, RankRecord] | None = None,
    last: NodeState | None = None,
    places: dict[int, str] | None = None,
) -> Ruling:
    """Return the ruling about nodes, each with its first snapshot and its steps.

    ``last``: the last snapshot; like the first one if None.
    """
    facts = list[Fact]()
    for node_rank, (before, windows) in enumerate(nodes):
        values = [("before", before), *(("window", window) for window in windows), ("after", last or before)]
        facts += [
            Fact(check="diagnostics", name=name, value=to_json(value), node_rank=node_rank) for name, value in values
        ]
    names = {node_rank: f"gpu-{node_rank:02d}" for node_rank in range(len(nodes))}
    evidence = Evidence(
        ranks=ranks or {}, asked=(), measurements=(), facts=tuple(facts), nodes=names, places_of_nodes=places or {}
    )
    return judge(evidence, Params())


def one(before: DeviceState = HEALTHY, events: tuple[KernelEvent, ...] = (), **changes: Any) -> list[tuple[str, str]]:
    """Return severity and text of the findings about one device that changes in ``compute``, 60 s."""
    window = NodeWindow(
        check="compute", seconds=60, devices=(replace(QUIET, uuid=before.uuid, **changes),), kernel_events=events
    )
    ruling = rule((NodeState(devices=(before,), kernel_events=()), (window,)))
    return [(finding.severity, finding.what) for finding in ruling.findings]


def logged(*lines: str) -> tuple[KernelEvent, ...]:
    return tuple(event for line in lines if (event := parse(line)))


def test_a_healthy_machine_has_no_finding() -> None:
    assert one() == []
    assert one(risen={"ecc_corrected": 500, "rows_remapped_corrected": 1, "pcie_replays": 3}) == []
    assert one(throttled_ns={"power_cap": 60_000_000_000}) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"risen": {"ecc_uncorrected": 1}}, "counted 1 uncorrectable memory errors (ECC) in compute"),
        ({"risen": {"nvlink_recoveries": 2}}, "counted 2 recoveries of NVLinks in compute"),
        ({"risen": {"nvlink_replays": 1}}, "counted 1 replays of NVLinks in compute"),
        ({"risen": {"nvlink_crc_errors": 6000}}, "6000 CRC errors of NVLinks in compute"),
        ({"risen": {"nvlink_effective_errors": 1}}, "counted 1 errors of NVLinks that their error correction left"),
        ({"problem": "lost"}, "was lost in compute"),
        ({"problem": "reset required"}, "stopped working in compute: reset required"),
        ({"nvlinks_lost": 1}, "lost 1 NVLink in compute"),
        ({"broken": ("row_remap_failure",)}, "a memory row could not be remapped (in compute)"),
        ({"recovery_action": "drain and reset"}, "needs a recovery, by its driver: drain and reset (in compute)"),
    ],
)
def test_what_fails_a_device(changes: dict[str, Any], words: str) -> None:
    ((severity, what),) = one(**changes)
    assert severity == "fail"
    assert what.startswith("GPU 0 (NVIDIA H100 NVL, 0000:17:00) of node gpu-00 ")
    assert words in what


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"risen": {"nvlink_crc_errors": 5999}}, "5999 CRC errors of NVLinks"),
        ({"risen": {"nvlink_symbol_errors": 9}}, "9 symbol errors of NVLinks"),
        ({"risen": {"pcie_replays": 9}}, "9 PCIe replays"),
        ({"temperature_max_c": 86}, "reached 86 degrees"),
        ({"throttled_ns": {"power_brake": 7_100_000_000}}, "(HW power brake) for 7.1 of 60.0 s in compute"),
        ({"throttled_share": {"hw_slowdown": 0.5}}, "(HW slowdown) for 30.0 of 60.0 s"),
        ({"pcie_width": 8}, "used 8 of 16 PCIe lanes under load"),
        ({"pcie_generation": 2}, "used PCIe generation 2 of 5 under load"),
        ({"broken": ("fabric_route_recovery",)}, "recovers a route"),
        ({"recovery_action": "recover imex"}, "recover imex"),
    ],
)
def test_what_warns(changes: dict[str, Any], words: str) -> None:
    ((severity, what),) = one(**changes)
    assert severity == "warn"
    assert words in what


@pytest.mark.parametrize(
    ("last", "found"),
    [(12, []), (13, []), (11, ["lost 1 NVLink by the end of the trial"]), (0, ["lost 12 NVLinks by the"])],
)
def test_a_link_that_is_lost_while_its_state_is_unknown_is_found(last: int, found: list[str]) -> None:
    """The snapshots at both ends of a step differ in no number if one of them has none."""
    step = NodeWindow(check="compute", seconds=60, devices=(QUIET,))
    after = NodeState(devices=(replace(HEALTHY, nvlinks_active=last),))
    ruling = rule((NodeState(devices=(HEALTHY,)), (step,)), last=after)
    assert [finding.severity for finding in ruling.findings] == ["fail"] * len(found)
    assert all(words in finding.what for words, finding in zip(found, ruling.findings, strict=True))


def test_links_that_nobody_could_read_at_the_end_are_no_pass() -> None:
    """That one command may have had no process or no time."""
    step = NodeWindow(check="compute", seconds=60, devices=(QUIET,))
    after = NodeState(devices=(replace(HEALTHY, nvlinks_active=None),))
    ruling = rule((NodeState(devices=(HEALTHY,)), (step,)), last=after)
    (finding,) = ruling.findings
    assert finding.severity == "warn"
    assert finding.what.endswith(" no longer says its active NVLinks (no reason given)")
    assert len(ruling.unjudged) == 1
    assert "GPU 0 of node gpu-00" in ruling.unjudged[0]


@pytest.mark.parametrize(("after", "unread"), [({"0-1": "NV18"}, False), ({}, True)])
def test_a_table_of_connections_that_is_missing_at_the_end_is_no_pass(after: dict[str, str], unread: bool) -> None:
    devices = tuple(replace(HEALTHY, index=index, uuid=f"GPU-{index}", nvlinks_active=None) for index in (0, 1))
    step = NodeWindow(check="compute", seconds=60, devices=(QUIET,))
    before = NodeState(devices=devices, topology={"0-1": "NV18"})
    ruling = rule((before, (step,)), last=NodeState(devices=devices, topology=after))
    assert any("the NVLinks of node gpu-00" in words for words in ruling.unjudged) == unread


def test_a_temperature_without_a_threshold_of_the_device() -> None:
    unknown = replace(HEALTHY, margin_k=None)
    assert one(unknown, temperature_max_c=85) == []
    assert [severity for severity, _ in one(unknown, temperature_max_c=86)] == ["warn"]
    # The threshold of the device counts alone: this one may reach 94.
    assert one(replace(HEALTHY, slowdown_c=100), temperature_max_c=94) == []


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus", "fail"),
        ("NVRM: Xid (PCI:0000:17:00): 48, pid=1, DBE", "fail"),
        ("NVRM: Xid (PCI:0000:17:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No", "fail"),
        ("NVRM: Xid (PCI:0000:17:00): 172, pid=1, SRAM", "fail"),
        ("NVRM: Xid (PCI:0000:17:00): 65, pid=1, unused", "warn"),
        ("NVRM: Xid (PCI:0000:17:00): 119, pid=1, Timeout", "fail"),
        ("NVRM: Xid (PCI:0000:17:00): 145, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)", "fail"),
        ("NVRM: Xid (PCI:0000:17:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)", "warn"),
        ("NVRM: Xid (PCI:0000:17:00): 31, pid=1, MMU fault", "warn"),
        ("NVRM: Xid (PCI:0000:17:00): 9999, pid=1, newer than the table", "warn"),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20009, Fatal, Link 32", "fail"),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32", "warn"),
        ("NVRM: Xid (PCI:0000:17:00): 63, pid=1, row remapped", None),
        ("NVRM: Xid (PCI:0000:17:00): 45, pid=1, Ch 1 caused by previous Xid 149", None),
    ],
)
def test_each_xid_has_the_severity_of_its_action(line: str, severity: str | None) -> None:
    assert [found for found, _ in one(events=logged(line))] == ([severity] if severity else [])


def test_old_lines_of_the_log_are_no_findings() -> None:
    (event,) = logged("NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus")
    assert one(events=(replace(event, old=True),)) == []


def test_the_log_says_why_a_device_was_lost() -> None:
    events = logged(
        "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus",
        "NVRM: Xid (PCI:0000:17:00): 45, pid=1, Ch 1 caused by previous Xid 79",
    )
    ((severity, what),) = one(events=events, problem="lost")
    assert (severity, "was lost in compute" in what) == ("fail", True)


def test_an_xid_that_follows_on_another_device_is_evidence_for_the_first() -> None:
    other = replace(HEALTHY, index=1, uuid="GPU-1", bus="0000:18:00")
    events = logged(
        "NVRM: Xid (PCI:0000:17:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x026001c6 0x00000000)",
        "NVRM: Xid (PCI:0000:18:00): 45, pid=1, Ch 1 caused by previous Xid 149",
    )
    window = NodeWindow(check="compute", seconds=60, devices=(QUIET,), kernel_events=events)
    (finding,) = rule((NodeState(devices=(HEALTHY, other)), (window,))).findings
    assert finding.culprit.name.startswith("GPU 0 ")
    assert finding.evidence == tuple(event.text for event in events)


def test_more_lines_of_the_kernel_log_than_there_can_be_are_absent() -> None:
    events = tuple(KernelEvent(kind="sxid", bus=f"{number:04x}:00:00", text="") for number in range(1_001))
    for count, absent in (
        (1_000, ()),
        (1_001, ("1 of 1001 lines of the kernel log of node gpu-00: they are too many",)),
    ):
        window = NodeWindow(check="compute", seconds=60, devices=(QUIET,), kernel_events=events[:count])
        ruling = rule((NodeState(devices=(HEALTHY,)), (window,)))
        assert (len(ruling.findings), ruling.absent) == (1_000, absent)


def test_the_log_of_a_device_outside_this_container() -> None:
    line = "NVRM: Xid (PCI:0000:99:00): 79, pid=1, GPU has fallen off the bus"
    ((severity, what),) = one(events=logged(line))
    assert severity == "warn"
    assert what.startswith("the kernel logged XID 79 of GPU 0000:99:00 of node gpu-00 in compute")
    assert what.endswith("; no rank used it")
    # Where the driver names no address of any device, nobody knows whose it is.
    assert [severity for severity, _ in one(replace(HEALTHY, bus=""), events=logged(line))] == ["fail"]


def test_a_subcode_that_accuses_the_link_partner() -> None:
    line = "NVRM: Xid (PCI:0000:17:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x02100000 0x00000000)"
    window = NodeWindow(check="compute", seconds=60, devices=(QUIET,), kernel_events=logged(line))
    (finding,) = rule((NodeState(devices=(HEALTHY,)), (window,))).findings
    assert finding.culprit.name.startswith("the device at the other end of NVLink 7 of GPU 0 ")


def test_a_device_that_no_rank_used_is_no_failure() -> None:
    other = replace(HEALTHY, index=1, uuid="GPU-1", bus="0000:18:00", broken=("row_remap_failure",))
    state = NodeState(devices=(HEALTHY, other), visible=("GPU-0",))
    (finding,) = rule((state, ())).findings
    assert (finding.severity, "no rank used it" in finding.what) == ("warn", True)
    (finding,) = rule((replace(state, visible=None), ())).findings
    assert finding.severity == "fail"


def test_the_rank_that_used_a_device_is_named() -> None:
    rank = RankRecord(
        rank=5, node="gpu-00", node_rank=0, local_rank=0, device="NVIDIA H100 NVL", kind="", device_id="0000:17:00"
    )
    state = NodeState(devices=(replace(HEALTHY, broken=("sram_threshold",)),))
    (finding,) = rule((state, ()), ranks={5: rank}).findings
    assert finding.culprit.ranks == (5,)


def test_a_rank_has_the_device_of_its_identity_not_of_its_number() -> None:
    """The ranks number devices as CUDA does, fastest first, or as CUDA_VISIBLE_DEVICES orders them."""
    devices = [replace(HEALTHY, index=number, uuid=f"GPU-{number}", bus=f"0000:{number:02x}:00") for number in range(3)]
    devices[2] = replace(devices[2], broken=("sram_threshold",))
    ranks = {
        rank: RankRecord(
            rank=rank,
            node="gpu-00",
            node_rank=0,
            local_rank=rank,
            device="NVIDIA H100 NVL",
            kind="",
            device_id=identity,
        )
        for rank, identity in enumerate(["GPU-2", "0000:01:00.0"])
    }
    (finding,) = rule((NodeState(devices=tuple(devices)), ()), ranks=ranks).findings
    assert (finding.severity, finding.culprit.ranks, finding.culprit.name[:5]) == ("fail", (0,), "GPU 2")


def joined(*identities: str, broken: int, before: NodeState | None = None, nodes: int = 1) -> Ruling:
    """Return the ruling about a machine on which each rank has a separate agent (torchrun, mpirun, srun).

    Its first agent reports the devices of all. ``nodes``: names of machines whose agents were asked.
    """
    devices = [replace(HEALTHY, index=number, uuid=f"GPU-{number}", bus=f"0000:{number:02x}:00") for number in range(2)]
    devices[broken] = replace(devices[broken], broken=("sram_threshold",))
    state = replace(before or NodeState(), devices=tuple(devices))
    facts = tuple(
        Fact(check="diagnostics", name=name, value=to_json(state), node_rank=0) for name in ("before", "after")
    )
    ranks = {
        rank: RankRecord(
            rank=rank, node="gpu-00", node_rank=rank, local_rank=rank, device="H100", kind="", device_id=identity
        )
        for rank, identity in enumerate(identities)
    }
    names = dict.fromkeys(ranks, "gpu-00") | {len(ranks) + number: f"gpu-{number:02d}" for number in range(1, nodes)}
    return judge(Evidence(ranks=ranks, asked=(), measurements=(), facts=facts, nodes=names), Params())


def test_where_each_rank_has_an_agent_the_devices_of_all_ranks_are_used() -> None:
    """The first agent of a machine reports the devices, and knows of its own rank only."""
    (finding,) = joined("0000:00:00", "0000:01:00", broken=1).findings
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))
    # A torch that does not say its device: each agent may have another variable, so all devices count.
    for identities in (("", ""), ("0000:00:00", "")):
        (finding,) = joined(*identities, broken=1, before=NodeState(visible=("GPU-0",))).findings
        assert finding.severity == "fail"


def test_a_device_that_its_agent_does_not_see_is_no_full_pass() -> None:
    """Slurm may show each task its own device only: nobody watches those of the others."""
    ruling = joined("0000:00:00", "0000:77:00", broken=0)
    assert ruling.unjudged == ("GPU diagnostics of the device of rank 1 on node gpu-00 not checked",)


def test_identities_that_no_driver_knows_are_not_missed() -> None:
    """An older torch tells UUIDs only, and of a slice (MIG) its driver has another one."""
    assert joined("MIG-0", "MIG-1", broken=0).unjudged == ()


def test_two_containers_of_one_name_watch_their_own_devices() -> None:
    facts, ranks = list[Fact](), dict[int, RankRecord]()
    for node in range(2):
        bus = f"0000:{node:02x}:00"
        state = NodeState(devices=(replace(HEALTHY, uuid=f"GPU-{node}", bus=bus, broken=("sram_threshold",) * node),))
        facts += [
            Fact(check="diagnostics", name=name, value=to_json(state), node_rank=node) for name in ("before", "after")
        ]
        ranks[node] = RankRecord(
            rank=node, node="gpu-00", node_rank=node, local_rank=0, device="H100", kind="", device_id=bus
        )
    names = dict.fromkeys(ranks, "gpu-00")
    ruling = judge(Evidence(ranks=ranks, asked=(), measurements=(), facts=tuple(facts), nodes=names), Params())
    assert [(finding.severity, finding.culprit.ranks) for finding in ruling.findings] == [("fail", (1,))]
    assert ruling.unjudged == ()


def test_a_machine_that_reported_nothing_is_no_full_pass() -> None:
    assert not joined("0000:00:00", "0000:01:00", broken=0).unjudged
    ruling = joined("0000:00:00", "0000:01:00", broken=0, nodes=2)
    assert ruling.unjudged == ("GPU diagnostics of gpu-01 not checked",)


def test_a_device_that_hardly_worked_in_training() -> None:
    def node(number: int, percent: float) -> tuple[NodeState, tuple[NodeWindow, ...]]:
        device = replace(HEALTHY, uuid=f"GPU-{number}")
        window = replace(QUIET, uuid=device.uuid, utilization_percent=percent)
        return NodeState(devices=(device,)), (NodeWindow(check="training", seconds=20, devices=(window,)),)

    (finding,) = rule(node(0, 90), node(1, 95), node(2, 40)).findings
    assert (finding.severity, finding.culprit.nodes, finding.measured) == ("warn", ("gpu-02",), "40 %")
    assert not rule(node(0, 90), node(1, 95), node(2, 50)).findings


def test_fewer_links_than_other_devices_of_the_model() -> None:
    devices = [replace(HEALTHY, index=number, uuid=f"GPU-{number}", nvlinks_active=12) for number in range(4)]
    devices[2] = replace(devices[2], nvlinks_active=11)
    (finding,) = rule((NodeState(devices=tuple(devices)), ())).findings
    assert (finding.severity, finding.culprit.name[:5], finding.measured) == ("warn", "GPU 2", "11")
    assert not rule((NodeState(devices=tuple(devices[1:3])), ())).findings


def test_a_host_with_many_names_is_not_most_of_the_devices() -> None:
    """It joined from one place, so its devices have one vote together."""

    def node(number: int, **changes: Any) -> tuple[NodeState, tuple[NodeWindow, ...]]:
        return NodeState(devices=(replace(HEALTHY, uuid=f"GPU-{number}", **changes),)), ()

    for field, value in (("nvlinks_active", 18), ("fabric_clique", "ab.7"), ("power_limit_w", 300.0)):
        usual = {"nvlinks_active": 12, "fabric_clique": "ab.1", "power_limit_w": 310.0}[field]
        nodes = [node(number, **{field: value if number < 4 else usual}) for number in range(6)]
        odd, honest = {f"gpu-{number:02d}" for number in range(4)}, {"gpu-04", "gpu-05"}
        named = {name for finding in rule(*nodes).findings for name in finding.culprit.nodes}
        assert named == honest, "with a place each, four are most of them"
        together = rule(*nodes, places=dict.fromkeys(range(4), "10.0.0.1")).findings
        named = {name for finding in together for name in finding.culprit.nodes}
        assert named <= odd


def test_what_could_not_be_read_is_listed_and_no_pass() -> None:
    ruling = rule((NodeState(not_checked={"NVIDIA devices": "NVML: the driver is not loaded (code 9)"}), ()))
    assert ruling.unjudged == ("GPU diagnostics of gpu-00 not checked",)
    (finding,) = ruling.findings
    assert finding.what == 'not checked: NVIDIA devices of gpu-00 ("NVML: the driver is not loaded (code 9)")'
    refused = replace(HEALTHY, unavailable={"serial": "not permitted", "margin_k": "not supported"})
    (finding,) = rule((NodeState(devices=(refused,), not_checked={}), ())).findings
    assert finding.what == 'not checked: serial of GPU 0 of node gpu-00 ("not permitted")'


def test_a_machine_without_devices_has_no_line() -> None:
    assert rule((NodeState(), ())).not_applicable == "no node has a GPU"


def test_one_machine_of_two_nodes_is_judged_once() -> None:
    broken = NodeState(devices=(replace(HEALTHY, broken=("row_remap_failure",)),))
    facts = tuple(
        Fact(check="diagnostics", name=name, value=to_json(broken), node_rank=node)
        for node in (0, 1)
        for name in ("before", "after")
    )
    names = {0: "gpu-00", 1: "gpu-00"}
    ruling = judge(Evidence(ranks={}, asked=(), measurements=(), facts=facts, nodes=names), Params())
    assert len(ruling.findings) == 1


def test_facts_of_a_liar_are_missing_facts() -> None:
    fact = Fact(check="diagnostics", name="before", value={"devices": 5}, node_rank=0)
    ruling = judge(Evidence(ranks={}, asked=(), measurements=(), facts=(fact,), nodes={0: "a"}), Params())
    assert ruling.absent


@pytest.mark.parametrize("name", ["before", "window"])
def test_one_device_twice_is_no_readable_state(name: str) -> None:
    """Each of thousands of devices would be compared with thousands of windows of the same UUID."""
    twice = {"before": NodeState(devices=(HEALTHY,) * 2), "window": NodeWindow(check="x", devices=(QUIET,) * 2)}
    fact = Fact(check="diagnostics", name=name, value=to_json(twice[name]), node_rank=0)
    ruling = judge(Evidence(ranks={}, asked=(), measurements=(), facts=(fact,), nodes={0: "a"}), Params())
    assert ruling.absent == ("a readable state of the devices of a (devices: two have one UUID)",)


def test_the_report_keeps_the_nodes_that_can_be_read() -> None:
    facts = [Fact(check="diagnostics", name="before", value=to_json(NodeState(devices=(HEALTHY,))), node_rank=0)]
    facts.append(Fact(check="diagnostics", name="before", value={"devices": 5}, node_rank=1))
    nodes, unread = histories(tuple(facts), {}, {0: "gpu-00", 1: "gpu-01"})
    assert ([history.node for history in nodes], unread) == (["gpu-00"], {1: "devices: not as it must be"})


@pytest.mark.parametrize("name", ["before", "window", "after"])
def test_facts_of_a_liar_hide_no_fault_of_another_node(name: str) -> None:
    broken = NodeState(devices=(replace(HEALTHY, broken=("row_remap_failure",)),))
    facts = [Fact(check="diagnostics", name=which, value=to_json(broken), node_rank=0) for which in ("before", "after")]
    facts.append(Fact(check="diagnostics", name=name, value={"devices": 5}, node_rank=1))
    nodes = {0: "gpu-00", 1: "gpu-01"}
    ruling = judge(Evidence(ranks={}, asked=(), measurements=(), facts=tuple(facts), nodes=nodes), Params())
    assert [finding.culprit.nodes for finding in ruling.findings if finding.severity == "fail"] == [("gpu-00",)]
    assert any(what.startswith("a readable state of the devices of gpu-01") for what in ruling.absent)


def test_a_node_without_a_last_state_is_no_full_pass() -> None:
    before = to_json(NodeState(devices=(HEALTHY,), not_checked={}))
    facts = (Fact(check="diagnostics", name="before", value=before, node_rank=0),)
    ruling = judge(Evidence(ranks={}, asked=(), measurements=(), facts=facts, nodes={0: "gpu-00"}), Params())
    assert [finding.severity for finding in ruling.findings] == ["warn"]
    assert ruling.unjudged == ("GPU diagnostics of gpu-00 not checked",)


def test_a_device_in_another_clique_of_its_fabric() -> None:
    devices = [replace(HEALTHY, uuid=f"GPU-{index}", index=index, fabric_clique="ab.1") for index in range(4)]
    assert rule((NodeState(devices=tuple(devices)), ())).findings == ()
    devices[2] = replace(devices[2], fabric_clique="ab.7")
    (finding,) = rule((NodeState(devices=tuple(devices)), ())).findings
    assert finding.severity == "warn"
    assert "GPU 2 " in finding.what
    assert "is in clique 7 of its NVLink fabric, and most others are in 1" in finding.what


def test_a_device_in_exclusive_mode_that_is_in_use() -> None:
    busy = replace(HEALTHY, compute_mode="exclusive process", processes=(77,))
    ((severity, what),) = one(busy)
    assert severity == "warn"
    assert "its compute mode leaves it to one program (exclusive process)" in what
    assert one(replace(busy, processes=())) == []


def test_a_port_that_goes_down_or_counts_errors_is_named_with_its_node() -> None:
    window = NodeWindow(
        check="collectives",
        seconds=60,
        ports={"mlx5_0/1": {"symbol_error": 7}, "mlx5_1/1": {"port_rcv_errors": 3}},
        ports_down=("mlx5_2/1",),
    )
    findings = rule((NodeState(devices=(HEALTHY,), kernel_events=()), (window,))).findings
    named = {finding.culprit.name: (finding.severity, finding.culprit.nodes) for finding in findings}
    assert named.keys() == {f"port mlx5_{number}/1 of node gpu-00" for number in range(3)}
    assert named["port mlx5_2/1 of node gpu-00"] == ("fail", ("gpu-00",))
    (counted,) = (finding.what for finding in findings if "mlx5_0" in finding.what)
    assert "counted 7 symbol errors" in counted
    assert "collectives" in counted
    assert all("transceiver" in finding.action for finding in findings)


def test_a_port_of_another_container_fails_nobody() -> None:
    """A neighbor that ends, or stops its interface, takes its port down in the view of each container there."""
    ports = tuple(NetworkPort(name=f"mlx5_{number}/1", state="ACTIVE", usable=number == 0) for number in range(3))
    window = NodeWindow(
        check="training", seconds=60, ports={"mlx5_1/1": {"link_downed": 1}}, ports_down=("mlx5_0/1", "mlx5_2/1")
    )
    findings = rule((NodeState(devices=(HEALTHY,), ports=ports), (window,))).findings
    assert {
        finding.culprit.name[:13]: (finding.severity, "no rank can open it" in finding.what) for finding in findings
    } == {"port mlx5_0/1": ("fail", False), "port mlx5_1/1": ("warn", True), "port mlx5_2/1": ("warn", True)}


def test_the_name_of_a_port_is_no_sentence_of_ours() -> None:
    words = "mlx5_2/1 of node gpu-7 is broken, as is"
    window = NodeWindow(check="training", ports={words: {words: 1}}, ports_down=(words,))
    for finding in rule((NodeState(devices=(HEALTHY,)), (window,))).findings:
        assert finding.what.replace(f'"{words}"', "").find(words) < 0


def test_a_port_that_goes_down_in_many_steps_is_one_finding() -> None:
    window = NodeWindow(check="collectives", seconds=60, ports_down=("mlx5_2/1",))
    (finding,) = rule((NodeState(devices=(HEALTHY,), kernel_events=()), (window,) * 50)).findings
    assert finding.severity == "fail"
    assert finding.what.endswith(", and again in 49 later steps")


@pytest.mark.parametrize(
    ("devices", "windows", "what"),
    [
        (1, (NodeWindow(check="c", ports_down=tuple(f"{port:x}" for port in range(300))),), "ports: 300"),
        (1, tuple(NodeWindow(check="c", ports_down=(f"{port:x}",)) for port in range(300)), "ports: 300"),
        (200, (), "devices: 200"),
        (1, (NodeWindow(check="c"),) * 5_000, "steps: 5000"),
    ],
)
def test_more_than_a_machine_has_is_damage_of_its_node(
    devices: int, windows: tuple[NodeWindow, ...], what: str
) -> None:
    """Each may become a finding, and one node must not fill the memory of the controller with them."""
    state = NodeState(devices=tuple(replace(HEALTHY, index=index, uuid=f"GPU-{index}") for index in range(devices)))
    broken = replace(HEALTHY, uuid="GPU-x", problem="fell off the bus")
    ruling = rule((state, windows), (NodeState(devices=(broken,)), ()))
    (absent,) = [each for each in ruling.absent if "readable state" in each]
    assert "gpu-00" in absent
    assert what in absent
    # The others are judged all the same.
    assert any("gpu-01" in finding.culprit.name for finding in ruling.findings)


def test_many_values_that_could_not_be_read_are_counted() -> None:
    device = replace(HEALTHY, unavailable={f"value {number}": f"error {number}" for number in range(200)})
    findings = rule((NodeState(devices=(device,), kernel_events=()), ())).findings
    assert len(findings) == 65
    assert "136 more values" in findings[-1].what
