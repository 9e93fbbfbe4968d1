"""A torch process group over MPI: one method for each operation that torch calls on a backend.

torch has renamed some operations over the years; both names are defined. torch itself refuses an operation that is
missing here, by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Work

from seatrial.mpi_backend import staging as staging
from seatrial.mpi_backend import types as types
from seatrial.mpi_backend.lane import Lane
from seatrial.mpi_backend.library import load_mpi
from seatrial.mpi_backend.work import FinishedWork, LaneWork, RequestWork, wait_until

_END_S = 5.0
_MOST_IN_FLIGHT = 16
Tensors = Sequence[Tensor]

# Names and types of its methods differ between versions of torch, so mypy must not check against those of one version.
_ProcessGroup: Any = dist.ProcessGroup


class MpiGroup(_ProcessGroup):  # type: ignore[misc]
    """One group, with a communicator for collectives and another for messages between two ranks."""

    def __init__(self, comm: Any, store: Any, timeout_s: float, *, takes_device: bool) -> None:
        """Make the group of all ranks of ``comm``. Collective: it duplicates the communicator.

        Args:
            comm: The mpi4py communicator.
            store: The store that torch gave.
            timeout_s: Seconds that an operation may take.
            takes_device: Whether MPI accepts addresses of device memory; else device tensors go through pinned host
                memory.
        """
        super().__init__(comm.rank, comm.size)
        self._mpi = load_mpi()
        self._in_place = self._mpi.IN_PLACE
        self._size = comm.size
        self._comm = comm
        self._messages = comm.Dup()
        self._store = store
        self._timeout_s = timeout_s
        self._takes_device = takes_device
        self._threads = self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE
        self._lane = Lane(threads=self._threads)
        self._finished = FinishedWork()
        self._in_flight: set[RequestWork] = set()
        self._name = self._desc = ""

    # Properties of the group that torch reads

    def getBackendName(self) -> str:  # noqa: N802
        return "seatrial_mpi"

    name = getBackendName

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    _set_group_name = setGroupName

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    _set_group_desc = setGroupDesc

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in ("cpu", "cuda") if name == "cpu" or torch.cuda.is_available()]

    def _get_backend(self, device: Any) -> MpiGroup:
        return self

    def get_group_store(self) -> Any:
        return self._store

    supports_splitting = supports_coalescing = False

    def _start_coalescing(self, device: Any) -> None:
        raise NotImplementedError("the MPI backend does not coalesce operations; call them one after the other.")

    def monitored_barrier(self, *arguments: Any, **named: Any) -> None:
        raise NotImplementedError("the MPI backend has no monitored_barrier; Gloo has.")

    def set_timeout(self, timeout: Any) -> None:
        self._timeout_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """Close the group soon. torch calls this when the group is destroyed, also after a failure."""
        self.close(_END_S)

    def close(self, timeout_s: float | None = None) -> bool:
        """Wait for operations in flight and refuse new ones; return whether all have succeeded. Default: the group's
        timeout.

        The communicators are freed with MPI itself, since freeing them would be another collective.
        """
        succeeded = self._lane.close(self._timeout_s if timeout_s is None else timeout_s)
        in_flight = list(self._in_flight)
        wait_until(lambda: all(work.is_completed() for work in in_flight), _END_S)
        for work in in_flight:
            work.abandon()
        self._in_flight.clear()
        return succeeded

    # Collectives

    def allreduce(self, tensors: Tensors, opts: Any) -> Work:
        op = opts.reduceOp
        ready = []
        for tensor in tensors:
            host = self._host(tensor, reduced=True)
            reduction = types.reduction(op, host.dtype)
            ready.append((tensor, host, types.typed_buffer(host, host, reduction), reduction))

        def run() -> None:
            for tensor, host, buffer, reduction in ready:
                self._comm.Allreduce(self._in_place, buffer, reduction.op)
                if reduction.divided:
                    types.divide(host, self._size)
                staging.copy_back(tensor, host)

        return self._collective("all_reduce", opts, run, tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        (tensor,) = tensors
        root = opts.rootRank
        host = self._host(tensor)
        buffer = types.byte_buffer(host)

        def run() -> None:
            self._comm.Bcast(buffer, root=root)
            staging.copy_back(tensor, host)

        return self._collective("broadcast", opts, run, tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        (tensor,) = tensors
        root, op = opts.rootRank, opts.reduceOp
        host = self._host(tensor, reduced=True)
        reduction = types.reduction(op, host.dtype)
        buffer = types.typed_buffer(host, host, reduction)

        def run() -> None:
            if self.rank() != root:
                self._comm.Reduce(buffer, None, reduction.op, root=root)
                return
            self._comm.Reduce(self._in_place, buffer, reduction.op, root=root)
            if reduction.divided:
                types.divide(host, self._size)
            staging.copy_back(tensor, host)

        return self._collective("reduce", opts, run, tensors)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        (parts,), (tensor,) = outputs, inputs
        staging.check_equal_sizes("all_gather", [tensor, *parts])
        host = self._host(tensor)
        flat = host.new_empty(len(parts) * host.numel())
        source, target = types.byte_buffer(host), types.byte_buffer_of_shares(flat, host)

        def run() -> None:
            self._comm.Allgather(source, target)
            staging.distribute(flat, parts)

        return self._collective("all_gather", opts, run, parts, keep=[host])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        works = [self.allgather([[row[i] for row in outputs]], [tensor], opts) for i, tensor in enumerate(inputs)]
        return works[-1]  # they complete in order

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        staged = []
        for output, tensor in zip(outputs, inputs, strict=True):
            staging.check_share("all_gather_into_tensor", output, tensor, self._size)
            staged.append((output, self._host(output, filled=False), self._host(staging.separated(tensor, output))))
        ready = [
            (types.byte_buffer(source), types.byte_buffer_of_shares(target, source)) for _, target, source in staged
        ]

        def run() -> None:
            for source, target in ready:
                self._comm.Allgather(source, target)
            for output, host, _ in staged:
                staging.copy_back(output, host)

        return self._collective("all_gather_into_tensor", opts, run, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        (tensor,) = inputs
        root = opts.rootRank
        parts = list(outputs[0]) if self.rank() == root else []
        staging.check_equal_sizes("gather", [tensor, *parts])
        host = self._host(tensor)
        flat = host.new_empty(len(parts) * host.numel())
        source, target = (
            types.byte_buffer(host),
            types.byte_buffer_of_shares(flat, host) if self.rank() == root else None,
        )

        def run() -> None:
            self._comm.Gather(source, target, root=root)
            staging.distribute(flat, parts)

        return self._collective("gather", opts, run, parts, keep=[host])

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        (output,) = outputs
        root = opts.rootRank
        parts = list(inputs[0]) if self.rank() == root else []
        staging.check_equal_sizes("scatter", [output, *parts])
        host = self._host(output, filled=False)
        flat = staging.concatenated(parts, direct=self._direct(output)) if parts else None
        source, target = None if flat is None else types.byte_buffer_of_shares(flat, host), types.byte_buffer(host)

        def run() -> None:
            self._comm.Scatter(source, target, root=root)
            staging.copy_back(output, host)

        return self._collective("scatter", opts, run, outputs, keep=[flat])

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        (output,), (parts,) = outputs, inputs
        staging.check_equal_sizes("reduce_scatter", [output, *parts])
        return self.reduce_scatter_single_coalesced([output], [staging.concatenated(parts, direct=True)], opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        op = opts.reduceOp
        ready = []
        for output, tensor in zip(outputs, inputs, strict=True):
            staging.check_share("reduce_scatter_tensor", tensor, output, self._size)
            source = self._host(staging.separated(tensor, output), reduced=True)
            host = self._host(output, filled=False, reduced=True)
            reduction = types.reduction(op, host.dtype)
            buffers = types.typed_buffer(source, host, reduction), types.typed_buffer(host, host, reduction)
            ready.append((output, host, source, buffers, reduction))

        def run() -> None:
            for output, host, _, buffers, reduction in ready:
                self._comm.Reduce_scatter_block(*buffers, reduction.op)
                if reduction.divided:
                    types.divide(host, self._size)
                staging.copy_back(output, host)

        return self._collective("reduce_scatter_tensor", opts, run, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        direct = self._direct(outputs[0])
        received, sent = staging.elements(outputs), staging.elements(inputs)
        source = staging.concatenated(inputs, direct=direct)
        target = source.new_empty(sum(received))
        into = types.counted_buffer(target, received, staging.starts(received))
        out = types.counted_buffer(source, sent, staging.starts(sent))

        def run() -> None:
            self._comm.Alltoallv(out, into)
            staging.distribute(target, outputs)

        return self._collective("all_to_all", opts, run, outputs, keep=[source])

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any
    ) -> Work:
        host, source = self._host(output, filled=False), self._host(staging.separated(tensor, output))
        received = _counts("output", output, output_splits, self._size)
        sent = _counts("input", tensor, input_splits, self._size)
        into = types.counted_buffer(host, received, staging.starts(received))
        out = types.counted_buffer(source, sent, staging.starts(sent))

        def run() -> None:
            self._comm.Alltoallv(out, into)
            staging.copy_back(output, host)

        return self._collective("all_to_all_single", opts, run, [output], keep=[source])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any) -> Work:
        return self._collective("barrier", opts, self._comm.Barrier, [])

    # Messages between two ranks

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> RequestWork:
        hosts = [self._host(tensor) for tensor in tensors]
        self._synchronize_device(tensors)
        requests = [self._messages.Isend(types.byte_buffer(host), dest=destination, tag=tag) for host in hosts]
        return self._message("send", requests, hosts, tensors, lambda: None)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> RequestWork:
        staged = [(tensor, self._host(tensor, filled=False)) for tensor in tensors]
        self._synchronize_device(tensors)
        requests = [self._messages.Irecv(types.byte_buffer(host), source=source, tag=tag) for _, host in staged]

        def finish() -> None:
            for tensor, host in staged:
                staging.copy_back(tensor, host)

        return self._message("recv", requests, [host for _, host in staged], tensors, finish)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RequestWork:
        return self.recv(tensors, self._mpi.ANY_SOURCE, tag)

    def _message(
        self, name: str, requests: list[Any], hosts: list[Tensor], tensors: Tensors, finish: Callable[[], None]
    ) -> RequestWork:
        work = RequestWork(
            name,
            requests,
            keep=hosts,
            result=tensors,
            finish=finish,
            timeout_s=self._timeout_s,
            status=self._mpi.Status(),
            threads=self._threads,
            settled=self._in_flight.discard,
        )
        # A caller may drop a work without waiting for it; the buffers must outlive the request.
        self._in_flight.add(work)
        if len(self._in_flight) > _MOST_IN_FLIGHT:
            for earlier in list(self._in_flight):
                earlier.is_completed()
        return work

    # Helpers

    def _collective(
        self, name: str, opts: Any, run: Callable[[], None], result: Tensors, keep: Sequence[Any] = ()
    ) -> Work:
        """Run a collective in this thread or in the lane. ``keep``: objects whose memory only MPI refers to, by its
        address."""
        if self._takes_device:
            self._synchronize_device([*result, *(tensor for tensor in keep if tensor is not None)])
        if not getattr(opts, "asyncOp", True) and self._lane.execute(name, run, partial(self._limit_s, opts)):
            return self._finished
        work = LaneWork(name, run, result, self._limit_s(opts), keep)
        self._lane.submit(work)
        return work

    def _limit_s(self, opts: Any) -> float:
        named_s = opts.timeout.total_seconds()
        return named_s if named_s > 0 else self._timeout_s

    def _direct(self, tensor: Tensor, *, reduced: bool = False) -> bool:
        """Return whether MPI takes the address of this tensor."""
        return tensor.is_cpu or (self._takes_device and not (reduced and tensor.dtype in types.HALVES))

    def _host(self, tensor: Tensor, *, filled: bool = True, reduced: bool = False) -> Tensor:
        direct = tensor.is_cpu or self._direct(tensor, reduced=reduced)
        return staging.host_of(tensor, direct=direct, filled=filled)

    def _synchronize_device(self, tensors: Tensors) -> None:
        """Wait for work queued before: MPI knows no streams."""
        if self._takes_device and tensors and tensors[0].is_cuda:
            torch.cuda.current_stream(tensors[0].device).synchronize()


def _counts(which: str, tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Return the number of elements for each rank. torch gives rows, or nothing where all ranks get the same number."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(
                f"all_to_all_single: the {which} has {rows} rows, which cannot be divided by {size} ranks."
            )
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(f"all_to_all_single: {which} splits {list(splits)} do not fit {rows} rows on {size} ranks.")
    row = tensor.numel() // rows if rows else 0
    return [count * row for count in splits]
