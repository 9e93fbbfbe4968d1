"""The home folder of the user, for all that a process of ours starts or loads."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress


def give_home() -> None:
    """Give HOME a value where it has no absolute one, as in a unit of systemd without a user, or after ``env -i``.

    kubectl and Open MPI would look for the files of the user in the working folder then, and Open MPI loads libraries
    from there. The value is the home folder that the host knows, or else the root, where only root can put files.
    """
    if os.path.isabs(os.environ.get("HOME", "")):
        return
    home = ""
    with suppress(KeyError):  # a user that nobody knows
        home = pwd.getpwuid(os.geteuid()).pw_dir
    os.environ["HOME"] = home if os.path.isabs(home) else "/"
