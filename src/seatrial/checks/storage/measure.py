"""Measurements of the storage check, stage by stage.

All ranks work at once, as in a training that saves its state. Write: seconds from the first byte to the end of the last
fsync. Read: the file's pages are dropped from the page cache first (posix_fadvise); if the kernel keeps them, as it
does for a file system in memory, the measurement is marked ``warm``. Then every byte is compared with the seeded data.
Latency: an append of 4 KiB with its fsync.
"""

from __future__ import annotations

import contextlib
import errno
import math
import secrets
import time
from pathlib import Path

from seatrial.checks.storage import data_file, tokens
from seatrial.checks.storage.params import Params
from seatrial.checks.storage.rules import room_rule
from seatrial.evidence.statistics import median
from seatrial.folders import exchanges, may_be_exchanged
from seatrial.probe.file_system import file_system, own_places
from seatrial.rank.context import Context
from seatrial.start import mounted_by

_LACKS_ROOM = "storage/lacks room"
_TOKEN = "storage/token"
"""The token that this rank left. It keeps the folder open for all that is done there."""
_WARM = 0.05
"""The share of a file in the page cache from which on reading it says little about the disk."""
_OF_HARDWARE = (errno.EIO, errno.EUCLEAN)
"""Errors that no user can bring about in an open folder that is on no file system of a user."""
_PARTS = {"append": 0.1, "write": 0.5, "read": 0.7, "compare": 0.9}
"""The share of ``timeout_s`` by which each part stops with what it has: a slow disk gets a measurement instead of a
missed deadline."""


def measure(context: Context, params: Params) -> None:
    """Agree on a key, leave a token, find the tokens of the others, then write and read."""
    if context.stage == "key":
        context.share(tokens.KEY, secrets.token_hex(8))
        return
    key = tokens.checked_key(context.given.get(tokens.KEY), context.ranks[0])
    try:
        if context.stage in ("token", "measure"):
            _report_ways(context, params)
        if context.stage == "token":
            _leave_token(context, params, key)
            return
        token: tokens.Token | None = context.kept.get(_TOKEN)
        if token is None:
            return
        if context.stage == "view":
            _view_folder(context, params, token, key)
        elif context.stage == "repeat":
            _measure_in(context, params, token)
        else:
            context.phase("remove the token")
            if not token.is_in_place():
                # Somebody removed or moved it, perhaps while the others looked: that they miss it says nothing.
                context.fact("token_lost", True)
            token.remove()
            if not context.kept.get(_LACKS_ROOM):
                _measure_in(context, params, token)
    except BaseException:
        if _TOKEN in context.kept:
            context.kept[_TOKEN].remove()
        raise


def _report_ways(context: Context, params: Params) -> None:
    """Report which places of this machine are on the way to each folder; None where others may have some of it."""
    for folder in tokens.candidate_folders(params.folder):
        context.phase(f"follow the way to {folder}")
        context.fact("way", {"folder": folder, "places": own_places([Path(folder)])})
        with contextlib.suppress(OSError):
            if exchanges(folder)[0]:
                context.fact("exchanged", folder)


def _leave_token(context: Context, params: Params, key: str) -> None:
    """Leave a token in the first folder that takes it, after removing the leftovers of killed trials there."""
    refused: list[list[str]] = []
    for folder in tokens.candidate_folders(params.folder):
        context.phase(f"read the file system of {folder}")
        try:
            token = context.kept[_TOKEN] = tokens.Token(folder, key, context.rank)
            if _is_mounted_by_another(token.descriptor):
                # Perhaps for this moment alone: the way that was followed before was another one.
                context.fact("exchanged", folder)
            system = file_system(token.descriptor)
            context.phase(f"remove leftovers in {folder}")
            removed = tokens.remove_leftovers(token.way, time.time())
            context.phase(f"write the token in {folder}")
            token.leave()
        except OSError as error:
            # A token that was not written to its end must not stay either.
            if (unfinished := context.kept.pop(_TOKEN, None)) is not None:
                unfinished.remove()
            _report_exchange(context, folder, error, is_open=unfinished is not None)
            refused.append([folder, *_code_and_reason(error)])
            continue
        # No rank has looked for tokens yet.
        context.fact(
            "folder",
            {
                "path": folder,
                "named": params.folder is not None,
                "in_memory": system.in_memory,
                "kind": system.kind,
                "mount_point": system.mount_point,
            },
        )
        if removed:
            context.fact("leftovers_removed", {"count": len(removed), "first": removed[0]})
        return
    context.fact("refused", {"named": params.folder is not None, "folders": refused})


def _report_exchange(context: Context, folder: str, error: OSError, *, is_open: bool) -> None:
    """Report a folder that another user may have put in the place of the one that was meant, and closed, or filled.

    Before it was open the error may be that of a file system that another user had mounted.
    """
    if not (is_open and error.errno in _OF_HARDWARE) and may_be_exchanged(folder):
        context.fact("exchanged", folder)


def _is_mounted_by_another(folder: int) -> bool:
    try:
        return mounted_by(folder) != 0
    except OSError:  # it is no longer mounted
        return True


def _view_folder(context: Context, params: Params, token: tokens.Token, key: str) -> None:
    """Report whose tokens are visible, and whether there is room for the files of all ranks that write here."""
    context.phase("find the token")
    was_in_place = token.is_in_place()
    context.phase("find the tokens of the others")
    try:
        visible, foreign = tokens.visible_ranks(token.way, key, token.owner, context.ranks)
        context.phase("read the free space")
        system = file_system(token.descriptor)
    except OSError as error:
        _report_error(context, params, token, "find tokens", error)
        return
    if not (was_in_place and context.rank in visible and token.is_in_place()):
        # Others may have found the tokens of another folder, or none.
        context.fact("token_lost", True)
    context.fact("sees", _ranges(visible))
    if foreign:
        context.fact("foreign", _ranges(foreign))
    sharers = max(1, len(visible))
    context.fact("needs", {"sharers": sharers})
    for name, free in (("free_bytes", system.free_bytes), ("free_inodes", system.free_inodes)):
        if free is not None:
            rule = room_rule(params, name, sharers)
            context.measurement(name, free, rule.unit, "high")
            if not rule.passes(free):
                context.kept[_LACKS_ROOM] = True


def _measure_in(context: Context, params: Params, token: tokens.Token) -> None:
    """Append, write, read and compare in the folder of the token."""
    operation = "create a file"
    try:
        context.phase(f"{operation} in {token.folder}")
        with data_file.nameless_file(token.way, context.rank) as fd:
            operation = "append"
            _append(context, params, fd)
        context.phase(f"create another file in {token.folder}")
        with data_file.nameless_file(token.way, context.rank) as fd:
            operation = "write and read"
            _write_and_read(context, params, fd)
    except OSError as error:
        _report_error(context, params, token, operation, error)


def _append(context: Context, params: Params, fd: int) -> None:
    readings = sorted(data_file.append(fd, params.appends, _until(context, "append"), context.phase))
    p99_s = readings[math.ceil(0.99 * len(readings)) - 1]
    context.measurement("fsync_ms", median(readings) * 1e3, "ms", "low", variant="median")
    context.measurement("fsync_ms", p99_s * 1e3, "ms", "low", variant="p99")
    _report_cut(context, "append", len(readings), params.appends)


def _write_and_read(context: Context, params: Params, fd: int) -> None:
    seed = context.rank
    waited_s, started = _waited_for_cpu_s(), time.perf_counter()
    written = data_file.write(fd, params.size_bytes, seed, _until(context, "write"), context.phase)
    _report_transfer(context, "write", "", written, params.size_bytes)
    context.phase("drop the page cache")
    kept = data_file.drop_from_cache(fd, written.size_bytes)
    done = data_file.read(fd, written.size_bytes, _until(context, "read"), context.phase)
    _report_transfer(context, "read", "warm" if kept > _WARM else "cold", done, written.size_bytes)
    wall_s, waited_s = time.perf_counter() - started, _waited_for_cpu_s() - waited_s
    context.measurement("cpu_share", max(0.0, 1 - waited_s / wall_s), "1")
    comparison = data_file.verify(fd, written.size_bytes, seed, _until(context, "compare"), context.phase)
    if comparison.wrong_bytes:
        context.fact("wrong_bytes", {"count": comparison.wrong_bytes, "first_offset": comparison.first_offset})
    _report_cut(context, "compare", comparison.compared_bytes, written.size_bytes)
    context.measurement("wrong_bytes", comparison.wrong_bytes, "1", "low")


def _report_transfer(
    context: Context, what: str, variant: str, transfer: data_file.Transfer, requested_bytes: int
) -> None:
    # The comparison of the bytes reports a file that ends too early.
    rate = transfer.size_bytes / transfer.seconds / 1e9
    context.measurement(f"{what}_gbps", rate, "GB/s", "high", variant=variant, size_bytes=transfer.size_bytes)
    span = {"began_s": transfer.began_s, "seconds": transfer.seconds, "bytes": transfer.size_bytes}
    context.fact("moved", {"what": what, "variant": variant, **span})
    _report_cut(context, what, transfer.size_bytes, requested_bytes)


def _report_cut(context: Context, what: str, done: int, requested: int) -> None:
    """Report a part that did not finish in its time."""
    if done < requested:
        context.fact("cut", {"what": what, "done": done, "of": requested})


def _report_error(context: Context, params: Params, token: tokens.Token, operation: str, error: OSError) -> None:
    _report_exchange(context, token.folder, error, is_open=True)
    code, reason = _code_and_reason(error)
    context.fact(
        "trouble",
        {
            "named": params.folder is not None,
            "folder": token.folder,
            "doing": operation,
            "phase": context.stage,
            "code": code,
            "reason": reason,
        },
    )


def _code_and_reason(error: OSError) -> tuple[str, str]:
    return errno.errorcode.get(error.errno or 0, ""), error.strerror or str(error)


def _until(context: Context, part: str) -> float:
    """Return the monotonic time by which a part that begins now stops with what it has."""
    before = [0.0, *_PARTS.values()][list(_PARTS).index(part)]
    return time.monotonic() + (_PARTS[part] - before) * context.timeout_s


def _waited_for_cpu_s() -> float:
    """Return the seconds that this process was runnable without a CPU; 0 if the kernel does not count them."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _ranges(ranks: list[int]) -> list[list[int]]:
    """Return ascending ranks as [first, last] pairs, which keeps the reports of a large world short."""
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ranges
