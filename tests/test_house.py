"""The rules of the project that no tool checks."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 600


def _files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_OPTIONAL = {"click", "junitparser", "mpi4py", "rich", "yaml"}
"""Packages that the bundle does without: what needs one is left out, or says that it is missing."""


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path), feature_version=(3, 10))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_file_is_too_long() -> None:
    files = _files("src", "tests", "tools", "bench", "deploy")
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert lengths["tests/test_house.py"] > 0
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_the_bundle_is_python_3_10_without_other_packages() -> None:
    allowed = {*sys.stdlib_module_names, "seatrial", "torch", *_OPTIONAL}
    trees = {_name(path): _tree(path) for path in _files("src")}
    assert len(trees) > 300
    imports = [(module, name) for module, tree in trees.items() for name in _imports(tree)]
    assert ("seatrial.rank.device", "torch") in imports
    assert [(module, name) for module, name in imports if name.split(".")[0] not in allowed] == []


def test_no_files_import_one_another() -> None:
    """Imports inside functions count, those for types alone too."""
    trees = {_name(path): _tree(path) for path in _files("src")}
    imports = {name: {user for user in _modules(tree, trees) if user != name} for name, tree in trees.items()}
    assert len(imports) > 300
    while free := {name for name, used in imports.items() if not used & imports.keys()}:
        imports = {name: used for name, used in imports.items() if name not in free}
    assert imports == {}, "what is left imports itself by way of others"


def _modules(tree: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module


def test_the_controller_never_loads_torch() -> None:
    modules = [_name(path) for path in _files("src") if path.stem != "__main__"]
    ranks = (
        "seatrial.worker.",
        "seatrial.training.",
        "seatrial.mpi",
        *(f"seatrial.rank.{name}_store" for name in ("gloo", "page")),
        *(f"seatrial.checks.training.{name}" for name in ("alone", "one_batch", "runs")),
    )
    controller = [name for name in modules if not name.startswith(ranks)]
    assert "seatrial.plan.plan_reader" in controller
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, *controller]
    assert subprocess.check_output(command, text=True) == "False\n"


_OPENS_TO_WRITE = {
    "seatrial.files": "the one place",
    "seatrial.environment.secret_variable": "the memory of this process",
    "seatrial.start": "sent as text, alone; it opens new files only, in folders that no other user can write to, and an"
    " empty one that it removes",
}
"""Modules that may open files for writing by their names, and why."""
_WRITING_CALLS = {
    *("write_text", "write_bytes", "touch", "mkstemp", "NamedTemporaryFile", "chmod", "lchmod", "mkfifo", "mknod"),
    *("copyfile", "copy2", "copytree", "copymode", "symlink", "symlink_to", "hardlink_to", "link", "link_to"),
    *("FileHandler", "RotatingFileHandler", "truncate", "renames"),
}
"""Calls that write to a file by its name, or that change what a name stands for, whoever's it is."""
_RENAMING_CALLS = {("os", "rename"), ("os", "replace"), ("shutil", "move"), ("shutil", "copy")}
_READING_FLAGS = {"O_RDONLY", "O_CLOEXEC", "O_NONBLOCK", "O_DIRECTORY", "O_NOFOLLOW", "O_PATH"}


def _writes_by_name(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of the calls that may write to a file by its name."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        value = getattr(function, "value", None)
        owner = value.id if isinstance(value, ast.Name) else ""
        texts = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        mode = next((word.value for word in call.keywords if word.arg == "mode"), None)
        texts += [mode.value] if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else []
        if name in _WRITING_CALLS or (owner, name) in _RENAMING_CALLS:
            yield call.lineno
        elif (owner, name) == ("os", "open"):
            flags = {node.attr for node in ast.walk(call.args[1]) if isinstance(node, ast.Attribute)}
            to_null = isinstance(call.args[0], ast.Attribute) and call.args[0].attr == "devnull"
            if not flags or (flags - _READING_FLAGS and not to_null):
                yield call.lineno
        elif name in ("open", "fdopen", "FileIO") and any(
            re.fullmatch("[rbt]*[wax+][waxrbt+]*", text) for text in texts
        ):
            yield call.lineno


def test_files_are_opened_for_writing_in_one_place() -> None:
    found = {_name(path): list(_writes_by_name(_tree(path))) for path in _files("src")}
    assert found["seatrial.files"], "the search finds what it has to find"
    assert {module: lines for module, lines in found.items() if lines and module not in _OPENS_TO_WRITE} == {}


@pytest.mark.parametrize(
    "code",
    [
        *("open(p, 'w')", "open(p, mode='ab')", "p.open('x')", "p.open(mode='r+')", "io.open(p, 'wt')"),
        *("os.open(p, os.O_RDWR)", "os.open(p, os.O_WRONLY | os.O_CREAT)", "os.open(p, flags)"),
        *("p.write_text(t)", "p.touch()", "os.chmod(p, 0)", "os.replace(p, q)", "tempfile.mkstemp()"),
    ],
)
def test_the_search_finds(code: str) -> None:
    assert list(_writes_by_name(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["open(p)", "open(p, 'rb')", "os.open(os.devnull, os.O_RDWR)", "os.open(p, os.O_RDONLY)", "t.replace(p, q)"]
)
def test_the_search_leaves_out(code: str) -> None:
    assert not list(_writes_by_name(ast.parse(code)))


_REMOVES_NAMES = {
    **dict.fromkeys(("seatrial.files", "seatrial.folders"), "the two places, by the descriptor of a folder"),
    "seatrial.start": "sent as text, alone; its folders are for this user alone",
    "seatrial.run.run_trial": "a folder without files, whose name is of this run alone",
}
"""Modules that may remove names or exchange them, and why: by its path a file may be one of another folder of this
user, which somebody who can rename has put in the place of the one that was looked at."""
_REMOVING_CALLS = {"unlink", "rmdir", "rmtree", "removedirs", "rename"}


def _removes_names(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of the calls that remove or exchange what lies at a path."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(function := call.func, ast.Attribute):
            is_of_os = isinstance(function.value, ast.Name) and function.value.id == "os"
            # ``Path.replace`` has one argument, ``str.replace`` two.
            is_path = function.attr == "replace" and len(call.args) == 1 and not call.keywords
            if function.attr in _REMOVING_CALLS or is_path or (is_of_os and function.attr in ("remove", "replace")):
                yield call.lineno
        # As an argument, for a later call.
        for argument in call.args:
            if isinstance(argument, ast.Attribute) and argument.attr in _REMOVING_CALLS:
                yield call.lineno


def test_names_are_removed_and_exchanged_by_descriptors() -> None:
    found = {_name(path) for path in _files("src") if [*_removes_names(ast.parse(path.read_text()))]}
    assert found == _REMOVES_NAMES.keys()


@pytest.mark.parametrize(
    "code",
    [
        *("os.unlink(p)", "p.unlink(missing_ok=True)", "os.remove(p)", "p.rmdir()", "shutil.rmtree(p)", "p.rename(q)"),
        *("p.replace(q)", "os.replace(p, q)", "atexit.register(shutil.rmtree, p)"),
    ],
)
def test_the_search_for_removals_finds(code: str) -> None:
    assert list(_removes_names(ast.parse(code)))


@pytest.mark.parametrize("code", ["t.replace(p, q)", "d.replace(tzinfo=z)", "names.remove(p)", "remove(p)"])
def test_the_search_for_removals_leaves_out(code: str) -> None:
    assert not list(_removes_names(ast.parse(code)))


_MAKES_FOLDERS = {
    "seatrial.folders": "the one place",
    "seatrial.start": "sent as text, alone; its folders are for this user alone",
    "seatrial.targets.kubernetes.manifest.pod": "the first program of a pod, in the text of the manifest",
}
"""Modules that may make folders, and why: a default access control list replaces the umask."""


def test_folders_are_made_in_one_place() -> None:
    found = {_name(path) for path in _files("src") if re.search(r"\b(mkdir|makedirs)\(", path.read_text())}
    assert found == _MAKES_FOLDERS.keys()


_KERNEL = "files of the kernel"
_READS_BY_NAME = {
    **dict.fromkeys(("seatrial.devices", "seatrial.rank.device", "seatrial.rank.faults"), _KERNEL),
    **dict.fromkeys(("seatrial.environment.secret_variable", "seatrial.agent.orphans"), _KERNEL),
    **dict.fromkeys(("seatrial.checks.storage.measure", "seatrial.run.external_launcher"), _KERNEL),
    **dict.fromkeys(("seatrial.targets.ssh.survey_hosts", "seatrial.start", "seatrial.files"), _KERNEL),
    **dict.fromkeys(("seatrial.probe", "seatrial.run.node_hosts"), "files in /etc and of the kernel"),
    "seatrial.targets.kubernetes.manifest": "files in /etc, and the ConfigMaps of a pod",
    "seatrial.mpi_backend.addresses": "files of the kernel",
    "seatrial.mpi_backend.library": "a library that this process has loaded, and files of the kernel",
    "seatrial.bundle": "the code itself",
    "seatrial.agent.program_ranks": "the Python that runs it",
}
"""Modules that open files to read them by their names, and which; files of others are read by ``files.py``."""
_UNOPENED = {"O_PATH", "O_DIRECTORY", "O_NOFOLLOW"}


def _reads_by_name(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of the calls that open a file by its name to read it, and that may be a terminal of a neighbor's,
    or one behind a link."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        value = getattr(function, "value", None)
        owner = value.id if isinstance(value, ast.Name) else ""
        if (owner, name) == ("os", "open"):
            words = {
                node.attr for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Attribute)
            }
            words |= {node.id for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Name)}
            if not words & {*_UNOPENED, "O_NOCTTY", "devnull", "_NEW", "_UNASKED"}:
                yield call.lineno
        elif (
            name in ("read_text", "read_bytes", "fromfile")
            or (name == "open" and isinstance(function, ast.Name))
            or (name == "load" and owner in ("torch", "np", "numpy"))
        ):
            yield call.lineno


def test_files_of_others_are_read_in_one_place() -> None:
    """A rank leads a session without a terminal: it would get one that it opens, and the owner could end it."""
    found = {_name(path) for path in _files("src") if [*_reads_by_name(_tree(path))]}
    read = {
        each: next((known for known in _READS_BY_NAME if f"{each}.".startswith(f"{known}.")), None) for each in found
    }
    assert sorted(each for each, known in read.items() if known is None) == []
    assert sorted({*_READS_BY_NAME} - {*read.values()}) == [], "they open none"


_ASKS_BY_NAME = {
    "seatrial.devices": "files of the kernel, and the log that root keeps of what it says",
    "seatrial.probe": "files of the kernel and of root, and libraries that this process has loaded",
    "seatrial.agent.py_spy": "beside the Python that runs it",
    "seatrial.agent.program_ranks": "a folder on whose way no other user could have put anything",
    "seatrial.targets.kubernetes.kubectl": "a file in /var/run",
    "seatrial.targets.mpirun.implementations": "files in /etc",
    "seatrial.bundle": "the code itself",
    "seatrial.checks.storage.tokens": "the names in the folder that was named, without a question about any of them",
    "seatrial.cli.commands.report": "what was named, which recorded_events.py has judged",
    "seatrial.cli.run_command": "the working folder",
    "seatrial.training.checkpoint": "the names in a folder that is open, without a question about any of them",
    "seatrial.training.data.dataset_files": "the folder of data, once nothing was found in it",
    **dict.fromkeys(("seatrial.files", "seatrial.folders"), "the names in a folder that is open"),
    "seatrial.start": "sent as text, alone; a name in its own folder, which is for this user alone",
}
"""Modules that ask a file system by the name of a file what is there, and of whose: another user may have mounted one
at that name (FUSE) that answers nothing, and nobody can end a process that waits for it."""
_ASKING_CALLS = {
    "os": {"stat", "lstat", "access", "listdir", "scandir", "walk", "statvfs"},
    "path": {"exists", "lexists", "isfile", "isdir", "islink", "ismount", "realpath", "samefile"}
    | {"getsize", "getmtime", "getatime", "getctime"},
}
"""Those of ``os`` and of ``os.path``."""
_ASKING_METHODS = {
    *("exists", "is_dir", "is_file", "is_symlink", "is_mount", "is_fifo", "is_socket", "is_block_device"),
    *("is_char_device", "stat", "lstat", "owner", "resolve", "samefile", "glob", "rglob", "iterdir"),
}
"""Those of ``pathlib.Path``, and of the entries of ``os.scandir``."""
_TAKES_ARGUMENTS = {"samefile", "glob", "rglob"}
_OF_KERNEL = re.compile(r"/(proc|sys|dev)(/|\Z)")


def _asks_by_name(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of what asks a file system by the name of a file, unless the name is one of the kernel's."""
    called = {node.func: node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
        call, value = called.get(node), node.value
        owner = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
        is_function = node.attr in _ASKING_CALLS.get(owner, ())
        # Others have methods of these names, too, which are given something.
        is_method = node.attr in _ASKING_METHODS and call is not None and owner != "os"
        if is_method and call is not None and call.args:
            is_method = node.attr in _TAKES_ARGUMENTS
        asked = value if is_method or call is None else call.args[0] if call.args else None
        if (is_function or is_method) and not _OF_KERNEL.match(_beginning(asked)):
            yield node.lineno


def _beginning(path: ast.AST | None) -> str:
    """Return the first words of a path in the source; empty where they are not there."""
    match path:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=[first, *_]) | ast.BinOp(left=first) | ast.Call(args=[first, *_]):
            return _beginning(first)
    return ""


def test_mounts_are_judged_in_one_place_before_they_are_asked() -> None:
    found = {_name(path) for path in _files("src") if [*_asks_by_name(_tree(path))]}
    asked = {
        each: next((known for known in _ASKS_BY_NAME if f"{each}.".startswith(f"{known}.")), None) for each in found
    }
    assert sorted(each for each, known in asked.items() if known is None) == []
    assert sorted({*_ASKS_BY_NAME} - {*asked.values()}) == [], "they ask nothing"


@pytest.mark.parametrize(
    ("module", "asking"),
    [
        ("start", {"_write_copy"}),
        ("ways", set()),
        ("files", {"names_in"}),
        ("folders", {"passing_file"}),
        ("environment.working_folder", set()),
        ("targets.ssh.bootstrap", set()),
    ],
)
def test_what_judges_ways_asks_by_descriptors(module: str, asking: set[str]) -> None:
    """Between two questions by one name another user can mount something there."""
    tree = _tree(ROOT.joinpath("src/seatrial", *module.split(".")).with_suffix(".py"))
    lines = {*_asks_by_name(tree)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = {it.name for it in functions if any(it.lineno <= line <= (it.end_lineno or 0) for line in lines)}
    assert found == asking
    assert len(lines) == len(asking)


@pytest.mark.parametrize(
    "code",
    [
        *("os.stat(p)", "os.path.isfile(p)", "map(os.lstat, names)", "Path(p).exists()", "entry.stat()", "p.glob('*')"),
        *("p.resolve(strict=True)", "(folder / 'proc').is_dir()", "os.path.exists(f'{folder}/dev')"),
    ],
)
def test_the_search_for_questions_finds(code: str) -> None:
    assert list(_asks_by_name(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        *("os.stat('/proc/self/ns/pid')", "os.access(f'/proc/self/fd/{fd}', os.X_OK)", "Path('/sys/class').iterdir()"),
        *("target.resolve(request)", "os.fstat(fd)", "exists(p)"),
    ],
)
def test_the_search_for_questions_leaves_out(code: str) -> None:
    assert not list(_asks_by_name(ast.parse(code)))


_ASKS_FOR_NAMES = {
    "seatrial.resolver": "the one place",
    "seatrial.targets.kubernetes.manifest.wait_for_hosts": "sent as text, alone, with a copy",
}
"""Modules that ask the resolver: a name server can keep a question open for ever."""
_ASKING_FOR_NAMES = {
    *("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getfqdn", "getnameinfo", "urlopen"),
    *("open_connection", "create_datagram_endpoint"),
}
_TAKES_NAMES = {
    "seatrial.agent.agent_main": "addresses that the search for the controller has found, or rows of the resolver",
    "seatrial.probe.address_search": "addresses",
    "seatrial.checks.links.measure": "all addresses of this host",
    "seatrial.checks.network.endpoint": "addresses, as network/measure.py has checked, and those of this host",
    "seatrial.conductor.server": "all addresses of this host, or its loopback",
    "seatrial.mpi_backend.proof": "numbers that the hosts have told each other",
    "seatrial.mpi_backend.register": "numbers that addresses.py has chosen",
    "seatrial.probe.names": "rows of the resolver",
    "seatrial.probe.network": "an address, as ipaddress has checked",
    "seatrial.rank.groups": "addresses, as is_place has checked",
    "seatrial.rank.word_page": "addresses, as links/observations.py has checked",
    "seatrial.targets.kubernetes.manifest.wait_for_hosts": "rows of the resolver",
    "seatrial.targets.remote_defaults": "rows of the resolver",
    "seatrial.training.data.transfer": "rows of the resolver; that of its base class takes a function for the name",
    "seatrial.util.ports": "all addresses of this host",
    "seatrial.worker.meeting_address": "addresses that the search has found",
    "seatrial.worker.rendezvous": "what meeting_address.py returns: no name that torch would ask for",
}
"""Modules with calls that ask the resolver themselves where they are given a name, and what these are given."""
_TAKING_NAMES = {
    *("create_connection", "create_server", "start_server", "connect", "connect_ex", "bind", "sendto", "sock_connect"),
    *("TCPStore", "rendezvous", "HTTPConnection", "HTTPSConnection", "OpenerDirector"),
}


def _called(tree: ast.AST) -> set[str]:
    """Return the names of functions of modules and objects that are called, or passed to a call, or imported alone."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names |= {each.attr for each in (node.func, *node.args) if isinstance(each, ast.Attribute)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
    return names


def test_names_are_resolved_in_one_place() -> None:
    called = {_name(path): _called(_tree(path)) for path in _files("src")}
    assert {module for module, names in called.items() if names & _ASKING_FOR_NAMES} == _ASKS_FOR_NAMES.keys()
    assert {module for module, names in called.items() if names & _TAKING_NAMES} == _TAKES_NAMES.keys()
    others = _files("examples", "deploy", "tools")
    assert [path for path in others if _called(_tree(path)) & _ASKING_FOR_NAMES] == []


@pytest.mark.parametrize(
    "code",
    [
        *("socket.getaddrinfo(n, 80)", "map(socket.gethostbyname, names)", "from socket import getfqdn"),
        *("asyncio.open_connection(n, 80)", "urllib.request.urlopen(u)"),
    ],
)
def test_the_search_for_questions_to_the_resolver_finds(code: str) -> None:
    assert _called(ast.parse(code)) & _ASKING_FOR_NAMES


@pytest.mark.parametrize("code", ["os.open(p, os.O_RDONLY)", "open(p)", "p.read_bytes()", "torch.load(p)"])
def test_the_search_for_readers_finds(code: str) -> None:
    assert list(_reads_by_name(ast.parse(code)))
