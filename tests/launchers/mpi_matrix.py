"""Run by mpirun on 2 to 4 ranks: every operation of the MPI backend against Gloo's result. Not a test by itself.

mpirun -n 3 python mpi_matrix.py collectives | random | more-random | shapes | points | groups | staged | train
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from launchers.mpi_parts import groups, points, refusals, views
from launchers.mpi_values import FLOATS, INTS, WIDE, Op, by_hand, counted, finish, moved, same, values
from torch import Tensor

import seatrial.mpi


def reductions(group: Any, gloo: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (*FLOATS, *INTS, *WIDE, torch.bool):
        for op in (Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX):
            if op == Op.AVG and dtype not in FLOATS:
                continue
            for shape in ((5,), (3, 2), (0,), ()):
                for asynchronous in (False, True):
                    parts = [values(shape, dtype, 7, peer) for peer in range(size)]
                    name = f"{op} {dtype} {shape} async={asynchronous}"
                    expected = by_hand(parts, op)
                    tensor = parts[rank].clone()
                    finish(dist.all_reduce(tensor, op, group, asynchronous), tensor)
                    same(f"all_reduce {name}", tensor, expected)
                    root = size - 1
                    tensor = parts[rank].clone()
                    finish(dist.reduce(tensor, root, op, group, asynchronous), tensor)
                    if rank == root:
                        same(f"reduce {name}", tensor, expected)
                    if shape != (5,):
                        continue
                    whole = torch.cat([part.clone() for part in parts])
                    rows = [torch.cat([values((5,), dtype, 7 + peer, other) for peer in range(size)])
                            for other in range(size)]  # fmt: skip
                    expected_row = by_hand(rows, op).view(size, 5)[rank]
                    out = torch.empty_like(parts[rank])
                    finish(dist.reduce_scatter_tensor(out, rows[rank].clone(), op, group, asynchronous), out)
                    same(f"reduce_scatter_tensor {name}", out, expected_row)
                    out = torch.empty_like(parts[rank])
                    inputs = list(rows[rank].clone().view(size, 5))
                    finish(dist.reduce_scatter(out, inputs, op, group, asynchronous), out)
                    same(f"reduce_scatter {name}", out, expected_row)
                    assert whole.numel() == 5 * size
            if dtype in (torch.float32, torch.float64, torch.int32, torch.int64) and op != Op.AVG:
                mine, theirs = (values((9,), dtype, 3, rank) for _ in range(2))
                dist.all_reduce(mine, op, group)
                dist.all_reduce(theirs, op, gloo)
                same(f"all_reduce against Gloo {op} {dtype}", mine, theirs)


def movements(group: Any, gloo: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (*FLOATS, *INTS, *WIDE, torch.bool, torch.complex64):
        for asynchronous in (False, True):
            name = f"{dtype} async={asynchronous}"
            parts = [values((4, 3), dtype, 5, peer) for peer in range(size)]
            for root in range(size):
                tensor = parts[rank].clone()
                finish(dist.broadcast(tensor, root, group, asynchronous), tensor)
                moved(f"broadcast {name}", tensor, parts[root])
            outs = [torch.empty_like(part) for part in parts]
            finish(dist.all_gather(outs, parts[rank].clone(), group, asynchronous), outs[0])
            for out, part in zip(outs, parts, strict=True):
                moved(f"all_gather {name}", out, part)
            whole = torch.empty((4 * size, 3), dtype=dtype)
            finish(dist.all_gather_into_tensor(whole, parts[rank].clone(), group, asynchronous), whole)
            moved(f"all_gather_into_tensor {name}", whole, torch.cat(parts))
            # In place: the input is this rank's slice of the output.
            whole = torch.zeros((4 * size, 3), dtype=dtype)
            own = whole[4 * rank : 4 * rank + 4]
            own.copy_(parts[rank])
            finish(dist.all_gather_into_tensor(whole, own, group, asynchronous), whole)
            moved(f"all_gather_into_tensor in place {name}", whole, torch.cat(parts))
            collected = [torch.empty_like(part) for part in parts] if rank == 1 else None
            finish(dist.gather(parts[rank], collected, 1, group, asynchronous), parts[rank])
            for out, part in zip(collected or [], parts, strict=False):
                moved(f"gather {name}", out, part)
            out = torch.empty_like(parts[0])
            finish(dist.scatter(out, parts if rank == 0 else None, 0, group, asynchronous), out)
            moved(f"scatter {name}", out, parts[rank])
            # Non-contiguous in and out.
            tensor = parts[rank].clone().t()
            assert not tensor.is_contiguous()
            finish(dist.broadcast(tensor, 0, group, asynchronous), tensor)
            moved(f"broadcast not contiguous {name}", tensor, parts[0].t())
            table = [[values((peer + to + 1,), dtype, 31 * peer + to, 1) for to in range(size)] for peer in range(size)]
            received = [table[peer][rank] for peer in range(size)]
            outs = [torch.empty_like(part) for part in received]
            finish(dist.all_to_all(outs, table[rank], group, asynchronous), outs[0])
            for out, part in zip(outs, received, strict=True):
                moved(f"all_to_all {name}", out, part)
            out = torch.empty_like(torch.cat(received))
            splits = ([len(part) for part in received], [len(part) for part in table[rank]])
            finish(dist.all_to_all_single(out, torch.cat(table[rank]), *splits, group, asynchronous), out)
            moved(f"all_to_all_single with splits {name}", out, torch.cat(received))
        finish(dist.barrier(group, True), parts[0])


def staged(group: Any, gloo: Any) -> None:
    """Staging for devices whose memory MPI does not take: all tensors go through copies. Stands in for a GPU."""
    from seatrial.mpi_backend.group import MpiGroup

    direct = MpiGroup._direct
    setattr(MpiGroup, "_direct", lambda self, tensor, reduced=False: False)  # noqa: B010
    try:
        for part in (movements, points, groups):
            part(group, gloo)
    finally:
        setattr(MpiGroup, "_direct", direct)  # noqa: B010


def sequences(numbers: range, group: Any, gloo: Any) -> None:
    """Random sequences of operations that overlap, the same on all ranks, against Gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for number in numbers:
        drawn = random.Random(number)
        here = random.Random(1000 * number + rank)
        flying: list[tuple[Any, Tensor, Tensor]] = []
        for place in range(drawn.randint(2, 6)):
            count, kind = drawn.choice((1, 3, 257, 5000)), drawn.choice(("sum", "max", "broadcast", "ring", "gather"))
            # Whether a rank waits at once is its own affair.
            at_once = here.random() < 0.3
            parts = [values((count,), torch.float32, 10 * number + place, peer) for peer in range(size)]
            tensor = parts[rank].clone()
            if kind == "sum":
                work, expected = dist.all_reduce(tensor, async_op=True), torch.stack(parts).sum(0)
            elif kind == "max":
                work, expected = dist.all_reduce(tensor, Op.MAX, async_op=not at_once), torch.stack(parts).amax(0)
            elif kind == "broadcast":
                root = drawn.randrange(size)
                work, expected = dist.broadcast(tensor, root, async_op=not at_once), parts[root]
            elif kind == "ring":
                sent = dist.isend(parts[rank], right, tag=place)
                work, expected = dist.irecv(tensor, left, tag=place), parts[left]
                flying.append((sent, expected, expected))
            else:
                tensor = torch.empty(count * size)
                work = dist.all_gather_into_tensor(tensor, parts[rank], async_op=not at_once)
                expected = torch.cat(parts)
            if at_once and work is not None:
                work.wait()
            flying.append((work, tensor, expected))
        here.shuffle(flying)
        for work, tensor, expected in flying:
            finish(work, tensor)
            same(f"sequence {number}", tensor, expected)


def shapes(group: Any, gloo: Any) -> None:
    """Shapes, types and strides as hypothesis draws them, the same on all ranks (one seed)."""
    rank, size = dist.get_rank(), dist.get_world_size()

    @seed(7)
    @settings(max_examples=150, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(
        shape=st.lists(st.integers(0, 6), max_size=4),
        dtype=st.sampled_from((*FLOATS, *INTS)),
        order=st.randoms(use_true_random=False),
    )
    def check(shape: list[int], dtype: torch.dtype, order: random.Random) -> None:
        dims = list(range(len(shape)))
        order.shuffle(dims)
        parts = [values(shape, dtype, 11, peer).permute(dims) for peer in range(size)]
        tensor = parts[rank].clone(memory_format=torch.preserve_format)
        dist.all_reduce(tensor)
        same(f"all_reduce {shape} {dims}", tensor, by_hand([part.contiguous() for part in parts], Op.SUM))
        out = torch.empty((size, *parts[0].shape), dtype=dtype)
        if parts[0].dim():
            dist.all_gather_into_tensor(out.flatten(0, 1), parts[rank].contiguous())
            same(f"gather {shape}", out, torch.stack([part.contiguous() for part in parts]))

    check()


def train(group: Any, gloo: Any) -> None:
    """50 DDP steps over MPI give the parameters that Gloo gives; so do bucket views, no_sync and fully_shard."""
    rank = dist.get_rank()

    def model() -> torch.nn.Module:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 5))

    def steps(replica: Any, module: torch.nn.Module, num: int, skip: bool) -> Tensor:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for step in range(num):
            torch.manual_seed(100 * step + rank)
            images = torch.randn(8, 20)
            if skip and step % 2:
                with replica.no_sync():
                    replica(images).square().mean().backward()
            replica(images).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
        return torch.cat([p.detach().flatten() for p in full])

    def ddp(where: Any, **options: Any) -> Callable[[bool], Tensor]:
        def run(skip: bool) -> Tensor:
            module = model()
            wrap: Any = torch.nn.parallel.DistributedDataParallel
            return steps(wrap(module, process_group=where, **options), module, 50, skip)

        return run

    for skip in (False, True):
        expected = ddp(gloo)(skip)
        for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.001}):
            found = ddp(group, **options)(skip)
            assert torch.allclose(found, expected, rtol=0, atol=1e-6), (options, (found - expected).abs().max())
            counted["train"] += 1
    fully_shard = _fully_shard()
    if fully_shard is None:
        return
    module = model()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (module[0], module[2]):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    found = steps(module, module, 50, False)
    assert torch.allclose(found, ddp(gloo)(False), rtol=0, atol=1e-6)
    counted["train"] += 1


def _fully_shard() -> Any:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        return None
    return fully_shard


PARTS: dict[str, tuple[Callable[..., None], ...]] = {
    "collectives": (reductions, movements),
    # In halves: where other processes want the cores, each wait that spins costs a time slice of the scheduler.
    "random": (partial(sequences, range(500)),),
    "more-random": (partial(sequences, range(500, 1000)),),
    "shapes": (shapes,),
    "points": (points,),
    "groups": (groups, refusals, views),
    "staged": (staged,),
    "train": (train,),
}


def main() -> None:
    # torch 2.13 warns of names that older versions have only, and of NumPy, which objects need and nothing else.
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group(seatrial.mpi.BACKEND, init_method="mpi://", timeout=timedelta(seconds=45))
    gloo = dist.new_group(backend="gloo")
    random.seed(dist.get_rank())
    for name in sys.argv[1:]:
        for part in PARTS[name]:
            part(dist.group.WORLD, gloo)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"equal {counted.total()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
