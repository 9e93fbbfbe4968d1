"""Trials in which one real check finds a fault: its evidence, made up by the tests of its judge, as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from checks.simulated_hosts import host_fleet
from checks.simulated_links import SimulatedCluster, slow_node
from checks.simulated_network import network_evidence
from checks.test_check_memory import ONE, reading
from checks.test_check_memory import fact as memory_fact
from checks.test_check_memory import fleet as memory_fleet
from checks.test_collectives_judge import SMALL, corrupted
from checks.test_diagnostics_judge import HEALTHY, QUIET, logged
from checks.test_storage_judge import fact as storage_fact
from checks.test_storage_judge import fleet as storage_fleet
from event_streams import Stream, on_gpus

from seatrial.checks import registry
from seatrial.devices.plain_json import to_json
from seatrial.devices.state import NodeState, NodeWindow
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.plan.model import Setting
from seatrial.plan.plan_reader import read_plan

PLAN = "accept.toml"
"""A plan file with a folder for checkpoints."""
TWO, FOUR = ("gpu-0", "gpu-1"), ("gpu-0", "gpu-1", "gpu-2", "gpu-3")


def trial_of(
    check: str, evidence: Evidence, world_size: int, hosts: tuple[str, ...], plan: str = "standard", **settings: Any
) -> Stream:
    """Return a trial of this one check, of a real level, in which nodes and ranks reported that evidence.

    ``settings``: parameters of the check, from ``plan``.
    """
    typed = ("--on", "ssh", "--hosts", ",".join(hosts), "--only", check)
    level = read_plan("standard", schemas=registry.schemas(), scopes=registry.scopes(), only=[check])
    given = {name: Setting(value=value, origin=f"plan {plan}") for name, value in settings.items()}
    chosen = replace(level, name=plan, settings={**level.settings, check: {**level.settings[check], **given}})
    stream = on_gpus(Stream(world_size, nodes=len(hosts), plan=chosen), *typed)
    for name in chosen.checks:
        add_check(stream, name, formed(world_size) if name == "bootstrap" else evidence)
    return stream.close()


def add_check(stream: Stream, check: str, evidence: Evidence) -> None:
    """Let each rank or node report that evidence, in the stages of the check."""
    entries: tuple[Measurement | Fact, ...] = (*evidence.measurements, *evidence.facts)
    stages = [stage.name for stage in registry.load(check).stages]
    for stage in dict.fromkeys([*stages, *(entry.stage for entry in entries)]):
        _step(stream, check, stage, [entry for entry in entries if entry.stage == stage], evidence.rounds)


def formed(world_size: int) -> Evidence:
    """Return what bootstrap measures where all ranks have formed their group."""
    form = partial(Measurement, check="bootstrap", name="form_s", value=1.5, unit="s", better="low", stage="world")
    measurements = tuple(form(rank=rank) for rank in range(world_size))
    return Evidence(ranks={}, asked=(), measurements=measurements, facts=())


def _step(stream: Stream, check: str, stage: str, entries: list[Measurement | Fact], rounds: Mapping[str, Any]) -> None:
    """Let each rank or node report its entries in a step of its own, and finish it."""
    is_of_agents = registry.load(check).scope == "agents"
    everybody = range(stream.nodes) if is_of_agents else stream.alive
    step = stream.begin(check, stage)
    begun = stream.events[-1]
    if is_of_agents:
        begun |= {"ranks": [], "nodes": list(everybody)}
    if stage in rounds:
        begun["round"] = rounds[stage]
    for number in everybody:
        source = f"node{number}" if is_of_agents else stream.of(number)
        own = [entry for entry in entries if number == _origin(entry, is_of_agents)]
        for kind, cls in (("measurements", Measurement), ("facts", Fact)):
            if rows := [entry.to_json() for entry in own if isinstance(entry, cls)]:
                stream.send(source, kind, gen=0, step=step, **{kind: rows})
        if is_of_agents:
            stream.send(source, "node_done", gen=0, step=step, seconds=0.5, share=[], error="")
        else:
            stream.done(number)
    stream.step_end()


def _origin(entry: Measurement | Fact, is_of_agents: bool) -> int | None:
    """Return the rank that reported it, or the node."""
    return entry.node_rank if is_of_agents and isinstance(entry, Fact) else entry.rank


def closed_ports() -> Stream:
    """A firewall of one node lets nobody in."""
    evidence = network_evidence(4, lambda source, target: "no answer" if target == 2 else None, hostnames=FOUR)
    return trial_of("network", evidence, 4, FOUR)


def slow_cable() -> Stream:
    """What one node sends and receives has a tenth of the rate."""
    return _links(SimulatedCluster(nodes=4, slow=slow_node(2, 0.1)))


def dead_cable() -> Stream:
    """Between two of four nodes nothing comes through."""
    return _links(SimulatedCluster(nodes=4, slow={(0, 3): 0.0, (3, 0): 0.0}))


def _links(cluster: SimulatedCluster) -> Stream:
    evidence, next_round = cluster.evidence(), registry.load("links").next_round
    assert next_round is not None
    while (asked := next_round(evidence, registry.load("links").params())) is not None:
        evidence = cluster.answer(evidence, asked[1])
    return trial_of("links", evidence, cluster.nodes, FOUR)


def wrong_memory() -> Stream:
    """Two words of one device are not what was written."""
    evidence = memory_fleet([3000.0, 3010.0, 2990.0, 3005.0], device_type="cuda", wrong={3: 2}, facts=[_two_words(3)])
    return trial_of("memory", evidence, 4, TWO, patterns=ONE.patterns)


def sixteen_wrong_memories() -> Stream:
    """The same on all devices of two of four nodes."""
    wrong = range(16, 32)
    facts = [_two_words(rank) for rank in wrong]
    evidence = memory_fleet([3000.0] * 32, device_type="cuda", wrong=dict.fromkeys(wrong, 2), facts=facts)
    return trial_of("memory", evidence, 32, FOUR, patterns=ONE.patterns)


def _two_words(rank: int) -> Fact:
    value = {"pattern": "0x55", "round": 0, "words": 2, "first_byte": 4096, "last_byte": 8199, "tested_bytes": 65536}
    value |= {"expected": "0x5555555555555555", "found": "0x5555555555555557"}
    return memory_fact("wrong_words", rank, **value)


def slow_copies() -> Stream:
    """One device copies from its host at a fifth of the speed of its peers."""
    evidence = memory_fleet([3000.0, 3010.0, 2990.0, 3005.0], {0: 3000.0, 3: 3005.0}, device_type="cuda")
    slow = [
        replace(entry, value=11.0) if (entry.rank, entry.variant) == (3, "host_to_device") else entry
        for entry in evidence.measurements
    ]
    again = [reading("copy_gbps", value, rank, "host_to_device", "repeat") for rank, value in ((2, 50.0), (3, 11.0))]
    return trial_of("memory", replace(evidence, measurements=(*slow, *again)), 4, TWO, patterns=ONE.patterns)


def unwritable_folder() -> Stream:
    """The folder of checkpoints is mounted read-only on one node."""
    refused = {"named": True, "folders": [["/ckpt", "EROFS", "Read-only file system"]]}
    evidence = storage_fleet([[1.0, 1.0], [1.0, 1.0]], own=[1])
    facts = [entry for entry in evidence.facts if entry.rank not in (2, 3) or entry.name == "way"]
    facts += [storage_fact("refused", rank, refused, "token") for rank in (2, 3)]
    evidence = replace(evidence, facts=tuple(facts))
    return trial_of("storage", evidence, 4, TWO, PLAN, folder="/ckpt")


def own_folder() -> Stream:
    """One node does not see the folder of the others, which must be shared."""
    views = {rank: [[0, 2]] for rank in range(3)} | {3: [[3, 3]]}
    return trial_of(
        "storage", storage_fleet([[1.0]] * 4, views=views, own=[3]), 4, FOUR, PLAN, folder="/ckpt", shared="yes"
    )


def small_shared_memory() -> Stream:
    """The containers of both nodes have 64 MB of shared memory."""

    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts |= {"environment": "docker", "shm": {"size_bytes": 64 << 20, "free_bytes": 64 << 20}}
        facts["measurements"]["shm_free"] = 0.0671

    return trial_of("host", host_fleet(2, 8, bend), 16, TWO)


def diagnosed(window: NodeWindow | None = None) -> Evidence:
    """Return what two nodes say about two healthy GPUs each; the second one saw ``window`` during the training."""
    facts = list[Fact]()
    for node in (0, 1):
        devices = tuple(
            replace(
                HEALTHY, uuid=f"GPU-{index}", index=index, bus=f"0000:{26 + 16 * index:02x}:00", model="NVIDIA H200"
            )
            for index in (0, 1)
        )
        state = NodeState(devices=devices, kernel_events=())
        seen = tuple(replace(QUIET, uuid=device.uuid) for device in devices)
        quiet = NodeWindow(check="training", seconds=60, devices=seen, kernel_events=())
        values = [("before", state), ("window", window if window and node else quiet), ("after", state)]
        facts += [Fact(check="diagnostics", name=name, value=to_json(value), node_rank=node) for name, value in values]
    return Evidence(ranks={}, asked=(), measurements=(), facts=tuple(facts))


def fell_off_the_bus() -> NodeWindow:
    """The kernel of one node says that a GPU has fallen off the bus."""
    events = logged("NVRM: Xid (PCI:0000:2a:00): 79, pid=1, GPU has fallen off the bus")
    devices = tuple(replace(QUIET, uuid=f"GPU-{index}") for index in (0, 1))
    return NodeWindow(check="training", seconds=60, devices=devices, kernel_events=events)


def uncorrectable() -> NodeWindow:
    """A GPU counts memory errors that ECC could not correct."""
    devices = (replace(QUIET, uuid="GPU-0"), replace(QUIET, uuid="GPU-1", risen={"ecc_uncorrected": 3}))
    return NodeWindow(check="training", seconds=60, devices=devices, kernel_events=())


def wrong_sums() -> Stream:
    """What one rank adds to every sum arrives wrong everywhere."""
    evidence = corrupted(4, {("all_reduce", rank): [3] for rank in range(4)})
    return trial_of("collectives", evidence, 4, TWO, gpu_sizes=SMALL.cpu_sizes, repeats=SMALL.repeats)


SCENES: Mapping[str, Callable[[], Stream]] = {
    "fail-network": closed_ports,
    "fail-links-slow": slow_cable,
    "fail-links-dead": dead_cable,
    "fail-memory-wrong": wrong_memory,
    "fail-memory-wrong-on-16": sixteen_wrong_memories,
    "fail-memory-slow": slow_copies,
    "fail-storage-read-only": unwritable_folder,
    "fail-storage-not-shared": own_folder,
    "fail-host": small_shared_memory,
    "fail-collectives-wrong": wrong_sums,
}
