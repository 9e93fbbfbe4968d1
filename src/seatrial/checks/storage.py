"""Where checkpoints go: does every node write and read there, rightly and fast enough, and do all see one folder.

All ranks work at once, as in a training that saves its state. Write: seconds from the first byte to the end of the last
fsync. Read: the file's pages are dropped from the page cache first (posix_fadvise); where the kernel keeps them, as
on a file system in memory, the figure is marked ``warm``. Then every byte is compared with the seeded data. Latency: an
append of 4 KiB with its fsync.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.checks import _storage_files as files
from seatrial.checks._storage_judge import QUICK_FSYNC_MS, judge, suspects
from seatrial.checks.base import Check, Held, Stage, held_by_user
from seatrial.probe.file_system import file_system
from seatrial.verdict.statistics import fleet_rules, median

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params"]

_KEY = "storage/key"
_FEW_BYTES = 1 << 20
"""What a rank needs beside its file: the appends and its token."""
_FEW_INODES = 3
_WARM = 0.05
"""So much of a file in the page cache, and reading it says little of the disk."""
_SHARES = {"append": 0.1, "write": 0.5, "read": 0.7, "compare": 0.9}
"""Of ``timeout_s``, by when each part stops with what it has: a slow disk gets a figure, not a missed deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Where, how much, and the limits. Limits count for a node: all its ranks at once."""

    folder: str | None = None
    """An absolute path, where checkpoints will go; None: the rank's working folder, or else the temporary folder."""
    shared: str = "any"
    """``yes``: all ranks must see one folder; ``no``: no two nodes may; ``any``: it is only told."""
    size_bytes: int = 268_435_456
    """Size of the file that each rank writes."""
    appends: int = 100
    """Appends of 4 KiB, each with its fsync."""
    min_write_gbps: float | None = None
    """The user's limit; None: the fleet decides."""
    min_read_gbps: float | None = None
    """The user's limit; None: the fleet decides."""
    max_fsync_ms: float | None = None
    """The user's limit for the 99th percentile of the appends; None: the fleet decides, by the median."""
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for a value that cannot be meant."""
        if self.folder is not None and (not os.path.isabs(self.folder) or "\0" in self.folder):
            raise ValueError(f"folder is {self.folder!r}; it must be an absolute path, the same on every node")
        if self.shared not in ("yes", "no", "any"):
            raise ValueError(f"shared is {self.shared!r}; it is one of yes, no, any")
        if self.shared != "any" and self.folder is None:
            raise ValueError(f"shared is {self.shared!r} and there is no folder; name the folder that it is said of")
        if self.size_bytes < 2**20 or self.size_bytes % 4096:
            raise ValueError(f"size_bytes is {self.size_bytes}; it must be a multiple of 4096 and at least {2**20}")
        if self.appends < 1:
            raise ValueError(f"appends is {self.appends}; it must be at least 1")
        for key in ("min_write_gbps", "min_read_gbps", "max_fsync_ms"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} is {value}; a limit must be above 0")


def limits(params: Params) -> tuple[Held, ...]:
    """What bytes, space and speeds are held against."""
    need = f"at least {params.size_bytes} B for each rank that writes there"
    rows = [
        Held(what="wrong_bytes", limit="0", origin="exact"),
        Held(what="free_bytes", limit=need, origin="storage.size_bytes"),
    ]
    seen = {"yes": "one folder for all ranks", "no": "a folder for each node", "any": "none: only told"}
    rows.append(Held(what="ranks that see one another", limit=seen[params.shared], origin="storage.shared"))
    for what, value, words, key in (
        ("write_gbps of a node", params.min_write_gbps, "at least {:g} GB/s", "storage.min_write_gbps"),
        ("read_gbps of a node", params.min_read_gbps, "at least {:g} GB/s", "storage.min_read_gbps"),
        ("fsync_ms p99 of a node", params.max_fsync_ms, "at most {:g} ms", "storage.max_fsync_ms"),
    ):
        if value is not None:
            rows.append(held_by_user(what, words.format(value), key))
    fleet = "fleet of nodes on one kind of file system, again alone"
    for number, rule in fleet_rules(gpu=False):
        # Storage is as uneven as CPUs are.
        rows.append(Held(what=f"write, read, fsync, {number} nodes", limit=f"as of CPUs: {rule}", origin=fleet))
    same = f"medians of {QUICK_FSYNC_MS:g} ms or less count as equal"
    return (*rows, Held(what="fsync_ms, fleet of nodes", limit=same, origin="no checkpoint waits for less"))


def measure(context: Context, params: Params) -> None:
    """Agree on a key, leave a token, look for the tokens of the others, then write and read."""
    if context.stage == "key":
        context.share(_KEY, secrets.token_hex(8))
        return
    key, folders = context.given[_KEY], files.candidates(params.folder)
    try:
        if context.stage == "meet":
            _meet(context, params, folders, key)
        elif context.stage == "look":
            _look(context, params, folders, key)
        elif context.stage == "repeat":
            _in_first(context, params, folders, key)
        else:
            context.phase("remove token")
            folder = files.find_token(folders, key, context.rank, remove=True)
            if folder is not None and not context.given.get(f"storage/lacks/{context.rank}"):
                _in_first(context, params, (folder,), key)
    except BaseException:
        files.find_token(folders, key, context.rank, remove=True)
        raise


def _meet(context: Context, params: Params, folders: tuple[str, ...], key: str) -> None:
    """Leave a token in the first folder that takes it, after what killed trials left there is removed."""
    refused: list[list[str]] = []
    for folder in folders:
        context.phase(f"look at {folder}")
        try:
            found = file_system(folder)
            context.phase(f"remove leftovers in {folder}")
            removed = files.remove_leftovers(folder, time.time())
            context.phase(f"write token in {folder}")
            files.create_token(folder, key, context.rank)
        except OSError as error:
            # A token that could not be written to its end must not stay either.
            files.find_token((folder,), key, context.rank, remove=True)
            refused.append([folder, errno.errorcode.get(error.errno or 0, ""), _words(error)])
            continue
        where = {"path": folder, "named": params.folder is not None, "in_memory": found.in_memory}
        context.fact("folder", {**where, "kind": found.kind, "mount_point": found.mount_point})
        if removed:
            context.fact("leftovers_removed", {"count": len(removed), "first": removed[0]})
        return
    context.fact("refused", {"named": params.folder is not None, "folders": refused})


def _look(context: Context, params: Params, folders: tuple[str, ...], key: str) -> None:
    """Whose tokens are there, and is there room for the files of all who write here."""
    context.phase("find token")
    folder = files.find_token(folders, key, context.rank)
    if folder is None:
        return
    context.phase("look for the tokens of the others")
    try:
        seen = files.seen_ranks(folder, key, context.ranks)
        context.phase("look at free space")
        found = file_system(folder)
    except OSError as error:
        _tell_trouble(context, params, folder, "look for tokens", error)
        return
    context.fact("sees", _ranges(seen))
    sharers = max(1, len(seen))
    needed_bytes, needed_inodes = sharers * (params.size_bytes + _FEW_BYTES), sharers * _FEW_INODES
    context.figure("free_bytes", found.free_bytes, "B", "high")
    if found.free_inodes is not None:
        context.figure("free_inodes", found.free_inodes, "1", "high")
    context.fact("needs", {"bytes": needed_bytes, "inodes": needed_inodes, "sharers": sharers})
    if found.free_bytes < needed_bytes or (found.free_inodes is not None and found.free_inodes < needed_inodes):
        context.share(f"storage/lacks/{context.rank}", True)


def _in_first(context: Context, params: Params, folders: tuple[str, ...], key: str) -> None:
    """Append, write, read and compare in the first folder that takes a file."""
    for number, folder in enumerate(folders):
        doing = "create a file"
        try:
            context.phase(f"{doing} in {folder}")
            with files.nameless_file(folder, key, context.rank) as fd:
                doing = "append"
                _append(context, params, fd)
            context.phase(f"create another file in {folder}")
            with files.nameless_file(folder, key, context.rank) as fd:
                doing = "write and read"
                _write_and_read(context, params, fd)
            return
        except OSError as error:
            if doing == "create a file" and number + 1 < len(folders):
                continue
            _tell_trouble(context, params, folder, doing, error)
            return


def _append(context: Context, params: Params, fd: int) -> None:
    readings = sorted(files.append(fd, params.appends, _until(context, "append"), context.phase))
    worst = readings[math.ceil(0.99 * len(readings)) - 1]
    context.figure("fsync_ms", median(readings) * 1e3, "ms", "low", variant="median")
    context.figure("fsync_ms", worst * 1e3, "ms", "low", variant="p99")
    if len(readings) < params.appends:
        context.fact("cut", {"what": "append", "done": len(readings), "of": params.appends})


def _write_and_read(context: Context, params: Params, fd: int) -> None:
    seed = context.rank
    waited_s, started = _waited_for_cpu_s(), time.perf_counter()
    written = files.write(fd, params.size_bytes, seed, _until(context, "write"), context.phase)
    _tell_moved(context, "write", "", written, params.size_bytes)
    context.phase("drop the page cache")
    kept = files.drop_from_cache(fd, written.size_bytes)
    done = files.read(fd, written.size_bytes, _until(context, "read"), context.phase)
    _tell_moved(context, "read", "warm" if kept > _WARM else "cold", done, written.size_bytes)
    wall_s, waited_s = time.perf_counter() - started, _waited_for_cpu_s() - waited_s
    context.figure("cpu_share", max(0.0, 1 - waited_s / wall_s), "1")
    wrong = files.verify(fd, written.size_bytes, seed, _until(context, "compare"), context.phase)
    if wrong.wrong_bytes:
        context.fact("wrong_bytes", {"count": wrong.wrong_bytes, "first_offset": wrong.first_offset})
    if wrong.compared_bytes < written.size_bytes:
        context.fact("cut", {"what": "compare", "done": wrong.compared_bytes, "of": written.size_bytes})
    context.figure("wrong_bytes", wrong.wrong_bytes, "1", "low")


def _tell_moved(context: Context, what: str, variant: str, moved: files.Moved, wanted_bytes: int) -> None:
    # A file that ends too early is told of where its bytes are compared.
    rate = moved.size_bytes / moved.seconds / 1e9
    context.figure(f"{what}_gbps", rate, "GB/s", "high", variant=variant, size_bytes=moved.size_bytes)
    span = {"began_s": moved.began_s, "seconds": moved.seconds, "bytes": moved.size_bytes}
    context.fact("moved", {"what": what, "variant": variant, **span})
    if moved.size_bytes < wanted_bytes:
        context.fact("cut", {"what": what, "done": moved.size_bytes, "of": wanted_bytes})


def _tell_trouble(context: Context, params: Params, folder: str, doing: str, error: OSError) -> None:
    told = {"named": params.folder is not None, "folder": folder, "doing": doing, "phase": context.stage}
    context.fact("trouble", {**told, "code": errno.errorcode.get(error.errno or 0, ""), "reason": _words(error)})


def _until(context: Context, part: str) -> float:
    """Monotonic time by which a part stops with what it has, counted from its beginning."""
    before = [0.0, *_SHARES.values()][list(_SHARES).index(part)]
    return time.monotonic() + (_SHARES[part] - before) * context.timeout_s


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _waited_for_cpu_s() -> float:
    """Seconds that this process stood ready and got no CPU; 0 where the kernel does not tell."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _ranges(ranks: list[int]) -> list[list[int]]:
    """Ascending ranks as [first, last] pairs: each rank tells this of all others."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found


CHECK = Check(
    name="storage",
    scope="alone",
    params=Params,
    measure=measure,
    judge=judge,
    suspects=suspects,
    limits=limits,
    stages=(Stage(name="key", first_only=True), Stage(name="meet"), Stage(name="look"), Stage(name="measure")),
)
