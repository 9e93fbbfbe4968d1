"""Bits that are really wrong in one rank of a trial: the rank is named, rank 0 included, and the clean twin passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from live.trials import trial

pytestmark = pytest.mark.slow

_ONLY = ("smoke", "--only", "compute,bootstrap,training", "--nproc-per-node", "3")


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("flip@training/step 20 optimizer:0", "training", "the replicas are no longer equal"),
        ("flip@training/look at parameters:2", "training", "the replicas are no longer equal"),
        ("flip-product@compute:1", "compute", "rank 1 multiplies wrongly, by itself"),
    ],
)
def test_the_rank_whose_bits_are_wrong_is_named_and_nobody_else(
    tmp_path: Path, fault: str, check: str, words: str
) -> None:
    ended = trial(tmp_path, *_ONLY, plant=[fault])
    (finding,) = ended.grave()
    assert (ended.exit_code, finding["severity"], finding["check"]) == (1, "fail", check)
    assert finding["culprit"]["ranks"] == [int(fault[-1])]
    assert words in finding["what"]


def test_the_clean_twin_passes(tmp_path: Path) -> None:
    ended = trial(tmp_path, *_ONLY)
    assert ended.exit_code == 0, ended.report["findings"]
