"""What hosts answer to the survey: read by type and value, bounded, and never a mistake inside seatrial."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from hypothesis import given
from hypothesis import strategies as st
from launchers.gather import where
from targets.ssh_double import write_ssh_double

from seatrial.errors import SeatrialError
from seatrial.targets import resources
from seatrial.targets.ssh import survey
from seatrial.targets.ssh.ssh_target import TARGETS
from seatrial.targets.ssh.survey_answer import SurveyAnswer, read_answer

(SSH,) = TARGETS
GOOD: dict[str, Any] = {
    "resources": {"device": "cpu", "backend": "auto", "nproc_per_node": 2, "because": "no accelerator"},
    "loopback": "lo",
    "torch": "2.13.0+cpu",
    "python": "3.11.7",
    "address": ["10.0.0.7"],
}
DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]
VALUES = [None, True, -1, 0, 5, 10**30, 1.5, "", "9", "x" * 100_000, "\x1b[31m", "-oProxyCommand=x", [], [[]], {}, DEEP]
FIELDS = [*((name,) for name in GOOD), *(("resources", name) for name in GOOD["resources"])]


def read(answer: Any, device: str = "auto", nproc_per_node: int | None = None) -> SurveyAnswer | str:
    return read_answer(json.dumps(answer), device=device, nproc_per_node=nproc_per_node)


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return the good answer with one other value."""
    answer = json.loads(json.dumps(GOOD))
    inner = answer["resources"] if len(path) > 1 else answer
    inner[path[-1]] = value
    return dict(answer)


def assert_sound(read: SurveyAnswer | str) -> None:
    if isinstance(read, str):
        assert read.isprintable()
        assert len(read) < 500
        return
    assert read.device in ("cpu", "cuda", "rocm")
    assert type(read.nproc_per_node) is int
    assert 1 <= read.nproc_per_node <= 4096
    assert (read.because + read.torch + (read.address or "")).isprintable()
    assert read.loopback in ("", "lo", "lo0")


def test_a_good_answer_is_read() -> None:
    answer = read(GOOD)
    assert isinstance(answer, SurveyAnswer)
    assert (answer.device, answer.nproc_per_node, answer.torch) == ("cpu", 2, "2.13.0+cpu")
    assert (answer.address, answer.loopback) == ("10.0.0.7", "lo")
    assert isinstance(read({**GOOD, "address": []}), SurveyAnswer)
    assert isinstance(read(changed(("torch",), "2.4.0a0+git1234.nv24.05")), SurveyAnswer)


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_any_value_of_a_field_is_an_answer_or_a_phrase(path: tuple[str, ...]) -> None:
    for value in VALUES:
        assert_sound(read(changed(path, value)))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("resources",), {}, "no because"),
        (("resources",), "x", "resources 'x'"),
        (("resources", "nproc_per_node"), "9", "nproc_per_node '9'"),
        (("resources", "nproc_per_node"), True, "nproc_per_node True"),
        (("resources", "nproc_per_node"), 10**9, "nproc_per_node 1000000000"),
        (("resources", "device"), "tpu", "device 'tpu'"),
        (("address",), ["\x1b[2J"], r"address '\x1b[2J'"),
        (("address",), [{}], "address {}"),
        (("torch",), "", "torch ''"),
        (("loopback",), "eth0 LD_PRELOAD=/x", "loopback 'eth0 LD_PRELOAD=/x'"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(path: tuple[str, ...], value: Any, words: str) -> None:
    assert (
        read(changed(path, value)) == f"its answer has {words}; check which seatrial and which login script run there"
    )


def test_a_refusal_stays_the_words_of_its_host() -> None:
    assert read({"refused": "no torch; b: it is broken."}) == 'it says "no torch; b: it is broken"'


def test_what_was_requested_is_what_counts() -> None:
    assert isinstance(read(GOOD, device="cpu", nproc_per_node=2), SurveyAnswer)
    assert "device 'cpu'" in str(read(GOOD, device="cuda"))
    assert "nproc_per_node 2" in str(read(GOOD, nproc_per_node=8))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", "null", '"x"', "[" * 100_000, '{"refused": 5}', "1" * 5_000, "NaN"]
)
def test_what_is_no_answer_is_a_phrase(text: str) -> None:
    answer = read_answer(text, device="auto", nproc_per_node=None)
    assert isinstance(answer, str)
    assert_sound(answer)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_no_answer_raises(answer: Any) -> None:
    assert_sound(read(answer))


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that stands for ssh."""
    monkeypatch.setenv("PATH", f"{write_ssh_double(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "bin" / "ssh"


def answering(double: Path, host: str, shell: str) -> None:
    """Make one host run this in place of Python."""
    case = f'case "$2" in {host})\n{shell}\nexit 0;; esac\nSSH_CONN'
    double.write_text(double.read_text().replace("SSH_CONN", case, 1))


def hostile_line(answer: Any) -> str:
    return f"cat <<'END'\n{survey.MARK}{json.dumps(answer)}\nEND\n"


@pytest.mark.parametrize(
    "answer", by_day([{}, [], {"place": 5}, changed(("resources", "nproc_per_node"), "9")], 3), ids=str
)
def test_a_host_that_lies_is_named_and_left_out(double: Path, answer: Any) -> None:
    answering(double, "b", hostile_line(answer))
    with pytest.raises(SeatrialError, match=r"^b: its answer has no? ?\w+"):
        SSH.resolve(where("a,b", nproc_per_node=1))
    placement = SSH.resolve(where("a,b", nproc_per_node=1, min_hosts=1))
    assert [entry.node.host.name for entry in placement.detail] == ["a"]
    assert placement.absent[0].startswith("b: its answer has ")


def test_no_host_makes_the_environment_of_ranks(double: Path) -> None:
    env = {"LD_PRELOAD": "/nfs/evil.so", "PYTHONPATH": "/nfs/evil"}
    answer = {**changed(("resources", "env"), env), "env": env}
    answering(double, "a", hostile_line(changed(("resources", "nproc_per_node"), 1) | {"env": env}))
    answering(double, "b", hostile_line(answer | {"resources": {**answer["resources"], "nproc_per_node": 1}}))
    assert dict(SSH.resolve(where("a,b", nproc_per_node=1)).env) == {}
    assert dict(SSH.resolve(where("a", nproc_per_node=1)).env) == {"GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_host_that_floods_is_ended(double: Path, stream: str) -> None:
    answering(double, "b", f"exec yes 0123456789012345678901234567890123456789 >&{stream}")
    with pytest.raises(SeatrialError, match="b: it sent more than 4 MiB; check what its login script prints"):
        SSH.resolve(where("a,b", nproc_per_node=1))
    assert list(Path(os.environ["TMPDIR"]).iterdir()) == []


def test_a_host_refuses_more_processes_than_it_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {"device": "cpu", "backend": "auto", "nproc_per_node": 33, "on_one_node": False, "of_torch": False}
    monkeypatch.setattr(resources, "usable_cores", lambda: 2)
    survey.report_resources({**request, "oversubscribe": False})
    answer = read_answer(capsys.readouterr().out.strip().removeprefix(survey.MARK), device="cpu", nproc_per_node=33)
    assert (
        answer
        == 'it says "--nproc-per-node 33: 33 processes on 2 cores; give at most 32, or --oversubscribe to start them'
        + (' all the same"')
    )
    survey.report_resources({**request, "oversubscribe": True})
    answer = read_answer(capsys.readouterr().out.strip().removeprefix(survey.MARK), device="cpu", nproc_per_node=33)
    assert isinstance(answer, SurveyAnswer)
