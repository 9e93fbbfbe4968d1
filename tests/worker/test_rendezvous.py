"""Ranks that rendezvous at a store in which an earlier attempt has left its keys."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from by_day import by_day

import seatrial
from seatrial.environment.flight_recorder import BUFFER
from seatrial.rank.device import open_device
from seatrial.util.ports import free_port
from seatrial.worker.rendezvous import form_world, fresh_prefix

_SOURCE = str(Path(seatrial.__file__).parents[1])


def meet(store: dist.Store, world_size: int, ranks: range, timeout_s: float = 20.0) -> dict[int, str]:
    """Rendezvous of these ranks, each in a thread; the prefix of each, or the error that it raised."""
    results: dict[int, str] = {}

    def come(rank: int) -> None:
        try:
            results[rank] = fresh_prefix(store, rank, world_size, timeout_s)
        except RuntimeError as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_each_life_agrees_on_a_name_that_no_former_one_had() -> None:
    store = dist.HashStore()
    names = [meet(store, 3, range(3)) for _ in range(5)]
    assert all(len(set(results.values())) == 1 for results in names)
    assert len({results[0] for results in names}) == 5


@pytest.mark.parametrize("came", [range(1), range(1, 3), range(2)], ids=str)
def test_keys_of_an_earlier_attempt_are_ignored(came: range) -> None:
    store = dist.HashStore()
    before = set(meet(store, 3, came, timeout_s=0.1).values())
    assert any("did not" in text for text in before)
    after = set(meet(store, 3, range(3)).values())
    assert len(after) == 1
    assert not after & before


def test_a_missing_rank_is_named() -> None:
    assert meet(dist.HashStore(), 4, range(3), timeout_s=0.2)[0] == "rank 3 did not come within 0 s"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("link", "a symbolic link"),
        ("dangling", "a symbolic link"),
        ("fifo", "a FIFO"),
        ("second name", "2 names"),
        pytest.param("foreign", "a file of user 65534", marks=pytest.mark.root),
    ],
)
def test_a_file_of_the_rendezvous_that_leads_elsewhere_is_refused(kind: str, words: str, tmp_path: Path) -> None:
    """torch would follow a neighbor's link and write to a file of ours, or make one."""
    ours, path = tmp_path / "ours", tmp_path / "meet"
    if kind in ("link", "second name"):
        ours.write_text("")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "second name":
        path.hardlink_to(ours)
    elif kind == "foreign":
        path.write_text("")
        os.chown(path, 65534, 65534)
    else:
        path.symlink_to(ours)
    try:
        with pytest.raises(OSError, match=f"meet is .*{words}.*; remove it or name another place"):
            form_world(
                f"file://{path}",
                rank=0,
                world_size=1,
                backend="gloo",
                device=open_device("cpu", 0, 1),
                timeout_s=5.0,
            )
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert ours.exists() == (kind in ("link", "second name"))
    assert not ours.exists() or ours.read_bytes() == b""


_RANK_0 = """
import sys
from seatrial.rank.device import open_device
from seatrial.worker.rendezvous import form_world
try:
    form_world(sys.argv[1], rank=0, world_size=2, backend="gloo", device=open_device("cpu", 0, 1), timeout_s=20.0)
except RuntimeError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("address", by_day(["", "x" * 7, "\xff" * 60], 2), ids=["empty", "short", "lengths"])
def test_a_false_address_at_the_store_ends_no_rank_of_a_training(address: str) -> None:
    """Gloo would read beyond its end, and the rank that reads it would be the one that crashes."""
    port = free_port()
    argv = [sys.executable, "-c", _RANK_0, f"tcp://127.0.0.1:{port}"]
    rank = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": _SOURCE})
    try:
        store = dist.TCPStore("127.0.0.1", port, 2, False, timedelta(seconds=20))
        store.set("default_pg/0//cpu//0/1", address)
        said, _ = rank.communicate(timeout=50)
    finally:
        rank.kill()
    assert rank.returncode == 0
    assert said.partition(" ")[2].startswith("the address that rank 1 published at the store, or another one")


@pytest.mark.parametrize(
    ("given", "dump"),
    [
        ({}, "0"),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, "1"),
        ({BUFFER: "2000"}, None),
        ({"TORCH_FR_BUFFER_SIZE": "2000"}, None),
    ],
)
def test_no_thread_of_nccl_reads_the_store_unless_its_recorder_is_wanted(
    given: dict[str, str], dump: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for NCCL's group, which needs a GPU: its environment. A value of the store may be of any length."""
    seen = dict[str, str]()
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: seen.update(os.environ))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_NCCL_", "TORCH_FR_"))}
    monkeypatch.setattr(os, "environ", {**environ, **given, "HOME": str(tmp_path)})
    device = replace(open_device("cpu", 0, 1), type="cuda", backend="nccl")
    form_world(f"file://{tmp_path}/meet", rank=0, world_size=1, backend="nccl", device=device, timeout_s=5.0)
    assert seen.get("TORCH_NCCL_DUMP_ON_TIMEOUT") == dump
