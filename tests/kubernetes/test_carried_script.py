"""The script of ``launch`` as the controller has it: carried along, left to the pods, or refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from kubernetes.double.volumes import contents_of
from kubernetes.test_kubernetes_target import printed

from seatrial.errors import RequestError
from seatrial.files import open_to_read
from seatrial.request.script_request import with_carried_script
from seatrial.targets.kubernetes import carried_script as carried_script_module
from seatrial.targets.kubernetes.carried_script import carried_script
from seatrial.targets.kubernetes.manifest.workload import Claim

_IMAGE = "--image registry.example.com/ml/train:1"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def carried(script: str, *claims: str, is_python: bool = True) -> tuple[str, bytes] | None:
    found, _ = carried_script(script, is_python=is_python, claims=[Claim(name="code", path=path) for path in claims])
    return None if found is None else (found.name, found.content)


def test_a_script_of_this_machine_goes_along(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, torch\n")
    assert carried("train.py") == carried("./train.py") == carried(f"{tmp_path}/train.py")
    assert carried("train.py") == ("train.py", b"import os, torch\n")


@pytest.mark.parametrize("name", ["start.py", "mit Leer.py", "é.py", "-x.py", "socket.py", "hashlib.sh", "seatrial.py"])
def test_a_name_that_a_pod_cannot_have(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("pass\n")
    assert carried(f"./{name}") == ("script.py", b"pass\n")


def test_a_script_that_the_parser_here_cannot_take_goes_along(tmp_path: Path) -> None:
    """It may be newer than this Python, or deeper than its parser goes, which raises MemoryError then."""
    for text in (b"x = " + b"not " * 20_000 + b"1\n", b"match = = 1\n"):
        (tmp_path / "train.py").write_bytes(text)
        assert carried("train.py") == ("train.py", text)


def test_what_the_pods_have_stays_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    assert carried(f"{tmp_path}/train.py", str(tmp_path)) is None
    assert carried("/workspace/no/such.py") is None
    assert carried("nvidia-smi", is_python=False) is None
    (tmp_path / "large.py").write_bytes(b"#" * 200_000)
    assert carried(f"{tmp_path}/large.py") is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.py", None, "no such script on this machine, and the pods start in an empty folder"),
        ("large.py", b"#" * 200_000, "more than 100,000 bytes do not fit into the manifest"),
        ("imports.py", b"import os\nfrom helper.deep import f\n", "it imports helper from its folder, which is not"),
        ("bytes.py", b"\xff\xfe", "it is no text in UTF-8"),
        (".", None, "it cannot be read"),
    ],
)
def test_what_cannot_go_along_is_refused(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    (tmp_path / "helper").mkdir()
    (tmp_path / "helper" / "__init__.py").touch()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=words) as raised:
        carried(name)
    assert "put it into the image, or on a claim" in str(raised.value)
    is_absent = content is None and name != "."
    found, said = carried_script(f"{tmp_path}/{name}", is_python=True, claims=())
    assert found is None
    # An absolute path may be one of the pods alone.
    assert said.startswith("" if is_absent else f"{tmp_path}/{name} of this machine does not go along: {words}")
    assert bool(said) is not is_absent


def test_a_program_of_this_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    with pytest.raises(RequestError, match=r"\./run\.sh: the pods do not have this program of your machine"):
        carried("./run.sh", is_python=False)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of another user, with a link to a private file of ours. All users can come to it, unlike to pytest's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        (place := Path(made)).chmod(0o755)
        (private := place / "id_ed25519").write_text("the key")
        private.chmod(0o600)
        (theirs := place / "theirs").mkdir()
        (theirs / "train.py").symlink_to(private)
        for path in (theirs, theirs / "train.py"):
            os.lchown(path, 12002, 12002)
        monkeypatch.chdir(place)
        yield theirs
        monkeypatch.undo()


@pytest.mark.root
def test_a_link_of_another_user_at_a_path_of_the_pods(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = printed(f"launch --on job --gpu-resource none {_IMAGE} --dry-run {theirs}/train.py")
    assert "the key" not in str(objects)
    assert "SEATRIAL_SCRIPT" not in str(objects)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"seatrial: {theirs}/train.py is taken for a path of the pods, since another user could have put there what"
        f" this machine has ({theirs} belongs to user 12002; the path leads to {theirs.parent}/id_ed25519 of user 0);"
        " to send that along, copy it to a folder of yours."
    )


@pytest.mark.root
def test_a_link_of_another_user_at_a_relative_path(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names the folder of a colleague trusts that one; nobody has chosen to trust all users."""
    assert carried("theirs/train.py") == ("train.py", b"the key")
    theirs.chmod(0o1777)
    words = (
        r"train\.py: another user could have put it there \(other users can write to /\S+/theirs, and not all users can"
        r" read (\S+); the path leads to \1 of user 0\), so it does not go along; copy it to a folder of yours; put"
    )
    with pytest.raises(RequestError, match=words):
        carried("theirs/train.py")
    monkeypatch.chdir(theirs)
    with pytest.raises(RequestError, match=words):
        carried("./train.py")
    assert carried(f"{theirs}/train.py") is None
    (theirs / "mine.py").symlink_to(theirs.parent / "id_ed25519")
    os.lchown(theirs, 0, 0)
    with pytest.raises(RequestError, match=r"folder of yours, or, if all users may read it, chmod go\+r /\S+ed25519"):
        carried("mine.py")


def test_a_script_that_is_exchanged_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("pass\n")

    def exchanged_first(script: str) -> BinaryIO:
        (tmp_path / "other.py").write_text("the key")
        (tmp_path / "other.py").rename(tmp_path / "train.py")
        return open_to_read(script)

    monkeypatch.setattr(carried_script_module, "open_to_read", exchanged_first)
    with pytest.raises(RequestError, match="it was exchanged while it was read"):
        carried("train.py")


@pytest.mark.parametrize("named", ["{}/train.py", "train.py"])
def test_what_goes_along_is_said(named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("print('here')\n" * 100)
    script = named.format(tmp_path)
    printed(f"launch --on job --gpu-resource none {_IMAGE} --dry-run {script}")
    also = ", for pods whose image has none at this path" if named != "train.py" else ""
    said = f"seatrial: {script} of this machine goes along (1,400 bytes in a ConfigMap){also}.\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("kind", ["job", "mpijob"])
def test_it_is_in_a_config_map_of_the_run(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('here')\n")
    objects = printed(f"launch --on {kind} --nodes 2 --gpu-resource none {_IMAGE} --dry-run train.py --epochs 3")
    held = [contents_of(thing) for thing in objects if thing["kind"] == "ConfigMap"]
    assert [each["train.py"] for each in held if "train.py" in each] == [b"print('here')\n"]
    assert "SEATRIAL_SCRIPT" in str(objects[-1])
    assert "/tmp/seatrial/train.py" in str(objects[-1])


_COPY = "/tmp/seatrial/train.py"


def test_pods_have_priority_at_an_absolute_path(tmp_path: Path) -> None:
    typed = {"script": [f"{tmp_path}/train.py", "--epochs", "3"]}
    assert with_carried_script(typed, {"SEATRIAL_SCRIPT": _COPY})["script"] == [_COPY, "--epochs", "3"]
    assert with_carried_script(typed, {}) == typed
    (tmp_path / "train.py").touch()
    assert with_carried_script(typed, {"SEATRIAL_SCRIPT": _COPY}) == typed


@pytest.mark.parametrize("script", ["train.py", "./train.py", "code/train.py"])
def test_at_a_relative_path_pods_start_what_came_along(script: str, tmp_path: Path) -> None:
    """A claim below the folder where they start may have such a file, and others may write to that claim."""
    (tmp_path / "code").mkdir()
    for place in ("train.py", "code/train.py"):
        (tmp_path / place).touch()
    typed = {"script": [script, "--epochs", "3"]}
    assert with_carried_script(typed, {"SEATRIAL_SCRIPT": _COPY})["script"] == [_COPY, "--epochs", "3"]
    assert with_carried_script(typed, {}) == typed
