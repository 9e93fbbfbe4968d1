"""From what is typed to parts of a workload; each refusal is one sentence that names the option."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.kubernetes.workload import CODE, HOME, SCRATCH, Claim, Patch, Toleration

__all__ = [
    "claims",
    "dns_label",
    "environment",
    "gpu_resource",
    "group_ids",
    "object_name",
    "parse_patch",
    "quantity_bytes",
    "rdma",
    "read_patch",
    "resource_quantity",
    "selector",
    "tolerations",
]

_VENDORS = ("nvidia.com/", "amd.com/")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LABEL_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
_LABEL_KEY = r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_UNITS: dict[str, Decimal] = {"": Decimal(1), "m": Decimal("0.001")} | {
    unit: Decimal(base**power)
    for base, units in ((1000, ("k", "M", "G", "T", "P")), (1024, ("Ki", "Mi", "Gi", "Ti", "Pi")))
    for power, unit in enumerate(units, start=1)
}
_SECRET = re.compile(r"TOKENS?(_|$)|PASSW|SECRET|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
_RESERVED = re.compile(
    r"(?:PET|OMPI|PMIX?|PRTE|SEATRIAL|JOB_COMPLETION|TORCHELASTIC|K_MPI)_.*|(?:LOCAL_|GROUP_)?(?:RANK|WORLD_SIZE)"
    r"|MASTER_(?:ADDR|PORT)|HOME"
)
_OURS = (CODE, HOME, SCRATCH, "/dev/shm", "/opt/seatrial-ssh", "/etc/mpi", "/proc", "/sys", "/dev")
_PATCH_BYTES = 1 << 20


def dns_label(text: str, option: str) -> str:
    """A name as Services have it: RFC 1035."""
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", text):
        raise RequestError(
            f"{option} {text[:80]!a}: a name of lower-case letters, digits and '-' is expected, at most 63, the first a"
            " letter and the last no '-', such as trial-1."
        )
    return text


def _is_dns_name(text: str) -> bool:
    """Whether it is a name of an object: RFC 1123, with dots."""
    return len(text) <= 253 and bool(re.fullmatch(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", text))


def object_name(text: str, option: str) -> str:
    """The name of an object that the cluster has."""
    if not _is_dns_name(text):
        raise RequestError(f"{option} {text[:80]!a}: the name of an object in the cluster is expected.")
    return text


def quantity_bytes(text: str, option: str) -> Decimal:
    """A quantity above 0 as Kubernetes writes it: 500m, 2, 16Gi; as a number without its unit."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|[kMGTP]|[KMGTP]i)?", text)
    value = Decimal(match[1]) * _UNITS[match[2] or ""] if match else Decimal(0)
    if value <= 0:
        raise RequestError(f"{option} {text[:80]!a}: an amount above 0 is expected, such as 4, 500m or 16Gi.")
    return value


def resource_quantity(text: str, option: str) -> str:
    """The same, as it is to be written."""
    quantity_bytes(text, option)
    return text


def gpu_resource(text: str) -> str | None:
    """The resource that stands for a device; None for ``none``."""
    if text == "none":
        return None
    if not text.startswith(_VENDORS) or not re.fullmatch(_LABEL_KEY, text):
        raise RequestError(
            f"--gpu-resource {text[:80]!a}: nvidia.com/gpu, amd.com/gpu or none is expected, or another resource of"
            " these two vendors, such as nvidia.com/mig-1g.10gb."
        )
    return text


def rdma(texts: Iterable[str]) -> dict[str, str]:
    """RESOURCE=N: how many devices of that name each pod gets."""
    found = {}
    for text in texts:
        name, _, count = text.partition("=")
        if not re.fullmatch(_LABEL_KEY, name) or "/" not in name or not re.fullmatch(r"[1-9][0-9]{0,3}", count):
            raise RequestError(f"--rdma {text[:80]!a}: RESOURCE=N is expected, such as rdma/hca_shared_devices_a=1.")
        found[name] = count
    return found


def tolerations(texts: Iterable[str]) -> tuple[Toleration, ...]:
    """KEY[=VALUE][:EFFECT]."""
    found = []
    for text in texts:
        match = re.fullmatch(rf"({_LABEL_KEY})(?:=({_LABEL_VALUE}))?(?::({'|'.join(_EFFECTS)}))?", text)
        if match is None:
            raise RequestError(
                f"--toleration {text[:80]!a}: KEY, KEY=VALUE or either with :EFFECT ({', '.join(_EFFECTS)}) is"
                " expected, such as gpu=true:NoSchedule."
            )
        found.append(Toleration(key=match[1], value=match[2], effect=match[3]))
    return tuple(found)


def selector(texts: Iterable[str], option: str) -> dict[str, str]:
    """KEY=VALUE, several with commas between them: labels of nodes."""
    found: dict[str, str] = {}
    for text in texts:
        for part in text.split(","):
            match = re.fullmatch(rf"({_LABEL_KEY})==?({_LABEL_VALUE})", part)
            if match is None:
                raise RequestError(f"{option} {part[:80]!a}: KEY=VALUE is expected, a label of nodes.")
            if found.setdefault(match[1], match[2]) != match[2]:
                raise RequestError(f"{option}: {match[1]} cannot be {found[match[1]]} and {match[2]}.")
    return found


def claims(texts: Iterable[str]) -> tuple[Claim, ...]:
    """NAME:PATH of PersistentVolumeClaims. They may not lie in one another, nor over what is ours."""
    found: list[Claim] = []
    for text in texts:
        name, _, path = text.partition(":")
        parts = path.split("/")[1:]
        if not _is_dns_name(name) or not re.fullmatch(r"/[A-Za-z0-9._/-]{1,250}", path) or {"", ".", ".."} & set(parts):
            raise RequestError(
                f"--pvc {text[:80]!a}: NAME:PATH is expected, a claim and a full path, such as data:/data."
            )
        for other in (*_OURS, *(claim.path for claim in found)):
            # In HOME it may lie: only over it, or over a folder above, may it not.
            if f"{other}/".startswith(f"{path}/") or (other != HOME and f"{path}/".startswith(f"{other}/")):
                raise RequestError(f"--pvc {text[:80]!a}: {other} is taken; name another path.")
        found.append(Claim(name=name, path=path))
    return tuple(found)


def group_ids(texts: Iterable[int]) -> tuple[int, ...]:
    """Groups for files on shared storage."""
    for group in texts:
        if not 1 <= group < 2**31:
            raise RequestError(f"--supplemental-group {group}: the number of a group is expected, from 1.")
    return tuple(texts)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Refuse what an operator or we ourselves set, and what looks like a secret: manifests are kept and shown."""
    for name in variables:
        if _RESERVED.fullmatch(name):
            raise RequestError(f"--env {name}=...: that is for the launcher to set; leave it out.")
        if _SECRET.search(name):
            raise RequestError(
                f"--env {name}=...: it would stand in the manifest for all to read; put it into a Secret and name that"
                " with --patch (container: {envFrom: [{secretRef: {name: ...}}]})."
            )
    return dict(variables)


def read_patch(path: Path) -> Patch:
    """A file with `pod`, `container` and `workload`, each a mapping. Raises RequestError for anything else."""
    try:
        with path.open("rb") as file:
            content = file.read(_PATCH_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--patch {path}: it cannot be read ({getattr(error, 'strerror', None) or error})."
        ) from error
    if len(content) > _PATCH_BYTES:
        raise RequestError(f"--patch {path}: it has more than {_PATCH_BYTES:,} bytes; is it a patch?")
    return parse_patch(content, str(path))


def parse_patch(content: bytes, name: str) -> Patch:
    """The same, of what stands in the file of that name."""
    import yaml

    try:
        told = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RequestError(f"--patch {name} is not YAML{where}: {problem}.") from error
    parts = ("pod", "container", "workload")
    if not isinstance(told, dict):
        raise RequestError(f"--patch {name}: it is not a mapping; {', '.join(parts)} are expected at its top.")
    for key, value in told.items():
        if key not in parts:
            raise RequestError(f"--patch {name}: {key!r} at its top is unknown; there is {', '.join(parts)}.")
        if not isinstance(value, dict):
            raise RequestError(f"--patch {name}: {key} is not a mapping.")
        _see_json(value, f"--patch {name}: {key}")
    return Patch(**{part: told.get(part, {}) for part in parts})


def _see_json(value: Any, where: str, depth: int = 0) -> None:
    """Dates, sets, keys that are numbers and endless nesting are YAML, and nothing that a cluster takes."""
    if depth > 50:
        raise RequestError(f"{where[:200]}... is nested too deep.")
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise RequestError(f"{where}: the key {key!r} is no text; put it in quotes.")
            _see_json(part, f"{where}.{key}", depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, part in enumerate(value):
            _see_json(part, f"{where}[{number}]", depth + 1)
    elif not isinstance(value, str | int | float | bool | None) or value != value or value in (_INFINITE, -_INFINITE):
        raise RequestError(f"{where}: {value!r} is nothing that JSON has; put it in quotes.")


_INFINITE = float("inf")
