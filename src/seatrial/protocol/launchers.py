"""Launchers that started the processes of all nodes, and may end them with those of one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_TARGETS = ("mpirun", "slurm")
_LAUNCHERS = ("torchrun", "openmpi", "hydra", "slurm")
"""Launchers around us."""


def starts_all_nodes(target: object, launcher: object) -> bool:
    """Return whether one launcher started all nodes: that of the target, or one around us (empty or None: none)."""
    return target in _TARGETS or launcher in _LAUNCHERS


def may_have_ended(lost: Collection[int], hosts: Mapping[int, str], *, ends_together: bool) -> bool:
    """Return whether half of the hosts or more were lost; of two hosts both, unless the launcher ends all with one.

    A host that ends what the launcher started on it, and itself goes on, has the launcher end those of all others.

    Args:
        lost: Nodes whose connections were closed.
        hosts: Node -> its host, of all nodes.
        ends_together: Whether the launcher that started all nodes always ends all with one of them.
    """
    num_hosts = len({*hosts.values()})
    num_lost = num_hosts - len({host for node, host in hosts.items() if node not in lost})
    least = 1 if ends_together and num_hosts > 1 else 2
    return num_lost >= least and 2 * num_lost >= num_hosts
