"""Puts the double in place of what a torch without CUDA lacks: ``torch.cuda``, generators, autocast, NCCL."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cuda_double.driver import MODEL, Driver, DriverError, uuid


def install(torch: Any) -> None:
    """Replace the functions of ``torch``, once it is loaded, and enter the mode that places tensors."""
    from cuda_double import tensors
    from cuda_double.collectives import install_nccl

    driver = Driver.from_environ()
    _install_cuda(torch, driver)
    _install_generators(torch, driver)
    _install_autocast(torch)
    install_nccl(torch, driver)
    torch.cuda.default_generators = tuple(
        torch.Generator(device=f"cuda:{index}") for index in range(len(driver.numbers))
    )
    torch.Tensor.__reduce_ex__ = tensors.reduced(torch.Tensor.__reduce_ex__)
    mode: Any = tensors.Placed(driver)
    mode.__enter__()


@dataclass
class _Stream:
    """All work is done at once, so a stream has nothing to order; it still has to be synchronized."""

    driver: Driver

    def synchronize(self) -> None:
        self.driver.synchronize()

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any) -> Any:
        event.record()
        return event


class _Event:
    """A moment of the host's clock. As unkind as torch's (torch/csrc/cuda/Event.cpp): only a recorded event that the
    device has reached can be read, and only one with timing."""

    driver: Driver

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timing = enable_timing
        self._at: float | None = None
        self._index = 0

    def record(self, stream: Any = None) -> None:
        self._index = self.driver.check(self.driver.current)
        self._at = time.perf_counter()
        self.driver.unsynchronized.add(id(self))

    def synchronize(self) -> None:
        self.driver.synchronize()

    def query(self) -> bool:
        return id(self) not in self.driver.unsynchronized

    def wait(self, stream: Any = None) -> None:
        pass

    def elapsed_time(self, end: _Event) -> float:
        """Return milliseconds."""
        if not (self._timing and end._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise DriverError("CUDA error: device not ready")
        if self._index != end._index:
            raise DriverError("CUDA error: invalid resource handle")
        return (end._at - self._at) * 1e3


def _install_cuda(torch: Any, driver: Driver) -> None:
    cuda = torch.cuda

    def index_of(device: Any = None) -> int:
        if device is None:
            return driver.current
        if isinstance(device, int):
            return driver.check(device)
        device = torch.device(device)
        return driver.check(driver.current if device.index is None else device.index)

    def init() -> None:
        # torch/csrc/cuda/Module.cpp: initializing finds the devices.
        if not driver.numbers:
            raise RuntimeError("No CUDA GPUs are available")

    def synchronize(device: Any = None) -> None:
        index_of(device)
        driver.synchronize()

    def properties(device: Any = None) -> Any:
        number = driver.numbers[index_of(device)]
        return SimpleNamespace(
            name=MODEL,
            total_memory=driver.total_bytes,
            multi_processor_count=4,
            major=9,
            minor=0,
            uuid=uuid(number),
            pci_domain_id=0,
            pci_bus_id=0x10 + number,
            pci_device_id=0,
        )

    def memory_info(device: Any = None) -> tuple[int, int]:
        return driver.total_bytes - driver.used.get(index_of(device), 0), driver.total_bytes

    def limit_memory(fraction: float, device: Any = None) -> None:
        driver.fraction = fraction

    def seed_all(seed: int) -> None:
        for generator in cuda.default_generators:
            generator.manual_seed(seed)

    def empty_cache() -> None:
        driver.check(driver.current)

    @contextlib.contextmanager
    def on_device(device: Any) -> Iterator[None]:
        before = driver.current
        driver.select(index_of(device))
        try:
            yield
        finally:
            driver.select(before)

    class Event(_Event):
        pass

    Event.driver = driver
    stream = _Stream(driver)
    doubles: dict[str, Callable[..., Any]] = {
        "init": init,
        "is_available": lambda: bool(driver.numbers),
        "is_initialized": lambda: True,
        "_lazy_init": init,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: len(driver.numbers),
        "current_device": lambda: driver.current,
        "set_device": lambda device: driver.select(index_of(device)),
        "synchronize": synchronize,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": memory_info,
        "memory_allocated": lambda device=None: driver.used.get(index_of(device), 0),
        "memory_reserved": lambda device=None: driver.used.get(index_of(device), 0),
        "max_memory_allocated": lambda device=None: driver.peak.get(index_of(device), 0),
        "reset_peak_memory_stats": lambda device=None: driver.peak.clear(),
        "empty_cache": empty_cache,
        "set_per_process_memory_fraction": limit_memory,
        "manual_seed": lambda seed: cuda.default_generators[driver.current].manual_seed(seed),
        "manual_seed_all": seed_all,
        "is_bf16_supported": lambda including_emulation=True: True,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "Stream": lambda *args, **settings: stream,
        "is_current_stream_capturing": lambda: False,
    }
    for name, double in doubles.items():
        setattr(cuda, name, _as_torch_raises(torch, double))
    Event.elapsed_time = _as_torch_raises(torch, Event.elapsed_time)  # type: ignore[method-assign]
    Event.synchronize = _as_torch_raises(torch, Event.synchronize)  # type: ignore[method-assign]
    Event.record = _as_torch_raises(torch, Event.record)  # type: ignore[method-assign]
    cuda.Event = Event
    cuda.device = on_device
    cuda.nccl.version = lambda: (2, 28, 9)


def _as_torch_raises(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; what it raises as DriverError has torch's class (a RuntimeError before torch 2.9)."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        try:
            return function(*args, **settings)
        except DriverError as error:
            raise kind(str(error)) from None

    return call


def _install_generators(torch: Any, driver: Driver) -> None:
    real = torch.Generator

    class Generator(real):  # type: ignore[misc, valid-type]
        """A generator of the host that knows for which device it was made."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls)

        def __init__(self, device: Any = "cpu") -> None:
            wanted = torch.device(device)
            index = driver.current if wanted.index is None else wanted.index
            self.double_index = driver.check(index) if wanted.type == "cuda" else -1

    torch.Generator = Generator


def _install_autocast(torch: Any) -> None:
    real = torch.autocast

    class Autocast(real):  # type: ignore[misc, valid-type]
        def __init__(self, device_type: str, *args: Any, **settings: Any) -> None:
            super().__init__("cpu" if device_type == "cuda" else device_type, *args, **settings)

    torch.autocast = torch.amp.autocast = torch.amp.autocast_mode.autocast = Autocast


def environment(folder: Any, *, devices: int = 2, **more: str) -> dict[str, str]:
    """Return the variables of a machine with doubles of devices, after writing its ``nvidia-smi`` and ``version.py``.

    ``folder``: a Path, which is created. ``more``: further variables of ``driver.py``, without SEATRIAL_CUDA_DOUBLE_.
    """
    import importlib.util
    import re
    from pathlib import Path

    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / "version.py").read_text()
    (folder / "torch").mkdir(parents=True, exist_ok=True)
    (folder / "torch" / "version.py").write_text(re.sub(r"(?m)^cuda\b.*$", "cuda = '13.0'", text))
    listed = "".join(f"GPU {number}: {MODEL} (UUID: GPU-{uuid(number)})\n" for number in range(devices))
    (folder / "bin").mkdir(exist_ok=True)
    tool = folder / "bin" / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] || exit 1\ncat <<'END'\n{listed}END\n")
    tool.chmod(0o755)
    path = [str(Path(__file__).parent / "startup"), os.environ.get("PYTHONPATH", "")]
    return {
        "SEATRIAL_CUDA_DOUBLE": str(folder),
        "SEATRIAL_CUDA_DOUBLE_DEVICES": str(devices),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        **{f"SEATRIAL_CUDA_DOUBLE_{name.upper()}": value for name, value in more.items()},
    }
