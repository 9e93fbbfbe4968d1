"""Whose folders and scripts a program starts in, on hosts that do not share the controller's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from seatrial import folders, start
from seatrial.agent.program_ranks import start_folder
from seatrial.environment import working_folder
from seatrial.environment.working_folder import FolderTrust, refusal, require_own_number, script_of, trust_here
from seatrial.errors import RequestError
from seatrial.targets.ssh import connection

_NOBODY = FolderTrust()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that only we can write to, with a script in it."""
    (folder := tmp_path / "above" / "job").mkdir(parents=True)
    (folder / "train.py").write_text("")
    return folder


@pytest.fixture
def as_another_user(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have what we own belong to another user than this one."""
    others = {os.lstat(parent).st_uid for parent in (folder, *folder.parents)} - {os.geteuid()}
    monkeypatch.setattr(
        working_folder, "trusted_users", lambda is_below=False, owners=(): {*owners} | others | {os.geteuid() + 1}
    )
    monkeypatch.setattr(working_folder, "owner_of_new_files", lambda fd: os.geteuid() + 1)


def test_a_folder_and_a_script_of_ours(folder: Path) -> None:
    assert refusal(str(folder), "", _NOBODY) == refusal(str(folder), "train.py", _NOBODY) == ""


@pytest.mark.parametrize("script", ["", "train.py"])
@pytest.mark.usefixtures("as_another_user")
def test_another_user_owns_it(script: str, folder: Path) -> None:
    """As on the controller's machine it is the user's own choice: the folder of a colleague."""
    assert f"belongs to user {os.geteuid()}" in refusal(str(folder), script, _NOBODY)
    trust = trust_here(str(folder), script)
    assert trust == FolderTrust(owners=(os.geteuid(),))
    assert refusal(str(folder), script, trust) == ""


@pytest.mark.parametrize("name", ["above/job/train.py", "above/job", "above"])
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_all_users_can_write_there(mode: int, name: str, folder: Path, tmp_path: Path) -> None:
    (place := tmp_path / name).chmod(mode)
    is_guarded = name == "above" and mode == 0o1777  # nobody else can exchange our folder in it
    found = refusal(str(folder), "train.py", _NOBODY)
    assert found == ("" if is_guarded else f"all users can write to {place}")
    trust = trust_here(str(folder), "train.py")
    assert trust.open_places == (() if is_guarded else (str(place),))
    assert refusal(str(folder), "train.py", trust) == ""


def test_a_script_elsewhere(folder: Path, tmp_path: Path) -> None:
    """Python imports from the folder of the script, and of what a link leads to."""
    (tmp_path / "link.py").symlink_to(folder / "train.py")
    folder.chmod(0o1777)
    for script in (str(folder / "train.py"), "../link.py", "job/../../link.py", str(tmp_path / "link.py")):
        assert refusal(str(folder.parent), script, _NOBODY) == f"all users can write to {folder}"


@pytest.mark.usefixtures("as_another_user")
def test_a_link_of_another_user(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (link := tmp_path / "link").symlink_to(folder)
    ours = {os.lstat(parent).st_ino for parent in (folder, *folder.parents)}
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        status = list(real(fd))
        status[4] = os.geteuid() + 1 if real(fd).st_ino in ours else status[4]
        return os.stat_result(status)

    monkeypatch.setattr(os, "fstat", fstat)
    assert refusal(str(folder), "", _NOBODY) == ""
    assert refusal(str(link), "", _NOBODY) == f"{link} belongs to user {os.geteuid()}"


@pytest.mark.usefixtures("as_another_user")
def test_a_share_that_maps_all_users_to_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an identity that the server does not know, NFS shows our own files as those of nobody."""
    assert refusal(str(folder), "train.py", _NOBODY) == f"/ belongs to user {os.geteuid()}", "no disk of this machine"
    monkeypatch.setattr(working_folder, "may_map_owners", lambda status: True)
    monkeypatch.setattr(working_folder, "owner_of_new_files", lambda fd: os.geteuid())
    assert refusal(str(folder), "train.py", _NOBODY) == ""
    # All who use the share could have put files there.
    assert refusal(str(folder), "", _NOBODY, strict=True) == f"/ belongs to user {os.geteuid()}"


def test_what_is_not_there_is_not_trusted(tmp_path: Path) -> None:
    assert trust_here(str(tmp_path / "nothing"), "x/train.py") == _NOBODY
    tmp_path.chmod(0o1777)
    assert trust_here(str(tmp_path / "nothing"), "x/train.py") == _NOBODY


@pytest.mark.parametrize(
    "script", ["nothing/train.py", "above/nothing.py", "above/job/../nothing/x/train.py", "link.py"]
)
@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
def test_a_name_that_is_missing(mode: int, script: str, folder: Path, tmp_path: Path) -> None:
    """Whoever can write to the last folder that exists could put the script there before the ranks start."""
    (tmp_path / "link.py").symlink_to("above/nothing/train.py")
    last = tmp_path if script.startswith("nothing") else folder.parent
    last.chmod(mode)
    found = refusal(str(tmp_path), script, _NOBODY)
    assert found.endswith("" if mode == 0o755 else f"all users can write to {last}")
    assert bool(found) == (mode != 0o755)
    everywhere = FolderTrust(open_places=(str(tmp_path), str(last)))
    again = refusal(str(tmp_path), script, everywhere)
    assert " is missing, and " in again if found else again == "", "nothing could run there anyway"


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_folder_that_is_open_to_all_excuses_no_script_elsewhere(is_missing: bool, tmp_path: Path) -> None:
    """Who types in /tmp trusts nobody with a script below /scratch, where the host of a neighbor lacks it, or shows
    another mode."""
    (typed := tmp_path / "tmp").mkdir()
    typed.chmod(0o1777)
    (script := tmp_path / "scratch" / "me" / "train.py").parent.mkdir(parents=True)
    script.write_text("")
    cwd_trust, script_trust = trust_here(str(typed), ""), trust_here(str(typed), str(script))
    assert (cwd_trust.open_places, script_trust.open_places) == ((str(typed),), ())
    (scratch := tmp_path / "scratch").chmod(0o1777 if is_missing else 0o777)
    if is_missing:
        script.unlink()
        script.parent.rmdir()
    program: Any = {"cwd": str(typed), "script": str(script)}
    program |= {"cwd_trust": asdict(cwd_trust), "script_trust": asdict(script_trust)}
    words = f"{script.parent} is missing, and " if is_missing else ""
    needed = "each host needs the script at this path, in a folder of yours"
    found = f"{script} on this host: {words}all users can write to {scratch}; {needed}"
    assert start_folder(program) == (str(typed), found, "")


def test_a_folder_that_all_can_fill_is_trusted_as_a_folder_only(tmp_path: Path) -> None:
    """The sticky bit guards what lies in it on the controller, and on another host there may be none."""
    (folder := tmp_path / "open").mkdir()
    folder.chmod(0o1777)
    (script := folder / "me" / "train.py").parent.mkdir()
    script.write_text("")
    trust = trust_here(str(folder), str(script))
    assert trust.open_places == ()
    folder.chmod(0o777)
    assert refusal(str(folder), str(script), trust) == f"all users can write to {folder}"
    assert refusal(str(folder), "", trust_here(str(folder), "")) == ""


@pytest.mark.parametrize("folder_typed", ["above/job/..", "above/.", "above//", "link", "link/../above"])
def test_a_folder_typed_in_another_way(folder_typed: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder.parent)
    folder.parent.chmod(0o1777)
    assert refusal(str(tmp_path / folder_typed), "", _NOBODY) == f"all users can write to {folder.parent}"


@pytest.mark.usefixtures("as_another_user")
def test_each_link_of_a_chain_counts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link between the path and what it leads to, in an open folder, is its owner's to exchange."""
    (tmp_path / "last").symlink_to(folder)
    (between := tmp_path / "between").symlink_to("last")
    (tmp_path / "first").symlink_to(between)
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        status = list(real(fd))
        status[4] = os.geteuid() + (os.readlink(f"/proc/self/fd/{fd}") != str(between))
        return os.stat_result(status)

    monkeypatch.setattr(os, "fstat", fstat)
    assert refusal(str(folder), "train.py", _NOBODY) == refusal(str(tmp_path / "last"), "", _NOBODY) == ""
    assert refusal(str(tmp_path / "first"), "", _NOBODY) == f"{between} belongs to user {os.geteuid()}"
    script = str(tmp_path / "first" / "train.py")
    assert refusal(str(folder), script, _NOBODY) == f"{between} belongs to user {os.geteuid()}"


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert refusal(str(tmp_path), "a/train.py", _NOBODY) == f"{tmp_path}/a/train.py: Too many levels of symbolic links"


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (("python3", "train.py"), "train.py"),
        (("python3", "/x/train.py"), "/x/train.py"),
        (("python3", "-m", "train"), ""),
        (("torchrun",), ""),
        (("./run.sh",), "./run.sh"),
    ],
)
def test_which_word_is_the_script(argv: tuple[str, ...], script: str) -> None:
    assert script_of(argv) == script


def _exchanged_by(folder: str) -> str:
    fd, exchanged_by = folders.open_judged(folder)
    os.close(fd)
    return exchanged_by


_OVERFLOW = 65534
_LOOK = """
import sys
from seatrial import folders
from seatrial.environment.working_folder import FolderTrust, refusal, trust_here
for folder in sys.argv[1:]:
    words = {refusal(folder, "train.py", FolderTrust(owners=owners)) for owners in ((), (65534,))}
    print(*words, folders.open_judged(folder)[1], trust_here(folder, "train.py").owners, sep=" | ")
"""


@pytest.mark.parametrize("mode", [0o1777, 0o1775, 0o2770])
@pytest.mark.parametrize("numbers", ["4711 4711 1", "0 1000 1", "0 1000 1\n1 100000 65536", "0 100000 65536"])
def test_a_container_that_shows_all_other_users_as_one(
    numbers: str, mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of root are trusted there; where others can make folders, nobody knows which these are."""
    _with_numbers(numbers, folder, monkeypatch)
    folder.parent.chmod(mode)
    _show_as_overflow(folder.parent, monkeypatch)
    assert refusal("/usr/lib", "", _NOBODY) == _exchanged_by("/usr/lib") == ""
    theirs = FolderTrust(owners=(_OVERFLOW,))
    for found in (refusal(str(folder), "", _NOBODY), refusal(str(folder), "", theirs)):
        assert found == f"{folder} belongs to user {_OVERFLOW}"
    is_open = mode & 0o022 and not mode & 0o1000
    said = f"other users can write to {folder.parent}" if is_open else f"{folder} belongs to user {_OVERFLOW}"
    assert _exchanged_by(str(folder)) == said
    assert trust_here(str(folder), "train.py").owners == (), "on another host the number means somebody else"


def test_the_user_nobody_of_a_machine_is_one_like_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share may show all of its files as nobody's, also one that nobody can write to."""
    _with_numbers(f"0 0 {2**32 - 1}", folder, monkeypatch)
    _show_as_overflow(folder.parent, monkeypatch)
    assert refusal(str(folder), "", _NOBODY) == f"/ belongs to user {_OVERFLOW}"
    trust = trust_here(str(folder), "")
    assert trust.owners == (_OVERFLOW,)
    assert refusal(str(folder), "", trust) == ""


def _with_numbers(numbers: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the numbers of users be those of a container. ``numbers``: first inside, first outside, how many."""
    uid_map = folder / "uid_map_double"
    uid_map.write_text(f"{numbers}\n")
    doubles = {"/proc/self/uid_map": uid_map}
    monkeypatch.setattr(start, "open", lambda path, *a, **b: doubles.get(path, Path(path)).open(*a, **b), raising=False)


def _show_as_overflow(as_it_is: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_folder, "owner_of_new_files", lambda fd: os.geteuid())
    for name in ("fstat", "stat"):
        monkeypatch.setattr(os, name, _as_overflow(getattr(os, name), as_it_is))


def _as_overflow(real: Callable[..., os.stat_result], as_it_is: Path) -> Callable[..., os.stat_result]:
    """Return a double of ``fstat`` or ``stat`` that shows every owner as the kernel shows a user without a number, and
    that only the owner can write there, but for one folder."""

    def status_of(file: int | str, **options: bool) -> os.stat_result:
        status = list(real(file, **options))
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
        status[0] = int(status[0]) & ~(0 if path == str(as_it_is) else 0o022)
        status[4] = _OVERFLOW
        return os.stat_result(status)

    return status_of


@pytest.mark.parametrize(
    ("numbers", "user", "is_refused"),
    [
        ("0 100000 65536", _OVERFLOW, True),
        (f"{_OVERFLOW} 1000 1", _OVERFLOW, True),
        ("", _OVERFLOW, True),  # a namespace without any numbers
        ("0 0 65536", _OVERFLOW, True),
        (f"0 0 {2**32 - 1}", _OVERFLOW, False),
        ("0 100000 65536", 1000, False),
        ("0 100000 65536", 0, False),
    ],
)
def test_the_user_as_which_a_container_shows_all_others_is_refused(
    numbers: str, user: int, is_refused: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbor's file would count as ours."""
    _with_numbers(numbers, folder, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert bool(start.refusal_of_number()) == is_refused
    raises = pytest.raises(RequestError, match=r"seatrial cannot tell .* user 65534 .*uid_map.*; start .* another user")
    with raises if is_refused else nullcontext():
        require_own_number()


@pytest.mark.root
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-m", "seatrial", "run", "--dry-run"), (2, "Error: seatrial cannot tell its files")),
        (("-m", "seatrial", "plan", "show", "smoke"), (2, "Error: seatrial cannot tell its files")),
        (("-m", "seatrial", "--version"), (0, "")),
        (("-m", "seatrial.agent.agent_main"), (2, "seatrial agent: seatrial cannot tell its files")),
        (
            ("-m", "seatrial.agent.mpi_rank", "any", "R", "L", "a:1"),
            (2, "seatrial agent refuses: seatrial cannot tell its"),
        ),
        ((start.__file__, "0" * 64, "-", start.__file__), (3, "Error: the bundle cannot tell its files from those")),
        (("-Esuc", connection._BOOT), (3, f"{connection.STARTED}\nError: the bundle cannot tell its files from those")),
    ],
    ids=["run", "plan", "version", "agent", "mpirun", "start", "ssh"],
)
def test_each_way_to_start_refuses_it(argv: tuple[str, ...], said: tuple[int, str], tmp_path: Path) -> None:
    inside = ["unshare", "-U", f"--map-user={_OVERFLOW}", f"--map-group={_OVERFLOW}", sys.executable, *argv]
    environ = {"TMPDIR": str(tmp_path), "SEATRIAL_FOLDER": "{}"}
    by_ssh = "".join(f"{line}\n" for line in connection.feed_of({"module": ["x"], "env": {}}).lines)
    done = subprocess.run(
        inside, cwd=tmp_path, env=environ, input=by_ssh, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr[: len(said[1])]) == said, done.stderr
    assert done.stderr[len(said[1]) :].count("\n") == bool(said[1]), "one sentence"
    assert list(tmp_path.iterdir()) == []


def test_a_link_of_procfs_that_leads_nowhere(tmp_path: Path) -> None:
    """The working folder of a process that has ended is gone, and the kernel says so without a name."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        (tmp_path / "link").symlink_to(gone := f"/proc/{ended.pid}/cwd")
        trust = trust_here(str(tmp_path), "link/train.py")
        assert refusal(str(tmp_path), "link/train.py", trust) == ""
        with pytest.raises(FileNotFoundError) as raised:
            list(start.way_to(gone))
    assert raised.value.filename == gone


@pytest.mark.nightly
@pytest.mark.root
@pytest.mark.parametrize("user", [4711, 0])
def test_a_user_namespace(user: int, tmp_path: Path) -> None:
    """As Pyxis and enroot make it: root does not exist there. As for --fakeroot: this user is root."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for place in (theirs, ours):
        place.mkdir()
        (place / "train.py").write_text("")
    for path in (theirs, theirs / "train.py"):
        os.chown(path, 12346, 12346)
    tmp_path.chmod(0o1777)
    inside = ["unshare", "-U", f"--map-user={user}", f"--map-group={user}", sys.executable, "-c", _LOOK]
    done = subprocess.run([*inside, str(theirs), str(ours)], capture_output=True, text=True, timeout=30, check=True)
    refused = f"{theirs} belongs to user {_OVERFLOW}"
    assert done.stdout == f"{refused} | {refused} | ()\n |  | ()\n"
