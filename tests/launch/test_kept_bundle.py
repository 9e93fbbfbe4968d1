"""The file that travels is built once for each state of the source, and only our own copy is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.launch import bundle


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], int]:
    """How often it was built; to build the real one takes seconds."""
    calls = []

    def pack(files: dict[str, bytes], beside: bytes) -> bytes:
        calls.append(1)
        return b"built %d" % len(calls)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bundle, "pack", pack)
    monkeypatch.setattr(bundle, "contents", dict)
    monkeypatch.setattr(bundle, "more", bytes)
    return lambda: len(calls)


def test_it_is_built_once(builds: Callable[[], int]) -> None:
    assert [bundle.kept_bundle(), bundle.kept_bundle()] == [b"built 1"] * 2
    assert builds() == 1


def test_a_change_of_the_source_builds_it_anew(builds: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.kept_bundle()
    files = {**bundle.package_files(), next(iter(bundle.package_files())): b"# changed\n"}
    monkeypatch.setattr(bundle, "package_files", lambda wanted=bundle.travels: files)
    assert bundle.kept_bundle() == b"built 2"


def test_what_others_may_write_is_not_taken(builds: Callable[[], int], tmp_path: Path) -> None:
    bundle.kept_bundle()
    (file,) = (tmp_path / "cache" / "seatrial").iterdir()
    file.write_bytes(b"somebody else's")
    file.chmod(0o666)
    assert bundle.kept_bundle() == b"built 2"
    assert file.read_bytes() == b"built 2"


def test_a_link_of_somebody_is_not_followed(builds: Callable[[], int], tmp_path: Path) -> None:
    bundle.kept_bundle()
    (file,) = (tmp_path / "cache" / "seatrial").iterdir()
    file.unlink()
    other = tmp_path / "other"
    other.write_bytes(b"somebody else's")
    file.symlink_to(other)
    assert bundle.kept_bundle() == b"built 2"
    assert not file.is_symlink()


def test_without_a_place_to_keep_it_it_is_built(builds: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert [bundle.kept_bundle(), bundle.kept_bundle()] == [b"built 1", b"built 2"]
