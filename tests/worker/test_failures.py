"""Classification of exceptions: real ones of torch where this machine can raise them."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from seatrial.errors import RequestError
from seatrial.worker.failures import cause_of

NOT_BUILT = "NCCL error in: /x/NCCLUtils.cpp:77, unhandled cuda error\nLast error:\nCuda failure 209 'no kernel image'"

NO_THREAD = (
    "NCCL error in: /x/NCCLUtils.cpp:77, unhandled system error\nLast error:\nCall to pthread_create failed: Resource"
    " temporarily unavailable"
)


def test_memory_that_torch_could_not_get() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert cause_of(raised.value) == "memory"


def test_a_store_that_was_never_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(dist.DistNetworkError) as raised:
        dist.TCPStore("127.0.0.1", port, None, False, timedelta(milliseconds=100))
    assert cause_of(raised.value) == "fabric"


def test_a_key_that_never_comes() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(milliseconds=50), wait_for_workers=False)
    with pytest.raises(dist.DistStoreError) as raised:
        store.get("x")
    assert cause_of(raised.value) == "fabric"


def test_shapes_that_do_not_fit_are_our_own_mistake() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert cause_of(raised.value) == "own"


def test_a_torch_that_has_the_memory_error_in_its_old_place_only(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.cuda.OutOfMemoryError("in words that nobody knows")
    monkeypatch.delattr(torch, "OutOfMemoryError")
    assert cause_of(error) == "memory"
    assert cause_of(KeyError("x")) == "own"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RequestError("no such workload"), "request"),
        (MemoryError(), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (OSError(12, "Cannot allocate memory"), "memory"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "processes"),
        (BlockingIOError(11, "Resource temporarily unavailable", "/mnt/data"), "own"),
        (OSError(24, "Too many open files", "/dev/null"), "processes"),
        (OSError(23, "Too many open files in system"), "processes"),
        (OSError(98, "error while attempting to bind on address ('::', 0): address already in use"), "processes"),
        (OSError(99, "Cannot assign requested address"), "own"),
        (OSError(122, "Disk quota exceeded", "/home/x"), "processes"),
        (RuntimeError("unable to write to file </torch_12>: No space left on device (28)"), "processes"),
        (OSError(99, "Cannot assign requested address (while attempting to bind on address ('::', 0))"), "own"),
        (OSError(105, "No buffer space available"), "processes"),
        (OSError(28, "No space left on device", "/dev/shm/x"), "processes"),
        (RuntimeError("epoll_create: Too many open files"), "processes"),
        (RuntimeError("the file 'Too many open files' of another rank"), "own"),
        (RuntimeError("can't start new thread"), "processes"),
        (RuntimeError("Resource temporarily unavailable"), "processes"),
        (dist.DistBackendError(NO_THREAD), "processes"),
        (dist.DistNetworkError("Resource temporarily unavailable"), "fabric"),
        (RuntimeError("the file 'can't start new thread' of another rank"), "own"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "device"),
        (RuntimeError("CUDA error: uncorrectable NVLink error detected during the execution"), "fabric"),
        (torch.AcceleratorError("CUDA error: uncorrectable NVLink error detected during the execution"), "fabric"),
        (torch.AcceleratorError("CUDA error: invalid resource handle"), "fabric"),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), "device"),
        (RuntimeError("HIP error: an illegal memory access was encountered"), "device"),
        (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), "device"),
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"), "fabric"),
        (RuntimeError("[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv"), "fabric"),
        (dist.DistBackendError("NCCL error in: /x/NCCLUtils.cpp:77, unhandled system error"), "fabric"),
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [out of memory]:1"), "fabric"),
        (RuntimeError("the file 'CUDA error' of another rank"), "own"),
        (dist.DistBackendError("NCCL error in: /x/NCCLUtils.cpp:77, unhandled cuda error"), "device"),
        (dist.DistStoreError("wait timeout after 1ms, keys: /CUDA error: out of memory"), "fabric"),
        (ConnectionResetError(104, "Connection reset by peer"), "fabric"),
        (ConnectionError("no connection to cuda error"), "fabric"),
        (OSError(113, "No route to host"), "fabric"),
        (OSError(112, "Host is down"), "fabric"),
        (OSError(100, "Network is down"), "fabric"),
        (OSError(107, "Transport endpoint is not connected"), "fabric"),
        (TimeoutError(110, "Connection timed out"), "fabric"),
        (TimeoutError("timed out"), "fabric"),
        (TimeoutError(110, "Connection timed out", "/mnt/data"), "own"),
        (OSError(112, "Host is down", "/mnt/data"), "own"),
        (socket.gaierror(-3, "Temporary failure in name resolution"), "fabric"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "setup"),
        (torch.AcceleratorError("CUDA error: CUDA driver version is insufficient for CUDA runtime version"), "setup"),
        (RuntimeError("cuDNN version incompatibility: PyTorch was compiled  against (9, 10, 2)"), "setup"),
        (dist.DistBackendError(NOT_BUILT), "setup"),
        (FileNotFoundError(2, "No such file", "out of memory"), "own"),
        (ConnectionAbortedError(), "fabric"),
        (RuntimeError("use_libuv was requested but PyTorch was build without libuv support"), "request"),
        (RuntimeError("Distributed package doesn't have MPI built in. MPI is only included if you"), "request"),
        (FileNotFoundError(2, "No such file"), "own"),
        (KeyError("nccl"), "own"),
        (ValueError("CUDA error: in our own words"), "own"),
        (AssertionError("gloo"), "own"),
        (NotImplementedError("gloo has no all_to_all"), "own"),
        (RecursionError("out of memory"), "own"),
        (RuntimeError("a mistake"), "own"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__name__}: {value}"[:60],
)
def test_by_type_and_by_text(error: BaseException, cause: str) -> None:
    assert cause_of(error) == cause
