"""The answer of NCCL's RAS (``ncclras``, or ``VERBOSE STATUS`` at port 28028), as text and as JSON; of RCCL as well.

Forms: NVIDIA/nccl src/ras/client_support.cc (NCCL 2.24 to 2.32), and the documents of NCCL about RAS.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from seatrial.devices.handed import (
    MOST_LINES,
    MOST_RESULTS,
    HandedFile,
    HandedResult,
    entries,
    json_object,
    mapping,
    name_text,
    whole,
)
from seatrial.util.text import as_name, quoted

_Process = tuple[str, int | None, int | None, int | None]
"""Host, process, device (NVML), rank: each as far as it is known."""
_NOT_IN_PROGRESS = (0, 7)
"""ncclSuccess and ncclInProgress of ``ncclResult_t``."""
_RESULTS = {
    1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument", 5: "Invalid usage",
    6: "Remote process error",
}  # fmt: skip
_LINE_CHARS = 500
_MOST_OPERATIONS = 100
_MOST_DEVICES = 64
"""Devices of one process."""
_FAR_BEHIND = 2
"""Ranks issue one operation after the other, so a difference of one is the ordinary state."""
# NCCL 2.28.9 leaves out the comma after the device of a missing rank.
_NO_COMMA = re.compile(rb'("(?:nvml_dev|cuda_dev|pid)": -?\d+)([ \t\r]*\n[ \t]*")')

_VERSION = re.compile(r"(NCCL|RCCL) version (\S+)")
_MANAGED = r"GPUs? (?P<cuda>[\d,]+)(?: \(NVML (?P<nvml>[\d,]+)\))?"
_PROCESS_LINE = re.compile(rf"  Process (?P<pid>\d+) on node (?P<host>\S+) managing {_MANAGED}")
_RANK = re.compile(
    r"  Rank (?P<rank>\d+)(?: (?P<says>(?:has|reported) .+?))? -- "
    rf"(?:\[process information not found\]|{_MANAGED} managed by process (?P<pid>\d+) on node (?P<host>\S+))"
)
_MISSING = re.compile(r"  The missing ranks?: ([\d, ]+)")
_HEADING = re.compile(r"(?:#\d+-\d+ \([0-9a-f]+\) )?(INCOMPLETE|DEAD|ERROR|MISMATCH|TIMEOUT)")
_GROUP = re.compile(r"  \d+ ranks (?:have (?P<have>.+)|reported (?P<error>.+))")
_LAUNCHED = re.compile(r"(?:have|has) launched up to operation (\d+)|(?:have|has) not launched any operations")
_KNOWN = re.compile(
    r"  (?:Missing communicator data from \d+ .+|\d+ job process(?:es are| is) considered dead.*"
    r"|\[could not find information on .+\]|(?:Initialization|Asynchronous) errors? on \d+ ranks?"
    r"|Communicator ranks have different .+|Encountered \d+ communication timeouts? .+)"
)


def parse(content: bytes) -> HandedFile | None:
    """Return what RAS said. None: not of this form. Raises ValueError: damaged, or in other words."""
    document = json_object(content) or json_object(_NO_COMMA.sub(rb"\1,\2", content))
    if document is not None:
        return _of_json(document) if {"nccl_version", "communicators"} <= document.keys() else None
    if content.lstrip().startswith(b"{"):
        if b'"nccl_version"' in content:
            raise ValueError("its JSON is cut or damaged")
        return None
    lines = content.decode(errors="replace").replace("\r\n", "\n").split("\n")
    version = next((match for line in lines if (match := _VERSION.match(line))), None)
    if "Job summary" not in lines and version is None and not any(_PROCESS_LINE.fullmatch(line) for line in lines):
        return None
    return _of_text(lines, f"{version[1]} RAS {name_text(version[2], 'version')}" if version else "NCCL RAS")


class _Said:
    """The statements about each rank or process, which may be named several times."""

    def __init__(self) -> None:
        self._texts: defaultdict[_Process, dict[str, list[str]]] = defaultdict(dict)
        self._known: defaultdict[tuple[str, int], list[_Process]] = defaultdict(list)
        """Host and number of a process -> its keys, one a device."""

    def add(self, process: _Process, what: str, line: str) -> None:
        lines = self._texts[self._same(process)].setdefault(what, [])
        line = line[:_LINE_CHARS].strip()
        if len(lines) < MOST_LINES and line not in lines:
            lines.append(line)

    def results(self) -> tuple[HandedResult, ...]:
        """Return what was said, or as much of it as a file may have."""
        results = []
        for (host, pid, gpu, rank), texts in islice(self._texts.items(), MOST_RESULTS):
            what = ", ".join(texts)[:_LINE_CHARS]
            lines = tuple(line for lines_said in texts.values() for line in lines_said)[:MOST_LINES]
            results.append(
                HandedResult(verdict="warning", what=what, gpu=gpu, host=host, rank=rank, pid=pid, lines=lines)
            )
        if rest := len(self._texts) - len(results):
            more = "1 more rank or process" if rest == 1 else f"{rest} more ranks or processes"
            results.append(HandedResult(verdict="not checked", what=f"{more} that RAS names"))
        return tuple(results)

    def _same(self, process: _Process) -> _Process:
        """Return the key of a process that was named before, with what is known of it now."""
        host, pid, gpu, rank = process
        if pid is None:
            return process
        keys = self._known[host, pid]
        for number, known in enumerate(keys):
            if gpu is None or known[2] in (None, gpu):
                better = (host, pid, known[2] if gpu is None else gpu, known[3] if rank is None else rank)
                if better != known:
                    self._texts[better] = self._texts.pop(known)
                    keys[number] = better
                return better
        if len(keys) == _MOST_DEVICES:
            raise ValueError(f"process {pid} has more than {_MOST_DEVICES} devices")
        keys.append(process)
        return process


def _of_text(lines: list[str], form: str) -> HandedFile:
    said, kind, group, unknown = _Said(), "", "", 0
    counts = dict[_Process, tuple[int, str]]()
    usual = None
    section = ""
    for line in lines:
        if line.rstrip(" =") in ("Errors", "Warnings"):
            section, kind = line.rstrip(" ="), ""
            continue
        if not section or not line.strip() or set(line) <= {"="}:
            continue
        if heading := _HEADING.fullmatch(line):
            kind, group, usual = heading[1], "", None
        elif match := _GROUP.fullmatch(line):
            group = line.strip().partition(" ranks ")[2]
            if (launched := _LAUNCHED.match(group)) and usual is None:
                usual = int(launched[1] or 0)  # most ranks stand first
        elif match := _PROCESS_LINE.fullmatch(line):
            said.add(_process_of(match, None), _by_kind(kind), line)
        elif match := _RANK.fullmatch(line):
            what = match["says"] or group.replace("have ", "has ", 1)
            process = _process_of(match, whole(match["rank"], "rank"))
            if (launched := _LAUNCHED.search(what)) is None:
                said.add(process, _its_words(what) or _by_kind(kind), line)
            elif usual is not None and usual - int(launched[1] or 0) >= _FAR_BEHIND:
                counts[process] = (usual - int(launched[1] or 0), line)
        elif match := _MISSING.fullmatch(line):
            for rank in match[1].replace(",", " ").split():
                said.add(("", None, None, whole(rank, "rank")), _by_kind(kind), line)
        elif line.startswith("  Communicator ranks have different "):
            group, usual = "", None
        elif not _KNOWN.fullmatch(line):
            unknown += 1
    if section != "Warnings":
        raise ValueError("it is cut: its section Warnings is missing")
    for process, (behind, line) in counts.items():
        said.add(process, f"is {behind} operations behind", line)
    results = said.results()
    if unknown:
        lines_word = "1 line" if unknown == 1 else f"{unknown} lines"
        results += (HandedResult(verdict="not checked", what=f"{lines_word} of {form} in words that are not known"),)
    return HandedFile(form=form, hosts=_hosts(results), results=results)


def _its_words(what: str) -> str:
    """Return ``reported System error`` as it is, and other words of RAS in quotes: they may be a sentence."""
    verb, _, words = what.partition(" ")
    return what if words in ("", *_RESULTS.values()) else f"{verb} {quoted(words, _LINE_CHARS)}"


def _by_kind(kind: str) -> str:
    return {
        "DEAD": "is dead by the answer of RAS",
        "INCOMPLETE": "did not answer RAS",
        "ERROR": "reported an error",
        "MISMATCH": "differs from the other ranks",
    }.get(kind, "is named by RAS")


def _process_of(match: re.Match[str], rank: int | None) -> _Process:
    devices = match["nvml"] or match["cuda"] or ""
    gpu = int(devices) if devices.isdigit() and len(devices) < 4 else None
    pid = whole(match["pid"], "pid") if match["pid"] else None
    return name_text(match["host"] or "", "host"), pid, gpu, rank


def _of_json(document: Mapping[str, Any]) -> HandedFile:
    said, hosts, passed = _Said(), dict[str, None](), 0
    for entry in entries(document["communicators"], "communicators"):
        communicator = mapping(entry, "communicator")
        ranks = [mapping(rank, "rank") for rank in entries(communicator.get("ranks"), "ranks")]
        missing = [mapping(rank, "rank") for rank in entries(communicator.get("missing_ranks", []), "missing_ranks")]
        if communicator.get("ranks_count") != len(ranks) or communicator.get("missing_ranks_count", 0) != len(missing):
            raise ValueError("a communicator has another number of ranks than it says")
        behind = _behind(ranks)
        for rank in ranks:
            process, status = _process_of_json(rank), mapping(rank.get("status"), "status")
            hosts[process[0]] = None
            trouble = [
                f"{word} {_RESULTS.get(code, f'error {code}')}"
                for key, word in (("init_state", "could not initialize:"), ("async_error", "reported"))
                if (code := whole(status.get(key), key)) not in _NOT_IN_PROGRESS
            ]
            if status.get("abort_flag") is True:
                trouble.append("was aborted")
            if process[3] in behind:
                trouble.append(f"is {behind[process[3]]} operations behind")
            for what in trouble:
                said.add(process, what, json.dumps(dict(rank)))
            passed += not trouble
        for rank in missing:
            process = _process_of_json(rank)
            hosts[process[0]] = None
            status = {**rank, **mapping(rank.get("status", {}), "status")}
            if not {"considered_dead", "unresponsive"} <= status.keys():
                raise ValueError(f"missing rank {process[3]} does not say why it is missing")
            # A rank that answers and is missing has left the communicator, as at the end of a job.
            if status["considered_dead"] is True:
                said.add(process, _by_kind("DEAD"), json.dumps(dict(rank)))
            elif status["unresponsive"] is True:
                said.add(process, _by_kind("INCOMPLETE"), json.dumps(dict(rank)))
    named = tuple(host for host in hosts if host)[:4_096]
    version = name_text(document["nccl_version"], "nccl_version")
    return HandedFile(form=f"NCCL RAS {as_name(version)}", hosts=named, passed=passed, results=said.results())


def _behind(ranks: Iterable[Mapping[str, Any]]) -> dict[int | None, int]:
    """Return rank -> by how many operations it is behind most ranks, where that is more than one."""
    counts = dict[int, dict[str, int]]()
    for rank in ranks:
        operations = mapping(rank.get("collective_counts", {}), "collective_counts")
        counts[whole(rank.get("rank"), "rank")] = {name: whole(count, name) for name, count in operations.items()}
    # Operations between two ranks, or from or to one of them, are not the same number on all ranks.
    names = {name for operations in counts.values() for name in operations} - {"Send", "Recv", "SendRecv"}
    if len(names) > _MOST_OPERATIONS:
        raise ValueError(f"it counts more than {_MOST_OPERATIONS} kinds of operations")
    usual = {name: _most_common(operations.get(name, 0) for operations in counts.values()) for name in names}
    distance = {rank: max((usual[name] - operations.get(name, 0) for name in names), default=0) for rank, operations in
                counts.items()}  # fmt: skip
    return {rank: far for rank, far in distance.items() if far >= _FAR_BEHIND}


def _most_common(values: Iterable[int]) -> int:
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value), default=0)


def _process_of_json(rank: Mapping[str, Any]) -> _Process:
    host, pid = name_text(rank.get("host"), "host"), rank.get("pid")
    gpu = rank.get("nvml_dev", rank.get("cuda_dev"))
    return (
        "" if host == "unknown" else host,
        None if pid in (None, -1) else whole(pid, "pid"),
        None if gpu is None or gpu == -1 else whole(gpu, "nvml_dev"),
        whole(rank.get("rank"), "rank"),
    )


def _hosts(results: Iterable[HandedResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(result.host for result in results if result.host))
