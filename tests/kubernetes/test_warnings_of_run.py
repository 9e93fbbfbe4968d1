"""Warnings of the cluster that no waiting will cure."""

from __future__ import annotations

import pytest

from seatrial.targets.kubernetes.warnings_of_run import is_final

_CPU = "exceeded quota: team, requested: limits.cpu=2, used: limits.cpu={used}, limited: limits.cpu=5"


@pytest.mark.parametrize(
    ("warning", "pods", "final"),
    [
        # Others use it now, and may leave it.
        (f'pods "trial-1-1-x" is forbidden: {_CPU.format(used=4)}', 2, False),
        # The pods of the run alone are too many.
        (f'pods "trial-1-1-x" is forbidden: {_CPU.format(used=4)}', 3, True),
        # There is one launcher.
        (f'pods "trial-1-launcher-x" is forbidden: {_CPU.format(used=4)}', 3, False),
        # A quota of other objects.
        (
            'jobs.batch "trial-1-node-0" is forbidden: exceeded quota: team, requested: count/jobs.batch=1, used:'
            " count/jobs.batch=2, limited: count/jobs.batch=2",
            3,
            False,
        ),
        ('pods "a" is forbidden: failed quota: team: must specify limits.memory for: seatrial', 1, True),
    ],
)
def test_a_quota_is_final_if_the_run_alone_exceeds_it(warning: str, pods: int, final: bool) -> None:
    assert is_final(f"Error creating: {warning}", pods) is final
