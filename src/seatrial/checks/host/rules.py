"""The limits of the host check."""

from __future__ import annotations

from seatrial.checks.check import Rule
from seatrial.checks.host.params import Params


def shm_rule(params: Params, *, is_fatal: bool) -> Rule:
    """Return the rule for free shared memory. It is fatal where several ranks of a node run on GPUs."""
    return Rule(
        measurement="shm_free",
        condition="several GPU ranks" if is_fatal else "else",
        comparison="at least",
        value=params.min_shm_gb,
        unit="GB",
        origin="host.min_shm_gb, NCCL's guide for containers",
        severity="fail" if is_fatal else "warn",
    )


def memory_rule(params: Params) -> Rule:
    """Return the rule for the available memory of one rank; ``scaled`` makes that of a node of it."""
    return Rule(
        measurement="memory_available",
        condition="for each rank of the node",
        comparison="at least",
        value=params.min_memory_per_rank_gb,
        unit="GB",
        origin="host.min_memory_per_rank_gb",
        severity="warn",
    )


def open_files_rule(params: Params, world_size: int) -> Rule:
    """Return the rule for the open files of one process."""
    return Rule(
        measurement="open_files",
        comparison="at least",
        value=params.min_open_files + params.min_open_files_per_rank * world_size,
        origin=f"host.min_open_files + min_open_files_per_rank x {world_size}",
        severity="warn",
    )


def memlock_rule(params: Params) -> Rule:
    """Return the rule for locked memory on a node with RDMA devices."""
    return Rule(
        measurement="locked memory",
        condition="RDMA devices",
        comparison="at least",
        value=params.min_memlock_gb,
        unit="GB",
        origin="host.min_memlock_gb",
        severity="warn",
    )


def cores_rule(params: Params) -> Rule:
    """Return the rule for the cores of one rank; ``scaled`` makes that of a node of it."""
    return Rule(
        measurement="cores",
        condition="for each rank of the node",
        comparison="at least",
        value=params.min_cores_per_rank,
        unit="cores",
        origin="host.min_cores_per_rank",
        severity="warn",
    )


def device_memory_rule(params: Params) -> Rule:
    """Return the rule for the memory in use on a device before the trial uses it."""
    return Rule(
        measurement="device_memory_used",
        comparison="at most",
        value=params.own_context_gb + params.max_device_used_gb,
        unit="GB",
        origin=f"{params.own_context_gb:g} GB for our own context + host.max_device_used_gb",
    )


def clock_rule(params: Params) -> Rule:
    """Return the rule for the clocks of several nodes."""
    return Rule(
        measurement="clock",
        condition="between nodes",
        comparison="at most",
        value=params.max_clock_offset_ms,
        unit="ms",
        origin="host.max_clock_offset_ms",
        severity="warn",
    )


def lookup_rule(params: Params) -> Rule:
    """Return the rule for the time in which the resolver must answer on one of several nodes."""
    return Rule(
        measurement="lookup of the hostname",
        condition="several nodes",
        comparison="at most",
        value=params.resolve_timeout_s,
        unit="s",
        origin="host.resolve_timeout_s",
        severity="warn",
    )


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the limits of each node."""
    return (
        shm_rule(params, is_fatal=True),
        shm_rule(params, is_fatal=False),
        memory_rule(params),
        Rule(
            measurement="open_files",
            text=f"at least {params.min_open_files} + {params.min_open_files_per_rank} for each rank of the world",
            origin="host.min_open_files + min_open_files_per_rank x ranks",
            severity="warn",
        ),
        memlock_rule(params),
        cores_rule(params),
        device_memory_rule(params),
        clock_rule(params),
        lookup_rule(params),
        Rule(
            measurement="address of the hostname",
            condition="several nodes, Gloo",
            text="one that other nodes can reach",
            origin="torch: Gloo gives it to its peers",
        ),
        Rule(
            measurement="address of the hostname",
            condition="several nodes, else",
            text="one that other nodes can reach",
            origin="torchrun gives it to the other nodes",
            severity="warn",
        ),
        Rule(
            measurement="loopback interface",
            condition="several ranks",
            text="up",
            origin="the kernel: over it a node reaches its own addresses",
        ),
        Rule(
            measurement="*_SOCKET_IFNAME",
            condition="several nodes",
            text="an interface that leads to other nodes",
            origin="NCCL, Gloo: they use no other interface",
        ),
        Rule(
            measurement="mtu",
            condition="several nodes",
            text="alike",
            origin="fleet, majority of the nodes",
            severity="warn",
        ),
        Rule(
            measurement="RANK, WORLD_SIZE, ...",
            text="not set by hand",
            origin="scripts would assume they are that rank",
            severity="warn",
        ),
    )
