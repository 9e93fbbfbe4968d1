#!/usr/bin/env python3
"""An sshd without root, in a container. It makes a host key and prints it as a line for known_hosts.

    trial-sshd --port 2222 "ssh-ed25519 AAAA... me@here"

Logins get the environment of the container, including PATH and LD_LIBRARY_PATH of the image; sshd would drop it by
default. The arguments are the public keys that may log in.
"""

from __future__ import annotations

import argparse
import os
import platform
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_SET_AT_LOGIN = {"HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"}
"""Variables that sshd or the shell sets itself."""
_ACCOUNT = "trial"
_SETTINGS = {
    "PidFile": "none",
    "UsePAM": "no",
    # An sshd without root lets in each account of its own number, and the base image may have another one with keys.
    "AllowUsers": _ACCOUNT,
    "AuthenticationMethods": "publickey",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "AllowTcpForwarding": "no",
    "AllowAgentForwarding": "no",
    "X11Forwarding": "no",
    "MaxStartups": "64",
}


def main() -> None:
    """Replace this process by sshd; does not return."""
    arguments = _arguments()
    # The sshd of a user cannot log in root, and nothing here needs root.
    if os.geteuid() == 0:
        sys.exit("trial-sshd: do not run it as root; leave --user out.")
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    account = next((each for each in pwd.getpwall() if each.pw_name == _ACCOUNT), None)
    if sshd is None or account is None:
        lacking = "sshd" if sshd is None else f"account {_ACCOUNT}"
        sys.exit(f"trial-sshd: there is no {lacking} in this image; build it with deploy/images/ssh.Dockerfile.")
    if os.geteuid() != account.pw_uid:
        sys.exit(
            f"trial-sshd: it runs as user {os.geteuid()}, and {_ACCOUNT} of this image is user {account.pw_uid}: leave"
            f" --user out, or build the image with --build-arg TRIAL_UID={os.geteuid()}."
        )
    folder = Path(account.pw_dir) / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    keys = folder / "authorized_keys"
    keys.write_text("".join(f"{key}\n" for key in arguments.key), encoding="utf-8")
    keys.chmod(0o600)
    host_key = folder / "host_key"
    if not host_key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host_key)], check=True)
    file = folder / "sshd_config"
    file.write_text(config(arguments.port, arguments.listen, folder, os.environ), encoding="utf-8")
    kind, public, *_ = host_key.with_suffix(".pub").read_text(encoding="utf-8").split()
    print(f"[{arguments.name}]:{arguments.port} {kind} {public}", flush=True)
    os.execv(sshd, [sshd, "-D", "-e", "-f", str(file)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trial-sshd", description="An sshd without root, for seatrial --on ssh.")
    parser.add_argument("key", nargs="+", help="A public key that may log in: the line of an id_ed25519.pub.")
    parser.add_argument("--port", type=int, default=2222, help="A port that is free on the host; default: 2222.")
    parser.add_argument("--listen", default="0.0.0.0", metavar="ADDRESS", help="Default: all addresses of the host.")
    parser.add_argument("--name", default=platform.node(), help="Host name for its clients; default: its own.")
    arguments = parser.parse_args()
    for key in arguments.key:
        if len(key.split()) < 2 or "\n" in key or not key.split()[0].startswith(("ssh-", "ecdsa-", "sk-")):
            parser.error(f"{key[:40]!r} is not a public key; give the line of an id_ed25519.pub, in quotes.")
    if not 1024 <= arguments.port <= 65535:
        parser.error(f"--port {arguments.port}: expected 1024 to 65535, since it is opened without root.")
    return arguments


def config(port: int, listen: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Return the text of sshd_config. ``folder`` has the host key and the keys that may log in."""
    settings = {"Port": str(port), "ListenAddress": listen, **_SETTINGS}
    # Absolute: by default sshd reads two files in the home of each account.
    settings |= {"HostKey": str(folder / "host_key"), "AuthorizedKeysFile": str(folder / "authorized_keys")}
    passed = {name: value for name, value in environ.items() if name not in _SET_AT_LOGIN and "\n" not in value}
    variables = [f"{name}={value}" for name, value in passed.items()]
    quoted = ['"' + variable.replace("\\", "\\\\").replace('"', '\\"') + '"' for variable in variables]
    if quoted:
        # On one line, since sshd uses only the first SetEnv.
        settings["SetEnv"] = " ".join(quoted)
    return "".join(f"{name} {value}\n" for name, value in settings.items())


if __name__ == "__main__":
    main()
