"""What messages of torch and NCCL say of the rank itself; tests/worker/test_failures.py provokes real ones."""

from __future__ import annotations

import pytest

from seatrial.protocol.own_errors import in_one_line, is_of_device, is_of_link, link_error, message_at, own_cause

WATCHDOG = (
    "[rank1]:[E1126 10:00:00.123 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group"
    " watchdog thread terminated with exception: "
)
ECC = "CUDA error: uncorrectable ECC error encountered"


NVLINK = "CUDA error: uncorrectable NVLink error detected during the execution"


def nccl(kind: str, last: str) -> str:
    return (
        f"NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, {kind} (run with NCCL_DEBUG=INFO for"
        f" details), NCCL version 2.27.7\nncclError: Call failed.\nLast error:\n{last}"
    )


UNHANDLED = "unhandled cuda error"
FAILED = "Cuda failure 214 'uncorrectable ECC error encountered'"
ATTACHED = "Cuda failure 1 'invalid argument'"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (ECC, "device"),
        (f"  what():  {ECC}", "device"),
        (WATCHDOG + ECC, "device"),
        (f"terminate called\n{ECC}", ""),
        (f"torch.AcceleratorError: {ECC}", "device"),
        ("HIP error: an illegal memory access was encountered", "device"),
        ("CUDA driver error: unknown error", "device"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "device"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory"),
        ("CUDA error: out of memory", "memory"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "memory"),
        ("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you", "memory"),
        ("[enforce fail at /x/gloo/context.cc:27] name. can't allocate memory", ""),
        # The link to another device, whichever end of it is at fault.
        (NVLINK, ""),
        (f"HIP error: {NVLINK.partition(': ')[2]}", ""),
        (WATCHDOG + NVLINK, ""),
        ("CUDA error: peer access is not supported between these two devices", ""),
        ("CUDA driver error: peer mapping resources exhausted", ""),
        ("CUDA error: mapping of buffer object failed", ""),
        ("CUDA error: the operation cannot be performed in the present state", ""),
        ("CUDA error: invalid resource handle", ""),
        ("CUDA error: operation not permitted", ""),
        ("CUDA error: operation not permitted when stream is capturing", "device"),
        ("CUDA error: system not yet initialized", "device"),
        ("HIP error: invalid device function", "device"),
        (nccl(UNHANDLED, FAILED), "device"),
        (nccl("internal error", FAILED), "device"),
        (nccl(UNHANDLED, "Cuda failure 2 'out of memory'"), "memory"),
        (nccl(UNHANDLED, "Failed to CUDA calloc async 608 bytes"), "memory"),
        (nccl(UNHANDLED, "HIP failure: 'hipErrorLaunchFailure'"), "device"),
        (nccl(UNHANDLED, ""), "device"),
        (nccl(UNHANDLED, "\nException raised from checkForNCCLErrors at x.cpp:1"), "device"),
        (nccl("unhandled system error", FAILED).replace("\n", "\n[rank1]: "), "device"),
        (
            nccl("unhandled system error", "Error while creating shared memory segment /dev/shm/nccl-a"),
            "memory",
        ),
        (nccl("unhandled system error", "Error while attaching to shared memory segment /dev/shm/nccl-a"), ""),
        # A switch, a path between two devices, or memory of another rank.
        (nccl(UNHANDLED, "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2 : CUDA error 401 'the'"), ""),
        (nccl(UNHANDLED, "Cuda failure 401 'the operation cannot be performed in the present state'"), ""),
        (nccl(UNHANDLED, "Cuda failure 220 'uncorrectable NVLink error detected during the execution'"), ""),
        (nccl(UNHANDLED, "failed to open CUDA IPC handle : 1 invalid argument"), ""),
        (nccl(UNHANDLED, "failed to peer with device 3(=1e000): 217 peer access is not supported"), ""),
        # The handle came from another rank.
        (nccl(UNHANDLED, ATTACHED), ""),
        (nccl(UNHANDLED, "Cuda failure 400 'invalid resource handle'"), ""),
        (nccl("remote process exited or there was a network error", FAILED), ""),
        (nccl("unhandled system error", "socketProgress: Connection closed by remote peer cuda error<1>"), ""),
        (nccl("unhandled system error", "Call to connect to 'unhandled cuda error' failed"), ""),
        ("NCCL error: invalid usage, Cuda failure", ""),
        ("use_libuv was requested but PyTorch was build without libuv support", "request"),
        ("Distributed package doesn't have NCCL built in", "request"),
        ("no connection to 'it was built without it'", ""),
        ("[/x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [CUDA error]:1", ""),
        ("the key 'CUDA error: out of memory' did not come", ""),
        ("", ""),
    ],
)
def test_only_what_a_library_says_of_the_rank_itself_counts(text: str, cause: str) -> None:
    assert own_cause(text) == cause


def test_lines_of_output_are_read_as_messages() -> None:
    assert is_of_device(["a line", f"[rank1]: torch.distributed.DistBackendError: {nccl(UNHANDLED, '')}"])
    assert is_of_device(["a line", FAILED])
    assert not is_of_device(["a line", *(f"[rank1]: {line}" for line in nccl(UNHANDLED, ATTACHED).splitlines())])
    assert not is_of_device([f"failed to connect to [{ECC}]:5", "[enforce fail at alloc_cpu.cpp:1] no memory"])
    assert not is_of_device([])


def test_an_error_of_a_link_is_found_in_an_output() -> None:
    assert link_error(["a line", WATCHDOG + NVLINK, "more"]) == WATCHDOG + NVLINK
    of_nccl = nccl(UNHANDLED, f"Cuda failure 220 '{NVLINK}'")
    assert link_error(["a line", *of_nccl.splitlines()]) == in_one_line(of_nccl)
    assert is_of_link(in_one_line(of_nccl))
    assert link_error([f"the key '{NVLINK}' did not come", ECC, nccl(UNHANDLED, ATTACHED)]) == ""


def test_an_error_of_nccl_is_one_message() -> None:
    lines = nccl(UNHANDLED, FAILED).splitlines()
    for after in (
        "",
        "Exception raised from x",
        "terminate called after",
        "frame #0",
        "  what():  x",
        "[W1126 10:00] x",
    ):
        assert message_at(["a line", *lines, after, FAILED], 1) == "\n".join(lines)
    assert message_at(["a line", *lines], 0) == "a line"
    assert in_one_line(message_at(lines, 0)) == f"{lines[0]}; last error: {FAILED}"
    assert in_one_line(nccl(UNHANDLED, "")) == lines[0]
    assert in_one_line("ValueError: bad\nLast error:\nnone") == "ValueError: bad"
    assert in_one_line("") == ""
