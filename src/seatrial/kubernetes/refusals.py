"""What the API server says when it takes nothing, as one sentence with what to do. Pure."""

from __future__ import annotations

import re

from seatrial.errors import RequestError, SeatrialError

__all__ = ["refusal"]

_OPERATORS = {
    "jobset": "JobSet 0.5 or newer (kubernetes-sigs/jobset)",
    "pytorchjob": "Kubeflow's training-operator 1.7 to 1.9",
    "trainjob": "Kubeflow Trainer 2.0 or newer",
    "mpijob": "Kubeflow's mpi-operator 0.5 or newer (training-operator has another MPIJob, v1)",
}
_INSTEAD = {
    "jobset": "--on job, which needs none",
    "pytorchjob": "--on job, which needs none",
    "trainjob": "--on job, which needs none",
    "mpijob": "--on job, which needs neither operator nor MPI",
}
_UNREACHABLE = (
    *("unable to connect", "connection refused", "i/o timeout", "no such host", "tls handshake", "no answer within"),
    *("the server is currently unable", "unauthorized", "must be logged in", "x509", "context deadline exceeded"),
    *("client.timeout", "invalid configuration", "service unavailable", "etcdserver", "too many requests"),
    *("connection to the server", "getting credentials", "internal error occurred"),
)


def refusal(target: str, namespace: str | None, complaint: str) -> SeatrialError:
    """The error to raise for what kubectl complained of: a RequestError where the request must change."""
    said = complaint.lower()
    if (kind := re.search(r'no matches for kind "?([A-Za-z]{1,60})', complaint)) or "doesn't have a resource" in said:
        what = kind[1] if kind else target
        if target in _OPERATORS and what.lower() in (target, "trainingruntime", "resource"):
            return RequestError(
                f"--on {target}: this cluster has no {what}; install {_OPERATORS[target]}, or use {_INSTEAD[target]}."
            )
        if what == "SecurityContextConstraints":
            return RequestError("--openshift custom-scc: this cluster is no OpenShift; leave --openshift out.")
        return RequestError(f"--on {target}: this cluster knows no {what}; it needs Kubernetes 1.25 or newer.")
    if gone := re.search(r'namespaces? "([^"]{1,80})" not found', complaint):
        where = f"--namespace {gone[1]}" if namespace is not None else f"the namespace of your context, {gone[1]}"
        return RequestError(f"{where}: there is none such; make it (create namespace {gone[1]}), or name another one.")
    if "exceeded quota" in said:
        return SeatrialError(
            f"a quota of the namespace does not allow it: {_tail(complaint)}; ask for less, or raise it"
        )
    if "immutable" in said or "already exists" in said:
        return RequestError(f"objects of that name are there already: {_tail(complaint)}; take another --name.")
    if "(forbidden)" in said or "forbidden:" in said:
        return RequestError(f"you may not do that there: {_tail(complaint)}; ask for the right, or use --namespace.")
    if any(sign in said for sign in _UNREACHABLE):
        return SeatrialError(f"the cluster does not answer: {_tail(complaint)}; see that kubectl get pods works")
    return RequestError(f"the cluster refused the manifests: {_tail(complaint)}; change what it names.")


def _tail(complaint: str) -> str:
    said = complaint.partition("; if you choose to ignore")[0].strip()
    return re.sub(r"^(?:error: |Error from server(?: \(\w+\))?: )", "", said).rstrip(".")[:500]
