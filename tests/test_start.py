"""The start script, as a process: the copy that it makes, the program that it starts, and its refusals."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import contextlib
import hashlib
import inspect
import io
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_files import HOSTILE
from neighbor_mount import NEIGHBOR, mounted

from seatrial import start
from seatrial.targets.remote_defaults import start_argv

_SHOWN = "import os, sys; print(__file__.rpartition('/')[0], *sys.argv[1:])"


def zipped(code: str = _SHOWN) -> bytes:
    """Return a zip that Python runs, in place of the bundle."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("__main__.py", code)
    return written.getvalue()


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def parts_in(folder: Path, content: bytes, sizes: tuple[int, ...] = (100, 7)) -> list[str]:
    """Write the content to several files, and return their paths."""
    folder.mkdir(exist_ok=True)
    names = []
    for number, size in enumerate((*sizes, len(content))):
        (folder / f"part.{number}").write_bytes(content[:size])
        names.append(str(folder / f"part.{number}"))
        content = content[size:]
    return names


def started(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, start.__file__, *words],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the sentence of a refusal."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert done.stderr.startswith("Error: the bundle ")
    return done.stderr.removeprefix("Error: the bundle ")


def test_parts_are_joined_in_order_and_python_runs_the_copy(tmp_path: Path) -> None:
    folder, content = tmp_path / "copy", zipped()
    parts = parts_in(tmp_path / "parts", content)
    done = started(digest_of(content), str(folder), *parts, "--", "run", "--", "a b", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{folder}/seatrial.pyz run -- a b\n"
    assert (folder / "seatrial.pyz").read_bytes() == content
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "seatrial.pyz").stat().st_mode) == 0o600


def test_without_two_dashes_nothing_starts(tmp_path: Path) -> None:
    folder, content = tmp_path / "copy", zipped()
    parts = parts_in(tmp_path / "parts", content)
    for _ in range(2):
        # A container that restarts makes the copy a second time.
        done = started(digest_of(content), str(folder), *parts, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (folder / "seatrial.pyz").read_bytes() == content


def test_other_bytes_are_refused_with_both_digests(tmp_path: Path) -> None:
    folder, content = tmp_path / "copy", zipped()
    parts = parts_in(tmp_path / "parts", content)
    for words in (parts[::-1], parts[:-1], parts[:1]):
        wrong = digest_of(b"".join(Path(part).read_bytes() for part in words))
        said = refused(started(digest_of(content), str(folder), *words, "--", "run", cwd=tmp_path))
        assert said.startswith(words[0] if len(words) == 1 else f"{words[0]} to {words[-1]}")
        assert f"has the SHA-256 {wrong}, and {digest_of(content)} was expected" in said
        assert "start the run again" in said
    assert not folder.exists(), "nothing was written"


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    content = zipped()
    parts = parts_in(tmp_path / "parts", content)
    os.unlink(parts[1])
    said = refused(started(digest_of(content), "-", *parts, "--", "run", cwd=tmp_path))
    assert said.startswith(f"{parts[1]} cannot be read here (No such file or directory); all nodes must see it")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o755])
def test_a_folder_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder, content = tmp_path / "copy", zipped()
    folder.mkdir()
    folder.chmod(mode)
    parts = parts_in(tmp_path / "parts", content)
    said = refused(started(digest_of(content), str(folder), *parts, "--", "run", cwd=tmp_path))
    assert f"cannot be kept in {folder}: only user {os.geteuid()} may have access" in said
    assert "remove it" in said
    assert list(folder.iterdir()) == []


def test_a_link_or_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    content = zipped()
    parts = parts_in(tmp_path / "parts", content)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "file"):
        said = refused(started(digest_of(content), str(tmp_path / name), *parts, "--", "run", cwd=tmp_path))
        assert f"cannot be kept in {tmp_path / name}" in said
    assert list((tmp_path / "real").iterdir()) == []
    said = refused(started(digest_of(content), str(tmp_path / "none" / "copy"), *parts, "--", "run", cwd=tmp_path))
    assert "(No such file or directory)" in said


@pytest.mark.root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder, content = tmp_path / "copy", zipped()
    folder.mkdir(mode=0o700)
    os.chown(folder, 10001, 10001)
    parts = parts_in(tmp_path / "parts", content)
    assert "user 10001" in refused(started(digest_of(content), str(folder), *parts, "--", "run", cwd=tmp_path))


def test_a_link_in_place_of_the_copy_is_not_followed(tmp_path: Path) -> None:
    folder, content = tmp_path / "copy", zipped()
    folder.mkdir(mode=0o700)
    (tmp_path / "victim").write_text("mine")
    (folder / "seatrial.pyz").symlink_to(tmp_path / "victim")
    parts = parts_in(tmp_path / "parts", content)
    assert started(digest_of(content), str(folder), *parts, cwd=tmp_path).returncode == 0
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (folder / "seatrial.pyz").is_symlink()
    assert (folder / "seatrial.pyz").read_bytes() == content


@pytest.mark.root
def test_a_folder_on_the_file_system_of_a_neighbor_is_refused(tmp_path: Path) -> None:
    """It shows what it likes as ours: Python would run the code of the neighbor in place of the copy."""
    content, theirs = zipped(), tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    parts = parts_in(tmp_path / "parts", content)
    with mounted(theirs, shown_owner=os.geteuid(), name="tmp"):
        for folder in (theirs, theirs / "new"):
            said = refused(started(digest_of(content), str(folder), *parts, "--", "run", cwd=tmp_path))
            shown = f"{theirs} is on a file system of user {NEIGHBOR}, who decides what it shows"
            assert said == f"cannot be kept in {folder} ({shown}); name another one.\n"


@pytest.mark.parametrize("kind", ["FIFO", "device", "folder", "socket"])
def test_a_bundle_that_others_have_exchanged_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "seatrial.pyz"
    HOSTILE[kind][0](path)
    said = refused(started(digest_of(b"x"), "-", str(path), "--", "run", cwd=tmp_path))
    assert str(path) in said


def test_a_bundle_that_is_exchanged_after_the_check_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that are compared are the bytes of the copy, whatever the file holds afterwards."""
    content, path = zipped(), tmp_path / "seatrial.pyz"
    path.write_bytes(content)
    read = start._read

    def exchanging(part: str) -> bytes:
        found = read(part)
        path.write_bytes(zipped("print('theirs')"))
        return found

    monkeypatch.setattr(start, "_read", exchanging)
    assert start.main([digest_of(content), str(tmp_path / "copy"), str(path)]) == 0
    assert (tmp_path / "copy" / "seatrial.pyz").read_bytes() == content


def limited(limit: str, folder: str, tmp_path: Path) -> str:
    """Start a bundle of 200 KB with a limit of the shell, and return the sentence of the refusal."""
    content = zipped("x = 1\n" * 40_000)
    assert len(content) > 200_000
    (tmp_path / "bundle").write_bytes(content)
    words = [sys.executable, start.__file__, digest_of(content), folder, str(tmp_path / "bundle"), "--", "run"]
    argv = ["sh", "-c", f'{limit}; exec "$@"', "sh", *words]
    return refused(subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False))


def test_a_copy_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    said = limited("ulimit -f 100", str(folder), tmp_path)
    assert said == f"cannot be written to {folder} (File too large); free space there.\n"
    assert list(folder.iterdir()) == []


def test_a_copy_that_memory_does_not_take_is_refused(tmp_path: Path) -> None:
    said = limited("ulimit -f 100", "-", tmp_path)
    assert said == "cannot be kept in memory (File too large); look at the limits of this host (ulimit -a).\n"


@pytest.mark.parametrize("version", ["3, 9", "3, 6"])
def test_a_python_that_is_too_old_is_named(version: str, tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(b"x")
    code = f"import sys; sys.version_info = ({version}); exec({inspect.getsource(start)!r})"
    argv = [sys.executable, "-c", code, digest_of(b"x"), "-", str(tmp_path / "bundle"), "--", "run"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    old = version.replace(", ", ".")
    assert (
        refused(done) == f"needs Python 3.10 or newer, and {sys.executable} is {old}; name a newer one with --python.\n"
    )


def test_python_3_6_can_parse_the_script_and_it_is_ascii() -> None:
    text = inspect.getsource(start)
    assert text.isascii()
    assert "__future__" not in text, "Python 3.6 does not know annotations of it"
    tree = ast.parse(text, feature_version=(3, 6))
    # Such a Python ends with a traceback where a type gets its parameters, but for a text or a local annotation.
    types = set(dir(builtins)) | set(dir(collections.abc))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    local = {
        inner
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.AnnAssign)
        for inner in ast.walk(node.annotation)
    }
    for node in set(ast.walk(tree)) - local:
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in types, ast.unparse(node)


# The launchers start it like this: the text in the command, and the real bundle.


def agent(pyz: Path, cwd: Path, control: str) -> subprocess.Popen[str]:
    """Start the agent of a node, with traps in the working folder and ``cwd/tmp`` as its temporary folder."""
    (cwd / "tmp").mkdir()
    for name in ("hashlib", "os", "contextlib", "seatrial", "socket", "sitecustomize"):
        (cwd / f"{name}.py").write_text("raise SystemExit('imported from the working folder')\n")
    argv = [*start_argv(sys.executable, str(pyz)), "-m", "seatrial.agent.agent_main"]
    environ = {
        "TMPDIR": str(cwd / "tmp"),
        "SEATRIAL_TEST_RUN": os.environ["SEATRIAL_TEST_RUN"],
        "SEATRIAL_CONTROL": control,
        "SEATRIAL_TOKEN": "t",
        "SEATRIAL_NODE_RANK": "0",
        "SEATRIAL_JOB": "nothing",
    }
    return subprocess.Popen(argv, cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@contextlib.contextmanager
def joining(pyz: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """Start an agent; yield it with its connection, to which nobody has answered yet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        process = agent(pyz, tmp_path, f"127.0.0.1:{server.getsockname()[1]}")
        try:
            connection, _ = server.accept()
            server.close()
            with connection:
                yield process, connection
        finally:
            process.kill()
            process.wait()


def test_the_copy_of_an_agent_has_no_name_that_others_could_take(pyz: Path, tmp_path: Path) -> None:
    with joining(pyz, tmp_path) as (process, connection):
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")
        assert re.fullmatch(r"/proc/self/fd/1\d{3}", words[1])
        assert words[2:4] == ["-m", "seatrial.agent.agent_main"]
        assert list((tmp_path / "tmp").iterdir()) == []
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        copy = Path(words[1].replace("self", child))
        assert os.readlink(copy) == "/memfd:seatrial (deleted)"
        assert copy.read_bytes() == pyz.read_bytes()
        # The conductor closes without an answer: the agent gives up.
        connection.close()
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 3, output
    assert "found no controller of its job" in output


def test_an_agent_that_gets_sigterm_before_it_has_joined_says_so(pyz: Path, tmp_path: Path) -> None:
    with joining(pyz, tmp_path) as (process, _):
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 3, output
    assert "signal 15 ended this agent before it had joined a run" in output


@pytest.mark.parametrize("limit", ["", "ulimit -n 40; "])
def test_a_process_of_a_copy_in_memory_imports_from_it(pyz: Path, tmp_path: Path, limit: str) -> None:
    """As a rank that an agent starts after weeks: a folder among temporary files may be a neighbor's by then."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.99.0'\n")
    python = os.path.realpath(sys.executable)  # without the packages of the tests, of which seatrial is one
    request = {"device": "cpu", "backend": "gloo", "nproc_per_node": 1, "oversubscribe": False, "of_torch": True}
    survey = [*start_argv(python, str(pyz)), "-m", "seatrial.targets.ssh.survey", json.dumps(request)]
    argv = ["sh", "-c", f'{limit}exec "$@"', "sh", *survey]
    environ = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, cwd="/", env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"torch": "2.99.0"' in done.stdout


def test_a_changed_copy_is_not_started(pyz: Path, tmp_path: Path) -> None:
    changed = bytearray(pyz.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "seatrial.pyz").write_bytes(changed)
    process = agent(tmp_path / "seatrial.pyz", tmp_path, "127.0.0.1:1")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    assert f"the bundle {tmp_path}/seatrial.pyz has the SHA-256 {digest_of(bytes(changed))}, and" in output
