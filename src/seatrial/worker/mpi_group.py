"""A torch process group over MPI: every operation that torch asks of a backend, by its own name.

torch renamed some operations over the years; both names are there. What is missing here, torch refuses by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seatrial.worker import mpi_types as types
from seatrial.worker.mpi_library import load_mpi
from seatrial.worker.mpi_work import Lane, LaneWork, RequestWork, settle

__all__ = ["MpiGroup"]

_MEET_FROM_BYTES = 4 << 20
"""Before a larger reduction the ranks meet without spinning: whoever still computes needs the core more."""
Tensors = Sequence[Tensor]


class MpiGroup(dist.ProcessGroup):
    """One group, with a communicator for collectives and one for messages between two ranks.

    ``takes_device``: MPI takes addresses of device memory; else device tensors go through pinned host memory.
    """

    def __init__(self, comm: Any, store: Any, timeout_s: float, *, takes_device: bool) -> None:
        super().__init__(comm.rank, comm.size)
        MPI = load_mpi()  # noqa: N806
        self._comm = comm
        self._messages = comm.Dup()
        self._store = store
        self._timeout_s = timeout_s
        self._takes_device = takes_device
        self._lane = Lane(threads=MPI.Query_thread() == MPI.THREAD_MULTIPLE)
        self._make_status = MPI.Status
        self._in_place = MPI.IN_PLACE
        self._any_source = MPI.ANY_SOURCE
        self._in_flight: list[RequestWork] = []
        self._name = ""
        self._desc = ""

    # What torch asks of the group itself

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

    def set_timeout(self, timeout: Any) -> None:
        self._timeout_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """Let what is queued end. The communicators go with MPI itself: to free them is a collective of its own."""
        self._lane.close()

    # Collectives

    def allreduce(self, tensors: Tensors, opts: Any) -> LaneWork:
        (tensor,) = tensors
        return self._collective("all_reduce", opts, self._all_reducing([tensor], opts.reduceOp), tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> LaneWork:
        return self._collective("all_reduce", opts, self._all_reducing(tensors, opts.reduceOp), tensors)

    def _all_reducing(self, tensors: Tensors, op: Any) -> Callable[[], None]:
        staged = [(tensor, self._host(tensor)) for tensor in tensors]
        ready = [(types.reduced(host), types.reduction(op, host.dtype), host.nbytes) for _, host in staged]

        def run() -> None:
            for buffer, mpi_op, size_bytes in ready:
                self._meet(size_bytes)
                self._comm.Allreduce(self._in_place, buffer, mpi_op)
            for tensor, host in staged:
                self._divide(host, op)
                _bring_back(tensor, host)

        return run

    def broadcast(self, tensors: Tensors, opts: Any) -> LaneWork:
        (tensor,) = tensors
        host = self._host(tensor)
        buffer = types.moved(host)

        def run() -> None:
            self._comm.Bcast(buffer, root=opts_root)
            _bring_back(tensor, host)

        opts_root = opts.rootRank
        return self._collective("broadcast", opts, run, tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> LaneWork:
        (tensor,) = tensors
        root, op = opts.rootRank, opts.reduceOp
        host = self._host(tensor)
        buffer, mpi_op = types.reduced(host), types.reduction(op, host.dtype)

        def run() -> None:
            self._meet(host.nbytes)
            if self.rank() != root:
                self._comm.Reduce(buffer, None, mpi_op, root=root)
                return
            self._comm.Reduce(self._in_place, buffer, mpi_op, root=root)
            self._divide(host, op)
            _bring_back(tensor, host)

        return self._collective("reduce", opts, run, tensors)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> LaneWork:
        (parts,), (tensor,) = outputs, inputs
        _all_alike("all_gather", [tensor, *parts])
        host = self._host(tensor)
        flat = host.new_empty((len(parts), *host.shape))
        source, target = types.moved(host), types.moved(flat[:1])

        def run() -> None:
            self._comm.Allgather(source, [types.moved(flat)[0], *target[1:]])
            _deal(flat, parts)

        return self._collective("all_gather", opts, run, parts, keep=[host])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> LaneWork:
        works = [self.allgather([[row[i] for row in outputs]], [tensor], opts) for i, tensor in enumerate(inputs)]
        return works[-1]

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> LaneWork:
        return self._gathering([output], [tensor], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> LaneWork:
        return self._gathering(outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gathering(self, outputs: Tensors, inputs: Tensors, opts: Any) -> LaneWork:
        pairs = []
        for output, tensor in zip(outputs, inputs, strict=True):
            _fits("all_gather_into_tensor", output.numel(), tensor.numel() * self.size())
            # The input may be this rank's slice of the output: MPI forbids that they overlap.
            pairs.append((output, self._host(output, filled=False), self._host(_apart(tensor, output))))
        ready = [(types.moved(source), _of_one(types.moved(target), source)) for _, target, source in pairs]

        def run() -> None:
            for source, target in ready:
                self._comm.Allgather(source, target)
            for output, target, _ in pairs:
                _bring_back(output, target)

        return self._collective("all_gather_into_tensor", opts, run, outputs, keep=pairs)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> LaneWork:
        (tensor,) = inputs
        root = opts.rootRank
        parts = list(outputs[0]) if self.rank() == root else []
        _all_alike("gather", [tensor, *parts])
        host = self._host(tensor)
        source = types.moved(host)
        flat = host.new_empty((len(parts), *host.shape))

        def run() -> None:
            target = [types.moved(flat)[0], *source[1:]] if parts else None
            self._comm.Gather(source, target, root=root)
            _deal(flat, parts)

        return self._collective("gather", opts, run, parts, keep=[host])

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> LaneWork:
        (output,) = outputs
        root = opts.rootRank
        parts = list(inputs[0]) if self.rank() == root else []
        _all_alike("scatter", [output, *parts])
        host = self._host(output, filled=False)
        flat = torch.stack([self._host(part) for part in parts]) if parts else None
        target = types.moved(host)

        def run() -> None:
            source = None if flat is None else [types.moved(flat)[0], *target[1:]]
            self._comm.Scatter(source, target, root=root)
            _bring_back(output, host)

        return self._collective("scatter", opts, run, outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> LaneWork:
        (output,), (parts,) = outputs, inputs
        _all_alike("reduce_scatter", [output, *parts])
        flat = torch.stack([part.contiguous() for part in parts]).reshape(-1)
        return self._scattering([output], [flat], opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> LaneWork:
        return self._scattering([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> LaneWork:
        return self._scattering(outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scattering(self, outputs: Tensors, inputs: Tensors, opts: Any) -> LaneWork:
        op = opts.reduceOp
        pairs, ready = [], []
        for output, tensor in zip(outputs, inputs, strict=True):
            _fits("reduce_scatter_tensor", tensor.numel(), output.numel() * self.size())
            target, source = self._host(output, filled=False), self._host(_apart(tensor, output))
            pairs.append((output, target))
            into = types.reduced(target)
            ready.append(
                (_of_one(types.reduced(source), target), into, types.reduction(op, source.dtype), source)
            )

        def run() -> None:
            for source, target, mpi_op, kept in ready:
                self._meet(kept.nbytes)
                self._comm.Reduce_scatter_block(source, target, mpi_op)
            for output, target_tensor in pairs:
                self._divide(target_tensor, op)
                _bring_back(output, target_tensor)

        return self._collective("reduce_scatter_tensor", opts, run, outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> LaneWork:
        source = torch.cat([self._host(part).reshape(-1) for part in inputs])
        target = source.new_empty(sum(part.numel() for part in outputs))
        run_flat = self._exchanging(target, source, _numels(outputs), _numels(inputs))

        def run() -> None:
            run_flat()
            for output, part in zip(outputs, target.split(_numels(outputs)), strict=True):
                output.copy_(part.view(output.shape))

        return self._collective("all_to_all", opts, run, outputs, keep=[source])

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any
    ) -> LaneWork:
        host, source = self._host(output, filled=False), self._host(_apart(tensor, output))
        received = self._counts("output", output, output_splits)
        run_flat = self._exchanging(host, source, received, self._counts("input", tensor, input_splits))

        def run() -> None:
            run_flat()
            _bring_back(output, host)

        return self._collective("all_to_all_single", opts, run, [output], keep=[source])

    alltoall_base = all_to_all_single

    def _exchanging(
        self, target: Tensor, source: Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> Callable[[], None]:
        out, into = types.moved(source), types.moved(target)

        def run() -> None:
            self._comm.Alltoallv(
                [out[0], (sent, _starts(sent)), out[2]], [into[0], (received, _starts(received)), into[2]]
            )

        return run

    def _counts(self, which: str, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """Elements for each rank; torch gives rows, or nothing where all get the same."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self.size():
                raise ValueError(
                    f"all_to_all_single: the {which} has {rows} rows, which {self.size()} ranks do not divide."
                )
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows:
            raise ValueError(
                f"all_to_all_single: {which} splits {list(splits)} do not fit {rows} rows on {self.size()} ranks."
            )
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in splits]

    def barrier(self, opts: Any) -> LaneWork:
        return self._collective("barrier", opts, self._comm.Barrier, [])

    # Messages between two ranks

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> RequestWork:
        hosts = [self._host(tensor) for tensor in tensors]
        requests = [self._messages.Isend(types.moved(host), dest=destination, tag=tag) for host in hosts]
        return self._message("send", requests, hosts, tensors, lambda: None)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> RequestWork:
        pairs = [(tensor, self._host(tensor, filled=False)) for tensor in tensors]
        requests = [self._messages.Irecv(types.moved(host), source=source, tag=tag) for _, host in pairs]

        def finish() -> None:
            for tensor, host in pairs:
                _bring_back(tensor, host)

        return self._message("recv", requests, [host for _, host in pairs], tensors, finish)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RequestWork:
        return self.recv(tensors, self._any_source, tag)

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
            make_status=self._make_status,
        )
        # A caller may drop a work that it never waits for; the buffers must outlive the request.
        self._in_flight = [flying for flying in self._in_flight if not flying.is_completed()]
        self._in_flight.append(work)
        return work

    # Parts

    def _collective(
        self, name: str, opts: Any, run: Callable[[], None], result: Tensors, keep: Sequence[Any] = ()
    ) -> LaneWork:
        """``keep``: what MPI knows by its address only, and ``run`` does not hold."""
        named_s = opts.timeout.total_seconds()
        work = LaneWork(name, run, result, named_s if named_s > 0 else self._timeout_s, keep)
        return self._lane.submit(work, asynchronous=getattr(opts, "asyncOp", True))

    def _meet(self, size_bytes: int) -> None:
        if size_bytes >= _MEET_FROM_BYTES:
            request = self._comm.Ibarrier()
            if not settle(request.Test, self._timeout_s):
                raise dist.DistBackendError(f"MPI: not all ranks came within {self._timeout_s:g} s")

    def _divide(self, tensor: Tensor, op: Any) -> None:
        if not types.average(op):
            return
        if tensor.is_floating_point():
            tensor.div_(self.size())
        else:
            tensor.div_(self.size(), rounding_mode="trunc")

    def _host(self, tensor: Tensor, *, filled: bool = True) -> Tensor:
        """The tensor itself where MPI can take it, else a contiguous copy (of its values only where ``filled``)."""
        if tensor.layout != torch.strided:
            raise NotImplementedError(f"the MPI backend takes no {tensor.layout} tensors; make it dense first.")
        if tensor.device.type == "cpu" or self._takes_device:
            if tensor.device.type == "cuda":
                torch.cuda.current_stream(tensor.device).synchronize()  # type: ignore[no-untyped-call]
            return tensor if tensor.is_contiguous() else _copy(tensor, filled)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        return host.copy_(tensor) if filled else host


def _copy(tensor: Tensor, filled: bool) -> Tensor:
    return tensor.contiguous() if filled else torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _bring_back(tensor: Tensor, host: Tensor) -> None:
    if host is not tensor:
        tensor.copy_(host)
        if tensor.device.type == "cuda":
            torch.cuda.current_stream(tensor.device).synchronize()  # type: ignore[no-untyped-call]


def _deal(flat: Tensor, parts: Tensors) -> None:
    for part, row in zip(parts, flat, strict=True):
        _bring_back(part, row)


def _apart(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor, or a copy where both lie in one memory."""
    same = tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return tensor.clone() if same and tensor.numel() else tensor


def _of_one(buffer: list[Any], share: Tensor) -> list[Any]:
    """A buffer for all ranks, counted as MPI counts it: elements of one rank's share."""
    return [buffer[0], share.numel(), buffer[2]]


def _numels(tensors: Tensors) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:index]) for index in range(len(counts))]


def _all_alike(name: str, tensors: Tensors) -> None:
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.numel() != first.numel() or tensor.dtype != first.dtype:
            raise ValueError(
                f"{name}: tensors of one size and type are needed; there are {tuple(first.shape)} {first.dtype} and"
                f" {tuple(tensor.shape)} {tensor.dtype}."
            )


def _fits(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{name}: the larger tensor has {found} elements; {expected} are needed.")
