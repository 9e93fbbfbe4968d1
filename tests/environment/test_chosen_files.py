"""Whether the user has chosen a file whose content leaves the machine, or another user has led its path there."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.environment import working_folder
from seatrial.environment.working_folder import UnchosenError, chosen_file
from seatrial.start import way_to

_OTHER, _COLLEAGUE = 12002, 12003


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all users can enter, as they cannot those of pytest."""
    (made := Path(tempfile.mkdtemp(dir="/tmp"))).chmod(0o755)
    yield made
    shutil.rmtree(made)


def _own(path: Path, owner: int | None) -> None:
    os.lchown(path, *((os.geteuid(), os.getegid()) if owner is None else (owner, owner)))


def _folder(path: Path, mode: int, owner: int | None = None) -> Path:
    path.mkdir()
    _own(path, owner)
    path.chmod(mode)
    return path


def _put(path: Path, mode: int = 0o644, owner: int | None = None, *, leads_to: Path | None = None) -> None:
    if leads_to is None:
        path.write_text("")
    else:
        path.symlink_to(leads_to)
    _own(path, owner)
    if leads_to is None:
        path.chmod(mode)


@pytest.fixture
def home(place: Path) -> Path:
    """A folder of ours with a script, and with a key that only we can read."""
    home = _folder(place / "home", 0o700)
    _put(home / "train.py")
    _put(home / "key", 0o600)
    return home


@pytest.fixture
def theirs(place: Path) -> Path:
    """A folder that another user has made in one that is open to all."""
    return _folder(_folder(place / "scratch", 0o1777) / "exp", 0o755, _OTHER)


def refusal(folder: Path, path: str) -> str:
    """Return why a file is not ours to send; empty: it is."""
    try:
        found = chosen_file(str(folder), path)
    except UnchosenError as error:
        why, leads, end = str(error).rpartition("; the path leads to ")
        file = (folder / path).resolve()
        assert not leads or end == f"{file} of user {file.stat().st_uid}"
        return why or end
    assert os.path.samestat(found, os.stat(folder / path))
    return ""


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o2770, 0o1777, 0o777])
def test_a_script_of_ours_goes_along_from_each_folder(mode: int, home: Path, place: Path) -> None:
    """File systems of Windows show all files as open to all users."""
    home.chmod(mode)
    (home / "latest").symlink_to(home)
    for path in ("train.py", "latest/train.py", f"{home}/train.py", "../home/train.py"):
        assert refusal(home, path) == ""
    assert refusal(place, f"{home}/train.py") == ""
    (home / "train.py").chmod(0o777)
    assert refusal(home, "train.py") == ""


@pytest.mark.parametrize(
    ("mode", "is_ours"),
    [
        (0o755, True),
        (0o2750, True),
        (0o2775, True),
        (0o1777, False),
        (0o777, False),
    ],
)
def test_a_private_file_where_others_can_write_stays(mode: int, is_ours: bool, home: Path) -> None:
    """They can rename one of ours to the name that we type, into a folder with the sticky bit too."""
    home.chmod(mode)
    words = f"other users can write to {home}, and not all users can read {home}/key"
    assert refusal(home, "key") == ("" if is_ours else words)
    (home / "key").chmod(0o604)  # The group cannot read it.
    assert refusal(home, "key") == ("" if is_ours else words)


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_nobody_else_gets_to_a_folder_in_a_home(mode: int, home: Path, place: Path) -> None:
    below = _folder(home / "code", mode)
    _put(below / "train.py", 0o600)
    _put(below / "link.py", leads_to=home / "key")
    for path in ("train.py", "link.py", "../code/train.py"):
        assert refusal(below, path) == ""
    home.chmod(0o711)
    assert f"other users can write to {below}, and not all" in refusal(below, "train.py")
    home.chmod(0o700)
    # A way leaves the home by a link.
    _put(_folder(place / "open", 0o777) / "train.py", 0o600)
    (home / "out").symlink_to(place / "open")
    assert f"other users can write to {place}/open" in refusal(home, "out/train.py")


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_folder_of_ours_in_an_open_one(mode: int, place: Path) -> None:
    """Others cannot move it to another folder, and cannot rename it where the sticky bit is set."""
    scratch = _folder(place / "scratch", mode)
    _put(_folder(scratch / "code", 0o755) / "train.py")
    _put(_folder(scratch / "private", 0o700) / "train.py")
    _put(scratch / "private" / "key.py", 0o600)
    assert refusal(scratch, "code/train.py") == ""
    words = f"other users can write to {scratch}, and not all users can enter {scratch}/private"
    for path in ("private/train.py", "private/key.py", f"{scratch}/private/train.py"):
        assert refusal(scratch, path) == ("" if mode & 0o1000 else words)
    # A link of ours moves to any folder.
    (scratch / "link").symlink_to(scratch / "private")
    assert refusal(scratch, "link/train.py") == words


def test_a_folder_of_a_group(place: Path) -> None:
    """Who can put a file there has passed the folders above, and can read what the others of the group can."""
    group = _folder(_folder(place / "project", 0o750) / "code", 0o2770)
    _put(group / "train.py")
    (group / "latest.py").symlink_to(group / "train.py")
    for path in ("train.py", "latest.py", f"{group}/latest.py"):
        assert refusal(group, path) == ""
    # Others come from another place than the group.
    everybody = _folder(place / "open", 0o777)
    (everybody / "train.py").symlink_to(group / "train.py")
    (group / "out").symlink_to(everybody)
    words = f"other users can write to {everybody}, and not all users can enter {place}/project"
    for folder, path in ((everybody, "train.py"), (group, "out/train.py")):
        assert refusal(folder, path) == words


@pytest.mark.parametrize("mode", [0o775, 0o2770, 0o2775])
@pytest.mark.parametrize("mode_of_file", [0o600, 0o640])
def test_who_can_write_by_a_group_is_trusted(mode: int, mode_of_file: int, home: Path, place: Path) -> None:
    """Such a user is trusted with what goes along, in a folder below a sticky one too."""
    group = _folder(_folder(place / "scratch", 0o1777) / "code", mode)
    _put(group / "train.py", mode_of_file)
    _put(group / "link.py", leads_to=home / "key")
    for folder, path in ((group, "train.py"), (group, "link.py"), (place, "scratch/code/train.py")):
        assert refusal(folder, path) == ""


@pytest.mark.root
@pytest.mark.parametrize("owner", [None, _OTHER])
def test_a_mode_is_advised_where_no_other_user_has_led(owner: int | None, home: Path, place: Path) -> None:
    """A user who has put a link there may want the file opened."""
    scratch = _folder(place / "scratch", 0o1777)
    home.chmod(0o755)
    _put(scratch / "train.py", owner=owner, leads_to=home / "key")
    with pytest.raises(UnchosenError) as raised:
        chosen_file(str(scratch), "train.py")
    assert raised.value.rights == ("" if owner else f"go+r {home}/key")


def test_a_private_file_with_several_names(home: Path, place: Path) -> None:
    (within := home / "within").mkdir()
    os.link(home / "key", within / "train.py")
    assert refusal(within, "train.py") == ""
    shared = _folder(place / "shared", 0o1777)
    os.link(home / "key", shared / "train.py")
    assert "not all users can read" in refusal(shared, "train.py")
    os.link(home / "train.py", shared / "public.py")
    assert refusal(shared, "public.py") == ""


def test_a_file_that_is_not_there(home: Path, place: Path) -> None:
    (place / "broken").symlink_to("nowhere")
    for path in ("absent.py", "absent/train.py", str(place / "broken")):
        with pytest.raises(FileNotFoundError):
            chosen_file(str(home), path)


@pytest.mark.root
@pytest.mark.parametrize("level", ["file", "script", "folder", "root"])
def test_a_link_of_another_user_leads_to_a_private_file(level: str, home: Path, theirs: Path) -> None:
    """Who types in the folder of that user, or its relative path, trusts its owner with what goes along."""
    if level in ("file", "script"):
        _put(theirs / "train.py", owner=_OTHER, leads_to=home / ("key" if level == "file" else "train.py"))
        path = "train.py"
    elif level == "folder":
        _put(theirs / "code", owner=_OTHER, leads_to=home)
        path = "code/key"
    else:
        _put(theirs / "code", owner=_OTHER, leads_to=Path("/"))
        path = f"code{home}/key"
    assert refusal(home, str(theirs / path)) == f"{theirs} belongs to user {_OTHER}"
    for folder, name in ((theirs, path), (theirs, str(theirs / path)), (theirs.parent, f"exp/{path}")):
        assert refusal(folder, name) == ""


@pytest.mark.root
def test_a_link_that_lies_in_a_folder_of_ours(home: Path, place: Path) -> None:
    """Root may have copied it there with its owner."""
    _put(home / "copied.py", owner=_OTHER, leads_to=home / "train.py")
    assert refusal(home, "copied.py") == ""
    assert refusal(home, f"{home}/copied.py") == f"{home}/copied.py belongs to user {_OTHER}"


@pytest.mark.root
def test_our_own_link_through_the_folder_of_another_user(home: Path, theirs: Path) -> None:
    _put(theirs / "key", owner=_OTHER, leads_to=home / "key")
    (home / "mine.py").symlink_to(theirs / "key")
    assert refusal(home, str(home / "mine.py")) == f"{theirs} belongs to user {_OTHER}"
    assert refusal(home, "mine.py") == ""


@pytest.mark.root
def test_the_script_of_a_colleague(home: Path, theirs: Path, place: Path) -> None:
    """Who types its relative path, or types in its folder, has chosen it; an absolute path may be one of the pods."""
    _put(theirs / "train.py", 0o640, _OTHER)
    _put(theirs / "latest.py", owner=_OTHER, leads_to=theirs / "train.py")
    _put(_folder(place / "public", 0o755) / "train.py")
    _put(theirs / "public.py", owner=_OTHER, leads_to=place / "public" / "train.py")
    for name in ("train.py", "latest.py", "public.py"):
        assert refusal(home, str(theirs / name)) == f"{theirs} belongs to user {_OTHER}"
        for folder, path in ((theirs, name), (theirs, str(theirs / name)), (home, f"../scratch/exp/{name}")):
            assert refusal(folder, path) == ""


@pytest.mark.root
@pytest.mark.parametrize("owner", [0, _COLLEAGUE])
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_what_another_user_has_moved_to_a_folder_of_that_one(mode: int, owner: int, home: Path, theirs: Path) -> None:
    """All users could have moved it to a folder that is open to them."""
    theirs.chmod(mode)
    _put(theirs / "train.py", 0o600, owner)
    words = f"other users can write to {theirs}, and not all users can read {theirs}/train.py"
    for folder, path in ((theirs, "train.py"), (home, "../scratch/exp/train.py")):
        assert refusal(folder, path) == (words if mode == 0o1777 else "")
    assert refusal(home, str(theirs / "train.py")) != ""
    (theirs / "train.py").chmod(0o644)
    assert refusal(theirs, "train.py") == ""


@pytest.mark.root
def test_files_of_several_users_in_a_group_folder(home: Path, theirs: Path) -> None:
    theirs.chmod(0o2775)
    _put(theirs / "ours.py")
    _put(theirs / "theirs.py", owner=_COLLEAGUE)
    _put(theirs / "link.py", owner=_COLLEAGUE, leads_to=theirs / "theirs.py")
    for name in ("ours.py", "theirs.py", "link.py"):
        assert refusal(theirs, name) == ""
    _put(theirs / "private.py", 0o600, _OTHER)
    _put(theirs / "key.py", owner=_COLLEAGUE, leads_to=home / "key")
    assert refusal(theirs, "private.py") == refusal(theirs, "key.py") == ""
    assert refusal(theirs, str(theirs / "theirs.py")) == f"{theirs}/theirs.py belongs to user {_COLLEAGUE}"


@pytest.mark.root
def test_a_folder_that_all_users_can_write_to(home: Path, theirs: Path) -> None:
    scratch = theirs.parent
    _put(scratch / "train.py", owner=_OTHER, leads_to=home / "key")
    _put(scratch / "plain.py", owner=_OTHER)
    assert refusal(home, f"{scratch}/train.py") == f"{scratch}/train.py belongs to user {_OTHER}"
    assert refusal(scratch, f"{scratch}/plain.py") == f"{scratch}/plain.py belongs to user {_OTHER}"
    assert "not all users can enter" in refusal(scratch, "train.py")


def test_the_mount_of_another_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows each owner and mode that this user likes, so that what lies there is that user's."""
    (home / "mine.py").symlink_to(home / "key")

    def way(path: str, start: str = "/") -> object:
        for name, fd, _, *more in way_to(path, start):
            yield name, fd, _OTHER if name.endswith("mine.py") else 0, *more

    monkeypatch.setattr(working_folder, "way_to", way)
    assert refusal(home, "mine.py") == ""
    assert f"user {_OTHER}" in refusal(home, f"{home}/mine.py")


_ASK = """
import sys
from seatrial.environment.working_folder import UnchosenError, chosen_file
for path in sys.argv[1:]:
    try:
        chosen_file(*path.rsplit("/", 1))
        print("ours")
    except UnchosenError as error:
        print(str(error).partition("; the path leads to ")[0])
"""


def _allow(path: Path, *entries: tuple[int, int, int]) -> None:
    """Give a path an access control list: tag, rights, user or group."""
    packed = b"".join(struct.pack("<HHI", tag, rights, user & 0xFFFFFFFF) for tag, rights, user in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


def test_users_in_an_access_control_list(home: Path, place: Path) -> None:
    """It may give one user more than the group, and another one less than all."""
    work = _folder(place / "work", 0o750)
    _put(work / "train.py", 0o640)
    _allow(work, (0x01, 7, -1), (0x02, 7, _OTHER), (0x04, 5, -1), (0x10, 7, -1), (0x20, 0, -1))
    words = f"other users can write to {work}, and not all users can read {work}/train.py"
    assert refusal(work, "train.py") == words
    (work / "train.py").chmod(0o644)
    assert refusal(work, "train.py") == ""
    _allow(work / "train.py", (0x01, 6, -1), (0x02, 0, _OTHER), (0x04, 4, -1), (0x10, 4, -1), (0x20, 4, -1))
    assert (work / "train.py").stat().st_mode & 0o777 == 0o644
    assert refusal(work, "train.py") == words
    with pytest.raises(UnchosenError) as raised:
        chosen_file(str(work), "train.py")
    assert raised.value.rights == ""


def test_a_folder_that_another_user_has_moved_below_a_sticky_one(place: Path) -> None:
    """Who can write to a folder could move it there; the sticky bit guards it only since then."""
    sticky = _folder(place / "sticky", 0o1777)
    below = _folder(_folder(sticky / "moved", 0o1777) / "code", 0o755)
    _put(below / "train.py", 0o600)
    words = f"other users can write to {below.parent}, and not all users can read {below}/train.py"
    assert refusal(below, "train.py") == words
    below.parent.chmod(0o755)
    assert refusal(below, "train.py") == ""


def _asked(mounts: str, *paths: str) -> list[str]:
    """Return the answers for paths where some file systems are mounted, as this user alone has them."""
    command = ["unshare", "-m", "sh", "-ec", f'{mounts} && exec "$@"', "sh", sys.executable, "-c", _ASK, *paths]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()


@pytest.mark.root
def test_a_link_of_another_user_leads_to_a_private_mount(home: Path, place: Path) -> None:
    """A /tmp for one user, the secrets of a container: others do not come there, whatever the modes say."""
    theirs = _folder(place / "theirs", 0o1777, _OTHER)
    own = _folder(place / "own", 0o755)
    for name, target in (("train", own / "..data/key"), ("below", own / "up/home"), ("near", theirs / "plain.py")):
        _put(theirs / f"{name}.py", owner=_OTHER, leads_to=target)
    _put(theirs / "plain.py")
    home.chmod(0o755)
    _put(home / "link.py", leads_to=own / "..data/key")
    mounts = (
        f"mount -t tmpfs -o mode=755 none {own} && mkdir {own}/..1 && ln -s ..1 {own}/..data && ln -s .. {own}/up"
        f" && echo > {own}/..1/key && mount --bind {theirs} {theirs}"
    )
    paths = [f"{theirs}/train.py", f"{theirs}/below.py/train.py", f"{theirs}/near.py", f"{home}/link.py"]
    led = f"other users can write to {theirs}, and "
    hidden = "is on another file system, of which others may be kept out"
    assert _asked(mounts, *paths) == [f"{led}{own} {hidden}", f"{led}{own} {hidden}", "ours", "ours"]


@pytest.mark.root
def test_a_share_that_is_mounted_in_a_closed_home(home: Path, place: Path) -> None:
    """Others come to it by another path, where nothing is closed."""
    share, work = _folder(place / "share", 0o777), _folder(home / "work", 0o755)
    _put(share / "train.py")
    _put(share / "key", 0o600)
    _put(share / "link.py", leads_to=work / "train.py")
    _put(share / "out.py", leads_to=home / "train.py")
    answers = _asked(f"mount --bind {share} {work}", *(f"{work}/{each.name}" for each in sorted(share.iterdir())))
    led = f"other users can write to {work}, and "
    assert answers == [
        f"{led}not all users can read {work}/key",
        "ours",
        f"{led}{home}/train.py is on another file system, of which others may be kept out",
        "ours",
    ]


@pytest.mark.root
@pytest.mark.parametrize("user", [4711, 0])
def test_a_container_of_a_user_shows_others_as_it_shows_root(user: int, home: Path, place: Path) -> None:
    """It excuses none of them for a private file. Below a folder that is open to all it would excuse nothing at all."""
    theirs = _folder(place / "theirs", 0o755, _OTHER)
    _put(theirs / "link.py", owner=_OTHER, leads_to=Path("../home/key"))
    _put(theirs / "moved.py", 0o600)
    _put(theirs / "plain.py", owner=_OTHER)
    _put(theirs / "of_group.py", 0o640, _COLLEAGUE)
    mounted = ["unshare", "-m", "sh", "-c", f'mount --bind {place} /mnt && exec "$@"', "sh"]
    inside = ["unshare", "-U", f"--map-user={user}", f"--map-group={user}", sys.executable, "-c", _ASK]
    paths = ["home/key", *(f"theirs/{name}.py" for name in ("plain", "link", "moved", "of_group"))]
    asked = [*mounted, *inside, *(f"/mnt/{path}" for path in paths)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    refused = "/mnt/theirs belongs to user 65534, and not all users can"
    assert done.stdout.splitlines() == [
        *("ours", "ours", f"{refused} enter /mnt/home"),
        *(f"{refused} read /mnt/theirs/{name}.py" for name in ("moved", "of_group")),
    ]
