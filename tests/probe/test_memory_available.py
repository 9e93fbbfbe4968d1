"""What a process may still take of its host's memory, from made-up trees of /proc and control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.probe.memory_available import memory_available

GIB = 2**30


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """32 GiB available, and no control group."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n")
    (tmp_path / "cgroup").mkdir()
    return tmp_path


def ask(host: Path) -> int | None:
    return memory_available(host / "proc", host / "cgroup")


def group(host: Path, path: str, **files: int | str) -> None:
    folder = host / "cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_host_says_what_is_available(host: Path) -> None:
    assert ask(host) == 32 * GIB
    assert (memory_available() or 0) > 0


def test_a_group_above_us_may_leave_less_and_its_page_cache_is_given_back(host: Path) -> None:
    (host / "proc" / "self" / "cgroup").write_text("0::/jobs/job7/step\n")
    group(host, "jobs/job7/step", memory__max="max", memory__current=GIB)
    group(host, "jobs/job7", memory__max=8 * GIB, memory__current=7 * GIB, memory__stat=f"anon 5\ninactive_file {GIB}")
    group(host, "jobs", memory__max=40 * GIB, memory__current=9 * GIB)
    assert ask(host) == 2 * GIB


def test_version_1_and_a_container_that_sees_its_own_group_only(host: Path) -> None:
    (host / "proc" / "self" / "cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    group(
        host,
        "memory",
        memory__limit_in_bytes=4 * GIB,
        memory__usage_in_bytes=3 * GIB,
        memory__stat=f"total_inactive_file {GIB // 2}",
    )
    assert ask(host) == 3 * GIB // 2


def test_a_group_beyond_its_limit_leaves_nothing(host: Path) -> None:
    (host / "proc" / "self" / "cgroup").write_text("0::/\n")
    group(host, ".", memory__max=GIB, memory__current=2 * GIB)
    assert ask(host) == 0


def test_a_host_that_tells_nothing_is_not_known(tmp_path: Path) -> None:
    assert memory_available(tmp_path, tmp_path) is None
