"""From the values of the target options to a target request, and from a placement to the fields of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seatrial.errors import RequestError
from seatrial.request.comm_profiles import comm_settings
from seatrial.targets.hidden_values import HIDDEN, refuse_secrets_in_clear
from seatrial.targets.option import is_given
from seatrial.targets.registry import TARGETS
from seatrial.targets.target import Placement, Target, TargetRequest
from seatrial.training.data.dataset_files import DATA_VARIABLE

_RESERVED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that seatrial sets for each rank."""
_WORDS_FOR_KUBERNETES = ("k8s", "kube", "kubernetes", "kubectl", "openshift", "pod", "pods")
"""Words that people type for a target in a cluster, of which there are several."""


def _target_of(name: str) -> Target:
    if name not in TARGETS:
        pods = "; on Kubernetes, job needs nothing installed" if name in _WORDS_FOR_KUBERNETES else ""
        raise RequestError(f"--on {name}: no such target; there is {', '.join(TARGETS)}{pods}.")
    return TARGETS[name]


def sends_in_clear(target: Target) -> bool:
    """Return whether variables and arguments cross the network unencrypted."""
    # A target that conducts in the cluster sends nothing, and refuses secrets in what it renders.
    return not (target.hides_env or target.conducts_remotely)


def target_request_of(values: Mapping[str, Any], typed: tuple[str, ...] = ()) -> TargetRequest:
    """Return the target request for the values of the options.

    Raises RequestError for an unknown target, for an option of another target, and for an invalid ``--env``.

    Args:
        values: value of each option by its name.
        typed: the command and its other options, for a target that runs the command again in the cluster.
    """
    target = _target_of(values["target"])
    for other in TARGETS.values():
        for option in other.options:
            if option not in target.options and is_given(option, values[option.name]):
                takers = ", ".join(taker.name for taker in TARGETS.values() if option in taker.options)
                raise RequestError(
                    f"{option.flags[0]} is for --on {takers}, not for --on {target.name}; leave one of the two out."
                )
    env = dict(map(_variable, values["env"]))
    if sends_in_clear(target):
        refuse_secrets_in_clear(env, f"with --on {target.name}")
    requested = values["nproc_per_node"]
    if requested == "gpu" and values["device"] == "cpu":
        raise RequestError("--nproc-per-node gpu counts accelerators, and --device cpu uses none; give a number.")
    return TargetRequest(
        target=target.name,
        nproc_per_node=requested if isinstance(requested, int) else None,
        processes_by=requested if isinstance(requested, str) else "",
        device=values["device"],
        backend=values["backend"],
        python=values["python"],
        # --env wins over the profiles.
        env={**comm_settings(values["comm_profile"], debug=values["comm_debug"]), **env},
        dry_run=values["dry_run"],
        own={option.name: values[option.name] for option in target.options},
        typed=typed,
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)) or "\0" in value:
        # The value may be a secret, and so may a word without a name: it is not repeated.
        known = name + equals if equals else "".join(re.findall("^[A-Z_][A-Z0-9_]*", text))
        raise RequestError(f"--env {known}{'' if known == text else '...'}: expected NAME=VALUE.")
    if value == HIDDEN:
        raise RequestError(f"--env {name}={HIDDEN}: a report leaves the value out; write it in place of {HIDDEN}.")
    if name in _RESERVED or (name.startswith("SEATRIAL_") and name != DATA_VARIABLE):
        raise RequestError(f"--env {name}: seatrial sets this variable itself; leave it out.")
    return name, value


def require_accelerator(target_request: TargetRequest, device: str) -> None:
    """Raise RequestError where one process for each accelerator was requested and the ranks would use the CPU."""
    if target_request.processes_by == "gpu" and device == "cpu":
        raise RequestError(
            "--nproc-per-node gpu: no accelerator was found; check the driver, or give a number of CPU processes."
        )


def placement_fields(target_request: TargetRequest, placement: Placement) -> dict[str, Any]:
    """Return the fields of ``job.Processes`` that the placement decides: all but the name of the run.

    Raises RequestError where one process for each accelerator was requested and none is there.
    """
    require_accelerator(target_request, placement.device)
    return {
        "target": target_request.target,
        "nodes": placement.nodes,
        "nproc_per_node": placement.nproc_per_node,
        "device": placement.device,
        "backend": placement.backend,
        "python": placement.python,
        "env": {**placement.env, **target_request.env},
        "absent": placement.absent,
        "hosts": placement.hosts,
        "ends_together": placement.ends_together,
        "detail": placement.detail,
    }
