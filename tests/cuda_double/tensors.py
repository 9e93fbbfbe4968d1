"""Tensors that say ``cuda`` and are in the host's memory.

Each tensor carries the index of its device as an attribute; -1 is the CPU, and a tensor that C++ made (a gradient, a
bucket) has none until Python sees it beside one that has. Every call of torch from Python goes through ``Placed``: it
replaces the device in the arguments, refuses operands from two devices, counts kernels, and marks the results.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from cuda_double.driver import Driver
from torch.overrides import TorchFunctionMode

CPU = -1
_COUNTED_BYTES = 1 << 20
"""Smaller tensors are not counted: torch's allocator serves those from blocks of 2 MiB."""
_MAY_MIX = {
    "copy_",
    "to",
    "type",
    "type_as",
    "set_",
    "_foreach_copy_",
    "__getitem__",
    "__setitem__",
    "__set__",
    "__get__",
}
"""Calls that take tensors of two devices. An index may be on the CPU (aten/src/ATen/native/IndexingUtils.h)."""
_WAITS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "equal", "allclose", "numpy"}
"""Calls that bring a value to the host, so they wait for the device."""
_NO_TENSORS = {"__get__", "__set__", "device", "_parse_to", "get_device", "_has_compatible_shallow_copy_type"}
"""Calls whose arguments stay as they are."""
_DEVICE = torch.Tensor.device.__get__
_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_IS_CPU = torch.Tensor.is_cpu.__get__  # type: ignore[attr-defined]
_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def place(tensor: Any) -> int | None:
    """Return the index of a tensor's device, ``CPU``, or None where nobody knows."""
    found: int | None = tensor.__dict__.get("_double")
    return found


def put(tensor: Any, index: int) -> None:
    tensor.__dict__["_double"] = index


def reduced(real: Any) -> Any:
    """Return ``Tensor.__reduce_ex__`` without the index, as a checkpoint holds plain tensors."""

    def plain(tensor: Any, protocol: Any) -> Any:
        index = tensor.__dict__.pop("_double", None)
        try:
            return real(tensor, protocol)
        finally:
            if index is not None:
                put(tensor, index)

    return plain


def tensors_in(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from tensors_in(entry)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


class Placed(TorchFunctionMode):
    """The mode that is active in the main thread of a process with the double."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == _DEVICE and (place(args[0]) or 0) != CPU and place(args[0]) is not None:
            return torch.device("cuda", place(args[0]) or 0)
        if func in (_IS_CUDA, _IS_CPU) and place(args[0]) is not None:
            return (place(args[0]) != CPU) == (func == _IS_CUDA)
        func_name = name = getattr(func, "__name__", "")
        if name == "backward" and isinstance(args[0], torch.Tensor):
            with self:  # hooks run inside, and see the same device
                gradient = args[1] if len(args) > 1 else kwargs.pop("gradient", None)
                return torch.autograd.backward(args[0], gradient, **kwargs)
        if name in ("cpu", "cuda", "pin_memory"):
            index = kwargs.get("device", args[1] if len(args) > 1 else None)
            target = torch.device(*(("cuda", index) if isinstance(index, int) else (index or "cuda",)))
            func, name, kwargs = torch.Tensor.to, "to", {}
            args = (args[0], target if func_name == "cuda" else torch.device("cpu"))
        operands = list(tensors_in([args, kwargs]))
        args, kwargs, wanted = self._asked(name, args, kwargs, operands)
        places = {place(tensor) for tensor in operands} - {None}
        if name not in _MAY_MIX | _NO_TENSORS:
            self._refuse_mixed(name, operands)
        if func == _DATA:
            func(*args)
            known = place(args[1])
            if known is not None:
                put(args[0], known)
            return None
        on_device = max((index for index in places if index is not None), default=CPU)
        here = wanted if wanted is not None else on_device
        if here != CPU and name not in _NO_TENSORS:
            self._driver.launch(here)
        if (on_device != CPU) and (name in _WAITS or (wanted == CPU and not kwargs.get("non_blocking"))):
            self._driver.synchronize()
        if wanted is not None and name == "to" and operands and place(operands[0]) != wanted:
            kwargs["copy"] = True  # else a tensor of the CPU would become one of the device
        result = _product(args, kwargs) if name == "mm" and "out_dtype" in kwargs else func(*args, **kwargs)
        is_new = wanted is not None or not operands
        for tensor in tensors_in(result):
            if place(tensor) is None and (places or is_new):
                put(tensor, here)
                if here != CPU and is_new:
                    self._count(tensor, here)
        return result

    def _asked(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], int | None]:
        """Return the arguments for the CPU, and the device that they asked for; None: none."""
        wanted: int | None = None
        if name in _NO_TENSORS:
            return args, kwargs, None
        kwargs.pop("pin_memory", None)
        if kwargs.get("device") is not None:
            wanted = self._index(kwargs["device"])
            kwargs["device"] = torch.device("cpu")
        given = list(args)
        for position, value in enumerate(given):
            if isinstance(value, torch.device) or (
                name == "to" and isinstance(value, (str, int)) and not isinstance(value, bool) and position == 1
            ):
                wanted = self._index(value)
                given[position] = torch.device("cpu")
        if name == "to" and wanted is None and len(operands) > 1:
            wanted = place(operands[1])
        generator = kwargs.get("generator")
        if generator is not None and (wanted is not None or not operands):
            kind = "cpu" if getattr(generator, "double_index", CPU) == CPU else "cuda"
            asked = "cpu" if wanted in (CPU, None) else "cuda"
            if kind != asked:  # aten/src/ATen/core/Generator.h
                raise RuntimeError(f"Expected a '{asked}' device type for generator but found '{kind}'")
        return tuple(given), kwargs, wanted

    def _index(self, device: Any) -> int:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if device.type != "cuda":
            return CPU
        return self._driver.check(self._driver.current if device.index is None else device.index)

    def _refuse_mixed(self, name: str, operands: list[Any]) -> None:
        # A single number of the CPU may stand beside tensors of a device (aten/src/ATen/TensorIterator.cpp).
        with torch._C.DisableTorchFunction():
            large = {place(one) for one in operands if place(one) != CPU or one.dim() > 0} - {None}
        if len(large) > 1:
            names = sorted("cpu" if index == CPU else f"cuda:{index}" for index in large)
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices,"
                f" {' and '.join(reversed(names))}! ({name})"
            )

    def _count(self, tensor: Any, index: int) -> None:
        size_bytes = tensor.untyped_storage().nbytes()
        if size_bytes < _COUNTED_BYTES:
            return
        taken = self._driver.take(index, size_bytes)
        if isinstance(taken, str):
            raise torch.OutOfMemoryError(taken)
        weakref.finalize(tensor, taken)


def _product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Multiply 16-bit operands into a float32 result: with cuBLAS, and on no CPU."""
    left, right = args[:2]
    return torch.mm(left.to(kwargs["out_dtype"]), right.to(kwargs["out_dtype"]))
