"""A program for a process with the double: it asserts that what fails on a real device fails here, in the same words.

Each refusal has its source in ``driver.py``, ``tensors.py``, ``install.py`` or ``collectives.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


def refusal(call: Callable[[], object]) -> str:
    """Return the name of the class and the first line of what a call raises; empty if it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def main() -> None:
    assert torch.version.cuda == "13.0"
    assert torch.cuda.device_count() == 2
    on_device, on_host = torch.ones(4, 4, device="cuda"), torch.ones(4, 4)
    assert (str(on_device.device), on_device.is_cuda, on_host.is_cuda) == ("cuda:0", True, False)
    two = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
    assert refusal(lambda: on_device @ on_host) == two + "cuda:0 and cpu! (matmul)"
    assert refusal(lambda: on_device + on_host.to("cuda:1")) == two + "cuda:1 and cuda:0! (add)"
    assert refusal(lambda: on_device + torch.tensor(2.0)) == "", "a single number of the host may stand beside it"
    on_device.cpu().zero_()
    assert float(on_device.sum()) == 16, "the copy on the host is another tensor"

    layer = torch.nn.Linear(4, 4).to("cuda")
    layer(on_device).sum().backward()
    assert layer.weight.grad is not None
    assert str(layer.weight.grad.device) == "cuda:0"

    generator = torch.Generator(device="cuda").manual_seed(1)
    assert "'cpu' device type for generator but found 'cuda'" in refusal(lambda: torch.randn(2, generator=generator))

    begin, end, never = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
    begin.record()
    end.record()
    assert refusal(lambda: begin.elapsed_time(end)) == "AcceleratorError: CUDA error: device not ready"
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0
    assert "must be recorded" in refusal(lambda: begin.elapsed_time(never))

    assert "invalid device ordinal" in refusal(lambda: torch.cuda.set_device(2))
    torch.cuda.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
    thread.start()
    thread.join()
    assert (torch.cuda.current_device(), seen) == (1, [0]), "each thread begins with device 0"

    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info(1) == (1 << 30, 2 << 30)
    lack = refusal(lambda: torch.empty(3 << 29, dtype=torch.uint8, device="cuda"))
    assert lack.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has")
    del block
    assert torch.cuda.mem_get_info(1)[0] == 2 << 30

    torch.cuda.set_device(0)
    for _ in range(1000):  # the fault is in the 1000th kernel at the latest; no call before a wait tells of it
        on_device += 1
    illegal = "AcceleratorError: CUDA error: an illegal memory access was encountered"
    assert refusal(torch.cuda.synchronize) == illegal
    assert refusal(lambda: torch.ones(1, device="cuda")).endswith("an illegal memory access was encountered")
    print("as unkind as a device")


if __name__ == "__main__":
    main()
