"""A folder that automount mounts when it is used, such as one of data, is used like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from automount import CONTENT, NAME, awaiting

from seatrial import files, start
from seatrial.environment import working_folder
from seatrial.environment.working_folder import FolderTrust
from seatrial.report import recorded_events

pytestmark = pytest.mark.root


def _read(folder: Path) -> bytes:
    with files.open_to_read(folder / NAME) as file:
        return file.read()


_USES: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "an input": (lambda folder: files.read_input(folder / NAME, 10), CONTENT),
    "a file": (_read, CONTENT),
    "an entry": (lambda folder: files.status_of_entry(folder / NAME).st_size, len(CONTENT)),
    "a named folder": (lambda folder: files.status_behind_links(folder / NAME, folder).st_size, len(CONTENT)),
    "a folder above": (lambda folder: files.status_behind_links(folder / NAME, folder.parent).st_size, len(CONTENT)),
    "its names": (lambda folder: files.names_in(folder), [NAME]),
    "its names from above": (lambda folder: files.names_in(folder, folder.parent), [NAME]),
    "events": (lambda folder: [file.name for file in recorded_events._files(folder, None)], [NAME]),
    "a part": (lambda folder: start._read(str(folder / NAME)), CONTENT),
    "a script": (lambda folder: working_folder.refusal(str(folder), NAME, FolderTrust(open_places=(str(folder),))), ""),
    "a new file": (lambda folder: files.write_atomically(folder / "new", b""), None),
    "a run": (lambda folder: files.open_to_append(folder / "new", run_folder=True).close(), None),
}


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("use", _USES)
def test_it_is_mounted_at_the_first_use(use: str, is_link: bool, tmp_path: Path) -> None:
    (folder := tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(folder)
    if is_link and use in ("a run", "a script"):
        return  # The folder of a run must not be a link, and the trust is for another path.
    with awaiting(folder):
        work, expected = _USES[use]
        assert work(tmp_path / "link" if is_link else folder) == expected
        assert {file.name for file in folder.iterdir()} >= {NAME}
