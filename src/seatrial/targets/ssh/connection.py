"""The connection to a host: the ssh that starts Python there, and the data that it is fed first."""

from __future__ import annotations

import hashlib
import inspect
import json
import shlex
from functools import cache

from seatrial import start
from seatrial.bundle import bundle
from seatrial.targets.command import Feed
from seatrial.targets.hosts import Host
from seatrial.targets.ssh import bootstrap

CONNECT_S = 10
_ALIVE_S, _ALIVE_COUNT = 5, 3
"""A connection without data for 15 s is lost: the limit for a node without heartbeat (conductor/trial_conductor.py)."""
STARTED = "seatrial: Python runs"
"""The first line of Python on standard error: without it, the login shell of the host has started nothing."""
CUT = "seatrial: standard input lacks its beginning"
"""The line of Python where a login script has read what was meant for Python."""
# Nothing is imported from the home folder: -E, -s and the deletion of "" leave only the folders of Python.
# The start script must start nothing by itself, so it runs under a name other than __main__. No "!": csh expands it.
_BOOT = (
    'import sys; del sys.path[: sys.path[:1] == [""]];'
    f' sys.stderr.write("{STARTED}\\n"); s = open(0, "rb", 0); t = s.readline();'
    f' b"The start script" in t[:40] or sys.exit("{CUT}"); g = {{"__name__": "bootstrap"}};'
    " [exec(x, g) for x in eval(t)];"
    ' n = ["copy_in_memory", "trusted_users", "way_to", "absolute_entries"];'
    ' sys.exit(g["receive_bundle"](s, *[g[x] for x in n]))'
)


_NOT_NEEDED = {
    # Root on a node could use the keys, the display and the tickets of the user there.
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ForwardX11Trusted": "no",
    "GSSAPIDelegateCredentials": "no",
    "Tunnel": "no",
    # A shared connection has settings of another ssh, and would end with ours.
    "ControlMaster": "no",
    "ControlPath": "none",
    "ControlPersist": "no",
    # Standard input brings the bundle, and the command is ours.
    "RemoteCommand": "none",
    "SessionType": "default",
    "StdinNull": "no",
    "ForkAfterAuthentication": "no",
    # Nothing of the user's is started or changed.
    "PermitLocalCommand": "no",
    "UpdateHostKeys": "no",
    "AddKeysToAgent": "no",
}
"""Options of ssh that are taken back, whatever the configuration says. An ssh may be too old for some of them, or built
without them. IgnoreUnknown is ``*`` then, since it replaces the list of the user."""


def ssh_argv(host: Host, python: str) -> tuple[str, ...]:
    """Return the command that starts Python on a host, with the ssh configuration and the known hosts of the user."""
    # The first value of an option counts, so the configuration of the user changes none of these.
    settings = {
        "IgnoreUnknown": "*",
        "BatchMode": "yes",
        "ConnectTimeout": CONNECT_S,
        "ServerAliveInterval": _ALIVE_S,
        "ServerAliveCountMax": _ALIVE_COUNT,
        "ClearAllForwardings": "yes",
        **_NOT_NEEDED,
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    options += [] if host.port is None else ["-p", str(host.port)]
    name = host.name if host.user is None else f"{host.user}@{host.name}"
    # sshd passes one line to the shell of the user.
    return ("ssh", "-T", *options, "--", name, shlex.join(["exec", python, "-Esuc", _BOOT]))


def feed_of(header: dict[str, object]) -> Feed:
    """Return the feed of ``bootstrap.receive_bundle``. It carries the token, which no argument or variable here has."""
    content, sha256 = _bundle()
    texts = tuple(inspect.getsource(module) for module in (start, bootstrap))
    return Feed(
        lines=(repr(texts), json.dumps({"size": len(content), "sha256": sha256, **header})),
        content=content,
    )


@cache
def _bundle() -> tuple[bytes, str]:
    """Return the bundle and its SHA-256, which are the same for all hosts."""
    content = bundle()
    return content, hashlib.sha256(content).hexdigest()
