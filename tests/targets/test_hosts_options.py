"""Lists of hosts: syntax, refused entries, and how nodes and processes are distributed over them."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.errors import RequestError
from seatrial.targets import remote_defaults
from seatrial.targets.hosts import Host, hosts_of, nodes_on, processes_of_each


def parse(text: str, tmp_path: Path) -> tuple[Host, ...]:
    file = tmp_path / "hosts.txt"
    file.write_text(text)
    return hosts_of(None, file)


def test_hosts_on_the_command_line() -> None:
    assert hosts_of("a, me@b-1.example:4,10.0.0.7,[fe80::1]:2", None) == (
        Host(name="a"),
        Host(name="b-1.example", user="me", slots=4),
        Host(name="10.0.0.7"),
        Host(name="fe80::1", slots=2),
    )


def test_a_file_in_the_syntax_of_open_mpi_mpich_or_plain(tmp_path: Path) -> None:
    text = "# all of them\n\nnode0 slots=2 max_slots=4 # old\r\nnode1:3\n  me@node2\nnode3 user=you port=2222 slots=1\n"
    assert parse(text, tmp_path) == (
        Host(name="node0", slots=2),
        Host(name="node1", slots=3),
        Host(name="node2", user="me"),
        Host(name="node3", user="you", port=2222, slots=1),
    )


@pytest.mark.parametrize(
    "word", ["a;touch x", "", "-oProxyCommand=x", "a b", "$(x)", "a:0", "a:x", "@a", "-l@a", "a@-b", "a\nb", "x" * 300]
)
def test_an_invalid_host_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match=r"^--hosts"):
        hosts_of(f"good,{word}", None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a slots=0", "slots=0: write a number from 1 to 65535"),
        ("a slots=two", "slots=two: write a number"),
        ("a slots=00000000010000000", "slots=00000000010000000: write a number"),
        ("a slots", "'slots' is unknown"),
        ("a gpus=2", "'gpus=2' is unknown"),
        ("a:2 slots=2", "slots of a is given twice"),
        ("a user=-x", "user='-x' is no user name"),
        ("a port=70000", "port=70000: write a number"),
        ("`x`", "'`x`' is no host"),
        ("\xff\x00", "is no host"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        parse(f"# first\ngood\n{line}\n", tmp_path)
    assert f"{tmp_path}/hosts.txt, line 3: " in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize("alias", ["a" * 64, f"{'a' * 64}.b", "a..b"])
def test_aliases_of_ssh_may_be_names_that_no_resolver_takes(alias: str, tmp_path: Path) -> None:
    assert hosts_of(f"me@{alias}:4", None) == (Host(name=alias, user="me", slots=4),)
    assert parse(f"{alias}\n", tmp_path) == (Host(name=alias),)


def test_an_empty_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="names no host"):
        parse("# none\n", tmp_path)
    with pytest.raises(RequestError, match="cannot be read"):
        hosts_of(None, tmp_path / "nothing")
    with pytest.raises(RequestError, match="larger than 1 MiB"):
        parse("a\n" * (1 << 20), tmp_path)
    with pytest.raises(RequestError, match="both name the hosts"):
        hosts_of("a", tmp_path)
    with pytest.raises(RequestError, match="the hosts are missing"):
        hosts_of(None, None)


def test_nodes_share_hosts_or_use_the_first() -> None:
    hosts = hosts_of("a:4,b:4", None)
    assert [(node.host.name, node.index, node.here, node.slots) for node in nodes_on(hosts, 4)] == [
        ("a", 0, 2, 2),
        ("a", 1, 2, 2),
        ("b", 0, 2, 2),
        ("b", 1, 2, 2),
    ]
    assert [node.host.name for node in nodes_on(hosts, 1)] == ["a"]
    twice = nodes_on(hosts_of("a,b,a", None), None)
    assert [(node.host.name, node.index, node.here) for node in twice] == [("a", 0, 2), ("b", 0, 1), ("a", 1, 2)]
    for wrong in (0, -1, 3, 1 << 20):
        with pytest.raises(RequestError, match=f"--nodes {wrong}"):
            nodes_on(hosts, wrong)


def processes(hosts: str, nodes: int | None, requested: int | None) -> int | None:
    return processes_of_each(nodes_on(hosts_of(hosts, None), nodes), requested)


def test_processes_per_node_come_from_the_option_or_the_slots() -> None:
    assert processes("a,b", None, None) is None
    assert processes("a,b", None, 3) == 3
    assert processes("a:4,b:4", None, None) == 4
    assert processes("a:4,b:4", 4, None) == 2
    assert processes("a:4,b:6", None, 4) == 4


@pytest.mark.parametrize(
    ("hosts", "nodes", "requested", "words"),
    [
        ("a:2,b:4", None, 4, "a has 2 slots"),
        ("a:2,b:4", None, None, r"different slots \(a: 2, b: 4\)"),
        ("a:2,b", None, None, r"different slots \(a: 2, b: none given\)"),
        ("a:1", 2, None, "a has 0 slots for each of its nodes"),
    ],
)
def test_too_few_or_different_slots_are_refused(
    hosts: str, nodes: int | None, requested: int | None, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        processes(hosts, nodes, requested)


@given(st.text(max_size=40))
def test_any_text_gives_hosts_or_one_sentence(text: str) -> None:
    with contextlib.suppress(RequestError):
        assert all(not host.name.startswith("-") and ";" not in host.name for host in hosts_of(text, None))


def test_names_of_slurm_that_no_resolver_takes_have_no_address() -> None:
    assert remote_defaults.own_address(["node1..cluster", "a" * 64, "127.0.0.1"]) == "127.0.0.1"


def test_a_slow_resolver_is_asked_for_the_first_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def slow_resolver_double(name: str, *_: object, **__: object) -> list[object]:
        asked.append(name)
        time.sleep(0.02)
        raise OSError("no answer")

    monkeypatch.setattr(remote_defaults, "_RESOLVE_S", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", slow_resolver_double)
    assert remote_defaults.own_address(f"h{number}" for number in range(1_000)) is None
    assert 0 < len(asked) < 20
