"""The words of torch and NCCL for what is wrong with the rank itself: its device, its memory, its driver and libraries.

An error of a link between two devices is none of these: the healthy end says the same as the other one.

A message may quote what another rank or host has written: a name, an address, a value of the store. So only its
beginning counts, and in an error of NCCL the call that failed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

_BEFORE = (
    r"\s{0,20}(?:what\(\):\s{1,20})?(?:\[[^\[\]\n]{1,200}\][: ]{0,2}){0,4}"
    r"(?:[^\s:]{1,100}:\d{1,9}:\d{1,9} \[\d{1,4}\] (?:[^\s:]{1,200}:\d{1,6} )?NCCL WARN )?"
    r"(?:(?:process group )?watchdog thread terminated with exception: )?(?:[\w.]{1,100}(?:Error|Exception): )?"
)
"""What torch, NCCL and Python write before a message: its source, its thread, the name of the exception."""
_NOT_OPENED = (
    r"No (?:CUDA|HIP) GPUs are available|Found no NVIDIA driver|The NVIDIA driver on your system is too old"
    r"|Unexpected error from (?:cuda|hip)GetDeviceCount|CUDA unknown error - this may be|nvrtc: error"
    r"|(?:GET|FIND) was unable to find an engine|NVML_SUCCESS == "
)
"""Beginnings of what torch says where it cannot start on any device, or has nothing that runs on this one."""
_OF_ROCM = (
    r"Memory (?:access fault|critical error) by (?:GPU|agent) node-\d|HW Exception by (?:GPU|agent) node-\d"
    r"|hip\w{0,20}ErrorNoBinaryForGpu\b|Could not initialize Tensile host"
    r"|(?::\d:\w{1,40}\.cpp\s{0,20}:[^\n]{1,120}? us:[^\n]{1,160}? |Queue at \w{1,20} )"
    r"(?:aborting with error|inactivated due to async error)\s?:\s?HSA_STATUS_ERROR"
)
"""Beginnings of what the runtime of ROCm prints before it aborts the process: it raises nothing."""
_DEVICE = re.compile(
    _BEFORE
    + r"(?:(?:NCCL [\w ]{1,40}: )?(?:CUDA|HIP)(?: driver)? (?:error\b|out of memory)"
    + r"|(?:cublas|cudnn|miopen|rocblas|hipblas)(?:lt)?(?:_?status\w*| (?:frontend )?error\b| version incompatib)"
    + r"|Unable to find a valid cuDNN algorithm"
    + rf"|{_OF_ROCM}|{_NOT_OPENED})[^\n]*",
    re.I,
)
_HARDWARE = re.compile(
    r"\bECC\b|launch failure|requires? (?:a )?reset|is lost|fallen off the bus|hardware (?:stack|error|exception)"
    r"|illegal (?:memory access|instruction|address)|misaligned address|invalid program counter|launch timed out"
    r"|device-side assert|GPU hang|access fault"
    r"|(?:cuda|hip)Error(?:ECC|Launch(?:Failure|Timeout)|Illegal|Hardware|Misaligned|InvalidPc|Assert)\w*",
    re.I,
)
"""Words for the device itself. They outrank all below: a process that starts says first that it finds no device."""
_OCCUPIED = re.compile(
    r"busy or unavailable|already in use|in use by another|\bMPS\b"
    r"|(?:cuda|hip)Error(?:DevicesUnavailable|DeviceAlreadyInUse|Mps\w*)",
    re.I,
)
"""Words for a device that another process holds."""
_NOT_STARTED = re.compile(r"_status_not_initialized|valid cuDNN algorithm", re.I)
"""Words of a library that does not start: it finds no memory, which another process may hold, or is a wrong one."""
_BUILD = re.compile(
    r"no kernel image|kernel image is invalid|invalid (?:device function|kernel file|source)|\bPTX\b|\bJIT\b"
    r"|named symbol not found|shared object|file not found|Tensile(?! host)|cannot read|version incompatib"
    r"|driver version is insufficient|stub library|installed CUDA driver|newer driver|driver combination"
    r"|forward compatibility|driver on your system is too old|nvrtc: error|unable to find an engine"
    r"|no (?:valid )?(?:execution )?(?:plan|engine config)s?\b|NoBinaryForGpu|_(?:invalid_isa\w*|invalid_code_object)"
    # Driver and libraries refuse such calls by their arguments, before a device has them.
    r"|invalid (?:configuration )?argument|too many resources requested|operation not supported(?! on global)"
    r"|_status_(?:arch_mismatch|\w*version_mismatch|sublibrary\w*|runtime_prerequisite\w*|license\w*"
    r"|not_supported\w*|invalid_value|bad_param\w*)"
    r"|(?:cuda|hip)Error(?:NoKernelImage|NoBinaryForGpu|InvalidKernel|InvalidDeviceFunction|InvalidImage|InvalidSource"
    r"|InvalidPtx|UnsupportedPtx|Jit|SharedObject|InsufficientDriver|StubLibrary|CallRequiresNewerDriver"
    r"|SystemDriverMismatch|CompatNotSupported)\w*",
    re.I,
)
"""Words for a torch, or a library, that is not built for this model of device or this driver."""
_ALLOWED = re.compile(
    r"no (?:CUDA|ROCm)-capable device|invalid device ordinal|no device is left|No (?:CUDA|HIP) GPUs are available"
    r"|No devices found|too many open files|(?:cuda|hip)Error(?:NoDevice|InvalidDevice)\b",
    re.I,
)
"""Words for what a process does not get: devices that it cannot see, open files."""
_HOST = re.compile(
    r"initialization error|not yet (?:initialized|ready)|torch finds none usable|\bnvml\w{1,60}\("
    r"|(?:cuda|hip)Error(?:SystemNotReady|InitializationError|NotInitialized)"
    rf"|{_NOT_OPENED}",
    re.I,
)
"""Words for a driver, or a service of it, that does not run, and of NVML, which looks at all devices of a node."""
Keeper = Literal["build", "occupied", "library", "allowed", "host", ""]
"""``build``: that of torch or a library. ``occupied``: another process. ``library``: one of both. ``allowed``: what the
node, or the request, lets a process have. ``host``: the driver."""
_KEEPERS: tuple[tuple[re.Pattern[str], Keeper], ...] = (
    (_BUILD, "build"),
    (_OCCUPIED, "occupied"),
    (_NOT_STARTED, "library"),
    (_ALLOWED, "allowed"),
    (_HOST, "host"),
)
_NCCL = re.compile(_BEFORE + r"NCCL error(?: in)?: (?:[^\s,]{1,300}:\d+, )?(?P<kind>[a-z ]+)", re.I)
_CALL = (
    r"(?:(?:Cuda|HIP) failure\b|Failed to (?:CUDA|HIP) (?:host )?[cm]?alloc\b|Error while creating shared memory"
    r"|Error: failed to extend /dev/shm/|nvml\w{1,60}\([^()\n]{0,60}\) failed)[^\n]*"
)
_LAST_ERROR = re.compile(r"last error:[ \t]*(?:\n(?:\[rank\d+\]:)?[ \t]*)?(?P<last>[^\n]*)", re.I)
"""The end of an error of NCCL: its last message. ``Failed to CUDA calloc`` follows a lack of memory."""
_CALL_FAILED = re.compile(
    # Without quotes and brackets, which names of others stand in.
    rf"{_CALL}|[\w .:()/-]{{0,160}}\b(?:failed|error)\b[\w .:-]{{0,20}}?"
    r"(?:cannot allocate memory|too many open files(?: in system)?)(?: \(\d+\))?\s*$",
    re.I,
)
_END = re.compile(
    r"\s*(?:(?:\[[a-z_]{1,20}\d{1,9}\]:\s*)?$|(?:\[[a-z_]{1,20}\d{1,9}\]: ?)?"
    r"(?:Exception raised from |terminate called |frame #\d|what\(\):|\[[EWIF]\d{0,4}[ \]]))"
)
"""What follows an error of NCCL in the output. Each way to match fails at once, however many spaces a line has."""
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
_MEMORY = (
    "out of memory",
    "alloc_failed",
    "allocation_failed",
    "cannot allocate memory",
    "failed to cuda",
    "failed to hip",
    "shared memory",
    "/dev/shm/",
    "hsa_status_error_out_of_resources",
)
_OF_A_LINK = re.compile(
    "nvlink|peer access|peer mapping|mapping of buffer|invalid resource handle|present state"
    "|operation not permitted(?! (?:when|on) )",
    re.I,
)
"""Words of CUDA about the way between two devices, or about the switch that connects them. Without ``when`` and ``on``,
which are about graphs of CUDA."""
_OF_A_HANDLE = re.compile("invalid argument|invalid device (?!function)|not supported(?! in the installed)", re.I)
"""Further ones in NCCL, about a handle to memory that another process has sent: torch opens none."""

_NONE_LEFT = "Resource temporarily unavailable"
"""The words of the system where it gives a process no further thread or child."""
_NO_ADDRESS = r"(?:cannot assign requested address|\bEADDRNOTAVAIL\b)"
_IN_USE = r"address already in use|\bEADDRINUSE\b"
_NOT_PORTS = {
    "open file": r"too many open files(?: in system)?|file table overflow|\bEMFILE\b|\bENFILE\b|failed to init uv loop",
    "buffer of the network": r"no buffer space available|\bENOBUFS\b",
    "memory": r"cannot allocate memory|\bnot enough memory\b|\bENOMEM\b",
}
_TAKEN = {"port": rf"{_IN_USE}|connect[^\n]{{0,200}}?{_NO_ADDRESS}", **_NOT_PORTS}
"""Things of a host that others may take, and the words of glibc, of libuv, which the store of torch uses, and of both
for the number, where none is left."""
_ROOM = {"room on a file system": r"no space left on device|\bENOSPC\b|disk quota exceeded|\bEDQUOT\b"}
"""A thing that nobody takes by a connection."""
_OF_THIS_HOST = re.compile("|".join((_NO_ADDRESS, _IN_USE, *_NOT_PORTS.values(), _NONE_LEFT)), re.I)
_NO_SUCH_ADDRESS = re.compile(
    rf"\b(?:bind|listen)\b[^\n]{{0,200}}?{_NO_ADDRESS}|{_NO_ADDRESS}[^\n]{{0,40}}\bbind\b", re.I
)
"""Words for a socket that should listen at an address that the host has not. One that connects lacks a port there."""
_NO_ADAPTER_ROOM = re.compile(_ROOM["room on a file system"], re.I)
"""Words of an adapter of the network, too, for its queues, which nobody else takes."""
_IN_SHARED_MEMORY = re.compile(r"/dev/shm/|shared memory", re.I)
_NO_THREAD = "can't start new thread"
_NO_PROCESS = re.compile(
    _BEFORE
    + rf"(?:{_NO_THREAD}"
    + rf"|(?:\[Errno \d{{1,3}}\] |thread constructor failed: )?{re.escape(_NONE_LEFT)}\s*(?:\n|$)"
    + rf"|Call to (?:pthread_create|fork) failed ?: {re.escape(_NONE_LEFT)}"
    + r"|libgomp: Thread creation failed"
    + r"|OMP: Error #\d{1,3}: System unable to allocate necessary resources for OMP thread"
    + rf"|OMP: System error #\d{{1,3}}: {re.escape(_NONE_LEFT)}"
    + r"|OpenBLAS blas_thread_init: pthread_create failed)",
    re.I,
)
"""Beginnings of what Python, C++, NCCL and the libraries that share work among threads say of that."""
NO_EXCEPTION = "terminate called without an active exception"
"""A line of the C++ library about a thread that was not joined before its object ended."""
ALL_TAKEN = "none is left there, or a limit allows no more"


@dataclass(frozen=True, slots=True)
class Lack:
    """Something of which a host gave a process no more. Any user of that host may have taken it."""

    name: str
    action: str

    def words(self) -> str:
        """Return a sentence without its full stop."""
        return f"the host gave no further {self.name}; {ALL_TAKEN}"


NO_PROCESS = Lack(
    "thread or process",
    "look there at what runs (ps -eLf), at the memory, and at each limit of threads and processes: kernel.pid_max and"
    " kernel.threads-max (sysctl), that of the user (ulimit -u), and that of the job (pids.max of its cgroup, TasksMax"
    " of systemd, the pids limit of a container); then repeat the trial",
)
"""What ``lacks_processes`` finds."""
_CONNECTS = "at who connects to the ports of its ranks (ss -tnp)"
_PLACES = {
    "port": "who has the ports of net.ipv4.ip_local_port_range (ss -anp)",
    "open file": f"the limit of open files (ulimit -n, fs.file-max), and {_CONNECTS}",
    "buffer of the network": f"the memory, at what sends much (ss -tmp), and {_CONNECTS}",
    "memory": f"the memory, and {_CONNECTS}",
    "room on a file system": "what has taken the room (df)",
}
_LACKS = {
    name: (re.compile(words, re.I), Lack(name, f"look there at {_PLACES[name]}; then repeat the trial"))
    for name, words in (_TAKEN | _ROOM).items()
}
_LACKED_FIRST = re.compile(
    rf"{_BEFORE}(?:\[Errno \d{{1,3}}\] )?"
    r"(?:(?:[\w .()-]{1,60}|unable to [a-z ]{1,30} <[^<>\n]{0,300}>[a-z -]{0,30}): )?"
    rf"(?:{'|'.join((_TAKEN | _ROOM).values())})",
    re.I,
)
"""Beginnings of what Python, C++ and Gloo say of that: ``[Errno 24] Too many open files``, ``bind: Address already in
use``."""
_LOCKED_MEMORY = "ibv_"
"""In the name of a call for an adapter of the network. It takes memory that is locked, of which others take nothing."""

_UNCAUGHT = re.compile(r"\s{0,20}what\(\): ")

_MOST_LINES = 8
"""Lines of one error of NCCL, which has four."""
_MOST_OUTPUT_LINES, _MOST_CHARS = 40, 8_000
"""The last lines of an output that count, and characters of one error."""


def own_cause(text: str) -> Literal["memory", "device", "setup", "request", ""]:
    """Return what a message says of the rank itself; empty: nothing. ``request``: its torch was built without that."""
    if said := _of_device(text).lower():
        if any(mark in said for mark in _MEMORY):
            return "memory"
        return "setup" if _keeper(said) else "device"
    if _NO_MEMORY.match(text):
        return "memory"
    return "request" if _LACKING.match(text) else ""


def is_of_device(lines: Sequence[str]) -> bool:
    """Return whether the output of a rank says that its device failed, or had no memory."""
    return any(map(_of_device, _messages(lines)))


def is_surely_of_device(lines: Sequence[str]) -> bool:
    """Return whether the output of a rank says so, and others who connect to its host could not have caused it."""
    return any(_of_device(text) and not may_be_of_others(text) for text in _messages(lines))


def may_be_of_others(text: str) -> bool:
    """Return whether others who connect to the host of a rank may have taken what it lacked, as a message says: its
    descriptors, or its memory."""
    said = _of_device(text)
    return bool(lack_of_host(said)) and _LOCKED_MEMORY not in said


def lack_of_host(text: str) -> str:
    """Return what this host lacked, where an error says so; empty if it does not. It says nothing of any other host."""
    found = _OF_THIS_HOST.search(text)
    return found[0] if found else ""


def lack_in(text: str) -> Lack | None:
    """Return the lack that an error tells of its host, anywhere in it; None if it tells none.

    ``Resource temporarily unavailable`` in the middle of it may be a connection on which nothing came in time.
    """
    if lacks_processes(text) or _NO_THREAD in text:
        return NO_PROCESS
    text = "" if _LOCKED_MEMORY in text else _NO_SUCH_ADDRESS.sub("", text)
    if _NCCL.match(text) and not _IN_SHARED_MEMORY.search(text):
        text = _NO_ADAPTER_ROOM.sub("", text)
    return next((lack for words, lack in _LACKS.values() if words.search(text)), None)


def first_lack(text: str) -> Lack | None:
    """Return the lack that a message begins with; None for any other message."""
    return lack_in(text) if lacks_processes(text) or _LACKED_FIRST.match(text) else None


def lacks_processes(text: str) -> bool:
    """Return whether a message says that its process could have no further thread or process."""
    nccl = _nccl_said(text)
    return _NO_PROCESS.match(text if nccl is None else nccl[1]) is not None


def lack_words(error: Exception) -> str:
    """Return in words what this process got no more of from its host, where its error says so; else empty."""
    lack = first_lack(str(error))
    return f"{lack.words()} ({error}); {lack.action}" if lack else ""


def lack_of_processes(lines: Sequence[str]) -> str:
    """Return the message in the output of a rank that says so, in one line; empty: there is none."""
    return next((in_one_line(text) for text in _messages(lines) if lacks_processes(text)), "")


def lack_at_end(lines: Sequence[str], *, aborted: bool) -> str:
    """Return the line in the output of a rank with the exception that ended it, if that tells a lack of its host.

    ``aborted``: by an exception of C++, which no other one ends; else by one of Python, which is the last line.
    """
    ends = _UNCAUGHT.match if aborted else str.strip
    line = next((line.strip() for line in reversed(lines) if ends(line)), "")
    lack = first_lack(line)
    # The rank itself may have taken the memory.
    return line if lack is not None and lack.name != "memory" else ""


def keeper(text: str) -> Keeper:
    """Return what keeps the rank from using its device, as a message says; empty: nothing, or the device itself."""
    return _keeper(_of_device(text))


def _keeper(said: str) -> Keeper:
    # Of the driver of a node that has lost a device any rank may speak, whichever device it was.
    if _HARDWARE.search(said) and "nvml" not in said.lower():
        return ""
    return next((kept for words, kept in _KEEPERS if words.search(said)), "")


def setup_error(lines: Sequence[str]) -> str:
    """Return the message in the output of a rank about its driver, its libraries or what else uses its device, in one
    line; empty: there is none, or one about the device itself."""
    causes = {text: own_cause(text) for text in _messages(lines)}
    if {"device", "memory"} & {*causes.values()}:
        return ""
    return next((in_one_line(text) for text, cause in causes.items() if cause == "setup"), "")


def is_of_link(text: str) -> bool:
    """Return whether a message says that the link between the device of the rank and another device failed."""
    return _OF_A_LINK.search(_said(text)) is not None


def link_error(lines: Sequence[str]) -> str:
    """Return the message in the output of a rank that says so, in one line; empty: there is none."""
    return next((in_one_line(text) for text in _messages(lines) if is_of_link(text)), "")


def _messages(lines: Sequence[str]) -> Iterator[str]:
    """Yield what may be a message at each of the last lines, with the lines after it."""
    last = [line[:_MOST_CHARS] for line in lines[-_MOST_OUTPUT_LINES:]]
    return ("\n".join(last[index : index + _MOST_LINES])[:_MOST_CHARS] for index in range(len(last)))


def message_at(lines: Sequence[str], number: int) -> str:
    """Return the message that begins with this line of output: an error of NCCL has several lines."""
    message = [lines[number]]
    if _NCCL.match(lines[number]):
        following = lines[number + 1 : number + _MOST_LINES]
        message += itertools.takewhile(lambda line: not _END.match(line), following)
    return "\n".join(message)


def in_one_line(message: str) -> str:
    """Return the first line of a message, and with it the last error of NCCL, which says what has failed."""
    lines = message.strip().splitlines() or [""]
    said = _nccl_said(message_at(lines, 0))
    return lines[0].strip() if said is None or said[1] in lines[0] else f"{lines[0].strip()}; last error: {said[1]}"


def _nccl_said(text: str) -> tuple[str, str] | None:
    """Return the kind of an error of NCCL, and its last error, which may be empty; None for any other text."""
    found = _NCCL.match(text)
    if found is None:
        return None
    last = _LAST_ERROR.search(text, found.end())
    return found["kind"].lower(), last["last"].strip() if last and not _END.match(last["last"]) else ""


def _of_device(text: str) -> str:
    """Return the words about the device, or about its memory; empty: there are none."""
    said = _said(text)
    return "" if _OF_A_LINK.search(said) else said


def _said(text: str) -> str:
    """Return the words about the device, its memory, or its link to another one; empty: there are none."""
    if nccl := _nccl_said(text):
        kind, said = nccl
        if kind.startswith("remote"):
            return ""
        # NCCL says so, too, of memory of another process, and of the switch between devices.
        if said and not _CALL_FAILED.match(said):
            return ""
        said = said or (kind if kind.startswith("unhandled cuda error") else "")
    elif found := _DEVICE.match(text):
        return found[0]
    elif found := _CALL_ALONE.match(text):
        said = found[0]
    else:
        return ""
    return "" if _OF_A_HANDLE.search(said) and not _OF_A_LINK.search(said) else said
