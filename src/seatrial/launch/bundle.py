"""The file that travels: an executable zip of our own code, byte for byte the same wherever it is built.

    seatrial.pyz
    ├── __main__.py             looks at the Python, then calls launch/pyz.py
    └── seatrial/
        ├── __init__.py         the package
        ├── packed.py           from here on its modules come from the next
        └── packed.bin          all rooms but cli, and of report only what needs no other package
    seatrial.pyz.more           who is at fault on links: packed like packed.bin, taken where it lies beside the file

Comments, docstrings, types and ``__all__`` become blanks: the numbers of lines in a traceback stay those of the
source. TOML becomes JSON, which Python 3.10 can read. Compressed by bz2, which packs our code tighter than zlib and
lzma do, and of which there is one implementation: zlib's bytes are not the same everywhere. Before that our most
frequent words become characters. To read what is in it:
``PYTHONPATH=seatrial.pyz python3 -c "import inspect, seatrial.agent.main as it; print(inspect.getsource(it))"``.
"""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import io
import json
import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import seatrial
from seatrial import packed
from seatrial.errors import RequestError
from seatrial.launch import strip
from seatrial.report.files import replace
from seatrial.report.parts import OPTIONAL
from seatrial.report.text import printable

__all__ = ["Bundle", "contents", "kept_bundle", "more", "pack", "package_files", "travels", "write_bundle"]

_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can tell."""
_LEAST_BYTES = 1_000
"""Of a file by itself; of smaller ones that tells nothing of how they do among others."""

_WORD = re.compile("[A-Za-z]{3,}")
_MOST_WORDS = 1_175
"""With more of them the list grows by more than the rest shrinks."""

# Whatever Python it is given to must be able to read this much, Python 2 included.
_MAIN = b"""import sys
if sys.version_info < (3, 10):
    sys.stderr.write(
        "Error: %s is Python %d.%d, and seatrial needs Python 3.10 or newer; start the file with a newer one.\\n"
        % ((sys.executable,) + tuple(sys.version_info[:2]))
    )
    sys.exit(2)
try:
    import bz2
except ImportError:
    sys.stderr.write(
        "Error: %s was built without bz2, in which this file is packed; start it with the Python of a distribution.\\n"
        % sys.executable
    )
    sys.exit(2)
from seatrial.launch.pyz import main
if __name__ == "__main__":
    main()
"""

# A process that is started with the file in its PYTHONPATH comes this way, too.
_INSTALL = """
from seatrial import packed
packed.install_here({!r})
"""

_ZIPPED = ("__init__.py", "packed.py")
"""What Python itself reads out of the zip."""
_MORE = ("checks/_beside_words.py", "checks/_links_judge.py", "checks/_links_words.py", "verdict/culprits")
"""What lies beside it: 15 kB for which there is no room in a ConfigMap with the rest."""
_LEFT_OUT = (
    "cli",
    "__main__.py",
    "py.typed",
    "kubernetes",
    "launch/bundle.py",
    "launch/kubectl.py",
    "launch/kubernetes.py",
    *(f"launch/kubernetes_{name}.py" for name in ("access", "live", "log", "made", "options", "told")),
    "launch/strip.py",
    # Targets for which seatrial is installed where they are started from.
    *(f"launch/{name}.py" for name in ("hosts", "ssh", "ssh_hosts", "ssh_landing", "ssh_survey")),
    *(f"launch/{name}.py" for name in ("mpirun", "mpi_launchers", "launchers", "launcher_words", "unseen")),
    *(f"launch/{name}.py" for name in ("slurm", "slurm_driver", "slurm_words")),
    # It needs mpi4py, which an image that has it can have beside an installation.
    *("mpi.py", "worker/mpi.py", "worker/mpi_group.py", "worker/mpi_lane.py", "worker/mpi_library.py"),
    *("worker/mpi_memory.py", "worker/mpi_staging.py", "worker/mpi_types.py", "worker/mpi_work.py"),
    *_MORE,
    "training/data/fetch.py",
    "training/data/transfer.py",
    *(f"report/{name}.py" for name in OPTIONAL),
    "report/page.html.j2",
    "report/schema.json",
)
"""Files and folders in the package: what needs other packages, and what is for those who have it installed."""
_LEFT_OUT_PREFIXES = tuple(f"{name}/" for name in _LEFT_OUT)
_MORE_PREFIXES = tuple(f"{name}/" for name in _MORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A file that was written."""

    file: Path
    size_bytes: int
    sha256: str


def write_bundle(file: Path) -> tuple[Bundle, Bundle]:
    """Build it in place of ``file``, and what lies beside it. Raises RequestError when nothing can be written there."""
    try:
        if file.exists() and not stat.S_ISREG(file.stat().st_mode):
            raise RequestError(f"{file} is there and is no file; name a file to be written, such as seatrial.pyz.")
        if not file.parent.is_dir():
            raise RequestError(f"{file}: there is no folder {file.parent}; make it, or name another place.")
        beside = more()
        # A link stays one: what it leads to is replaced, and beside that the rest is looked for.
        place = file.resolve()
        second = place.with_name(f"{place.name}{packed.MORE}")
        made = {second: beside, file: pack(contents(), beside)}
        replace(second, beside, 0o644)
        replace(place, made[file], 0o755)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RequestError(f"{printable(str(file))}: it cannot be written ({why}); name another place.") from error
    told = {
        path: Bundle(file=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for path, content in made.items()
    }
    return told[file], told[second]


def travels(path: PurePosixPath) -> bool:
    """Whether a file of the package, by its path in there, is in the bundle."""
    if any(part.startswith(".") or part == "__pycache__" for part in path.parts):
        return False
    return not f"{path}/".startswith(_LEFT_OUT_PREFIXES)


def _travels_beside(path: PurePosixPath) -> bool:
    return path.suffix == ".py" and f"{path}/".startswith(_MORE_PREFIXES)


def kept_bundle() -> bytes:
    """The file that travels, built once for each state of the source: to build it takes seconds.

    It is kept in the user's own cache folder. What anybody else could have written there is not taken.
    """
    digest = hashlib.sha256()
    makers = {PurePosixPath(path): Path(path).read_bytes() for path in (__file__, strip.__file__)}
    for inside, content in sorted({**package_files(), **package_files(_travels_beside), **makers}.items()):
        digest.update(f"{inside} {len(content)}\n".encode() + content)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatrial"
    file = folder / f"{digest.hexdigest()}.pyz"
    with contextlib.suppress(OSError), open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as kept:
        seen = os.fstat(kept.fileno())
        if seen.st_uid == os.getuid() and stat.S_ISREG(seen.st_mode) and not seen.st_mode & 0o022:
            return kept.read()
    content = pack(contents(), more())
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(file, content)
    return content


def package_files(wanted: Callable[[PurePosixPath], bool] = travels) -> dict[PurePosixPath, bytes]:
    """What travels of the package that is running, by path in it, as it is in the source."""
    root = Path(seatrial.__file__).parent
    files = {PurePosixPath(path.relative_to(root).as_posix()): path for path in root.rglob("*") if path.is_file()}
    return {inside: path.read_bytes() for inside, path in files.items() if wanted(inside)}


def contents(wanted: Callable[[PurePosixPath], bool] = travels) -> dict[str, bytes]:
    """The files of the running package as they travel, by their paths in it; what cannot be made smaller last."""
    made = (_made_small(path, content) for path, content in package_files(wanted).items())
    found = {str(path): content for path, content in made}
    return {name: found[name] for name in sorted(found, key=lambda name: (_is_dense(found[name]), name))}


def _is_dense(content: bytes) -> bool:
    return len(bz2.compress(content)) >= len(content) > _LEAST_BYTES


@cache
def _made_small(path: PurePosixPath, content: bytes) -> tuple[PurePosixPath, bytes]:
    if path.suffix == ".py":
        return path, strip.stripped(content.decode().replace("\r\n", "\n")).encode()
    if path.suffix == ".toml":
        import tomllib

        return path.with_suffix(".json"), _compact(tomllib.loads(content.decode()))
    if path.suffix == ".json":
        return path, _compact(json.loads(content))
    return path, content


def _compact(table: object) -> bytes:
    return json.dumps(table, separators=(",", ":"), allow_nan=False).encode()


def more() -> bytes:
    """What lies beside the file that travels."""
    return _stream(contents(_travels_beside))


def _stream(files: dict[str, bytes]) -> bytes:
    index = _compact([[name, len(content)] for name, content in files.items()])
    small = b"".join(content for content in files.values() if not _is_dense(content))
    dense = b"".join(content for content in files.values() if _is_dense(content))
    return bz2.compress(_in_codes((index + b"\n" + small).decode()).encode()) + dense


def pack(files: dict[str, bytes], beside: bytes) -> bytes:
    """An executable zip of the files, in their order, without times, owners and modes of this machine.

    ``beside``: what may lie beside it; nothing else is taken.
    """
    entries = {
        "__main__.py": _MAIN,
        "seatrial/__init__.py": files["__init__.py"] + _INSTALL.format(hashlib.sha256(beside).hexdigest()).encode(),
        "seatrial/packed.py": files["packed.py"],
        f"seatrial/{packed.STREAM}": _stream({name: files[name] for name in files if name not in _ZIPPED}),
    }
    made = io.BytesIO()
    made.write(_SHEBANG)
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, content, zipfile.ZIP_STORED)
    return made.getvalue()


def _in_codes(text: str) -> str:
    """The words that have codes on the first line, then the text with the codes in their place."""
    if not {*map(ord, text)}.isdisjoint(packed.CODES):
        raise ValueError("the source holds a character that stands for a word in the file")
    count = Counter(_WORD.findall(text))
    # What it saves: once it stands in the list itself.
    chosen = sorted(count, key=lambda word: ((1 - count[word]) * (len(word) - 2), word))[:_MOST_WORDS]
    chosen.sort(key=lambda word: (-count[word], word))
    # The codes of one byte for the most frequent ones; the others as they appear: bz2 likes neighbours to be alike.
    short = sum(code < 0x80 for code in packed.CODES)
    rest = set(chosen[short:])
    words = chosen[:short] + [word for word in count if word in rest]
    code_of = dict(zip(words, map(chr, packed.CODES), strict=False))
    return f"{' '.join(words)}\n" + _WORD.sub(lambda found: code_of.get(found[0], found[0]), text)
