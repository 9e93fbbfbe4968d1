"""Answers of an API server with other types than it has: no field is taken for granted, and none ends a request."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from pathlib import Path

import pytest
from kubernetes.kubectl_script_double import scripted
from kubernetes.workloads import workload

from seatrial.targets.kubernetes import kubectl as kubectl_module
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.kubectl import CallResult, Kubectl
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.permissions import chosen_nodes
from seatrial.targets.kubernetes.warnings_of_run import pod_warnings


@pytest.mark.parametrize(
    "strange",
    [
        *({"metadata": None}, {"metadata": {"name": None}}, {"metadata": "gpu-0"}, "gpu-0", None),
        *({"status": {"conditions": ["Ready"]}}, {"status": {"conditions": "Ready"}}, {"status": [1]}, {"spec": "gpu"}),
    ],
)
def test_nodes(strange: object, tmp_path: Path) -> None:
    named = {"metadata": {"name": "gpu-0"}}
    item = {**named, **strange} if isinstance(strange, dict) else strange
    (tmp_path / "nodes").write_text(json.dumps({"items": [item, {"metadata": {"name": "gpu-1"}}]}))
    kubectl = Kubectl(program=scripted(tmp_path, ("*", f"cat {tmp_path}/nodes")), namespace="ml")
    is_named = isinstance(item, dict) and item["metadata"] == named["metadata"]
    assert chosen_nodes(kubectl, "pool=a", None) == (1 + is_named, ())


def test_created_objects(tmp_path: Path) -> None:
    strange = """sed 's/"metadata": {/"metadata": {"creationTimestamp": null, /g'"""
    kubectl = Kubectl(program=scripted(tmp_path, ("*'create -f -'*", strange), ("*", "exit 0")), namespace="ml")
    objects = AppliedObjects(kubectl, "job", manifest("job", workload(namespace="ml")))
    objects.apply()
    assert objects.created_at == ""
    event = {"involvedObject": {"name": "trial-1-0", "kind": "Pod"}, "lastTimestamp": "2026", "message": "slow"}
    assert pod_warnings({"items": [event]}, "trial-1", objects.created_at)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *((r"a\ud800", "a\ufffd"), (r"\uDFFFa", "\ufffda"), (r"\ud800\ud83d\ude00", "\ufffd\U0001f600")),
        *((r"\u0000", "\ufffd"), (r"\ud83d\ude00", "\U0001f600"), (r"\\ud800 \\\" \u0041", r"\ud800 \" A")),
    ],
)
def test_text_that_no_request_can_have_is_replaced(written: str, read: str) -> None:
    """Half of a pair of UTF-16 has no bytes, and no argument of a program has the number 0."""
    result = CallResult(
        code=0, out=f'{{"kind": "Job", "apiVersion": "v1", "metadata": {{"name": "{written}"}}}}', err=""
    )
    assert result.json["metadata"]["name"] == read
    assert result.documents == [result.json]


def test_the_end_of_a_piece_cuts_no_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl_module, "_PIECE_CHARS", 12)
    pieces = (r"\\", r"\ud83d", r"\uDE00", r"\u0000", r"\u0041", r"\"", "u0000", "a")
    for written in map("".join, itertools.product(pieces, repeat=4)):
        plain = json.loads(f'["{written}"]')[0]
        expected = "".join("\ufffd" if char == "\0" or "\ud800" <= char <= "\udfff" else char for char in plain)
        assert CallResult(code=0, out=f'["{written}"]', err="").json == [expected], written


@pytest.mark.parametrize("escape", [r"\u0000", r"\u0000a", r"\ud800\u0000\\", r"\udc00\n", r"\ud800\udc00"])
def test_many_escapes_bring_no_work_for_each_of_them(escape: str) -> None:
    """Whoever may create Events fills them with the character 0: 16 MiB took the controller two seconds."""
    calls = 0

    def count(*call: object) -> None:
        nonlocal calls
        calls += 1

    result = CallResult(code=0, out=f'["{escape * 10_000}"]', err="")
    sys.setprofile(count)
    try:
        (read,) = result.json
    finally:
        sys.setprofile(None)
    assert len(read) >= 10_000
    assert calls < 200


def test_a_control_character_is_no_json() -> None:
    assert CallResult(code=0, out='["\0\\u0000"]', err="").json is None


def test_what_is_left_is_said_whatever_the_answer(tmp_path: Path) -> None:
    """An error of an address that has no bytes ended the run as a bug, and all objects stayed, unnamed."""
    created = shlex.quote(str(tmp_path / "created"))
    with_uid = """sed 's/"metadata": {/"metadata": {"uid": "u", /g'"""
    strange = r"""sed 's/"namespace": "ml"/"namespace": "\\ud800"/g'"""
    cases = [("*'create -f -'*", f"{with_uid} | tee -a {created}"), ("*' get '*", f"{strange} {created}")]
    refused = ("*", "echo 'Error from server (Forbidden): no' >&2; exit 1")
    kubectl = Kubectl(program=scripted(tmp_path, *cases, refused), namespace="ml")
    objects = AppliedObjects(kubectl, "job", manifest("job", workload(namespace="ml")))
    objects.apply()
    (left,) = objects.delete(keep_waiting=lambda: False)
    assert left.endswith(f"(Error from server (Forbidden): no); run {objects.delete_command()}")
