"""The agent of one rank that mpirun started: ``python -m seatrial.agent.mpi_rank COUNTED RANK LOCAL_RANK HOST:M,...``.

All ranks are started with the same words: whether the ranks of a host are counted, the names of the variables in which
this launcher says a rank and a local rank, and the hosts with the number of ranks on each, in the order of ranks. They
show at once whether a rank runs where it should: an mpirun that ignores its hosts starts all ranks on one machine.

On other hosts than that of mpirun SEATRIAL_FOLDER says where the user typed, and whom the user trusts with that folder.

No one else can count the cores of a host before it has joined: mpirun itself may be the only way there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping

from seatrial.agent.agent_main import main as serve
from seatrial.environment.home import give_home
from seatrial.environment.working_folder import FolderTrust, refusal, require_own_number
from seatrial.errors import RequestError, SeatrialError
from seatrial.probe.capacity import refuse_too_many
from seatrial.start import absolute_entries

__all__ = ["enter", "environ_of", "main", "refuse_full_host"]

_BEGUN_AGAIN = "SEATRIAL_BEGUN_AGAIN"
"""Set in a process that has begun again, which it does once."""


def environ_of(environ: Mapping[str, str], rank_name: str, local_rank_name: str, hosts: str) -> dict[str, str]:
    """Return what ``agent/agent_main.py`` must find in its environment beside ``environ``.

    Raises SeatrialError when the launcher does not say enough, or has put the rank elsewhere.
    """
    if not environ.keys() >= {rank_name, local_rank_name}:
        raise SeatrialError(
            f"the launcher has not set {rank_name} and {local_rank_name}; see that it heeds the hosts it is given"
        )
    names, _, slots = zip(*(word.rpartition(":") for word in hosts.split(",")), strict=True)
    sizes = [int(size) for size in slots]
    rank, local_rank = int(environ[rank_name]), int(environ[local_rank_name])
    if not 0 <= rank < sum(sizes):
        raise SeatrialError(
            f"the launcher has started rank {rank} of a job with {sum(sizes)} ranks; see that it heeds the number it is"
            " given"
        )
    host = next(number for number in range(len(sizes)) if rank < sum(sizes[: number + 1]))
    expected = rank - sum(sizes[:host])
    if local_rank != expected:
        raise SeatrialError(
            f"the launcher has made rank {rank} number {local_rank} of its host, not number {expected}; see that it"
            " heeds the hosts it is given"
        )
    place = {
        "NODE_RANK": rank,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": sizes[host],
        "GROUP_RANK": host,
        "GROUP_WORLD_SIZE": len(sizes),
        "PEER": " ".join((names[host + 1 :] + names[:host])[:2]),
        "NIC": "route",
    }
    return {f"SEATRIAL_{name}": str(value) for name, value in place.items()}


def refuse_full_host(counted: str, place: Mapping[str, str], hosts: str) -> None:
    """Raise RequestError where this host has more ranks than it can serve.

    ``counted``: ``torch`` or ``script``, for what the ranks run; ``any``: any number may be started.
    """
    if counted != "any":
        host = hosts.split(",")[int(place["SEATRIAL_GROUP_RANK"])]
        refuse_too_many(int(place["SEATRIAL_LOCAL_WORLD_SIZE"]), host, of_torch=counted == "torch")


def enter(place: str) -> None:
    """Enter the folder in which the user typed, else the home folder, unless another user could have put files there.

    ``place``: its path, and the FolderTrust of the controller's machine.
    """
    typed = json.loads(place)
    trust = FolderTrust.of_message(typed)
    for folder in (typed["path"], os.path.expanduser("~")):
        with contextlib.suppress(OSError):
            if not refusal(folder, "", trust):
                os.chdir(folder)
                return


def main() -> None:
    """Become the agent of this rank."""
    give_home()
    try:
        require_own_number()
        if "SEATRIAL_FOLDER" in os.environ:
            changed = absolute_entries(os.environ)
            has_begun_again = os.environ.pop(_BEGUN_AGAIN, "") != ""
            if changed and not has_begun_again:
                # The loader has read them already: this process would load libraries from the folder that it enters.
                os.execve(sys.executable, sys.orig_argv, {**os.environ, **changed, _BEGUN_AGAIN: "yes"})
            # Python itself may set them at each start (sitecustomize).
            os.environ.update(changed)
            enter(os.environ.pop("SEATRIAL_FOLDER"))
        counted, rank_name, local_rank_name, hosts = sys.argv[1:]
        place = environ_of(os.environ, rank_name, local_rank_name, hosts)
        refuse_full_host(counted, place, hosts)
        os.environ.update(place)
    except RequestError as error:
        # All ranks of the host say it, so that none of them joins.
        print(f"seatrial agent refuses: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SeatrialError as error:
        print(f"seatrial agent: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    serve()


if __name__ == "__main__":
    main()
