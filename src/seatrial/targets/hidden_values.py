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
    r"TOKENS?|SECRETS?|PWD|PASS|PASSWD|PASSCODE|PASSPHRASE|CREDS?|CREDENTIALS?|AUTH|AUTHORIZATION|BEARER|COOKIES?|JWT|PAT"
    r"|PRIVATE|KEYS?|DSN|NETRC|SAS|OTP|WEBHOOK|SIGNATURE|CONN(?:ECTION)?_?STR(?:ING)?"
)
_SECRET_ENDS = r"(?:API|SSH|ACCESS|SECRET|PRIVATE|SIGNING|MASTER|ACCOUNT|LICENSE|CLIENT|AUTH)(?:KEYS?|TOKENS?)"
_SECRET = re.compile(
    rf"(?:^|[_.-])(?:{_SECRET_WORDS})(?=$|[_.-])|{_SECRET_ENDS}(?=$|[_.-])|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL",
    re.IGNORECASE,
)
_SURE = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?$|BEARER|COOKIE|JWT"
    r"|(?:API|SSH|ACCESS|PRIVATE|SIGNING|ACCOUNT|WANDB|ENCRYPTION)[_-]?KEY$"
    r"|(?:^-+|API|AUTH|ACCESS|HUB|HF|GIT|GITHUB|GITLAB|WANDB|USER|BOT|REFRESH|ID)[_-]?TOKEN$",
    re.IGNORECASE,
)
_WORKING_FOLDERS = ("PWD", "OLDPWD")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_URL_WITH_PASSWORD = re.compile(r"://[^\s]*@")
_HARMLESS = re.compile(
    r"(?:NCCL|RCCL|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|GLOO|UCX|UCC|FI|PSM[23]|IBV|MLX[45]|OMPI_MCA|PMIX_MCA|I_MPI|MPICH"
    r"|OMP|GOMP|KMP|MKL|OPENBLAS|NUMEXPR|CUDA|CUBLAS|CUDNN|NVIDIA|NVTE|HIP|HSA|ROCR|ROCM|ROCBLAS|HIPBLASLT|MIOPEN|GPU"
    r"|AMD|TOKENIZERS|MALLOC|LC)_[A-Za-z0-9_]+"
    r"|PYTHON[A-Z]*|MASTER_(?:ADDR|PORT)|LD_LIBRARY_PATH|PATH|LANG|TZ|TERM|TMPDIR|DISPLAY"
)


def is_secret(name: str, value: str = "") -> bool:
    """Return whether a variable or an option of this name holds a secret, or its value is a URL with a password."""
    if _URL_WITH_PASSWORD.search(value):
        return True
    words = _CAMEL.sub("_", name.lstrip("-"))
    return name not in _WORKING_FOLDERS and bool(_SECRET.search(words) or _SECRET.search(name))


def refuse_secrets_in_clear(environ: Mapping[str, str], where: str) -> None:
    """Raise RequestError for a variable with a secret that the controller would send over an unencrypted connection.

    ``where``: what decides that, such as ``--on slurm``.
    """
    for name, value in environ.items():
        if is_secret(name, value):
            raise RequestError(
                f"--env {name}=...: {where}, its value would cross the network unencrypted; put it into a file that"
                " only you can read, or into the launcher's own environment (sbatch --export, mpirun -x), or use"
                " --on ssh."
            )


def shown_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the values that everybody may read; ``(hidden)`` for the others."""
    return {
        name: value if _HARMLESS.fullmatch(name) and not is_secret(name, value) else HIDDEN
        for name, value in environ.items()
    }


def shown_arguments(words: Iterable[str]) -> list[str]:
    """Return the arguments of a user's program as they may be stored: options by their names, without any value."""
    return [_shown(word) for word in words]


def find_secret_argument(words: Iterable[str]) -> str | None:
    """Return the first argument that surely holds a secret, by the name of its option, or ``(hidden)``.

    Scripts have many harmless options with "token" or "key" in their names, such as ``--max-tokens``.
    """
    for word in words:
        name, _, value = word.partition("=")
        if name.startswith("-") and (_SURE.search(_CAMEL.sub("_", name)) or _URL_WITH_PASSWORD.search(value)):
            return name
        if _URL_WITH_PASSWORD.search(word):
            return HIDDEN
    return None


def _shown(word: str) -> str:
    name, equals, _ = word.partition("=")
    if re.fullmatch(r"--[A-Za-z][A-Za-z0-9_.-]*", name):
        return f"{name}={HIDDEN}" if equals else name
    return HIDDEN
