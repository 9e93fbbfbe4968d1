"""Run by mpi_matrix.py: messages, sub-groups, views, and what is refused. Not a test by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from launchers.mpi_values import FLOATS, INTS, Op, finish, raises, same, values
from torch import Tensor

import seatrial.mpi


def points(group: Any, gloo: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in (*FLOATS, *INTS, torch.bool):
        for count in (0, 3, 70_000):
            sent, into = values((count,), dtype, 2, rank), torch.empty(count, dtype=dtype)
            works = [dist.isend(sent, right, group, tag=5), dist.irecv(into, left, group, tag=5)]
            for work in reversed(works):
                finish(work, into)
            same("isend irecv", into, values((count,), dtype, 2, left))
    # Tags keep messages apart, whatever their order; the source of a message is known.
    if rank == 0:
        for tag in (1, 2):
            dist.send(torch.full((2,), float(tag)), 1, group, tag=tag)
    if rank == 1:
        for tag in (2, 1):
            into = torch.zeros(2)
            assert dist.recv(into, None if tag == 1 else 0, group, tag=tag) == 0
            same("tags", into, torch.full((2,), float(tag)))
    ops = [dist.P2POp(dist.isend, torch.full((3,), float(rank)), right, group)]
    into = torch.zeros(3)
    ops.append(dist.P2POp(dist.irecv, into, left, group))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same("batch", into, torch.full((3,), float(left)))
    raises("timed out", lambda: received(into, left, 99).wait(timedelta(seconds=0.2)))
    # Buffers that only the request knows, futures of what nobody waits for, and a message without values.
    for number in range(20):
        dist.isend(torch.full((50_000,), float(number)), right, group, tag=200 + number)
    into = torch.zeros(50_000)
    futures = [received(torch.zeros(50_000), left, 200 + number).get_future() for number in range(10)]
    for number in range(19, 9, -1):
        dist.recv(into, left, group, tag=200 + number)
        same("dropped isend", into, torch.full_like(into, float(number)))
    for number, future in enumerate(futures):
        same("future of irecv", future.wait()[0], torch.full_like(into, float(number)))


def groups(group: Any, gloo: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    made = [(members, dist.new_group(members, backend=seatrial.mpi.BACKEND))
            for members in ([0], [0, 1], list(range(size)), list(range(1, size)), [0, size - 1], [0, 1])]  # fmt: skip
    for members, small in made:
        if rank in members:
            tensor = torch.tensor([rank + 1])
            dist.all_reduce(tensor, group=small)
            same("sub-group", tensor, torch.tensor([sum(member + 1 for member in members)]))
            tensor = torch.tensor([rank])
            dist.broadcast(tensor, members[-1], small)
            same("sub-group broadcast", tensor, torch.tensor([members[-1]]))
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": peer} for peer in range(size)]
    words = [{"from": rank}]
    dist.broadcast_object_list(words, 1)
    assert words == [{"from": 1}]
    mesh = dist.init_device_mesh("cpu", (1, size), mesh_dim_names=("a", "b"))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mesh.get_group("b"))
    same("mesh", tensor, torch.full((1,), float(size)))
    tensor = torch.full((2,), 1j)
    dist.all_reduce(tensor)
    same("complex", torch.view_as_real(tensor), torch.view_as_real(torch.full((2,), size * 1j)))
    # The source is its rank in the world, whatever its rank in the group.
    for members, small in made[3:4]:
        if size > 2 and rank == members[-1]:
            dist.send(torch.ones(1), members[0], small)
        elif size > 2 and rank == members[0]:
            assert dist.recv(torch.zeros(1), None, small) == members[-1]


def refusals(group: Any, gloo: Any) -> None:
    """What cannot be done says so by name, at once, on all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    one = torch.ones(2)
    raises("BAND", lambda: dist.all_reduce(one, Op.BAND))
    raises("PREMUL_SUM", lambda: dist.all_reduce(one, dist._make_nccl_premul_sum(2.0)))
    raises("complex64", lambda: dist.reduce_scatter_tensor(one[:1] * 1j, torch.ones(size) * 1j))
    raises("sparse", lambda: dist.all_reduce(torch.eye(2).to_sparse()))
    raises("monitored_barrier", dist.monitored_barrier)
    raises("one size", lambda: dist.all_gather([torch.ones(1 + peer) for peer in range(size)], torch.ones(1 + rank)))
    raises("3 elements", lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2)))
    raises("splits", lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), [size + 1] * size, [1] * size))
    dist.barrier()


def views(group: Any, gloo: Any) -> None:
    """Tensors that show other values than lie in memory, or that torch forbids to be changed just so."""
    rank, size = dist.get_rank(), dist.get_world_size()
    number = torch.complex(torch.ones(3), torch.full((3,), float(rank + 1)))
    outs = [torch.empty(3) for _ in range(size)]
    dist.all_gather(outs, number.conj().imag)
    for peer, out in enumerate(outs):
        same("negative view", out, torch.full((3,), -(peer + 1.0)))
    into = torch.zeros(3, dtype=torch.complex64)
    dist.broadcast(into.conj().imag if rank else torch.full((3,), 5.0), 0)
    if rank:
        same("into a negative view", into.imag, torch.full((3,), -5.0))
    for asynchronous in (False, True):
        leaf = torch.full((2, 3), float(rank), requires_grad=True)
        finish(dist.broadcast(leaf, size - 1, async_op=asynchronous), leaf)
        finish(dist.all_reduce(leaf, Op.AVG, async_op=asynchronous), leaf)
        same("leaf", leaf.detach(), torch.full((2, 3), size - 1.0))
        table = torch.full((2, 3), float(rank), requires_grad=True)
        with torch.no_grad():
            column = table.t()
        finish(dist.broadcast(column, 1, async_op=asynchronous), column)
        same("column of a leaf", table.detach(), torch.full((2, 3), 1.0))
        with torch.inference_mode():
            frozen = torch.full((3, 2), float(rank)).t()
            finish(dist.all_reduce(frozen, Op.AVG, async_op=asynchronous), frozen)
            same("inference", frozen, torch.full((2, 3), (size - 1) / 2))
    # Callbacks of futures may call collectives themselves, and wait for what is behind them.
    first, second = torch.ones(4), torch.ones(4)
    chained = dist.all_reduce(first, async_op=True).get_future().then(lambda done: nested(done.value()[0]))
    same("nested future", chained.wait(), torch.full((4,), float(size * size)))
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    later = dist.all_reduce(second, async_op=True).get_future()
    same("future behind", future.then(lambda _: later.wait()[0].clone()).wait(), torch.full((4,), float(size)))


def received(into: Tensor, source: int, tag: int) -> Any:
    return dist.irecv(into, source, tag=tag)


def nested(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    return tensor
