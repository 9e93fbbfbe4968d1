"""The pickle in a file of torch.save, read by an interpreter that knows only what tensors and primitives need.

Before torch 2.10 its own reader trusts the numbers of elements that a file claims, so that a planted file corrupts the
memory of its reader (CVE-2026-24747), and no version bounds what a few bytes can ask for: a thing that contains itself
twice, forty times over, is never printed or hashed to its end. Here no container has two places, so what is read is a
tree whose size is that of its bytes.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

_DTYPES = {
    f"torch.{name}Storage": dtype
    for name, dtype in {
        "Double": torch.float64,
        "Float": torch.float32,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Long": torch.int64,
        "Int": torch.int32,
        "Short": torch.int16,
        "Char": torch.int8,
        "Byte": torch.uint8,
        "Bool": torch.bool,
        "ComplexDouble": torch.complex128,
        "ComplexFloat": torch.complex64,
    }.items()
}
_TENSOR, _DICT = "torch._utils._rebuild_tensor_v2", "collections.OrderedDict"
_MOST_DEPTH = 20
_MOST_DIMENSIONS = 16
_MOST_VALUES = 1 << 22
"""An empty list is one byte in the file and 80 in memory. A model of 1,000 tensors has 40,000 values."""
_PRIMITIVES = (type(None), bool, int, float, str)


class RefusedContentError(Exception):
    """Bytes that are refused; the text says why, as a clause."""


class Records(Protocol):
    """The parts of the file beside the pickle."""

    def __call__(self, key: str) -> bytearray:
        """Return a copy of the numbers of a storage. Raises RefusedContentError where there are none.

        Called once for each key, so that what is copied is no more than the file.
        """


@dataclass(frozen=True, slots=True)
class _Global:
    """A name of Python that the file asks for: nothing is imported by it."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """The numbers of a tensor, shape (elements,)."""

    values: Tensor


class _Mark:
    """Where the values of a container begin on the stack."""


def read_pickle(code: bytes, records: Records) -> Any:
    """Return what the pickle says: tensors on the CPU and primitives, in dicts, lists and tuples.

    Raises RefusedContentError for what those do not need, and IndexError, KeyError, TypeError, ValueError,
    RuntimeError, struct.error or OverflowError for damage.
    """
    value = _Interpreter(code, records).run()
    _require_plain(value)
    return value


class _Interpreter:
    """One run over the opcodes that Python writes for protocol 2 (``pickletools`` of the standard library lists
    them)."""

    def __init__(self, code: bytes, records: Records) -> None:
        self._code, self._at = code, 0
        self._records = records
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, _Storage] = {}
        self._push_of: dict[bytes, Callable[[], Any]] = {
            b"N": lambda: None,
            b"\x88": lambda: True,
            b"\x89": lambda: False,
            b"K": lambda: self._number("<B"),
            b"M": lambda: self._number("<H"),
            b"J": lambda: self._number("<i"),
            b"G": lambda: self._number(">d"),
            b"\x8a": lambda: int.from_bytes(self._take(self._number("<B")), "little", signed=True),
            b"X": lambda: self._take(self._number("<I")).decode(),
            b"c": lambda: _Global(f"{self._line()}.{self._line()}"),
            b"h": lambda: self._remembered(self._number("<B")),
            b"j": lambda: self._remembered(self._number("<I")),
            b"}": dict,
            b"]": list,
            b")": tuple,
            b"(": _Mark,
            b"t": lambda: tuple(self._since_mark()),
            b"\x85": lambda: tuple(self._pop(1)),
            b"\x86": lambda: tuple(self._pop(2)),
            b"\x87": lambda: tuple(self._pop(3)),
            b"Q": lambda: self._storage(*self._pop(1)),
            b"R": lambda: self._call(*self._pop(2)),
        }
        self._change_of: dict[bytes, Callable[[], None]] = {
            b"\x80": lambda: _require(self._number("<B") == 2, "a pickle of another protocol"),
            b"q": lambda: self._remember(self._number("<B")),
            b"r": lambda: self._remember(self._number("<I")),
            b"a": lambda: self._append(self._pop(1)),
            b"e": lambda: self._append(self._since_mark()),
            b"s": lambda: self._set(self._pop(2)),
            b"u": lambda: self._set(self._since_mark()),
        }

    def run(self) -> Any:
        """Return the one value that is left at the end."""
        pushed = 0
        while (opcode := self._take(1)) != b".":
            if push := self._push_of.get(opcode):
                pushed += 1
                _require(pushed <= _MOST_VALUES, f"more than {_MOST_VALUES} values")
                self._stack.append(push())
            elif change := self._change_of.get(opcode):
                change()
            else:
                raise RefusedContentError("it asks for more than tensors and primitives, which no checkpoint needs")
        (value,) = self._stack
        return value

    def _take(self, size_bytes: int) -> bytes:
        piece = self._code[self._at : self._at + size_bytes]
        if len(piece) != size_bytes:
            raise ValueError("its pickle is cut short")
        self._at += size_bytes
        return piece

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._code.index(b"\n", self._at)
        return self._take(end + 1 - self._at)[:-1].decode()

    def _pop(self, number: int) -> list[Any]:
        if len(self._stack) < number:
            raise ValueError("its pickle lacks a value")
        values = self._stack[-number:]
        del self._stack[-number:]
        return values

    def _since_mark(self) -> list[Any]:
        values = []
        while not isinstance(value := self._stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

    def _remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _remembered(self, number: int) -> Any:
        value = self._memo[number]
        _require(isinstance(value, (str, _Global)), "one part in two places")
        return value

    def _append(self, values: list[Any]) -> None:
        _require(type(self._stack[-1]) is list, "more than tensors and primitives")
        self._stack[-1].extend(values)

    def _set(self, pairs: list[Any]) -> None:
        _require(type(self._stack[-1]) is dict, "more than tensors and primitives")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            # Of a tuple the hash could take for ever, and so do numbers that have one hash: equal modulo 2**61 - 1.
            small = type(key) is int and abs(key) < 1 << 31
            _require(type(key) is str or small, "a key that is no text and no small number")
            self._stack[-1][key] = value

    def _call(self, function: Any, arguments: Any) -> Any:
        name = function.name if isinstance(function, _Global) else ""
        if name == _DICT and arguments == ():
            return {}
        _require(name == _TENSOR, name if re.fullmatch(r"[\w.]{1,100}", name) else "more than tensors and primitives")
        # Of a tensor in its place each number would become a tensor.
        _require(type(arguments) is tuple, "more than tensors and primitives")
        storage, offset, shape, strides, _, hooks, *more = arguments
        _require(isinstance(storage, _Storage) and hooks == {} and not more, "more than tensors and primitives")
        return _tensor(storage.values, offset, shape, strides)

    def _storage(self, saved_id: Any) -> _Storage:
        _require(type(saved_id) is tuple, "more than tensors and primitives")
        word, kind, key, _, num_elements = saved_id
        _require(word == "storage" and isinstance(kind, _Global), "more than tensors and primitives")
        # As torch.save names them. A key that equals no key, such as NaN, would have its numbers copied each time.
        _require(
            type(key) is str and re.fullmatch("[0-9]{1,9}", key) is not None, "numbers under a key of another form"
        )
        dtype = _DTYPES.get(kind.name)
        if dtype is None:
            raise RefusedContentError("its numbers have a type that no checkpoint needs")
        if key not in self._storages:
            self._storages[key] = _Storage(_values(self._records(key), dtype))
        values = self._storages[key].values
        if values.dtype != dtype or num_elements != values.numel():
            raise RefusedContentError("it claims other numbers than those in the file")
        return self._storages[key]


def _values(content: bytearray, dtype: torch.dtype) -> Tensor:
    if len(content) % dtype.itemsize:
        raise RefusedContentError("it claims other numbers than those in the file")
    return torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)


def _tensor(values: Tensor, offset: Any, shape: Any, strides: Any) -> Tensor:
    if type(shape) is not tuple or type(strides) is not tuple or not len(shape) == len(strides) <= _MOST_DIMENSIONS:
        raise RefusedContentError("a tensor in it has no usable shape")
    if any(type(number) is not int or number < 0 for number in (offset, *shape, *strides)):
        raise RefusedContentError("a tensor in it has no usable shape")
    size = math.prod(shape)
    last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if size > values.numel() or (size and last >= values.numel()):
        raise RefusedContentError("a tensor in it is larger than its numbers")
    return values.as_strided(shape, strides, offset) if size else values.new_empty(shape)


def _require(holds: bool, wanted: str) -> None:
    if not holds:
        raise RefusedContentError(f"it asks for {wanted}, which no checkpoint needs")


def _require_plain(value: Any) -> None:
    """Raise RefusedContentError for a value that is nested too deep, or of another type. It is a tree."""
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        _require(depth <= _MOST_DEPTH, "parts within parts without end")
        if type(one) is dict:
            waiting += [(item, depth + 1) for item in one.values()]
        elif type(one) in (list, tuple):
            waiting += [(item, depth + 1) for item in one]
        else:
            _require(type(one) in (*_PRIMITIVES, Tensor), "more than tensors and primitives")
