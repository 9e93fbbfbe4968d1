"""connect.sh without Terraform: what machines say must not steer the terminal on which it is typed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

_TEMPLATE = Path(__file__).parents[2] / "deploy" / "terraform" / "ec2" / "connect.sh.tftpl"
_VALUES = {
    "head": "launcher",
    "head_address": "203.0.113.7",
    "region": "eu-west-1",
    "user": "trial",
    'join(" ", workers)': "worker-0",
    r'join("\n", machines)': "launcher i-1 10.77.0.10\nworker-0 i-2 10.77.1.10",
    "install_command": "",
    "next_command": "",
}
_HOSTILE = r"\033]0;pwned\007\033[2J\nconnect.sh: all machines are connected\rall\302\2332J"
_KEY, _OTHER_KEY = f"ssh-ed25519 AAAA{'k' * 64}", f"ssh-ed25519 AAAA{'o' * 64}"
_CONSOLE = f"echo '-----BEGIN SSH HOST KEY KEYS-----'; echo '{_KEY} root'; echo '-----END SSH HOST KEY KEYS-----'"
_FAILS = f"printf '{_HOSTILE}' >&2; exit 1"
_PUBLIC_KEY = f"*id_ed25519.pub*) echo {_KEY}; exit ;;"
_READY = "*state*) echo ready; exit ;;"


def typed(folder: Path, ssh: str, aws: str = _CONSOLE) -> subprocess.CompletedProcess[bytes]:
    """Run the script with doubles of ssh (cases of its words, of which the last one fails) and aws."""
    text = re.sub(r"(?<!\$)\$\{(.*?)\}(?=['\n]|$)", lambda found: _VALUES[found[1]], _TEMPLATE.read_text())
    (folder / "connect.sh").write_text(text.replace("$${", "${"))
    for name, code in {"ssh": f'case "$*" in {ssh} esac\n{_FAILS}', "aws": aws, "sleep": "exit 1"}.items():
        (tool := folder / "bin" / name).parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\n{code}\n")
        tool.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "connect.sh"],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("ssh", "words"),
    [
        (f"*state*) printf 'failed: {_HOSTILE}'; exit ;;", "launcher: could not be prepared: "),
        ("", "launcher: waiting until it is prepared ("),
        (_READY, "launcher: does not show its public key: "),
        (f"{_READY} {_PUBLIC_KEY}", "worker-0: does not take the key of the launcher: "),
        (
            f"{_READY} {_PUBLIC_KEY} *authorized_keys*) exit ;;",
            "launcher: does not take the host keys of the workers: ",
        ),
        (f"{_READY} {_PUBLIC_KEY} *authorized_keys* | *known_hosts) exit ;;", "launcher: cannot write to /shared: "),
        (
            f"{_READY} {_PUBLIC_KEY} *authorized_keys* | *known_hosts | *'> /shared/.connected') exit ;;",
            "launcher cannot log in to worker-0 or read its /shared: ",
        ),
    ],
)
def test_words_of_a_machine_are_shown_in_one_line(tmp_path: Path, ssh: str, words: str) -> None:
    ended = typed(tmp_path, ssh)
    assert ended.returncode == 1
    assert ended.stdout == b""
    *_, last = lines = ended.stderr.decode("ascii").splitlines()
    assert all(line.isprintable() for line in lines)
    assert last.startswith(f"connect.sh: {words}")
    assert last.rstrip(")").endswith("connected?all??2J")


def test_words_of_aws_are_shown_in_one_line(tmp_path: Path) -> None:
    ended = typed(tmp_path, "", aws=_FAILS)
    assert ended.returncode == 1
    *_, last = lines = ended.stderr.decode("ascii").splitlines()
    assert all(line.isprintable() for line in lines)
    assert last.startswith("connect.sh: aws cannot read the console of a machine: ")


_CUT = f"echo '-----BEGIN SSH HOST KEY KEYS-----'; echo '{_KEY[:50]}[ 12.3] eth0: link up'"


@pytest.mark.parametrize("words", ["403  -----BEGIN SSH HOST KEY KEYS----- ", "-----BEGIN SSH HOST KEY KEYS-----\n"])
@pytest.mark.parametrize("own", [_CONSOLE, _CUT], ids=["whole", "cut"])
def test_a_console_with_two_host_keys_is_not_trusted(tmp_path: Path, words: str, own: str) -> None:
    """A mirror, or whoever answers for it, chooses words that apt shows."""
    ended = typed(tmp_path, "", aws=f"{own}; echo '{words}{_OTHER_KEY}'")
    assert ended.returncode == 1
    assert "connect.sh: the console of i-1 shows several host keys" in ended.stderr.decode()
    for same in (_CONSOLE, _CUT):
        twice = typed(tmp_path, "", aws=f"{same}; {_CONSOLE}")
        assert "waiting until it is prepared" in twice.stderr.decode()


def test_the_beginning_that_all_keys_have_is_of_no_key(tmp_path: Path) -> None:
    short = f"echo '-----BEGIN SSH HOST KEY KEYS-----'; echo '{_KEY[:37]}[ 12.3] eth0: link up'"
    ended = typed(tmp_path, "", aws=f"{short}; {_CONSOLE}")
    assert ended.returncode == 1
    assert "waiting until it is prepared" not in ended.stderr.decode()


def test_a_machine_prepares_itself_away_from_its_console() -> None:
    """From the last word that is for the console on, its programs write to a file."""
    lines = (_TEMPLATE.parent / "machine" / "prepare.sh").read_text().splitlines()
    (at,) = (number for number, line in enumerate(lines) if "/dev/console" in line)
    following = [line for line in lines[at + 1 :] if not line.startswith("#")]
    assert following[0] == "exec >> /var/log/cloud-init-output.log 2>&1"
    assert not re.search("apt-get|pip|nvidia-smi", "\n".join(lines[at - 5 : at + 1]))
    assert not any("console" in line for line in following)


def test_a_folder_keeps_its_name(tmp_path: Path) -> None:
    (folder := tmp_path / r"f\303 é").mkdir()
    assert rf"the folder {folder} has" in typed(folder, "").stderr.decode()


def test_all_machines_are_connected(tmp_path: Path) -> None:
    remembers = "*'> /shared/.connected') for word; do :; done; echo \"$word\" | cut -d ' ' -f 2 > seen; exit ;;"
    takes = "*known_hosts | *authorized_keys* | *' rm '*) exit ;;"
    ended = typed(tmp_path, f"{_READY} {_PUBLIC_KEY} {takes} {remembers} *connected*) cat seen; exit ;;")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.decode().splitlines()[-1] == "connect.sh: all machines are connected. Next:"
