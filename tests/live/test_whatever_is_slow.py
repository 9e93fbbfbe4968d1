"""Slow ranks: a straggler is named, and no other rank."""

from __future__ import annotations

from pathlib import Path

from live.trials import trial

_PLAN = 'level = "smoke"\nchecks = ["compute"]\n[compute]\ncpu_dtypes = ["fp32"]\n'


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    plan = tmp_path / "compute.toml"
    plan.write_text(_PLAN)
    # With one thread a rank more often has the CPU to itself, so that its speed is judged on a busy machine too.
    env = {"OMP_NUM_THREADS": "1"}
    ended = trial(tmp_path / "out", str(plan), plant=["slow-product@compute:1"], env=env)
    failed = [finding["culprit"]["ranks"] for finding in ended.grave()]
    if ended.exit_code == 0:
        # Other processes used the CPU, so no rank may be blamed; the report says so of the slow rank.
        unjudged = [finding for finding in ended.report["findings"] if finding["culprit"]["ranks"] == [1]]
        assert failed == []
        assert any("could not be judged: other processes held the CPU" in finding["what"] for finding in unjudged)
        assert any("the fp32 speed of rank 1" in reason for reason in ended.report["acceptance"]["partial"])
    elif ended.exit_code == 3:
        # They disturbed the rank that it is compared with, which acquits it no more than it blames it.
        assert failed == []
        (reason,) = ended.report["acceptance"]["reasons"]
        assert reason.startswith("compute lacks tflops fp32 of rank 1 compared with ranks that were not disturbed")
    else:
        assert (ended.exit_code, failed) == (1, [[1]])
        assert "slow in fp32 matrix products" in ended.grave()[0]["what"]
