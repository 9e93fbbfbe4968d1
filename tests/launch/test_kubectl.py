"""Calls of kubectl: what they are told, and that none lasts for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from launch.kubectl_script_double import scripted

from seatrial.errors import RequestError, SeatrialError
from seatrial.launch.kubectl import Kubectl, find_kubectl


def test_the_namespace_comes_first_and_the_server_has_a_deadline(tmp_path: Path) -> None:
    program = scripted(tmp_path, ("*", "exit 0"))
    assert Kubectl(program=program, namespace="ml").ask("get", "pods").code == 0
    assert (tmp_path / "calls").read_text() == "--namespace ml get pods --request-timeout=15s\n"
    assert Kubectl(program="oc", namespace=None).argv("logs", "x", "--follow", follows=True)[1:] == [
        *("logs", "x", "--follow")
    ]


def test_what_is_fed_and_what_is_answered_may_be_long(tmp_path: Path) -> None:
    kubectl = Kubectl(program=scripted(tmp_path, ("*", "cat")), namespace=None)
    feed = b'{"a": "' + b"x" * 1_000_000 + b'"}'
    assert kubectl.ask("apply", feed=feed).json == {"a": "x" * 1_000_000}


def test_a_call_without_an_answer_is_given_up_with_all_it_started(tmp_path: Path) -> None:
    stays = tmp_path / "stays"
    program = scripted(tmp_path, ("*", f"(sleep 30; touch {stays}) & sleep 30"))
    began = time.monotonic()
    answer = Kubectl(program=program, namespace=None, answer_s=0.3).ask("get", "pods")
    assert answer.silent
    assert "no answer within 0.3 s" in answer.complaint
    assert time.monotonic() - began < 25


def test_the_line_that_says_what_is_wrong_is_taken(tmp_path: Path) -> None:
    said = r"printf 'Warning: old\nError from server (Forbidden): no\nhint: ask\n' >&2; exit 1"
    kubectl = Kubectl(program=scripted(tmp_path, ("*", said)), namespace=None)
    assert kubectl.ask("get", "pods").complaint == "Error from server (Forbidden): no"
    with pytest.raises(SeatrialError, match=r"get nodes: Error from server \(Forbidden\): no; see"):
        kubectl.json("get", "nodes")


def test_no_kubectl_is_a_wrong_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="neither kubectl nor oc is in PATH"):
        find_kubectl(None)
    oc = tmp_path / "oc"
    oc.write_text("#!/bin/sh\n")
    oc.chmod(0o755)
    assert find_kubectl(None) == str(oc)
    with pytest.raises(RequestError, match="--kubectl /nowhere/kubectl: there is no such program"):
        find_kubectl("/nowhere/kubectl")
