"""The script of ``launch`` as the controller has it: it travels to the pods in a ConfigMap, as the bundle does."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.environment.working_folder import UnchosenError, chosen_file
from seatrial.errors import RequestError
from seatrial.files import exists, open_to_read, status_behind_links
from seatrial.targets.kubernetes.manifest.workload import Claim

_MAX_BYTES = 100_000
"""The ConfigMap with the start script, a plan and the files of MPI has 190,000 bytes for all of them."""
_OTHER_WAY = "put it into the image, or on a claim (--pvc NAME:/code), and give its path there"
_NAME = "script.py"
"""In place of a name that a ConfigMap does not take, that a file of ours has, or by which the programs of ours that
start from the same folder would import the script."""
_OURS = ("seatrial.pyz", "start.py", "wait_for_hosts.py", "plan.json", "ssh_config", "sshd_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedScript:
    """A script of this machine."""

    name: str
    """Name of its file in the pods."""
    content: bytes


def carried_script(
    script: str, *, is_python: bool, claims: Sequence[Claim], may_be_there: bool = False
) -> tuple[CarriedScript | None, str]:
    """Return the script to carry along, None where pods have it, as far as this machine can know; and what to tell the
    user of that, a sentence or an empty text.

    A relative path is one of this machine, whatever lies where the pods start. An absolute one may be in the image,
    which then has priority, so what cannot be carried is left to the pods; so is what another user could have put at
    that path here, such as a link to a private file. Raises RequestError for a relative path that cannot be carried;
    one that is not on this machine either is left to the pods if ``may_be_there``: a patch may let them start in
    another folder, and a manifest may be printed on another machine.
    """
    if any(f"{script}/".startswith(f"{claim.path}/") for claim in claims):
        return None, ""
    if not is_python:
        if script.startswith("/") or "/" not in script:
            return None, ""
        raise RequestError(f"{script}: the pods do not have this program of your machine; {_OTHER_WAY}.")
    content, left, is_here = b"", "", True
    try:
        content = _content(script)
        problem = _problem(Path(script), content)
    except UnchosenError as error:
        other, advice = "another user could have put", "copy it to a folder of yours"
        if error.rights:
            advice += f", or, if all users may read it, chmod {error.rights}"
        problem = f"{other} it there ({error}), so it does not go along; {advice}"
        left = (
            f"{script} is taken for a path of the pods, since {other} there what this machine has ({error}); to send"
            f" that along, {advice}"
        )
    except FileNotFoundError:
        is_here = False
        problem = "no such script on this machine, and the pods start in an empty folder"
    except OSError as error:
        problem = f"it cannot be read ({error.strerror or error})"
    if not problem:
        where = ", for pods whose image has none at this path" if script.startswith("/") else ""
        said = f"{script} of this machine goes along ({len(content):,} bytes in a ConfigMap){where}"
        return CarriedScript(name=_name(script), content=content), said
    if script.startswith("/") and is_here:
        return None, left or f"{script} of this machine does not go along: {problem}; {_OTHER_WAY}"
    if script.startswith("/") or (may_be_there and not exists(script)):
        return None, ""
    raise RequestError(f"{script}: {problem}; {_OTHER_WAY}.")


def _content(script: str) -> bytes:
    """Return the first bytes of a script, at most one more than may go along. Raises UnchosenError, OSError."""
    chosen = chosen_file(os.getcwd(), script)
    with open_to_read(script) as file:
        if not os.path.samestat(chosen, os.fstat(file.fileno())):
            raise UnchosenError("it was exchanged while it was read")
        return file.read(_MAX_BYTES + 1)


def _problem(script: Path, content: bytes) -> str:
    if len(content) > _MAX_BYTES:
        return f"more than {_MAX_BYTES:,} bytes do not fit into the manifest"
    try:
        tree = ast.parse(content.decode())
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last one: deep nesting, to the parser
        # Python says it better; but only text fits into the manifest.
        return "" if _is_text(content) else "it is no text in UTF-8"
    neighbor = next((name for name in _imported(tree) if _is_module(script.parent, name)), None)
    return "" if neighbor is None else f"it imports {neighbor} from its folder, which is not carried along"


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _imported(tree: ast.AST) -> list[str]:
    """Return the first words of the modules that a script imports by absolute names."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module.partition(".")[0])
    return list(dict.fromkeys(found))


def _is_module(folder: Path, name: str) -> bool:
    return any(_is_file(folder / file, folder) for file in (f"{name}.py", f"{name}/__init__.py"))


def _is_file(path: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(status_behind_links(path, folder).st_mode)
    return False


def _name(script: str) -> str:
    name, module = Path(script).name, Path(script).name.partition(".")[0]
    is_taken = name in _OURS or module in sys.stdlib_module_names or module == "seatrial"
    return name if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}", name) and not is_taken else _NAME
