"""Values that nobody but the user may read: events, reports and manifests are stored and shown to others.

There is one list of names. A report shows the value of a variable only if the name is known to be harmless, since no
list of secret names is complete. Manifests and unencrypted connections need the values, so there a name that is on the
list is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from seatrial.errors import RequestError

HIDDEN = "(hidden)"

_SECRET_WORDS = (
    r"TOKENS?|SECRETS?|PWD|PW|PASS|PASSWD|PASSCODE|PASSPHRASE|CREDS?|CREDENTIALS?|AUTH|AUTHORIZATION|BEARER|COOKIES?|JWT|PAT"
    r"|PRIVATE|KEYS?|DSN|NETRC|SAS|OTP|WEBHOOK|SIGNATURE|CONN(?:ECTION)?_?STR(?:ING)?"
)
_SECRET_ENDS = r"(?:API|SSH|ACCESS|SECRET|PRIVATE|SIGNING|MASTER|ACCOUNT|LICENSE|CLIENT|AUTH)(?:KEYS?|TOKENS?)"
_END = r"(?=[0-9]*(?:$|[_.-]))"
"""The end of a word in a name: there may be several secrets of a kind, with numbers."""
_SECRET = re.compile(
    rf"(?:^|[_.-])(?:{_SECRET_WORDS}){_END}|{_SECRET_ENDS}{_END}|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|TOKEN{_END}",
    re.IGNORECASE,
)
_NUMBER = "(?:[_.-]?[0-9]+)?"
_SURE = re.compile(
    rf"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?{_NUMBER}$|BEARER|COOKIE|JWT"
    rf"|(?:API|SSH|ACCESS|PRIVATE|SIGNING|ACCOUNT|WANDB|ENCRYPTION)[_.-]?KEY{_NUMBER}$"
    rf"|(?:^-+|API|AUTH|ACCESS|HUB|HF|GIT|GITHUB|GITLAB|WANDB|USER|BOT|REFRESH|ID)[_.-]?TOKEN{_NUMBER}$",
    re.IGNORECASE,
)
_WORKING_FOLDERS = ("PWD", "OLDPWD")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_VALUE = re.compile(
    r"://(?:(?!://)\S)*@|-----BEGIN [A-Z ]*PRIVATE KEY|(?:^|[\s=:\"'])(?:gh[oprsu]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{30,}|sk-[\w-]{30,}|nvapi-[\w-]{30,}|xox[abeoprs]-[\w-]{20,}"
    r"|A(?:KI|SI)A[A-Z0-9]{16}(?![A-Z0-9])|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.|Bearer\s)"
)
"""A URL with a password, a private key, or a token by which its provider begins all tokens."""
_PLACE = re.compile(r"(?:FILE|PATH|DIR|FOLDER|SOCK|CREDENTIALS)$", re.IGNORECASE)
_PATH = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@+-]+)+/?")
_AMOUNT = re.compile(r"(?:^|[_.-])(?:MAX|MIN|NUM|N)[_.-]|[_.-](?:COUNT|DIM|SIZE|LEN|LENGTH|LIMIT)$", re.IGNORECASE)
_SWITCH = re.compile(r"0|1|true|false|yes|no|on|off", re.IGNORECASE)
_HARMLESS = re.compile(
    r"(?:NCCL|RCCL|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|GLOO|UCX|UCC|FI|PSM[23]|IBV|MLX[45]|OMPI_MCA|PMIX_MCA|I_MPI|MPICH"
    r"|OMP|GOMP|KMP|MKL|OPENBLAS|NUMEXPR|CUDA|CUBLAS|CUDNN|NVIDIA|NVTE|HIP|HSA|ROCR|ROCM|ROCBLAS|HIPBLASLT|MIOPEN|GPU"
    r"|AMD|TOKENIZERS|MALLOC|LC)_[A-Za-z0-9_]+"
    r"|PYTHON[A-Z]*|MASTER_(?:ADDR|PORT)|LD_LIBRARY_PATH|PATH|LANG|TZ|TERM|TMPDIR|DISPLAY"
)
_LISTS = re.compile("(?:OMPI|PMIX)_MCA_")
"""The beginning of the names of variables whose values may be lists of variables (mca_base_env_list)."""
_ASSIGNED = re.compile(r"(?:^|(?<=[=,;]))(?P<name>-*[A-Za-z_][\w-]*)=(?=(?P<value>[^,;]*))")
"""``NAME=VALUE`` or ``--option=VALUE`` in a word."""
_NAMED = re.compile(
    r"""(?<![\w/.-])(?P<name>-*[A-Za-z_][\w.-]*)["']?(?:(?P<is_set>\s*=\s*)|\s*:\s*|\s+)["']?"""
    r"""(?=(?P<value>[^\s,;"']{1,200}))"""
)
"""``NAME=VALUE``, ``NAME: VALUE`` or ``--option VALUE`` somewhere in a text, but not in a path."""
_SET_NEXT = re.compile(r"--?g?env(?:=(?P<name>[^=]+))?")
"""Option of launchers whose next two words are a variable and its value, or that names the variable itself."""
_SET_IN_WORD = re.compile(r"--?(?:g?env|export|container-env)=")
"""The beginning of an option with variables in its value."""


def is_secret(name: str, value: str = "") -> bool:
    """Return whether a variable or an option of this name holds a secret, or its value is one by its form.

    The path of a file with a secret, a number of tokens and a switch are none.
    """
    if _SECRET_VALUE.search(value):
        return True
    words = _CAMEL.sub("_", name.lstrip("-"))
    if _SWITCH.fullmatch(value) or _is_place(words, value):
        return False
    if _AMOUNT.search(words) and re.fullmatch("[0-9]{1,9}", value):
        return False
    return name not in _WORKING_FOLDERS and bool(_SECRET.search(words) or _SECRET.search(name))


def refuse_secrets_in_clear(environ: Mapping[str, str], where: str) -> None:
    """Raise RequestError for a variable with a secret that the controller would send over an unencrypted connection.

    ``where``: what decides that, such as ``--on slurm``.
    """
    for name, value in environ.items():
        if is_secret(name, value):
            raise RequestError(
                f"--env {name}=...: {where}, its value would cross the network unencrypted, as all variables of that"
                " launcher do; put it into a file that only you can read, on a disk of the nodes, or use --on ssh."
            )


def refuse_secret_arguments(words: Iterable[str], where: str) -> None:
    """Raise RequestError for an argument of a script that the controller would send over such a connection.

    ``where``: as in ``refuse_secrets_in_clear``.
    """
    if secret := find_secret_argument(words):
        raise RequestError(
            f"{secret}: {where}, this argument would cross the network unencrypted; let the script read the secret from"
            " a file that only you can read, on a disk of the nodes, or use --on ssh."
        )


def shown_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the values that everybody may read; ``(hidden)`` for the others."""
    return {
        name: HIDDEN if _is_hidden(name, value, True) or _sets_hidden(name, value) else value
        for name, value in environ.items()
    }


def _sets_hidden(name: str, value: str) -> bool:
    """Return whether a value has settings of which one is hidden. Those of Open MPI and PMIx may be variables."""
    return _hidden_at(value, sets_variables=_LISTS.match(name) is not None) is not None


def shown_arguments(words: Iterable[str]) -> list[str]:
    """Return the arguments of a user's program as they may be stored: options by their names, without any value."""
    return [_shown(word) for word in words]


def shown_launcher_arguments(words: Iterable[str]) -> list[str]:
    """Return arguments of mpirun or sbatch as everybody may read them: the variables that they set as those of ranks,
    ``-x NAME=VALUE``, ``-genv NAME VALUE``, ``--export=ALL,NAME=VALUE``; other values only if no secret is named.

    The rest of a word after a hidden value is hidden, too, since it may belong to that value.
    """
    shown, before = list[str](), ("", "")
    for word in words:
        shown.append(_shown_to_launcher(word, *before))
        before = (before[1], word)
    return shown


def _shown_to_launcher(word: str, option: str, name: str) -> str:
    if is_secret("", word):
        return HIDDEN
    # Of -genv NAME VALUE, or of -genv=NAME VALUE.
    before, named = _SET_NEXT.fullmatch(option), _SET_NEXT.fullmatch(name)
    variable = named["name"] if named and named["name"] else name
    is_value_of_variable = variable != name or bool(before and not before["name"] and "=" not in name)
    is_option = word.startswith("-") and not is_value_of_variable
    # A password may begin with a dash.
    may_be_value = not is_option or name.startswith("-")
    if may_be_value and "=" not in variable and _is_hidden(variable, word, is_value_of_variable):
        return HIDDEN
    sets_variables = not is_option or _SET_IN_WORD.match(word) is not None
    start = _hidden_at(word, sets_variables=sets_variables)
    return word if start is None else f"{word[:start]}{HIDDEN}"


def _hidden_at(word: str, *, sets_variables: bool) -> int | None:
    """Return where the first hidden value in a word starts; None where none does."""
    named = next((found.start("value") for found in _NAMED.finditer(word) if _is_named_secret(found)), len(word))
    for found in _ASSIGNED.finditer(word):
        is_variable = sets_variables and not found["name"].startswith("-")
        # Lists of variables have any character between two of them (mca_base_env_list_delimiter).
        has_another = is_variable and "=" in found["value"]
        if has_another or _is_hidden(found["name"], found["value"], is_variable):
            return min(named, found.start("value"))
    return named if named < len(word) else None


def _is_named_secret(found: re.Match[str]) -> bool:
    """Return whether a text sets a secret here. Without ``=`` the name must be sure, since words come in sentences."""
    name, value = found["name"], found["value"]
    is_sure = found["is_set"] or _SURE.search(_CAMEL.sub("_", name))
    return bool(is_sure) and is_secret(name, value)


def _is_hidden(name: str, value: str, is_variable: bool) -> bool:
    return is_secret(name, value) or (is_variable and not _HARMLESS.fullmatch(name))


def find_secret_argument(words: Iterable[str]) -> str | None:
    """Return the first argument that surely holds a secret, by the name of its option, or ``(hidden)``.

    Scripts have many harmless options with "token" or "key" in their names, such as ``--max-tokens``.
    """
    for word in words:
        name, equals, value = word.partition("=")
        is_option = name.startswith("-")
        shown = name if re.fullmatch(r"[-+~\w.]+", name) else HIDDEN
        if (is_option or equals) and _SURE.search(_CAMEL.sub("_", name)) and not _is_place(name, value):
            return shown
        if _SECRET_VALUE.search(word):
            return shown if is_option and equals else HIDDEN
    return None


def _is_place(name: str, value: str) -> bool:
    return bool(_PLACE.search(name) and _PATH.fullmatch(value))


def _shown(word: str) -> str:
    name, equals, _ = word.partition("=")
    if re.fullmatch(r"--[A-Za-z][A-Za-z0-9_.-]*", name):
        return f"{name}={HIDDEN}" if equals else name
    return HIDDEN
