#!/usr/bin/env python3
"""An sshd without root, in a container: who may come, is told; a host key is made, and printed as known_hosts wants it.

    trial-sshd --port 2222 "ssh-ed25519 AAAA... me@here"

What the container has in its environment, PATH and LD_LIBRARY_PATH of the image among it, a session has too: sshd by
itself would drop it.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_SESSIONS_OWN = {"HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"}
"""What sshd or the shell sets itself."""
_SETTINGS = {
    "PidFile": "none",
    "UsePAM": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "AllowTcpForwarding": "no",
    "AllowAgentForwarding": "no",
    "X11Forwarding": "no",
    "MaxStartups": "64",
}


def main() -> None:
    """Become sshd; does not return."""
    told = _arguments()
    # Root would not be let in with the sshd of a user, nor does anybody need to be root here.
    if os.geteuid() == 0:
        sys.exit("trial-sshd: do not run it as root; leave --user out, or name another user.")
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if sshd is None:
        sys.exit("trial-sshd: there is no sshd in this image; build it with deploy/images/ssh.Dockerfile.")
    folder = Path.home() / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    keys = folder / "authorized_keys"
    keys.write_text("".join(f"{key}\n" for key in told.key), encoding="utf-8")
    keys.chmod(0o600)
    host_key = folder / "host_key"
    if not host_key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host_key)], check=True)
    file = folder / "sshd_config"
    file.write_text(config(told.port, told.listen, host_key, os.environ), encoding="utf-8")
    kind, public, *_ = host_key.with_suffix(".pub").read_text(encoding="utf-8").split()
    print(f"[{told.name}]:{told.port} {kind} {public}", flush=True)
    os.execv(sshd, [sshd, "-D", "-e", "-f", str(file)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trial-sshd", description="An sshd without root, for seatrial --on ssh.")
    parser.add_argument("key", nargs="+", help="A public key that may come: the line of an id_ed25519.pub.")
    parser.add_argument("--port", type=int, default=2222, help="A port that is free on the host; default: 2222.")
    parser.add_argument("--listen", default="0.0.0.0", metavar="ADDRESS", help="Default: all addresses of the host.")
    parser.add_argument("--name", default=platform.node(), help="The host as others call it; default: its own name.")
    told = parser.parse_args()
    for key in told.key:
        if len(key.split()) < 2 or "\n" in key or not key.split()[0].startswith(("ssh-", "ecdsa-", "sk-")):
            parser.error(f"{key[:40]!r} is no public key; give the line of an id_ed25519.pub, in quotes.")
    if not 1024 <= told.port <= 65535:
        parser.error(f"--port {told.port}: from 1024 to 65535, as it is opened without root.")
    return told


def config(port: int, listen: str, host_key: Path, environ: Mapping[str, str]) -> str:
    """The text of sshd_config."""
    settings = {"Port": str(port), "ListenAddress": listen, "HostKey": str(host_key), **_SETTINGS}
    told = [f"{name}={value}" for name, value in environ.items() if name not in _SESSIONS_OWN and "\n" not in value]
    quoted = ['"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in told]
    if quoted:
        # On one line: of several, sshd takes the first.
        settings["SetEnv"] = " ".join(quoted)
    return "".join(f"{name} {value}\n" for name, value in settings.items())


if __name__ == "__main__":
    main()
