"""The ``mpi://`` rendezvous, with a double of MPI that keeps what rank 0 sends the others."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys

import pytest

_DOUBLE = """
import sys
from types import SimpleNamespace
from seatrial.mpi_backend import register

class DoubleOfWorld:
    # Two ranks on two nodes, of which this is the first one. The other one is never there.
    rank, size = 0, 2

    def Split_type(self, kind):
        return SimpleNamespace(size=1)

    def Bcast(self, buffer, root):
        print(bytes(buffer[0]).rstrip(bytes(1)).decode())

register.load_mpi = lambda: SimpleNamespace(COMM_WORLD=DoubleOfWorld(), COMM_TYPE_SHARED=0, BYTE=None)
next(register._rendezvous("mpi://"))
"""


@pytest.mark.parametrize("master", ["", "localhost", "127.0.0.1", "own", "no-such-host.invalid."])
def test_no_rank_has_to_ask_for_a_name(master: str) -> None:
    """In a pod the host name of rank 0 may lead to a stranger, whom each rank would take for its store."""
    environ = {**os.environ, "MASTER_ADDR": socket.gethostname() if master == "own" else master}
    done = subprocess.run(
        [sys.executable, "-c", _DOUBLE], env=environ, capture_output=True, text=True, check=True, timeout=50
    )
    host, port = done.stdout.split()
    assert ipaddress.ip_address(host)
    assert 0 < int(port) < 65_536
