"""The storage check where a neighbor has put a link, or a mount that answers nothing, in the place of its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checks.test_check_storage import STAGES, go_on, grave, judge, shared_by
from neighbor_mount import NEIGHBOR, mounted_and_unasked


@pytest.mark.root
@pytest.mark.parametrize("begun", [False, True])
def test_a_mount_of_a_neighbor_keeps_nobody_waiting_or_named(begun: bool, tmp_path: Path) -> None:
    """Also where it is exchanged for the folder once the tokens are there."""
    (theirs := tmp_path / "theirs").mkdir()
    named = tmp_path / "named"
    params, contexts = shared_by(named, 2)
    go_on(contexts, params, ["token"] * begun)
    named.rename(tmp_path / "moved")
    named.symlink_to(theirs / "sub")
    os.chown(named, NEIGHBOR, NEIGHBOR, follow_symlinks=False)
    with mounted_and_unasked(theirs):
        go_on(contexts, params, STAGES[2:] if begun else STAGES[1:])
        ruling = judge(contexts, params)
    assert grave(ruling) == []
    assert ruling.absent
