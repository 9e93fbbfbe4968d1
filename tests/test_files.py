"""The files that we create, append to, lock or replace: never through a link, never those of another, never a wait."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_files import HOSTILE, SECRET, assert_unharmed, victim
from neighbor_mount import CONTENT, NEIGHBOR, mounted

from seatrial import files, folders, start
from seatrial.environment import working_folder

NOBODY = 65534
OPENERS: dict[str, Callable[[Path], Any]] = {
    "append": files.open_to_append,
    "overwrite": files.open_to_overwrite,
    "lock": lambda path: os.close(files.open_lock(path)),
    "read in the folder of a run": lambda path: files.open_to_read(path, run_folder=True),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "name"


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_is_planted_is_refused(path: Path, kind: str, opener: str) -> None:
    plant, words = HOSTILE[kind]
    plant(path)
    if (opener, kind) == ("lock", "hard link"):
        lock = files.open_lock(path)
        files.write_holder(lock, "process 1")
        os.close(lock)
    else:
        with pytest.raises(OSError, match="name is") as refused:
            OPENERS[opener](path)
        assert str(refused.value.strerror).startswith(f"name is {words}")
    assert_unharmed(path)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_new_file_takes_no_existing_name(path: Path, kind: str) -> None:
    HOSTILE[kind][0](path)
    with pytest.raises(FileExistsError):
        files.create(path)
    assert_unharmed(path)


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "folder"])
def test_a_replaced_link_leaves_its_target_alone(path: Path, kind: str) -> None:
    HOSTILE[kind][0](path)
    files.write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_ISREG(path.lstat().st_mode)
    assert_unharmed(path)
    assert [file.name for file in path.parent.iterdir()] == ["name"]


def test_a_failed_replacement_leaves_nothing(path: Path) -> None:
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomically(path, b"new")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["link", "another file"])
def test_what_is_created_whole_is_what_was_written(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can write to the folder exchanges the temporary file, once it is on the disk, before it gets the name."""
    fsync = os.fsync

    def exchanged(fd: int) -> None:
        fsync(fd)
        (temporary,) = path.parent.iterdir()
        temporary.unlink()
        if kind == "link":
            temporary.symlink_to(victim(path))
        else:
            temporary.write_bytes(SECRET)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", exchanged)
        with pytest.raises(PermissionError, match="name is another file than the one that was written, since others"):
            files.create_whole(path, b"a secret", mode=0o600)
    assert victim(path).stat().st_nlink == 1
    assert os.listdir(path.parent) == ["name"]
    path.unlink()
    files.create_whole(path, b"a secret", mode=0o600)
    assert (path.read_bytes(), path.stat().st_nlink) == (b"a secret", 1)


@pytest.mark.parametrize("kind", ["FIFO", "folder", "socket", "loop", "dangling", "device"])
def test_reading_needs_a_regular_file(path: Path, kind: str) -> None:
    HOSTILE[kind][0](path)
    with pytest.raises(OSError, match=r"\w"):
        files.open_to_read(path)


def test_what_is_read_may_be_a_link(path: Path) -> None:
    path.symlink_to(victim(path))
    with files.open_to_read(path) as file:
        assert file.read() == SECRET


def test_what_is_read_in_the_folder_of_a_run_is_our_own(path: Path) -> None:
    path.write_bytes(b"ours")
    with files.open_to_read(path, run_folder=True) as file:
        assert file.read() == b"ours"
    link = path.parent.parent / "link"
    link.symlink_to(path.parent)
    with pytest.raises(OSError, match="a symbolic link and no folder"):
        files.open_to_read(link / path.name, run_folder=True)


@pytest.fixture(params=[0o000, 0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_modes_are_what_the_umask_leaves(path: Path, umask: int) -> None:
    def mode() -> int:
        found = stat.S_IMODE(path.stat().st_mode)
        path.unlink()
        return found

    for opener in (files.create, files.open_to_append, files.open_to_overwrite):
        opener(path).close()
        assert mode() == 0o666 & ~umask
    files.write_atomically(path, b"", mode=0o777)
    assert mode() == 0o777 & ~umask
    files.create(path, mode=0o600).close()
    assert mode() == 0o600 & ~umask


def test_appended_and_overwritten_files_keep_what_they_should(path: Path) -> None:
    with files.open_to_append(path) as file:
        file.write(b"one")
    with files.open_to_append(path) as file:
        assert file.read() == b"one"
        file.seek(0)
        file.write(b"two")
    assert path.read_bytes() == b"onetwo"
    with files.open_to_overwrite(path) as file:
        file.write(b"3")
    assert path.read_bytes() == b"3"


@pytest.mark.parametrize("opener", [files.create, files.open_to_append, files.open_to_overwrite])
def test_the_folder_of_a_run_is_no_link(path: Path, opener: Callable[..., Any]) -> None:
    link = path.parent.parent / "link"
    link.symlink_to(path.parent)
    with pytest.raises(OSError, match="is a symbolic link and no folder"):
        opener(link / "name", run_folder=True)
    with pytest.raises(OSError, match="is a symbolic link and no folder"):
        files.write_atomically(link / "name", b"", run_folder=True)
    assert list(path.parent.iterdir()) == []
    opener(link / "name").close()
    assert path.exists(), "users link folders of data"


@pytest.mark.parametrize("kind", ["link", "FIFO", "socket"])
def test_a_private_folder_is_no_other_thing(path: Path, kind: str) -> None:
    HOSTILE[kind][0](path)
    with pytest.raises(PermissionError, match="must be a folder that only user"):
        folders.make_private(path)


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o1777])
def test_a_private_folder_is_closed_to_others(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(PermissionError, match="must be a folder that only user"):
        folders.make_private(path)


def test_a_private_folder_is_made_once(path: Path) -> None:
    for _ in range(2):
        folders.make_private(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o000, 0o077], indirect=True)
def test_nobody_reads_a_lock_who_cannot_write_to_it(path: Path, umask: int) -> None:
    """Who can read a file can lock it for as long as he likes."""
    modes = {0o022: 0o600, 0o002: 0o660, 0o000: 0o666, 0o077: 0o600}
    lock = files.open_lock(path)
    assert stat.S_IMODE(os.fstat(lock).st_mode) == modes[umask]
    assert files.other_holders(lock, path) == ""
    os.close(lock)


def test_readers_of_an_older_lock_are_told_and_then_kept_out(path: Path) -> None:
    path.write_bytes(b"process 1")
    path.chmod(0o644)
    lock = files.open_lock(path)
    assert f"a user who can read {path} holds this lock" in files.other_holders(lock, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644  # it may be no lock of ours
    files.write_holder(lock, "process 2")
    assert files.other_holders(lock, path) == ""
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o600, b"process 2")
    os.close(lock)
    (path.parent / "other").hardlink_to(path)
    path.chmod(0o644)
    lock = files.open_lock(path)
    files.write_holder(lock, "process 3")
    os.close(lock)
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o644, b"process 2")


@pytest.mark.root
def test_files_of_other_users_are_not_written(path: Path) -> None:
    path.write_bytes(SECRET)
    os.chown(path, NOBODY, NOBODY)
    for opener in (files.open_to_append, files.open_to_overwrite):
        with pytest.raises(OSError, match=f"is a file of user {NOBODY}"):
            opener(path)
    lock = files.open_lock(path)
    files.write_holder(lock, "process 1")
    os.close(lock)
    assert path.read_bytes() == SECRET
    private = path.parent / "private"
    private.mkdir(0o700)
    os.chown(private, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=f"of user {NOBODY}"):
        folders.make_private(private)


_EXCHANGE = f"""
import os, sys
os.chdir(sys.argv[1])
os.setgid({NOBODY})
os.setuid({NOBODY})
print("ready", flush=True)
while True:
    for name in os.listdir("."):
        try:
            if not os.path.islink(name):
                os.rename(name, os.urandom(3).hex())
                os.symlink(sys.argv[2], name)
            elif os.urandom(1) < b"\x20":
                os.unlink(name)
        except OSError:
            pass
"""
"""The program of a neighbor that owns a folder, and replaces each name in it by a link to a file of the victim."""


@pytest.mark.root
def test_a_neighbor_who_exchanges_names_reaches_nothing(path: Path) -> None:
    target = victim(path)
    os.chown(path.parent, NOBODY, NOBODY)
    command = [sys.executable, "-c", _EXCHANGE, str(path.parent), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as neighbor:
        assert neighbor.stdout is not None
        try:
            assert neighbor.stdout.readline() == b"ready\n"
            writers = (lambda: files.write_atomically(path, b"new"), lambda: _append(path))
            written = 0
            for number in range(1_000):
                with contextlib.suppress(OSError):
                    writers[number % 2]()
                    written += 1
            assert written, "the neighbor has refused everything, so that nothing was tried"
        finally:
            neighbor.kill()
    assert any(entry.is_symlink() for entry in path.parent.iterdir()), "the neighbor has exchanged nothing"
    assert_unharmed(path)


def _append(path: Path) -> None:
    with files.open_to_append(path) as file:
        file.write(b"new")


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "hard link"])
def test_what_we_trust_is_a_regular_file(path: Path, kind: str, private: bool) -> None:
    plant, words = HOSTILE[kind]
    plant(path)
    with pytest.raises(OSError) as refused:  # noqa: PT011 - the kinds differ; their words are compared
        files.read_trusted(path, 100, private=private)
    # Linux refuses to open a socket by itself.
    assert kind == "socket" or str(refused.value.strerror).startswith(f"name is {words}")
    assert_unharmed(path)


def test_options_have_one_name(path: Path) -> None:
    """Another user may give a file of ours the name where options are read."""
    path.write_bytes(b"1")
    os.link(path, path.with_name("other"))
    with pytest.raises(OSError, match="a file with 2 names"):
        files.read_trusted(path, 1)


@pytest.mark.parametrize(
    ("mode", "trusted"), [(0o600, (True, True)), (0o644, (True, False)), (0o620, (False, False)), (0o602, (False,) * 2)]
)
def test_what_we_trust_cannot_be_changed_by_others(path: Path, mode: int, trusted: tuple[bool, bool]) -> None:
    path.write_bytes(b"12345")
    path.chmod(mode)
    for private in (False, True):
        refused = contextlib.nullcontext() if trusted[private] else pytest.raises(PermissionError, match="chmod go-")
        with refused:
            assert files.read_trusted(path, 5, private=private) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes" if trusted[0] else "chmod"):
        files.read_trusted(path, 4)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_we_trust_is_ours(path: Path) -> None:
    path.write_bytes(b"1")
    path.chmod(0o600)
    os.chown(path, NOBODY, NOBODY)
    for private in (False, True):
        with pytest.raises(OSError, match=f"a file of user {NOBODY}, not of user 0"):
            files.read_trusted(path, 1, private=private)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_fifo_of_another_user_is_not_waited_for(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as in_memory:
        for path in (tmp_path / "hosts", Path(in_memory) / "hosts"):
            os.mkfifo(path)
            os.chown(path, NOBODY, NOBODY)
            with pytest.raises(OSError, match=f"hosts is a FIFO of user {NOBODY}"):
                files.read_input(path, 10)


def test_a_fifo_whose_writer_comes_later_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(fifo := tmp_path / "hosts")
    thread = threading.Timer(0.5, fifo.write_bytes, [b"12345"])
    thread.daemon = True
    thread.start()
    assert files.read_input(fifo, 10) == b"12345"
    thread.join()
    monkeypatch.setattr(files, "_WRITER_S", 0.1)
    with pytest.raises(OSError, match=r"hosts is a FIFO, and nobody wrote to it for 0\.1 seconds"):
        files.read_input(fifo, 10)


def test_a_pipe_of_a_shell_is_waited_for(tmp_path: Path) -> None:
    """As in ``--hostfile <(list nodes)``."""
    reader, writer = os.pipe()

    def write() -> None:
        os.write(writer, b"12345")
        os.close(writer)

    thread = threading.Timer(0.2, write)
    thread.start()
    try:
        assert files.read_input(f"/dev/fd/{reader}", 4) == b"12345"
    finally:
        thread.join()
        os.close(reader)
    (tmp_path / "file").write_bytes(b"123")
    assert files.read_input(tmp_path / "file", 10) == b"123"
    with pytest.raises(IsADirectoryError):
        files.read_input(tmp_path, 10)


@pytest.mark.root
def test_what_a_neighbors_file_system_shows_as_ours_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "seatrial-0"
    folder.mkdir(mode=0o700)
    with mounted(folder, shown_owner=os.geteuid(), name="secret"):
        status = (folder / "secret").stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o600)
        assert (folder / "secret").read_bytes() == CONTENT
        with pytest.raises(PermissionError, match=f"file system of user {NEIGHBOR}, who decides what it shows"):
            folders.make_private(folder)
        for private in (True, False):
            with pytest.raises(OSError, match=f"secret is on a file system of user {NEIGHBOR}"):
                files.read_trusted(folder / "secret", 100, private=private)
        found = working_folder.refusal(str(folder), "", working_folder.FolderTrust())
        assert found == f"{folder} is on a file system of user {NEIGHBOR}, who decides what it shows"
        trust = working_folder.trust_here(str(folder), "")
        assert (trust.owners, trust.mounters) == ((), (NEIGHBOR,))
        assert working_folder.refusal(str(folder), "", trust) == ""
    folders.make_private(folder)


@pytest.mark.root
def test_what_a_neighbor_unmounts_while_it_is_open_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbor answers once the file system is in no list of mounts any more."""
    mount_of = start.mount_of

    def unmounting(fd: int) -> str:
        subprocess.run(["umount", "-l", tmp_path], capture_output=True, check=False)
        return mount_of(fd)

    for use in (
        lambda: files.read_trusted(tmp_path / "secret", 100, private=True),
        lambda: start.status_of(tmp_path),
    ):
        with mounted(tmp_path, shown_owner=os.geteuid(), name="secret"), monkeypatch.context() as patch:
            patch.setattr(start, "mount_of", unmounting)
            with pytest.raises(OSError, match="was unmounted meanwhile"):
                use()


@pytest.mark.root
def test_a_folder_of_ours_below_another_root_is_ours(tmp_path: Path) -> None:
    """After chroot the list of mounts lacks the mount that holds the root."""
    look, root = "start.status_of('/tmp').st_ino", str(tmp_path)
    script = f"import os; from seatrial import start; {look}; os.chroot({root!r}); os.chdir('/'); print({look})"
    (tmp_path / "tmp").mkdir()
    (tmp_path / "proc").mkdir()
    subprocess.run(["mount", "--bind", "/proc", tmp_path / "proc"], check=True)
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    finally:
        subprocess.run(["umount", "-l", tmp_path / "proc"], check=True)
    assert (done.stdout, done.stderr) == (f"{(tmp_path / 'tmp').stat().st_ino}\n", "")


_CONTAINERS = {
    "none": (f"0 0 {2**32 - 1}", 1000),
    "Pyxis": ("1000 1000 1", 1000),
    "fakeroot": ("0 1000 1\n1 100000 65536", 0),
    "shifted": ("0 100000 65536", 1000),
    "keep-id": ("0 1 1000\n1000 0 1\n1001 1001 64536", 1000),
}
"""Container of user 1000 -> its numbers of users (inside, outside, how many), and that of this user."""


def _in_container(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str = "") -> None:
    numbers, user = _CONTAINERS[name]
    doubles = dict[str, Path]()
    for file, text in (("uid_map", numbers), ("mountinfo", mounts)):
        doubles[f"/proc/self/{file}"] = tmp_path / file
        (tmp_path / file).write_text(f"{text}\n")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(start, "open", lambda path, *a, **b: doubles.get(path, Path(path)).open(*a, **b), raising=False)


@pytest.mark.parametrize(
    ("container", "user", "others", "mounter"),
    [
        ("none", 1000, True, 0),
        ("none", 1001, True, 1001),
        ("none", 1001, False, 1001),  # root of the machine can be allowed to look
        ("none", NOBODY, True, NOBODY),
        ("Pyxis", 1000, True, 1000),  # of this user, or of the one with that number above the namespace above
        ("Pyxis", 1001, False, 0),
        ("Pyxis", 1001, True, 1001),
        ("Pyxis", NOBODY, True, NOBODY),
        ("fakeroot", 0, True, 0),
        ("fakeroot", 1000, True, 1000),
        ("fakeroot", 1000, False, 0),
        ("fakeroot", 1001, True, 1001),
        ("shifted", 101000, True, 101000),  # of this user, or of the neighbor with that number in the container
        ("shifted", 1000, True, 1000),  # of this user, or of the neighbor with that number on the machine
        ("shifted", 0, True, 0),
        ("keep-id", 1000, False, 0),
        ("keep-id", 1000, True, 1000),
        ("keep-id", 0, True, 0),
    ],
)
def test_who_has_mounted_it(
    container: str, user: int, others: bool, mounter: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container nobody knows of which namespace the number is. The kernel lets others in with an option alone."""
    options = f"rw,user_id={user},group_id=1" + ",allow_other" * others
    fd = os.open(tmp_path, os.O_PATH)
    line = f"{start.mount_of(fd)} 27 0:45 / /x rw - fuse x,user_id=0 {options}"
    _in_container(container, tmp_path, monkeypatch, line)
    assert start.mounted_by(fd) == mounter
    os.close(fd)


@pytest.mark.parametrize(
    ("container", "name"),
    [("none", "1000"), ("Pyxis", "1000"), ("fakeroot", "0-1000"), ("shifted", "1000-101000"), ("keep-id", "1000-0")],
)
def test_each_user_has_a_folder_among_those_of_others(
    container: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many users are root in their containers, which may share /tmp."""
    _in_container(container, tmp_path, monkeypatch)
    assert folders.own_folder_name() == f"seatrial-{name}"


@pytest.mark.root
def test_a_neighbor_with_the_number_that_we_have_in_a_container(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir(mode=0o700)
    code = "import sys; from seatrial import folders; folders.make_private(sys.argv[1])"
    inside = ["unshare", "-U", f"--map-user={NEIGHBOR}", f"--map-group={NEIGHBOR}"]
    with mounted(folder, shown_owner=os.geteuid(), name="secret"):
        done = subprocess.run(
            [*inside, sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=30, check=False
        )
    assert f"file system of user {NEIGHBOR}, who decides what it shows" in done.stderr


@pytest.mark.parametrize("name", ["a" * 255, "\u4e2d" * 85, "\udcff" * 255])
def test_any_name_can_be_written(name: str, tmp_path: Path) -> None:
    """A name has at most 255 bytes, and a character up to four."""
    files.write_atomically(tmp_path / name, b"1")
    assert (tmp_path / name).read_bytes() == b"1"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_what_lies_below_a_descriptor_is_looked_at(tmp_path: Path) -> None:
    """Only the descriptor itself is what this process was given; others may have planted what a folder holds."""
    (tmp_path / "link").symlink_to("/dev/null")
    (tmp_path / "file").write_text("x")
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match="link is a device"):
            files.read_input(f"/proc/self/fd/{folder}/link", 10)
        assert files.read_input(f"/proc/self/fd/{folder}/file", 10) == b"x"
    finally:
        os.close(folder)


@pytest.mark.parametrize("path", ["", "x", "dangling", "loop", "file/x", "file/"])
def test_what_does_not_exist(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    assert not files.exists(path)


@pytest.mark.parametrize("path", [".", "..", "/", "file", "./file", "link", "link/..", "/dev/null", "/dev/stdin"])
def test_what_exists(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    assert files.exists(path)
