"""Hosts as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import RequestError
from seatrial.launch.hosts import hosts_of


def told(typed: str | None, file: Path | None = None) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in hosts_of(typed, file)]


def test_hosts_are_read_from_the_command_line_in_their_order() -> None:
    assert told("node1,node0:4,10.0.0.7,gpu-2.example.org:8") == [
        ("node1", None),
        ("node0", 4),
        ("10.0.0.7", None),
        ("gpu-2.example.org", 8),
    ]
    assert told(None) == []


def test_files_of_all_launchers_are_read(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the rack\nnode0 slots=4   # Open MPI\n\n  node1:2\nnode2\nnode3  slots = 8\r\n")
    assert told(None, file) == [("node0", 4), ("node1", 2), ("node2", None), ("node3", 8)]


@pytest.mark.parametrize(
    "text",
    ["a;touch x", "-oProxyCommand=x", "a b", "a:99999", "a:", "a:-1", "a$(id)", "\x1b[2Ja", "a slots=x", "a" * 999],
)  # fmt: skip
def test_what_is_no_host_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"node0\n\n{text}\n")
    with pytest.raises(RequestError, match=r"hosts, line 3: [^\x1b]*(is no host|slots)"):
        hosts_of(None, file)
    with pytest.raises(RequestError, match=r"^--hosts: "):
        hosts_of(text, None)


def test_a_host_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("node0\nnode1\nnode0 slots=2\n")
    with pytest.raises(RequestError, match=r"line 3: node0 stands in .*line 1 already"):
        hosts_of(None, file)


@pytest.mark.parametrize("content", [b"", b"# nobody\n"])
def test_a_file_without_hosts_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(content)
    with pytest.raises(RequestError, match="there is no host in it"):
        hosts_of(None, file)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for file, why in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (tmp_path / "binary", "no text")):
        with pytest.raises(RequestError, match=f"--hostfile .*cannot be read .*{why}"):
            hosts_of(None, file)
    with pytest.raises(RequestError, match="twice"):
        hosts_of("a", tmp_path)
