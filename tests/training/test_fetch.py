"""Fetching data sets from servers that fail in every way."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.message import Message
from pathlib import Path

import pytest
from hostile_files import HOSTILE, assert_unharmed
from training.failing_server import FailingServer

from seatrial.errors import RequestError, SeatrialError
from seatrial.folders import leading_link
from seatrial.training.data import fetch as fetching
from seatrial.training.data import transfer
from seatrial.training.data.datasets import DATASETS, DataSet, Download
from seatrial.training.data.fetch import Patience, fetch, mirror_url
from seatrial.training.data.transfer import BrokenTransferError, RefusedTransferError, _Redirects

CONTENT = bytes(range(256)) * 1_000
SHORT_CONTENT = b"labels"
PATIENT = Patience(idle_s=20.0, total_s=40.0, lock_s=40.0, rounds=2, pause_s=0.01)
HASTY = Patience(idle_s=0.3, total_s=40.0, lock_s=0.1, rounds=1, pause_s=0.01)


@pytest.fixture
def server() -> Iterator[FailingServer]:
    with FailingServer(files={"images.gz": CONTENT, "labels.gz": SHORT_CONTENT}) as server:
        yield server


@dataclass
class Fetched:
    """A folder, and the lines printed while a data set was fetched into it."""

    folder: Path
    lines: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def __call__(
        self, *mirrors: str, patience: Patience = PATIENT, files: dict[str, bytes] | None = None
    ) -> list[Path]:
        dataset = published({"images.gz": CONTENT} if files is None else files, mirrors)
        return fetch(
            dataset,
            self.folder,
            print_status=self.lines.append,
            on_bytes=lambda _, size_bytes: self.sizes.append(size_bytes),
            patience=patience,
        )

    def there(self) -> dict[str, bytes]:
        """All that was left in the folder but locks."""
        place = self.folder / "set"
        return {path.name: path.read_bytes() for path in place.iterdir() if path.suffix != ".lock"}


@pytest.fixture
def fetched(tmp_path: Path) -> Fetched:
    return Fetched(tmp_path / "data")


def published(files: dict[str, bytes], mirrors: tuple[str, ...]) -> DataSet:
    downloads = (
        Download(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )
    return DataSet(name="set", downloads=tuple(downloads), mirrors=mirrors)


def test_all_files_arrive_and_a_second_call_makes_no_request(server: FailingServer, fetched: Fetched) -> None:
    paths = fetched(server.url, files=server.files)
    assert fetched.there() == server.files
    assert [path.read_bytes() for path in paths] == [CONTENT, SHORT_CONTENT]
    assert fetched.sizes[0] == 0
    assert max(fetched.sizes) == len(CONTENT)
    assert fetched(server.url, files=server.files) == paths
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "fault", ["status 404", "status 503", "short-unsaid", "nonsense", "long", "long-said", "other"]
)
def test_what_one_mirror_fails_to_give_the_next_one_gives(server: FailingServer, fetched: Fetched, fault: str) -> None:
    server.faults = [fault]
    fetched(f"{server.url}first/", f"{server.url}second/")
    assert fetched.there() == {"images.gz": CONTENT}
    assert [path for path, _ in server.requests] == ["/first/images.gz", "/second/images.gz"]


@pytest.mark.parametrize("fault", ["status 503", "status 429", "short", "nonsense"])
def test_what_may_be_over_is_tried_again(server: FailingServer, fetched: Fetched, fault: str) -> None:
    server.faults = [fault]
    fetched(server.url)
    assert fetched.there() == {"images.gz": CONTENT}
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("status 404", "answers with HTTP 404"),
        ("long", "sends more than the 256000 bytes that the file has"),
        ("long-said", "offers 256004 bytes where 256000 are expected"),
        ("redirect ftp://127.0.0.1/x", "redirects from http to ftp, which is not followed"),
        ("redirect file:///etc/hosts", "answers with HTTP 302"),
    ],
)
def test_what_is_refused_is_not_tried_again(server: FailingServer, fetched: Fetched, fault: str, words: str) -> None:
    server.faults = [fault] * 9
    with pytest.raises(SeatrialError, match=words):
        fetched(server.url)
    assert len(server.requests) == 1
    assert fetched.there() == {}


def test_a_broken_download_goes_on_where_it_stopped(server: FailingServer, fetched: Fetched) -> None:
    server.faults = ["short", "status 404"]
    with pytest.raises(SeatrialError, match="HTTP 404"):
        fetched(server.url)
    assert fetched.there() == {"images.gz.part": CONTENT[: len(CONTENT) // 2]}
    fetched(server.url)
    assert fetched.there() == {"images.gz": CONTENT}
    assert server.requests[-1][1] == f"bytes={len(CONTENT) // 2}-"


def test_a_download_that_breaks_ends_well_as_long_as_each_try_gains(server: FailingServer, fetched: Fetched) -> None:
    server.faults = ["bit"] * 9
    fetched(server.url, patience=Patience(idle_s=20.0, rounds=1, pause_s=0.01))
    assert fetched.there() == {"images.gz": CONTENT}
    assert [asked for _, asked in server.requests] == [None, *(f"bytes={n * 50_000}-" for n in range(1, 6))]


def test_tries_that_gain_nothing_come_to_an_end(server: FailingServer, fetched: Fetched) -> None:
    server.faults = ["short"] * 9
    with pytest.raises(SeatrialError, match="the connection ended at byte 128000 of 256000"):
        fetched(server.url)
    assert len(server.requests) == 1 + PATIENT.rounds


def test_a_server_that_knows_no_ranges_begins_again(server: FailingServer, fetched: Fetched) -> None:
    server.faults = ["short", "no-range"]
    fetched(server.url)
    assert fetched.there() == {"images.gz": CONTENT}
    assert server.requests[1][1] is not None


@pytest.mark.parametrize(
    "content_range", ["bytes 0-255999/256000", "bytes 128000-255999/9999", "bytes */256000", "nothing"]
)
def test_a_range_that_was_not_asked_for_is_refused(server: FailingServer, fetched: Fetched, content_range: str) -> None:
    server.faults = ["short", f"range {content_range}"]
    words = re.escape(f"was asked for bytes 128000 to 255999 and offers {content_range}")
    with pytest.raises(SeatrialError, match=words):
        fetched(server.url)
    assert fetched.there() == {"images.gz.part": CONTENT[: len(CONTENT) // 2]}


@pytest.mark.parametrize("size_bytes", [1_000, len(CONTENT), len(CONTENT) + 5])
def test_a_part_of_another_file_is_noticed_and_begun_again(
    server: FailingServer, fetched: Fetched, size_bytes: int
) -> None:
    place = fetched.folder / "set"
    place.mkdir(parents=True)
    (place / "images.gz.part").write_bytes(b"x" * size_bytes)
    fetched(server.url)
    assert fetched.there() == {"images.gz": CONTENT}
    assert server.requests[-1][1] is None
    assert any("starting it again" in line for line in fetched.lines)


@pytest.mark.parametrize("name", ["images.gz.part", ".images.gz.lock"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_neighbor_plants_is_not_written_through(
    server: FailingServer, fetched: Fetched, kind: str, name: str
) -> None:
    path = fetched.folder / "set" / name
    path.parent.mkdir(parents=True)
    HOSTILE[kind][0](path)
    server.faults = ["other"] * 2
    with pytest.raises(SeatrialError, match=r"\w") as caught:
        fetched(server.url)
    if (kind, name) != ("hard link", ".images.gz.lock"):
        assert f"{name} is {HOSTILE[kind][1]}" in str(caught.value)
    assert_unharmed(path)


def test_a_link_to_the_right_bytes_does_not_become_the_data(
    server: FailingServer, fetched: Fetched, tmp_path: Path
) -> None:
    path = fetched.folder / "set" / "images.gz.part"
    path.parent.mkdir(parents=True)
    (tmp_path / "theirs").write_bytes(CONTENT)
    path.symlink_to(tmp_path / "theirs")
    with pytest.raises(SeatrialError, match="a symbolic link"):
        fetched(server.url)
    assert not (fetched.folder / "set" / "images.gz").exists()


def test_the_name_of_a_holder_cannot_color_a_terminal(server: FailingServer, fetched: Fetched) -> None:
    path = fetched.folder / "set" / ".images.gz.lock"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x1b[31m\nError: forged")
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SeatrialError, match="has held the lock") as caught:
            fetched(server.url, patience=replace(PATIENT, lock_s=0.0))
    assert "\x1b" not in "".join(fetched.lines) + str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_checksum_everywhere_keeps_nothing_and_names_both(server: FailingServer, fetched: Fetched) -> None:
    expected, other = (hashlib.sha256(content).hexdigest() for content in (CONTENT, bytes(x ^ 1 for x in CONTENT)))
    server.faults = ["other"] * 2
    with pytest.raises(SeatrialError, match=f"its SHA-256 is {other}, expected {expected}") as caught:
        fetched(f"{server.url}first/", f"{server.url}second/")
    assert "/first/ has a different file" in str(caught.value)
    assert "/second/ has a different file" in str(caught.value)
    assert fetched.there() == {}


def test_a_folder_that_is_exchanged_meanwhile_keeps_its_file(
    server: FailingServer, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fetched.folder / "set"
    place.mkdir(parents=True)
    (place / "images.gz").write_bytes(b"damaged")

    def exchanged(path: Path, opened: int) -> str:
        place.rename(fetched.folder / "moved")
        place.mkdir()
        return leading_link(path, opened)

    monkeypatch.setattr(fetching, "leading_link", exchanged)
    with pytest.raises(SeatrialError, match="was exchanged meanwhile"):
        fetched(server.url)
    assert (fetched.folder / "moved" / "images.gz").read_bytes() == b"damaged"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["images.gz", "images.gz.part"])
def test_no_file_behind_a_link_of_another_user_changes(
    server: FailingServer, fetched: Fetched, name: str, tmp_path: Path
) -> None:
    (mine := tmp_path / "mine").mkdir()
    (mine / name).write_bytes(b"half of mine")
    fetched.folder.mkdir(parents=True)
    (link := fetched.folder / "set").symlink_to(mine)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    words = f"{link} is a link of user 12345, and has led to a file of this name, which stays as it is"
    with pytest.raises(SeatrialError, match=re.escape(words)):
        fetched(server.url)
    assert (mine / name).read_bytes() == b"half of mine"
    (mine / name).unlink()
    fetched(server.url)
    assert (mine / "images.gz").read_bytes() == CONTENT


def test_a_file_that_grows_while_it_is_read_is_wrong(fetched: Fetched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may let it grow to exabytes, which no disk has to hold."""
    place = fetched.folder / "set"
    place.mkdir(parents=True)
    (place / "images.gz").write_bytes(bytes(len(CONTENT)))

    class Growing(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            with (place / "images.gz").open("r+b") as other:
                other.truncate(1 << 40)
            return super().read(size)

    monkeypatch.setattr(fetching, "open_to_read", Growing)
    fault = fetching._fault(place / "images.gz", published({"images.gz": CONTENT}, ()).downloads[0])
    assert fault is not None
    assert "its SHA-256 is" in fault


def test_a_damaged_file_is_replaced_only_when_there_is_a_right_one(server: FailingServer, fetched: Fetched) -> None:
    place = fetched.folder / "set"
    place.mkdir(parents=True)
    (place / "images.gz").write_bytes(b"damaged")
    server.faults = ["status 404"]
    with pytest.raises(SeatrialError):
        fetched(server.url)
    assert fetched.there() == {"images.gz": b"damaged"}
    fetched(server.url)
    assert fetched.there() == {"images.gz": CONTENT}
    assert any("it has 7 bytes, expected 256000; fetching it again" in line for line in fetched.lines)


@pytest.mark.parametrize("fault", ["silent", "slow-head", "stalled"])
def test_no_silence_is_waited_for_for_ever(server: FailingServer, fetched: Fetched, fault: str) -> None:
    server.faults = [fault] * 9
    with pytest.raises(SeatrialError, match=r"sent nothing for 0\.3 s|gave no complete answer within 0\.6 s"):
        fetched(server.url, patience=HASTY)


@pytest.mark.parametrize("fault", ["slow-body", "trailers-without-end"])
def test_a_trickle_ends_with_the_time_for_all(server: FailingServer, fetched: Fetched, fault: str) -> None:
    server.faults = [fault] * 9
    with pytest.raises(SeatrialError, match=r"the time limit of the download is over|gave no complete answer"):
        fetched(server.url, patience=Patience(idle_s=20.0, total_s=0.3, rounds=1))
    assert "images.gz" not in fetched.there()


def _addresses(monkeypatch: pytest.MonkeyPatch, hosts: list[str], port: int) -> None:
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)


def test_silent_addresses_of_a_mirror_share_the_time_of_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers for the DNS server says how many there are."""
    now, attempts = 1_000.0, list[float]()

    def connect(self: socket.socket, place: object) -> None:
        nonlocal now
        attempts.append(now)
        now += self.gettimeout() or 0.0
        raise TimeoutError

    _addresses(monkeypatch, [f"10.9.0.{number}" for number in range(200)], 80)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(transfer, "_start_timer", lambda *_: threading.Timer(0.0, lambda: None))
    monkeypatch.setattr(threading.Timer, "join", lambda self: None)
    monkeypatch.setattr(socket.socket, "connect", connect)
    with (
        pytest.raises(BrokenTransferError, match=r"^gave no complete answer within 30 s$"),
        transfer._answer("http://mirror.example/f", 0, 20.0, 1_030.0),
    ):
        pass
    assert attempts == [1_000.0, 1_020.0]


def test_of_many_addresses_that_refuse_the_first_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[object] = []

    def connect(self: socket.socket, place: object) -> None:
        attempts.append(place)
        raise ConnectionRefusedError

    _addresses(monkeypatch, [f"10.9.0.{number}" for number in range(200)], 80)
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(ConnectionRefusedError):
        transfer._connect(("mirror.example", 80), 20.0, time.monotonic() + 60.0)
    assert attempts == [(f"10.9.0.{number}", 80) for number in range(8)]


def test_an_address_behind_one_that_refuses_is_found(server: FailingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(server.url.rpartition(":")[2].strip("/"))
    _addresses(monkeypatch, ["127.0.0.9", "127.0.0.1"], port)
    with transfer._connect(("mirror.example", port), 20.0, time.monotonic() + 60.0) as connection:
        assert connection.getpeername() == ("127.0.0.1", port)
        assert connection.gettimeout() == 20.0


@pytest.mark.parametrize("proxy", ["", "http://"])
def test_a_handshake_of_tls_ends_with_the_time_for_an_answer(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hellos: list[bytes] = []
    ended = threading.Event()

    def keep_silent(server: socket.socket) -> None:
        with suppress(TimeoutError), server.accept()[0] as connection:
            connection.settimeout(3.0)
            if proxy and connection.recv(10_000):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while hello := connection.recv(10_000):
                hellos.append(hello[:1])
            ended.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(3.0)
        place = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("https_proxy", proxy and f"{proxy}{place}")
        monkeypatch.setenv("no_proxy", "")
        thread = threading.Thread(target=keep_silent, args=(server,))
        thread.start()
        with (
            pytest.raises(BrokenTransferError, match=r"^gave no complete answer within 0\.\d+ s$"),
            transfer._answer(f"https://{place}/f", 0, 20.0, time.monotonic() + 0.5),
        ):
            pass
        thread.join()
    assert hellos[:1] == [b"\x16"]
    assert ended.is_set()


def test_a_connection_that_is_made_after_the_time_asks_for_nothing(
    server: FailingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(_: float, opened: list[socket.socket], given_up: threading.Event) -> threading.Timer:
        transfer._break(opened, given_up)
        timer = threading.Timer(0.0, lambda: None)
        timer.start()
        return timer

    monkeypatch.setattr(transfer, "_start_timer", at_once)
    with (
        pytest.raises(BrokenTransferError, match=r"^gave no complete answer within 40 s$"),
        transfer._answer(f"{server.url}images.gz", 0, 20.0, time.monotonic() + 60.0),
    ):
        pass
    assert server.requests == []


def test_a_redirect_is_followed_to_another_server(server: FailingServer, fetched: Fetched) -> None:
    with FailingServer(files=server.files) as other:
        server.faults = [f"redirect {other.url}moved/images.gz", "short"]
        fetched(server.url)
    assert fetched.there() == {"images.gz": CONTENT}
    assert other.requests == [("/moved/images.gz", None)]


def test_a_redirect_without_end_is_refused(server: FailingServer, fetched: Fetched) -> None:
    server.faults = [f"redirect {server.url}{number}/images.gz" for number in range(30)]
    with pytest.raises(SeatrialError, match="answers with HTTP 302 The HTTP server returned a redirect error"):
        fetched(server.url)


def test_what_comes_with_a_redirect_is_not_read(server: FailingServer, fetched: Fetched) -> None:
    """It may have no end, and urllib would keep it in memory."""
    server.faults = [f"redirect-without-end {server.url}moved/images.gz"]
    fetched(server.url, patience=HASTY)
    assert fetched.there() == {"images.gz": CONTENT}


@pytest.mark.parametrize("there", ["http://host/x", "ftp://host/x", "file:///x", "data:,x"])
def test_a_redirect_never_steps_down_from_https(there: str) -> None:
    request = urllib.request.Request("https://host/x")
    with pytest.raises(RefusedTransferError, match="which is not followed"):
        _Redirects().redirect_request(request, io.BytesIO(), 302, "Found", Message(), there)


def test_the_proxy_of_the_environment_is_asked(
    server: FailingServer, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    fetched("http://mirror.invalid/sets/")
    assert server.requests == [("http://mirror.invalid/sets/images.gz", None)]


def test_no_reachable_mirror_is_one_sentence_with_ways_out(fetched: Fetched) -> None:
    with pytest.raises(SeatrialError, match=r"images\.gz could not be fetched: http://127\.0\.0\.1:1/ .*--mirror URL"):
        fetched("http://127.0.0.1:1/")


_ONE_OF_MANY = """
import sys
from pathlib import Path
from seatrial.training.data.fetch import fetch
from seatrial.training.data.datasets import DataSet, Download
url, folder, size_bytes, sha256 = sys.argv[1:]
download = Download(name="images.gz", size_bytes=int(size_bytes), sha256=sha256)
dataset = DataSet(name="set", downloads=(download,), mirrors=(url,))
sys.stdin.read()  # until all are ready
fetch(dataset, Path(folder), print_status=print, on_bytes=lambda download, size_bytes: None)
assert "torch" not in sys.modules
"""


def test_eight_processes_with_nothing_there_cause_one_fetch(server: FailingServer, fetched: Fetched) -> None:
    server.faults = ["short"]
    arguments = [server.url, str(fetched.folder), str(len(CONTENT)), hashlib.sha256(CONTENT).hexdigest()]
    command = [sys.executable, "-c", _ONE_OF_MANY, *arguments]
    many = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(8)
    ]
    for process in many:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    outputs = [process.communicate(timeout=50)[0] for process in many]
    assert [process.returncode for process in many] == [0] * 8, outputs
    assert fetched.there() == {"images.gz": CONTENT}
    assert server.requests == [("/images.gz", None), ("/images.gz", f"bytes={len(CONTENT) // 2}-")]


def test_the_wait_for_a_lock_is_bounded_and_announced(server: FailingServer, fetched: Fetched) -> None:
    place = fetched.folder / "set"
    place.mkdir(parents=True)
    with (place / ".images.gz.lock").open("w") as lock:
        lock.write("process 7 on node3")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        (place / ".images.gz.lock").chmod(0o644)
        with pytest.raises(SeatrialError, match=r"process 7 on node3 has held the lock .*images\.gz\.lock") as caught:
            fetched(server.url, patience=HASTY)
    assert "process 7 on node3 is fetching it" in fetched.lines[0]
    for text in (fetched.lines[0], str(caught.value)):
        assert f"a user who can read {place / '.images.gz.lock'} holds this lock" in text
    assert server.requests == []
    fetched(server.url)


def test_a_folder_that_cannot_be_written_is_named(server: FailingServer, fetched: Fetched) -> None:
    fetched.folder.write_text("a file in its place")
    with pytest.raises(SeatrialError, match=rf"cannot write .* to {fetched.folder}/set \(.*--data"):
        fetched(server.url)


def test_a_full_disk_is_found_before_any_request(server: FailingServer, fetched: Fetched) -> None:
    download = Download(name="images.gz", size_bytes=2**60, sha256="0" * 64)
    dataset = DataSet(name="set", downloads=(download,), mirrors=(server.url,))
    with pytest.raises(SeatrialError, match=f"needs {2**60} more bytes and .* free"):
        fetch(dataset, fetched.folder, print_status=fetched.lines.append, on_bytes=lambda *_: None)
    assert server.requests == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mirror",
        "ftp://host/",
        "file:///data",
        "https://",
        "https://host/?key=1",
        "http://[/",
        "http://h/a b",
        "http://h\n/",
    ],
)
def test_a_mirror_that_is_no_plain_url_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--mirror"):
        mirror_url(text)


def test_a_password_in_a_mirror_is_refused_and_not_repeated() -> None:
    with pytest.raises(RequestError) as caught:
        mirror_url("https://me:hunter2@host/data")
    assert "hunter2" not in str(caught.value)


def test_a_mirror_may_end_with_or_without_a_slash() -> None:
    assert mirror_url("http://host/data") == mirror_url("http://host/data/") == "http://host/data/"


def test_what_is_published_is_pinned_and_comes_over_https() -> None:
    assert sorted(DATASETS) == ["cifar10", "fashion-mnist", "mnist"]
    for dataset in DATASETS.values():
        assert all(mirror.startswith("https://") and mirror_url(mirror) == mirror for mirror in dataset.mirrors)
        assert len(dataset.mirrors) >= 2
        for download in dataset.downloads:
            assert len(bytes.fromhex(download.sha256)) == 32
            assert 4_000 < download.size_bytes < 2**28
            assert os.path.basename(download.name) == download.name


def test_what_comes_in_the_place_of_the_folder_is_not_used(server: FailingServer, fetched: Fetched) -> None:
    """As a neighbor's file system, mounted there during the download, which answers nothing for ever."""
    (place := fetched.folder / "set").mkdir(parents=True)
    moved = fetched.folder / "moved"

    def exchange(line: str) -> None:
        if not moved.exists():
            place.rename(moved)
            place.symlink_to("/nowhere")

    dataset = published({"images.gz": CONTENT}, (server.url,))
    paths = fetch(dataset, fetched.folder, print_status=exchange, on_bytes=lambda *_: None, patience=PATIENT)
    assert paths == [place / "images.gz"]
    assert (moved / "images.gz").read_bytes() == CONTENT
    assert place.is_symlink()
