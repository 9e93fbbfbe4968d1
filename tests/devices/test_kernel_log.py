"""The kernel log: forms of lines, records of /dev/kmsg, and what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from devices.recorded_samples import sample

from seatrial.devices import xid
from seatrial.devices.kernel_log import KernelLog, open_log, parse
from seatrial.devices.plain_json import from_json, to_json
from seatrial.devices.state import KernelEvent


def test_an_xid_with_the_header_of_kmsg() -> None:
    # The form of leptonai/gpud, components/accelerator/nvidia/xid; numbers of our own.
    event = parse("4,1,2500000,-;NVRM: Xid (PCI:0000:9B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off")
    assert event is not None
    assert (event.kind, event.bus, event.code, event.seconds, event.follows) == ("xid", "0000:9b:00", 79, 2.5, None)


@pytest.mark.parametrize(
    ("line", "kind", "code", "bus"),
    [
        ("[   12.5] NVRM: Xid (0000:17:00): 48, an ECC error", "xid", 48, "0000:17:00"),
        (
            "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x, Timeout",
            "xid",
            119,
            "0000:9b:00",
        ),
        # NVIDIA/open-gpu-kernel-modules kernel_rc.c: a slice, and a compute instance of it (MIG).
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel", "xid", 94, "0000:01:00"),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 43, pid=7194, name=x", "xid", 43, "0000:01:00"),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", "sxid", 12028, "0000:05:00"),
        ("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.", "off the bus", 0, "0000:9b:00"),
        (
            "amdgpu 0000:c1:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block",
            "amdgpu",
            0,
            "0000:c1:00",
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: {123456}socket: 14, die: 11, hbm: 7, 1 new uncorrectable hardware errors "
            "detected in umc block",
            "amdgpu",
            0,
            "0000:c1:00",
        ),
    ],
)
def test_lines_about_devices(line: str, kind: str, code: int, bus: str) -> None:
    event = parse(line)
    assert event is not None
    assert (event.kind, event.code, event.bus) == (kind, code, bus)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad",
        "NVRM: Xid (PCI:0000:9b:00): ",
        "NVRM: Xid (PCI:0000",
        "6,1,2,-;usb 1-1: new device",
    ],
)
def test_other_lines_and_cut_ones_are_no_events(line: str) -> None:
    assert parse(line) is None


_REAL = "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "head",
    [
        "6,339,5140900,-;",
        "6,339,5140900,-,caller=T12;",
        "[   12.5] ",
        "<4>[   12.5] ",
        "[   12.500000] [   T12] ",
        "[Sun Feb 23 16:24:18 2025] ",
        "[  +0.000005] ",
        "kern  :warn  : [   12.5] ",
        "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 ",
        "2025-01-21T04:41:44,285060+00:00 ",
        "Nov 23 08:45:11 gpu-01 kernel: ",
        "Nov  3 08:45:11 gpu-01 kernel: [ 9999.123456] ",
        "2025-02-23T16:24:18+0000 gpu-01.example kernel: ",
        "2025-02-23 16:24:18 gpu-01 kernel: ",
        "<6>1 2025-02-23T16:24:18Z gpu-01 kernel - - - ",
        "gpu-01 kernel: ",
    ],
)
def test_heads_of_real_lines(head: str) -> None:
    event = parse(head + _REAL)
    assert event is not None
    assert (event.code, event.bus, event.text) == (79, "0000:17:00", _REAL)


_CRASH = "[4711]: segfault at 0 ip 0000000000000000 sp 00007ffd9fd62c88 error 14 in "


@pytest.mark.parametrize(
    "message",
    [
        # Anybody mounts a tmpfs in a namespace of their own, and the kernel quotes the options.
        *(
            f"tmpfs: Unknown parameter '{quoted}'"
            for quoted in (
                "NVRM: Xid (PCI:0000:17:00): 79",
                "NVRM: GPU 0000:17:00.0: GPU has fallen off the bus.",
                "nvidia-nvswitch0: SXid (PCI:0000:17:00.0): 12028, Fatal",
                "amdgpu 0000:17:00.0: amdgpu: RAS poison",
                "kernel: NVRM: Xid (PCI:0000:17:00): 79",
            )
        ),
        "tmpfs: Unknown parameter 'x\\x0aNVRM: Xid (PCI:0000:17:00): 79'",
        # The name of a program, and that of its library.
        f"NVRM: GPU 17:00{_CRASH}has fallen off the bus[400000+1000]",
        f"amdgpu 17:00: {_CRASH}RAS poison[400000+1000]",
        "NVRM: Xid (1:0) (4711) used greatest stack depth: 79 bytes left",
        "amdgpu 0000:17:00.0: amdgpu: VM memory stats for proc GPU reset begin(4711) task RAS poison(4711) is non-zero",
        "amdgpu 0000:17:00.0: amdgpu: [gfxhub] page fault (ring:24 vmid:3, for process RAS poison pid 4711 thread x)",
        "amdgpu 0000:17:00.0: amdgpu:  for process GPU reset begin pid 4711 thread ring x timeout pid 4711",
    ],
)
@pytest.mark.parametrize("head", ["3,339,5140900,-;", "[   12.5] ", "Nov 23 08:45:11 gpu-01 kernel: "])
def test_what_a_user_makes_the_kernel_say_is_no_event(head: str, message: str) -> None:
    assert parse(head + message) is None


def test_what_a_program_writes_to_the_log_is_no_event() -> None:
    assert parse(f"14,339,5140900,-;{_REAL}") is None
    assert parse(f"user  :notice: [   12.5] {_REAL}") is None


def test_many_lines_of_a_neighbor_hide_none_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    log = KernelLog(str(file))
    log.read()
    line = "NVRM: Xid (PCI:0000:99:00): 31, pid={}, name=neighbor, MMU Fault\n"
    file.write_text("".join(line.format(number) for number in range(5000)) + f"{_REAL}\n")
    events = log.read()
    log.close()
    assert [event.bus for event in events] == ["0000:99:00"] * 10 + ["0000:17:00"]
    assert events[0].text.endswith("pid=0, name=neighbor, MMU Fault")
    assert log.was_cut


def test_lines_that_differ_in_what_they_accuse_are_not_alike(tmp_path: Path) -> None:
    file = tmp_path / "log"
    amd = "amdgpu 0000:c1:00.0: amdgpu: "
    file.write_text(
        f"{amd}ring sdma0 timeout, signaled seq=1\n" * 20
        + f"{amd}RAS poison is consumed\n"
        + "NVRM: Xid (PCI:0000:17:00): 45, pid=1, name=x, Ch 1 caused by previous Xid 31\n" * 20
        + "NVRM: Xid (PCI:0000:17:00): 45, pid=1, name=x, Ch 1\n"
    )
    log = KernelLog(str(file))
    events = log.read()
    log.close()
    assert ("RAS poison" in events[10].text, events[-1].follows, len(events)) == (True, None, 22)


def test_an_xid_that_follows_from_another() -> None:
    event = parse("NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149")
    assert event is not None
    assert (event.code, event.follows) == (45, 149)


@pytest.mark.parametrize(
    ("first_word", "subcode", "accuses"),
    [("0x02100000", 33, True), ("0x01500000", 21, True), ("0x026001c6", 38, False)],
)
def test_the_subcode_of_149_may_accuse_the_link_partner(first_word: str, subcode: int, accuses: bool) -> None:
    event = parse(f"NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 07 ({first_word} 0x00000000)")
    assert event is not None
    assert (event.subcode, event.link, event.fatal) == (subcode, 7, True)
    assert (subcode in xid.PARTNER_AT_FAULT) is accuses


@pytest.mark.parametrize(
    "words",
    [
        "79, caused by previous Xid " + "9" * 300,
        f"145, Fatal XC0 i0 Link {'9' * 200} (0x00400000 0x0)",
        f"145, Fatal XC0 i0 Link 3 (0x{'f' * 100})",
    ],
)
def test_numbers_without_end_are_none(words: str) -> None:
    """The controller would refuse the whole report of the node for one of them."""
    event = parse(f"NVRM: Xid (PCI:0000:17:00): {words}")
    assert event is not None
    assert from_json(KernelEvent, to_json(event)) == event
    assert (event.link, event.follows) == (None, None)


def test_older_lines_are_marked_and_new_ones_come_later(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("NVRM: Xid (PCI:0000:17:00): 79, old\n")
    log = KernelLog(str(file))
    assert [(event.code, event.old) for event in log.read()] == [(79, True)]
    with file.open("a") as stream:
        stream.write("NVRM: Xid (PCI:0000:17:00): 48, new\nNVRM: Xid (PCI:0000:17:00): 9")
    assert [(event.code, event.old) for event in log.read()] == [(48, False)]
    with file.open("a") as stream:
        stream.write("5, cut in two writes\n")
    assert [event.code for event in log.read()] == [95]
    log.close()


def test_the_beginning_of_a_long_file_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lets programs crash makes it longer than one reading; an XID of last month is none of the trial."""
    monkeypatch.setattr("seatrial.devices.kernel_log._MOST_BYTES", 1 << 14)
    file = tmp_path / "kern.log"
    xid_line = "[ 2.0] NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n"
    file.write_text("[ 1.0] program[1]: segfault at 0\n" * 1000 + xid_line)
    log = KernelLog(str(file))
    assert [event.old for event in log.read()] == [True]
    assert (log.read(), log.was_cut) == ((), False)
    with file.open("a") as end:
        end.write(xid_line + "[ 3.0] program[1]: segfault at 0\n" * 1000)
    assert ([event.old for event in log.read()], log.was_cut) == ([False], True)


def test_the_end_of_a_line_without_end_is_no_message(tmp_path: Path) -> None:
    """Only its last part was kept, and that part may begin with whatever a program wrote."""
    file = tmp_path / "messages"
    fallen = "NVRM: Xid (PCI:0000:17:00): 79, pid=1"
    file.write_text("")
    log = KernelLog(str(file))
    log.read()
    file.write_text("x" * 8192 + fallen.ljust(8192) + "\n")
    assert log.read() == ()


def test_a_log_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    log, why = open_log(str(tmp_path / "kmsg"))
    assert log is None
    assert why.endswith("kmsg: No such file or directory")


def test_each_action_of_the_table_has_words() -> None:
    assert [xid.action(code) for code in (79, 48, 63, 64, 13, 72, 14, 65, 161, 171, 9999)] == [
        "restart machine",
        "workflow",
        "ignore",
        "reset",
        "restart program",
        "restart program",
        "ignore",
        "support",
        "ignore",
        "unnamed",
        "unknown",
    ]
    assert {code for code in range(1, 200) if "newer than" in xid.advice(code)} == set(range(173, 200))


def test_recorded_lines() -> None:
    log = KernelLog(str(sample("kernel-log/xid-lines.txt")))
    found = [(event.kind, event.code, event.follows, event.fatal) for event in log.read()]
    log.close()
    assert found == [
        ("xid", 119, None, None),
        ("xid", 149, None, True),
        ("xid", 145, None, False),
        ("xid", 45, 149, None),
        ("xid", 94, None, None),
        ("xid", 79, None, None),
        ("off the bus", 0, None, None),
        ("sxid", 12028, None, False),
    ]


@pytest.mark.parametrize("header", [f"6,1,{'9' * 5000},-;", f"[{'9' * 400}.5] "])
def test_a_time_that_cannot_be_is_none(header: str) -> None:
    event = parse(f"{header}NVRM: Xid (PCI:0000:17:00): 79, pid=1")
    assert event is None or event.seconds is None
