"""What messages of torch and NCCL say of the rank itself; tests/worker/test_failures.py provokes real ones."""

from __future__ import annotations

import pytest

from seatrial.protocol.own_errors import (
    in_one_line,
    is_of_device,
    is_of_link,
    keeper,
    link_error,
    message_at,
    own_cause,
    setup_error,
)

WATCHDOG = (
    "[rank1]:[E1126 10:00:00.123 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group"
    " watchdog thread terminated with exception: "
)
ECC = "CUDA error: uncorrectable ECC error encountered"
ROCM = ":0:rocdevice.cpp            :3020: 3154853123 us: "
ABORTS = "aborting with error : HSA_STATUS_ERROR"
COUNTED = "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error"


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
        ("CUDA error: system not yet initialized", "setup"),
        ("HIP error: invalid device function", "setup"),
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
        (nccl("unhandled system error", "Error: failed to extend /dev/shm/nccl-a to 33030532 bytes"), "memory"),
        (nccl("unhandled system error", "Call to ibv_create_qp failed with error Cannot allocate memory"), "memory"),
        (nccl("unhandled system error", "Call to ibv_reg_mr failed: Cannot allocate memory"), "memory"),
        (nccl("unhandled system error", "Call to ibv_modify_qp failed with error Connection timed out"), ""),
        (nccl("unhandled system error", "Connect to 'failed: Cannot allocate memory"), ""),
        (nccl("unhandled system error", "Call failed, remote peer Cannot allocate memory<54321>"), ""),
        (nccl("unhandled system error", "nvmlDeviceGetP2PStatus(0,1) failed: Not Supported"), ""),
        (nccl(UNHANDLED, "Error: Too many open files"), "setup"),
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
        (f"gpu-1:77:88 [0] /src/misc/alloc.h:12 NCCL WARN {FAILED}", "device"),
        (f"gpu-1:77:88 [0] NCCL WARN {FAILED}", "device"),
        (f"the key 'gpu-1:77:88 [0] NCCL WARN {FAILED}", ""),
        # The runtime of ROCm prints these and aborts.
        (
            "Memory access fault by GPU node-4 (Agent handle: 0x55d0) on address 0x7f2b. Reason: Unknown.",
            "device",
        ),
        ("[rank1]: Memory access fault by GPU node-4 on address (nil). Reason: Page not present", "device"),
        (
            "Memory critical error by agent node-1 (Agent handle: 0x55) on address 0x7f. Reason: in use",
            "device",
        ),
        ("HW Exception by GPU node-1 (Agent handle: 0x5581c3d0) reason :GPU Hang", "device"),
        (f"{ROCM} Callback: Queue 0x7f1c00000000 {ABORTS}_EXCEPTION: An HSAIL operation resulted in", "device"),
        (f"{ROCM} [pid:7 tid:0x7f] Callback: Queue 0x7f {ABORTS}_MEMORY_APERTURE_VIOLATION: The agent", "device"),
        (f"{ROCM} 77 : [tid:0x7f] Device::callbackQueue {ABORTS}_ILLEGAL_INSTRUCTION: The agent", "device"),
        (f"{ROCM} Callback: Queue 0x7f {ABORTS}_OUT_OF_RESOURCES: The runtime failed to allocate", "memory"),
        ("Queue at 0x7f00 inactivated due to async error: HSA_STATUS_ERROR_EXCEPTION: An HSAIL", "device"),
        ("the key 'Memory access fault by GPU node-4' did not come", ""),
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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: no kernel image is available for execution on the device", "build"),
        ("CUDA error: the provided PTX was compiled with an unsupported toolchain.", "build"),
        ("CUDA error: a PTX JIT compilation failed", "build"),
        ("CUDA error: device kernel image is invalid", "build"),
        ("CUDA error: CUDA driver version is insufficient for CUDA runtime version", "build"),
        ("CUDA error: system has unsupported display driver / cuda driver combination", "build"),
        ("CUDA error: forward compatibility was attempted on non supported HW", "build"),
        ("CUDA error: API call is not supported in the installed CUDA driver", "build"),
        ("CUDA error: invalid argument", "build"),
        ("CUDA error: operation not supported", "build"),
        ("HIP error: hipErrorNoBinaryForGpu", "build"),
        ("HIP error: shared object initialization failed", "build"),
        ("rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file", "build"),
        ("cuDNN version incompatibility: PyTorch was compiled  against (9, 10, 2) but found (9, 1, 0).", "build"),
        ("cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "build"),
        ("CUDA error: CUBLAS_STATUS_ARCH_MISMATCH when calling `cublasGemmEx`", "build"),
        ("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`", "build"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "build"),
        ("nvrtc: error: failed to open libnvrtc-builtins.so.12.8.", "build"),
        (nccl(UNHANDLED, "Cuda failure 209 'no kernel image is available for execution on the device'"), "build"),
        (nccl(UNHANDLED, "Cuda failure 'invalid device function'"), "build"),
        (nccl(UNHANDLED, "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'"), "build"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "occupied"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "occupied"),
        ("CUDA error: exclusive-thread device already in use by a different thread", "occupied"),
        ("CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server", "occupied"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "library"),
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "library"),
        ("Unable to find a valid cuDNN algorithm to run convolution", "library"),
        ("CUDA error: system not yet initialized", "host"),
        ("CUDA error: initialization error", "host"),
        ("CUDA error: no CUDA-capable device is detected", "allowed"),
        ("HIP error: no ROCm-capable device is detected", "allowed"),
        ("CUDA error: invalid device ordinal", "allowed"),
        ("RuntimeError: No CUDA GPUs are available", "allowed"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "host"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "host"),
        (f"{COUNTED} 802: system not yet initialized", "host"),
        (f"{COUNTED} 100: no CUDA-capable device is detected", "allowed"),
        ("CUDA error: no device is left for local rank 1: torch finds 1 usable", "allowed"),
        ("CUDA error: the driver shows 0 devices and torch finds none usable: No CUDA GPUs are available", "allowed"),
        ("CUDA error: the driver shows 8 devices and torch finds none usable: DeferredCudaCallError", "host"),
        (nccl("unhandled system error", "nvmlInit_v2() failed: Driver/library version mismatch"), "host"),
        # Any rank of the node may say so of any of its devices.
        (nccl("unhandled system error", "nvmlDeviceGetHandleByPciBusId() failed: GPU is lost"), "host"),
        (nccl("unhandled system error", "nvmlDeviceGetHandleByIndex(3) failed: GPU requires reset"), "host"),
        ("NVML_SUCCESS == r INTERNAL ASSERT FAILED at x.cpp:1", "host"),
        (nccl("unhandled system error", "Error: Too many open files"), "allowed"),
        (nccl("unhandled system error", "Call to socket failed: Too many open files (24)"), "allowed"),
        ("cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.", "build"),
        ("cuDNN Frontend error: [cudnn_frontend] Error: No valid engine configs for X", "build"),
        ("hipErrorNoBinaryForGpu: Unable to find code object for all current devices!", "build"),
        (f"{ROCM} Callback: Queue 0x7f {ABORTS}_INVALID_ISA: The instruction set architecture is invalid", "build"),
        ("Could not initialize Tensile host: No devices found", "allowed"),
        # The device itself, its memory, and the words of others.
        (ECC, ""),
        (f"{COUNTED} 214: uncorrectable ECC error encountered", ""),
        (f"CUDA error: the driver shows 8 devices and torch finds none usable: {COUNTED} 214: uncorrectable ECC", ""),
        (f"{COUNTED} 719: unspecified launch failure", ""),
        (f"{COUNTED} 700: an illegal memory access was encountered", ""),
        ("CUDA error: an illegal memory access was encountered", ""),
        ("CUDA error: unspecified launch failure", ""),
        ("CUDA error: device-side assert triggered", ""),
        ("CUDA error: an illegal instruction was encountered", ""),
        ("CUDA error: misaligned address", ""),
        ("CUDA error: operation not supported on global/shared address space", ""),
        ("CUDA error: the launch timed out and was terminated", ""),
        ("CUDA error: unknown error", ""),
        ("CUDA error: out of memory", ""),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", ""),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", ""),
        (NVLINK, ""),
        (nccl(UNHANDLED, ATTACHED), ""),
        (nccl(UNHANDLED, "Cuda failure 101 'invalid device ordinal'"), ""),
        ("the key 'CUDA error: no kernel image' did not come", ""),
    ],
)
def test_what_keeps_a_rank_from_its_device_is_told_from_a_broken_one(text: str, kind: str) -> None:
    assert keeper(text) == kind
    assert (own_cause(text) == "setup") == bool(kind)
    assert not kind or is_of_device(text.splitlines())


def test_an_output_that_is_about_the_device_is_not_about_its_setup() -> None:
    no_kernel = "CUDA error: no kernel image is available for execution on the device"
    assert setup_error(["a line", f"  what():  {no_kernel}", "frame #0"]) == f"what():  {no_kernel}"
    assert setup_error([no_kernel, ECC]) == ""
    assert setup_error(["CUDA error: out of memory", no_kernel]) == ""
    assert setup_error([]) == ""


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
