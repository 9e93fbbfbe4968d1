"""The fingerprint of everything that decides bits: each part changes it, and nothing else does."""

from __future__ import annotations

from pathlib import Path

from seatrial.probe.arithmetic import arithmetic

CPUINFO = """processor\t: 0
cpu family\t: 6
model\t\t: 85
model name\t: A CPU
cpu MHz\t\t: 2500.0
flags\t\t: fpu fma avx avx2 smep

processor\t: 1
cpu family\t: 6
"""


def _machine(
    root: Path, *, cpuinfo: str = CPUINFO, cache: str = "1024K", libraries: dict[str, int] | None = None
) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(cpuinfo)
    level = root / "sys/devices/system/cpu/cpu0/cache/index2"
    level.mkdir(parents=True)
    (level / "size").write_text(f"{cache}\n")
    lines = ["7f00-7f01 r-xp 00000000 08:01 42 [stack]"]
    for name, size_bytes in (libraries or {"libtorch_cpu.so": 8, "libgomp.so.1": 4, "other.so": 2}).items():
        (root / name).write_bytes(bytes(size_bytes))
        lines += [f"7f00-7f01 {mode} 00000000 08:01 42                 {root / name}" for mode in ("r--p", "r-xp")]
    (root / "proc/self/maps").write_text("\n".join(lines))
    return root


def test_everything_that_decides_bits_changes_the_fingerprint(tmp_path: Path) -> None:
    settings = {"MKL_CBWR": "AVX2", "HOME": "/root"}
    plain = arithmetic(2, root=_machine(tmp_path / "plain"), environ=settings)
    assert plain.startswith("units 2, cpu ")
    others = {
        "flags": _machine(tmp_path / "flags", cpuinfo=CPUINFO.replace("avx2", "avx2 avx512f")),
        "model": _machine(tmp_path / "model", cpuinfo=CPUINFO.replace("85", "106")),
        "cache": _machine(tmp_path / "cache", cache="2048K"),
        "size": _machine(tmp_path / "size", libraries={"libtorch_cpu.so": 9, "libgomp.so.1": 4}),
        "another": _machine(tmp_path / "another", libraries={"libtorch_cpu.so": 8, "libiomp5.so": 4}),
    }
    fingerprints = {name: arithmetic(2, root=root, environ=settings) for name, root in others.items()}
    fingerprints["units"] = arithmetic(1, root=tmp_path / "plain", environ=settings)
    fingerprints["settings"] = arithmetic(2, root=tmp_path / "plain", environ={})
    fingerprints["plain"] = plain
    assert len(set(fingerprints.values())) == len(fingerprints)


def test_what_decides_no_bits_does_not_count(tmp_path: Path) -> None:
    plain = arithmetic(2, root=_machine(tmp_path / "plain"), environ={})
    faster = CPUINFO.replace("2500.0", "3100.0").replace("smep", "smap md_clear")
    more = {"other.so": 3, "libgomp.so.1": 4, "libtorch_cpu.so": 8}
    root = _machine(tmp_path / "like", cpuinfo=faster, libraries=more)
    assert arithmetic(2, root=root, environ={"RANK": "3", "OMP_PLACES": "cores"}) == plain


def test_unreadable_sources_still_give_a_fingerprint(tmp_path: Path) -> None:
    assert arithmetic(1, root=tmp_path, environ={}).startswith("units 1, cpu ")
    root = _machine(tmp_path / "gone")
    there = arithmetic(1, root=root, environ={})
    (root / "libtorch_cpu.so").unlink()
    assert arithmetic(1, root=root, environ={}) != there
