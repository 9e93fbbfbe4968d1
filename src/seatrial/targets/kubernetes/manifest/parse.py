"""Parsers of the options that become parts of a workload; each refusal is one sentence that names the option."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.files import read_input
from seatrial.targets.hidden_values import is_secret
from seatrial.targets.kubernetes.manifest.workload import CODE, HOME, SCRATCH, Claim, Patch, Toleration

_VENDORS = ("nvidia.com/", "amd.com/")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LABEL_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
_LABEL_KEY = r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_UNITS: dict[str, Decimal] = {"": Decimal(1), "m": Decimal("0.001")} | {
    unit: Decimal(base**power)
    for base, units in ((1000, ("k", "M", "G", "T", "P")), (1024, ("Ki", "Mi", "Gi", "Ti", "Pi")))
    for power, unit in enumerate(units, start=1)
}
_RESERVED = re.compile(
    r"(?:PET|OMPI|PMIX?|PRTE|SEATRIAL|JOB_COMPLETION|TORCHELASTIC|K_MPI)_.*|(?:LOCAL_|GROUP_)?(?:RANK|WORLD_SIZE)"
    r"|MASTER_(?:ADDR|PORT)|HOME"
)
_OURS = (CODE, HOME, SCRATCH, "/dev/shm", "/opt/seatrial-ssh", "/etc/mpi", "/proc", "/sys", "/dev")
_PATCH_BYTES = 1 << 20
_MAX_PATCH_NODES = 100_000
"""More than a pod has, which etcd limits to 1.5 MiB."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MAX_DIGITS = 100


def dns_label(text: str, option: str) -> str:
    """Return the name if it is valid for a Service (RFC 1035), else raise RequestError."""
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", text):
        raise RequestError(
            f"{option} {text[:80]!a}: expected a name of at most 63 lower-case letters, digits and '-', beginning with"
            " a letter and not ending with '-', such as trial-1."
        )
    return text


def _is_dns_name(text: str) -> bool:
    """Return whether this is a valid name of an object (RFC 1123, with dots)."""
    return len(text) <= 253 and bool(re.fullmatch(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", text))


def object_name(text: str, option: str) -> str:
    """Return the name if an object of the cluster may have it, else raise RequestError."""
    if not _is_dns_name(text):
        raise RequestError(f"{option} {text[:80]!a}: expected the name of an object in the cluster.")
    return text


def quantity_bytes(text: str, option: str) -> Decimal:
    """Return the value of a Kubernetes quantity (500m, 2, 16Gi) without its unit. Raises RequestError unless > 0."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|[kMGTP]|[KMGTP]i)?", text)
    value = Decimal(match[1]) * _UNITS[match[2] or ""] if match else Decimal(0)
    if value <= 0:
        raise RequestError(f"{option} {text[:80]!a}: expected an amount above 0, such as 4, 500m or 16Gi.")
    return value


def resource_quantity(text: str, option: str) -> str:
    """Return the quantity as it was typed if it is valid, else raise RequestError."""
    quantity_bytes(text, option)
    return text


def gpu_resource(text: str) -> str | None:
    """Return the resource name of a GPU; None for ``none``. Raises RequestError for other vendors."""
    if text == "none":
        return None
    if not text.startswith(_VENDORS) or not re.fullmatch(_LABEL_KEY, text):
        raise RequestError(
            f"--gpu-resource {text[:80]!a}: expected nvidia.com/gpu, amd.com/gpu or none, or another resource of these"
            " two vendors, such as nvidia.com/mig-1g.10gb."
        )
    return text


def rdma(texts: Iterable[str]) -> dict[str, str]:
    """Return the devices of each pod, resource name -> number, from RESOURCE=N."""
    counts = {}
    for text in texts:
        name, _, count = text.partition("=")
        if not re.fullmatch(_LABEL_KEY, name) or "/" not in name or not re.fullmatch(r"[1-9][0-9]{0,3}", count):
            raise RequestError(f"--rdma {text[:80]!a}: expected RESOURCE=N, such as rdma/hca_shared_devices_a=1.")
        counts[name] = count
    return counts


def tolerations(texts: Iterable[str]) -> tuple[Toleration, ...]:
    """Return tolerations from KEY[=VALUE][:EFFECT]."""
    parsed = []
    for text in texts:
        match = re.fullmatch(rf"({_LABEL_KEY})(?:=({_LABEL_VALUE}))?(?::({'|'.join(_EFFECTS)}))?", text)
        if match is None:
            raise RequestError(
                f"--toleration {text[:80]!a}: expected KEY or KEY=VALUE, optionally :EFFECT ({', '.join(_EFFECTS)}),"
                " such as gpu=true:NoSchedule."
            )
        parsed.append(Toleration(key=match[1], value=match[2], effect=match[3]))
    return tuple(parsed)


def selector(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return labels of nodes from KEY=VALUE, several of them separated by commas."""
    labels: dict[str, str] = {}
    for text in texts:
        for part in text.split(","):
            match = re.fullmatch(rf"({_LABEL_KEY})==?({_LABEL_VALUE})", part)
            if match is None:
                raise RequestError(f"{option} {part[:80]!a}: expected KEY=VALUE, a label of nodes.")
            if labels.setdefault(match[1], match[2]) != match[2]:
                raise RequestError(f"{option}: {match[1]} cannot be both {labels[match[1]]} and {match[2]}.")
    return labels


def claims(texts: Iterable[str]) -> tuple[Claim, ...]:
    """Return claims from NAME:PATH. Their paths may neither contain one another nor cover a path of ours."""
    parsed: list[Claim] = []
    for text in texts:
        name, _, path = text.partition(":")
        parts = path.split("/")[1:]
        if not _is_dns_name(name) or not re.fullmatch(r"/[A-Za-z0-9._/-]{1,250}", path) or {"", ".", ".."} & set(parts):
            raise RequestError(
                f"--pvc {text[:80]!a}: expected NAME:PATH, a claim and an absolute path, such as data:/data."
            )
        for other in (*_OURS, *(claim.path for claim in parsed)):
            # A path below HOME is allowed, but not HOME itself or a folder above it.
            if f"{other}/".startswith(f"{path}/") or (other != HOME and f"{path}/".startswith(f"{other}/")):
                raise RequestError(f"--pvc {text[:80]!a}: {other} is already in use; choose another path.")
        parsed.append(Claim(name=name, path=path))
    return tuple(parsed)


def group_ids(texts: Iterable[int]) -> tuple[int, ...]:
    """Return the group ids for files on shared storage. Raises RequestError for one below 1."""
    for group in texts:
        if not 1 <= group < 2**31:
            raise RequestError(f"--supplemental-group {group}: expected a group id, at least 1.")
    return tuple(texts)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the manifest.

    Raises RequestError for one that a launcher sets, and for one that looks like a secret, since manifests are stored
    and shown.
    """
    for name, value in variables.items():
        if _RESERVED.fullmatch(name):
            raise RequestError(f"--env {name}=...: the launcher sets this variable; leave it out.")
        if is_secret(name, value):
            raise RequestError(
                f"--env {name}=...: its value would be readable in the manifest; put it into a Secret, and name that"
                " with --patch (container: {envFrom: [{secretRef: {name: ...}}]})."
            )
    return dict(variables)


def read_patch(path: Path) -> Patch:
    """Read a YAML file with any of the parts of a patch, each a mapping. Raises RequestError."""
    try:
        content = read_input(path, _PATCH_BYTES)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--patch {path}: it cannot be read ({getattr(error, 'strerror', None) or error})."
        ) from error
    if len(content) > _PATCH_BYTES:
        raise RequestError(f"--patch {path}: it has more than {_PATCH_BYTES:,} bytes, which is too large for a patch.")
    return parse_patch(content, str(path))


def parse_patch(content: bytes, name: str) -> Patch:
    """Parse the content of such a file. ``name``: its name, for messages."""
    import yaml

    try:
        node = yaml.compose(content, yaml.SafeLoader)
        _require_small(node, f"--patch {name}")
        document = yaml.safe_load(content)
    # A tag that does not fit its text (``!!bool maybe``) raises errors of many types.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RequestError(f"--patch {name} is not YAML{line}: {problem}.") from error
    parts = ("pod", "container", "workload", "runtime")
    if not isinstance(document, dict):
        raise RequestError(f"--patch {name}: expected a mapping with any of {', '.join(parts)}.")
    for key, value in document.items():
        if key not in parts:
            raise RequestError(f"--patch {name}: unknown key {key!r}; expected any of {', '.join(parts)}.")
        if not isinstance(value, dict):
            raise RequestError(f"--patch {name}: {key} is not a mapping.")
        if not isinstance(value.get("spec"), dict | None):
            raise RequestError(f"--patch {name}: {key}.spec is not a mapping.")
        _require_json(value, f"--patch {name}: {key}")
    return Patch(**{part: document.get(part, {}) for part in parts})


def _require_small(root: Any, path: str) -> None:
    """Raise RequestError for YAML that a few aliases make very large, that contains itself, or has a very long number.

    ``root``: the node that ``yaml.compose`` has returned, where all aliases of an anchor are one node.
    """
    sizes: dict[int, int] = {}
    """Number of nodes below each node, aliases written out; 0: being counted."""

    def count(node: Any) -> int:
        known = sizes.get(id(node))
        if known is not None:
            if not known:
                raise RequestError(f"{path} is nested too deeply: an alias refers to a part that contains it.")
            return known
        sizes[id(node)] = 0
        children: list[Any] = []
        if isinstance(node.value, list):
            children = [part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,))]
            _require_unique([entry[0] for entry in node.value if isinstance(entry, tuple)], path)
        elif node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS:
            raise RequestError(f"{path}: a number has {len(node.value)} characters; put it in quotes.")
        sizes[id(node)] = total = 1 + sum(map(count, children))
        if total > _MAX_PATCH_NODES:
            raise RequestError(
                f"{path}: with its aliases written out it has more than {_MAX_PATCH_NODES:,} values; leave aliases out."
            )
        return total

    if root is not None:
        count(root)


def _require_unique(keys: Sequence[Any], path: str) -> None:
    """Raise RequestError for a key that a mapping has twice: of two values the first one would be lost in silence."""
    seen: set[str] = set()
    for key in keys:
        # Several merge keys (``<<``) are no contradiction.
        if isinstance(key.value, str) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                line = key.start_mark.line + 1
                raise RequestError(f"{path}, line {line}: the key {key.value} is given twice; give it once.")
            seen.add(key.value)


def _require_json(value: Any, path: str, depth: int = 0) -> None:
    """Raise RequestError for YAML that JSON does not have: dates, sets, keys that are no text, endless nesting."""
    if depth > 50:
        raise RequestError(f"{path[:200]}... is nested too deeply.")
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise RequestError(f"{path}: the key {key!r} is not a string; put it in quotes.")
            _require_json(part, f"{path}.{key}", depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, part in enumerate(value):
            _require_json(part, f"{path}[{number}]", depth + 1)
    elif not isinstance(value, str | int | float | bool | None) or value != value or value in (_INFINITE, -_INFINITE):
        raise RequestError(f"{path}: {value!r} has no form in JSON; put it in quotes.")


_INFINITE = float("inf")
