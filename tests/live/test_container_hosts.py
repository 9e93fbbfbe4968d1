"""Hosts that are containers with an sshd (``deploy/images``), started as docs/launching.md says, one command a host.

SEATRIAL_TEST_BASE_IMAGE names a Debian image with Python of our version that podman has; torch is mounted from here.
tools/make_base_image.sh makes one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hosts import Host, Hosts

pytestmark = [pytest.mark.podman, pytest.mark.hosts]

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "deploy" / "images"
SCRIPTS = ROOT / "tests" / "scripts"
PORT = "2233"
OWN_NETWORKS = 'mount -t tmpfs tmpfs /etc/containers/networks && exec "$@"'
"""podman keeps a lock there, and /etc of these hosts is read-only."""


@pytest.fixture(scope="module")
def image() -> str:
    base = os.environ.get("SEATRIAL_TEST_BASE_IMAGE")
    if base is None:
        pytest.skip("SEATRIAL_TEST_BASE_IMAGE names no image")
    # As images of Ubuntu 24.04, it has an account with the number of most users. Homes begin with what skel has.
    other, skel = "localhost/trial-base", "/etc/skel/.ssh"
    planted = f"mkdir -p {skel} && touch {skel}/host_key {skel}/host_key.pub"
    _build(other, "-", f"FROM {base}\nRUN useradd --create-home --uid 1000 ubuntu\nRUN {planted}\n")
    name = "localhost/trial-ssh"
    _build(name, str(IMAGES / "ssh.Dockerfile"), "", BASE_IMAGE=other, TRIAL_UID="1000")
    run(["podman", "network", "ls"])  # makes the folder of OWN_NETWORKS
    return name


def _build(name: str, file: str, text: str, **arguments: str) -> None:
    """``file``: its path, or ``-`` for the text."""
    build = ["podman", "build", "--pull-never", "-f", file, "-t", name]
    build += [word for argument in arguments.items() for word in ("--build-arg", "=".join(argument))]
    done = subprocess.run([*build, str(IMAGES)], input=text, capture_output=True, text=True, timeout=160, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[Host, str, str], str]]:
    """Call it with a host, an image and a public key: starts the container, and returns what it says of its key.

    The key is also in the home of the other account with the number of ``trial``, as one of the base image would be.
    """
    with ExitStack() as stack:

        def start(host: Host, image: str, key: str) -> str:
            name = f"trial-{host.namespace}"
            packages = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
            here = ["--volume", f"{packages}:{packages}:ro", "--volume", f"{SCRIPTS}:/home/trial/scripts:ro"]
            (other := tmp_path / "authorized_keys").write_text(f"{key}\n")
            here += ["--volume", f"{other}:/home/ubuntu/.ssh/authorized_keys:ro"]
            here += ["--env", f"PYTHONPATH={packages}", "--env", "SEATRIAL_TEST_RUN", "--env", "NAME=two words"]
            command = ["podman", "run", "-d", "--init", "--name", name, "--network", "host", "--ipc", "host", *here]
            stack.callback(subprocess.run, ["podman", "rm", "-f", "-t", "0", name], capture_output=True, check=False)
            environ = {**host.environ, **{n: os.environ[n] for n in ("CONTAINERS_CONF",) if n in os.environ}}
            podman = ["env", *(f"{name}={value}" for name, value in environ.items()), "sh", "-c", OWN_NETWORKS, "sh"]
            arguments = ["--port", PORT, "--listen", host.address, key]
            run(host.argv(*podman, *command, image, *arguments, root=True))
            return last_words(host.argv(*podman, "podman", "logs", name, root=True))

        yield start


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def last_words(logs: list[str]) -> str:
    """The line for known_hosts, once sshd listens."""
    for _ in range(40):
        text = run(logs)
        if "Server listening" in text:
            return text.splitlines()[0] + "\n"
    raise AssertionError(text)


@pytest.mark.timeout(240)
def test_containers_on_two_hosts_train_together(
    hosts: Callable[[int], Hosts], image: str, started: Callable[[Host, str, str], str]
) -> None:
    made = hosts(2)
    ssh = made[0].home / ".ssh"
    key = (ssh / "id_ed25519.pub").read_text().strip()
    with open(ssh / "known_hosts", "a") as known:
        for host in made:
            line = started(host, image, key)
            assert line.startswith(f"[{host.name}]:{PORT} ssh-ed25519 AAAA"), line
            known.write(line)
    where = ["--on", "ssh", "--hosts", "trial@node0,trial@node1", "--ssh-port", PORT, "--device", "cpu"]
    where += ["--nproc-per-node", "1", "--out", "reports", "--env", "PYTHONWARNINGS=ignore"]
    done = made[0].run(*made.seatrial("launch", *where, "scripts/env_ddp.py"), timeout_s=100)
    assert done.returncode == 0, done.stderr
    texts = "".join(path.read_text() for path in (made[0].home / "reports").glob("*/rank*.log"))
    digests = re.findall(r"^rank (\d) of 2 has ([0-9a-f]{64})$", texts, re.MULTILINE)
    assert sorted(rank for rank, _ in digests) == ["0", "1"]
    assert digests[0][1] == digests[1][1]
    ask = ["ssh", "-o", "BatchMode=yes", "-p", PORT]
    said = made[0].run(*ask, "trial@node1", "id -u; echo $NAME; ls /run/.containerenv; hostname").stdout
    assert said.splitlines() == ["1000", "two words", "/run/.containerenv", "node1"]
    assert "Permission denied (publickey)" in made[0].run(*ask, "ubuntu@node1", "id").stderr
    unknown = ["-o", f"UserKnownHostsFile={made[0].home}/none"]
    assert "Host key verification failed" in made[0].run(*ask, *unknown, "trial@node1", "id").stderr


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("4242", "it runs as user 4242, and trial of this image is user 1000: leave --user out, or build the image"),
        ("0", "do not run it as root; leave --user out"),
    ],
)
def test_a_container_of_another_user_says_what_to_do(user: str, words: str, image: str) -> None:
    command = ["podman", "run", "--rm", "--network", "host", "--user", user, image, "ssh-ed25519 A"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
