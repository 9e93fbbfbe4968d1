"""File systems (FUSE) that users mount outside of a container that has other numbers of users.

The numbers are those of LXD, Incus or ``systemd-nspawn -U`` with a long range: the ones inside begin with 0, and those
of the machine with 10,000.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from neighbor_mount import NEIGHBOR

_SHIFT = 10_000
_PROGRAM = """
import ctypes, encodings.ascii, json, os, sys
from seatrial import files, folders, start
from seatrial.environment import working_folder
import neighbor_mount

place, victim = sys.argv[1], int(sys.argv[2])
ready, go, said = os.pipe(), os.pipe(), os.pipe()

if os.fork() == 0:
    os.dup2(said[1], 1)
    os.dup2(said[1], 2)
    neighbor_mount.main(place, str(victim), "secret")
    os._exit(0)
if not (text := os.read(said[0], 100)).startswith(b"mounted"):
    sys.exit(f"no FUSE: {text!r}")
if pid := os.fork():
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write("0 10000 1000000000")
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    os._exit(0)
if ctypes.CDLL(None).unshare(0x10020000):
    sys.exit("no user namespace")
os.write(ready[1], b"x")
os.read(go[0], 1)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
os.setresgid(victim, victim, victim)
os.setresuid(victim, victim, victim)
refused = ""
try:
    folders.make_private(place)
    print(files.read_trusted(place + "/secret", 100, private=True), file=sys.stderr)
except OSError as error:
    refused = error.strerror
trust = working_folder.trust_here(place, "")
again = working_folder.refusal(place, "", trust)
print(json.dumps([start.user_outside(), refused, trust.mounters, again]), flush=True)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that others can reach: pytest closes its own one at each start."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.chown(folder, _SHIFT, _SHIFT)  # root of the container
        (place := Path(folder, "folder")).mkdir()
        os.chown(place, _SHIFT + NEIGHBOR, _SHIFT + NEIGHBOR)
        yield place


@pytest.mark.root
@pytest.mark.parametrize("victim", [NEIGHBOR - _SHIFT, NEIGHBOR], ids=["same number outside", "same number inside"])
def test_who_mounts_it_with_a_number_of_ours(victim: int, place: Path) -> None:
    """The kernel shows the same number for a neighbor inside and for one outside, so that a folder is never private.

    A folder that the user has chosen stays usable: it may be that user's.
    """
    command = [sys.executable, "-c", _PROGRAM, str(place), str(victim)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": "tests"}
        )
    finally:
        subprocess.run(["umount", "-l", place], capture_output=True, check=False)
    if not done.stdout and done.stderr.startswith("no "):  # what it lacks here, and nothing else
        pytest.skip(done.stderr)
    assert done.stdout, done.stderr
    outside, refused, mounters, again = json.loads(done.stdout.splitlines()[-1])
    assert outside == victim + _SHIFT
    assert f"is on a file system of user {NEIGHBOR}" in refused
    assert mounters == [NEIGHBOR]
    assert "file system" not in again
