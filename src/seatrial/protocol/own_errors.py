"""The words of torch and NCCL for what is wrong with the rank itself: its device, its memory, its build of torch.

A message may quote what another rank or host has written: a name, an address, a value of the store. So only its
beginning counts, and in an error of NCCL the call that failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

_BEFORE = (
    r"\s{0,20}(?:what\(\):\s{1,20})?(?:\[[^\[\]\n]{1,200}\][: ]{0,2}){0,4}"
    r"(?:(?:process group )?watchdog thread terminated with exception: )?(?:[\w.]{1,100}(?:Error|Exception): )?"
)
"""What torch and Python write before a message: its source, its thread, the name of the exception."""
_DEVICE = re.compile(
    _BEFORE
    + r"(?:(?:NCCL [\w ]{1,40}: )?(?:CUDA|HIP)(?: driver)? (?:error\b|out of memory)"
    + r"|(?:cublas|cudnn|miopen|rocblas|hipblas)(?:lt)?(?:_?status\w*| (?:frontend )?error\b| version incompatib)"
    + r"|Unable to find a valid cuDNN algorithm)[^\n]*",
    re.I,
)
_NCCL = re.compile(_BEFORE + r"NCCL error(?: in)?: (?:[^\s,]{1,300}:\d+, )?(?P<kind>[a-z ]+)", re.I)
_CALL = r"(?:(?:Cuda|HIP) failure\b|Failed to (?:CUDA|HIP) (?:host )?[cm]?alloc\b)[^\n]*"
_LAST_ERROR = re.compile(rf"last error:\s*(?:\[rank\d+\]: ?)?(?P<call>{_CALL})", re.I)
"""The end of an error of NCCL: its last message. ``Failed to CUDA calloc`` follows a lack of memory."""
_CALL_ALONE = re.compile(_BEFORE + _CALL, re.I)
_NO_MEMORY = re.compile(
    _BEFORE
    + r"(?:out of memory|can(?:no|')t allocate memory"
    + r"|\[enforce fail at (?:alloc_cpu|CPUAllocator)\.cpp:\d+\][^\n]{0,200}? (?:can't allocate|not enough) memory"
    + r"|unable to mmap \d+ bytes from file <[^<>\n]{0,300}>: cannot allocate memory)",
    re.I,
)
_LACKING = re.compile(
    _BEFORE
    + r"(?:[\w.]+ ){1,8}(?:(?:was|is|been) (?:build|built|compiled) without|not (?:compiled|built) with"
    + r"|does(?:n.t| not) have \S+ built in)",
    re.I,
)
_MEMORY = ("out of memory", "alloc_failed", "cannot allocate memory", "failed to cuda", "failed to hip")
_OF_A_PAIR = (
    "invalid argument",
    "invalid resource handle",
    "invalid device",
    "peer access",
    "peer mapping",
    "mapping of buffer",
    "not supported",
)
"""Words of CUDA, in NCCL, about a handle to memory that another process has sent, or about two devices without a path
between them."""

_MOST_LINES = 8
"""Lines of one error of NCCL, which has four."""
_MOST_OUTPUT_LINES, _MOST_CHARS = 40, 8_000
"""The last lines of an output that count, and characters of one error."""


def own_cause(text: str) -> Literal["memory", "device", "request", ""]:
    """Return what a message says of the rank itself; empty: nothing. ``request``: its torch was built without that."""
    if said := _of_device(text).lower():
        return "memory" if any(mark in said for mark in _MEMORY) else "device"
    if _NO_MEMORY.match(text):
        return "memory"
    return "request" if _LACKING.match(text) else ""


def is_of_device(lines: Sequence[str]) -> bool:
    """Return whether the output of a rank says that its device failed, or had no memory."""
    last = [line[:_MOST_CHARS] for line in lines[-_MOST_OUTPUT_LINES:]]
    return any(_of_device("\n".join(last[index : index + _MOST_LINES])[:_MOST_CHARS]) for index in range(len(last)))


def _of_device(text: str) -> str:
    """Return the words about the device, or about its memory; empty: there are none."""
    if found := _NCCL.match(text):
        kind, last = found["kind"].lower(), _LAST_ERROR.search(text, found.end())
        if kind.startswith("remote") or not (last or kind.startswith("unhandled cuda error")):
            return ""
        said = last["call"] if last else kind
    elif found := _DEVICE.match(text):
        return found[0]
    elif found := _CALL_ALONE.match(text):
        said = found[0]
    else:
        return ""
    return "" if any(words in said.lower() for words in _OF_A_PAIR) else said
