"""One rank of the links check as a process: ``python links_rank.py RANK SIZE PORT PARAMS ROUND_S LIE``.

It prints the address of its page as a line of JSON, reads one round, answers it, and prints its measurements, facts and
phases as another line.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from checks.fake_context import FakeContext

from seatrial.checks.links import measure as of_links
from seatrial.checks.links.params import Params
from seatrial.rank.meeting import MeetingError

rank, size, port = (int(word) for word in sys.argv[1:4])
store = dist.TCPStore("127.0.0.1", port, None, rank == 0, timedelta(seconds=30), wait_for_workers=False)
lie = sys.argv[6]
distributed: Any = dist
links: Any = of_links
send, recv = distributed.send, distributed.recv


def send_zeros(tensor: torch.Tensor, target: int) -> None:
    send(tensor if tensor.numel() > 1 else tensor * 0, target)


def sum_of_before(marks: torch.Tensor, *, out: torch.Tensor, **_: object) -> torch.Tensor:
    """The answer of one that has not received the last transfer."""
    return out.zero_()


def no_port(*_: object, **__: object) -> None:
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def no_port_for_the_group(*_: object) -> None:
    raise MeetingError("[/pytorch/third_party/gloo/gloo/transport/tcp/listener.cc:38] bind: Address already in use")


def no_thread(*_: object) -> None:
    raise RuntimeError(os.strerror(errno.EAGAIN))


def receive_late(tensor: torch.Tensor, source: int) -> None:
    time.sleep(0.4)
    recv(tensor, source)


if lie == "other bytes":
    links.secrets.randbits = lambda bits: 0
    distributed.send = send_zeros
elif lie == "many transfers":
    links._LEAST_TRANSFERS = 1_000_000
elif lie == "early":
    links_torch: Any = torch
    links_torch.sum = sum_of_before
elif lie == "no port for the group":
    links.groups.form = no_port_for_the_group
elif lie == "no thread":
    links.groups.form = no_thread
elif lie == "late":
    distributed.recv = receive_late
params = Params(**json.loads(sys.argv[4]))
context = FakeContext(
    check="links",
    rank=rank,
    group_rank=rank,
    world_size=size,
    ranks=tuple(range(size)),
    store=store,
    stage="page",
    timeout_s=float(sys.argv[5]),
)
links.measure(context, params)
print(json.dumps(context.facts.pop().value), flush=True)
if lie == "no port":
    links.socket.create_server = no_port  # its page has one
context.stage, context.given = "round 1", {"round": json.loads(input())}
links.measure(context, params)
# The store lives in rank 0: it goes last.
store.add("left", 1)
if rank == 0:
    while store.add("left", 0) < size:
        pass
items = ([item.to_json() for item in items] for items in (context.measurements, context.facts))
print(json.dumps([*items, context.phases[1:]]))
