"""Control groups as they are found in the field: which limits count for us."""

from __future__ import annotations

from pathlib import Path

import pytest
from probe.cgroup_trees import TREES, plant

from seatrial.agent.oom_watch import OomWatch
from seatrial.probe.cgroup import Throttling, oom_kills, read_cgroup, throttling

GIB = 1 << 30


@pytest.mark.parametrize(
    ("tree", "limit", "left", "cores"),
    [
        ("docker v1", 4 * GIB, 3 * GIB, 1.5),
        ("docker v2", 2 * GIB, 3 * GIB // 2, 2.0),
        ("docker without options v2", None, None, None),
        ("systemd slice v2", 4 * GIB, GIB, 3.5),
        ("kubernetes v1", GIB, 3 * GIB // 4, 0.5),
        ("kubernetes v2", 16 * GIB, 15 * GIB, 4.0),
        ("hybrid", 12 * GIB, 4 * GIB, None),
        ("slurm v1", 32 * GIB, 30 * GIB, None),
        ("slurm v2", 64 * GIB, 60 * GIB, None),
        ("odd", GIB, 0, None),
    ],
)
def test_the_tightest_limit_of_all_groups_above_counts(
    tmp_path: Path, tree: str, limit: int | None, left: int | None, cores: float | None
) -> None:
    found = read_cgroup(plant(tmp_path, TREES[tree]))
    assert found is not None
    assert (found.memory_limit_bytes, found.memory_left_bytes, found.quota_cores) == (limit, left, cores)


@pytest.mark.parametrize("text", [None, "", "nothing that we know\n"])
def test_no_control_groups_are_not_known(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        plant(tmp_path, {"proc/self/cgroup": text})
    assert read_cgroup(tmp_path) is None


def test_a_group_that_is_mounted_nowhere_has_no_limits(tmp_path: Path) -> None:
    found = read_cgroup(plant(tmp_path, {"proc/self/cgroup": "3:memory:/a\n0::/b\n"}))
    assert found is not None
    assert (found.path, found.memory_limit_bytes, found.quota_cores) == ("/a", None, None)


def test_a_mount_in_a_folder_that_is_closed_to_us_is_not_to_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(path)

    root = plant(tmp_path, TREES["docker v1"])
    monkeypatch.setattr(Path, "is_dir", refused)  # which root is never told
    found = read_cgroup(root)
    assert found is None or found.quota_cores is None


def test_a_path_under_a_mounted_group_is_read_relative_to_it(tmp_path: Path) -> None:
    mount = "30 25 0:26 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    tree = {"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": mount, "sys/fs/cgroup/b/memory.max": "5\n"}
    found = read_cgroup(plant(tmp_path, {**tree, "sys/fs/cgroup/memory.max": "7\n", "sys/fs/cgroup/b/cpu.max": "x\n"}))
    assert found is not None
    assert (found.memory_limit_bytes, found.memory_left_bytes, found.quota_cores) == (5, 5, None)


def test_a_group_that_is_not_to_be_seen_is_that_of_the_mount(tmp_path: Path) -> None:
    mount = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    tree = {"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": mount, "sys/fs/cgroup/memory.max": "7\n"}
    found = read_cgroup(plant(tmp_path, tree))
    assert found is not None
    assert found.memory_limit_bytes == 7


def test_of_two_mounts_of_a_hierarchy_the_larger_counts(tmp_path: Path) -> None:
    mounts = "1 0 0:26 /x /run/own rw - cgroup2 c rw\n2 0 0:26 / /sys/fs/cgroup rw - cgroup2 c rw\n"
    tree = {"proc/self/cgroup": "0::/x/y\n", "proc/self/mountinfo": mounts}
    tree |= {"run/own/y/memory.max": "9\n", "sys/fs/cgroup/x/y/memory.max": "9\n", "sys/fs/cgroup/memory.max": "3\n"}
    found = read_cgroup(plant(tmp_path, tree))
    assert found is not None
    assert found.memory_limit_bytes == 3


def test_the_throttling_of_our_group_and_of_those_above(tmp_path: Path) -> None:
    v2 = {"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": "1 0 0:26 / /sys/fs/cgroup rw - cgroup2 c rw\n"}
    stat = "usage_usec {}\nnr_periods 4\nnr_throttled 3\nthrottled_usec {}\n"
    v2 |= {
        "sys/fs/cgroup/a/cpu.stat": stat.format(9_000_000, 2_500_000),
        "sys/fs/cgroup/a/b/cpu.stat": stat.format(0, 0),
    }
    assert [*throttling(plant(tmp_path / "v2", v2)).values()] == [Throttling(0.0, 0.0), Throttling(2.5, 9.0)]
    v1 = {"proc/self/cgroup": "1:cpu:/a\n", "proc/self/mountinfo": "1 0 0:26 / /sys/fs/cgroup/cpu rw - cgroup c cpu\n"}
    v1 |= {"sys/fs/cgroup/cpu/a/cpu.stat": "nr_periods 4\nnr_throttled 3\nthrottled_time 1500000000\n"}
    assert [*throttling(plant(tmp_path / "v1", v1)).values()] == [Throttling(1.5, None)]
    v1 |= {"sys/fs/cgroup/cpu/a/cpuacct.usage": "4000000000\n"}
    assert [*throttling(plant(tmp_path / "v1 with cpuacct", v1)).values()] == [Throttling(1.5, 4.0)]
    mount = "2 0 0:27 / /sys/fs/cgroup/cpuacct rw - cgroup c cpuacct\n"
    for name, path, used_s in (("same", "/a", 7.0), ("another", "/", None)):
        apart = {file: text for file, text in v1.items() if not file.endswith("usage")}
        apart["proc/self/cgroup"] += f"2:cpuacct:{path}\n"
        apart["proc/self/mountinfo"] += mount
        apart["sys/fs/cgroup/cpuacct/a/cpuacct.usage"] = "7000000000\n"
        found = throttling(plant(tmp_path / f"v1 with cpuacct of {name} group", apart))
        assert [*found.values()] == [Throttling(1.5, used_s)]
    assert throttling(tmp_path / "nowhere") == {}


def test_this_process_is_in_some_group() -> None:
    found = read_cgroup()
    assert found is None or found.path.startswith("/")


@pytest.mark.parametrize(
    ("tree", "name", "text"),
    [
        ("docker v1", "sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
        ("docker v2", "sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill {}\noom_group_kill 0\n"),
    ],
)
def test_kills_for_want_of_memory_are_counted_once(tmp_path: Path, tree: str, name: str, text: str) -> None:
    plant(tmp_path, {**TREES[tree], name: text.format(3)})
    assert oom_kills(tmp_path) == 3
    watch = OomWatch(tmp_path)
    assert not watch.take()
    (tmp_path / name).write_text(text.format(5))
    assert [watch.take() for _ in range(3)] == [True, True, False]
    assert watch.limit_bytes() == {"docker v1": 4 * GIB, "docker v2": 2 * GIB}[tree]


def test_where_nothing_counts_kills_none_is_claimed(tmp_path: Path) -> None:
    assert oom_kills(plant(tmp_path, TREES["docker v1"])) is None
    assert not OomWatch(tmp_path).take()
