"""``--on ssh`` with a real sshd: a configuration and a home folder that would lend or break something."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hosts import SSH_PORT, Hosts
from targets.test_ssh_hostile import CONFIG

pytestmark = pytest.mark.hosts

_SHOWN = """
import os
print("RANK", os.environ["RANK"], *[name for name in ("SSH_AUTH_SOCK", "DISPLAY") if name in os.environ], flush=True)
"""


def test_a_usual_configuration_breaks_nothing_and_lends_no_key(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    host = made[0]
    folder, ssh = host.home / "kept", host.home / ".ssh"
    folder.mkdir()
    folder.chmod(0o777)
    (ssh / "config").write_text(f"Host node*\n  Port {SSH_PORT}\n{CONFIG.format(folder=folder)}")
    script = made.folder / "scripts" / "shown.py"
    script.parent.mkdir()
    script.write_text(_SHOWN)
    for module in (*sys.stdlib_module_names, "sitecustomize"):
        (host.home / f"{module}.py").write_text(f"open({str(folder / 'imported')!r}, 'a').write(__name__)\n")
    known = (ssh / "known_hosts").read_bytes()
    words = ["launch", "--on", "ssh", "--hosts", "node0,node1", "--nproc-per-node", "1", "--device", "cpu"]
    words += ["--output", "all"]
    command = ["ssh-agent", *made.seatrial(*words, "--python", str(made.python), str(script))]
    done = host.run("env", "-C", str(made.folder / "tmp"), "DISPLAY=:0", *command)
    assert done.returncode == 0, done.stderr
    shown = [line.partition("RANK")[2].strip() for line in done.stdout.splitlines() if "RANK" in line]
    assert sorted(shown) == ["0", "1"]
    assert list(folder.iterdir()) == [], "no shared connection, no local command, no import"
    assert (ssh / "known_hosts").read_bytes() == known
