"""The errors with which the API server refuses a request, each as one sentence with what to do. Pure."""

from __future__ import annotations

import re

from seatrial.errors import PermissionDeniedError, RequestError, SeatrialError, TargetUnreachableError
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import TOO_LARGE, CallResult, Kubectl
from seatrial.util.text import signal_words

_UNKNOWN = re.compile(r'no matches for kind "?([A-Za-z]{1,60})"?(?: in version "([A-Za-z0-9./-]{1,120})")?')
_UNREACHABLE = (
    *("unable to connect", "connection refused", "i/o timeout", "no such host", "tls handshake", "no answer within"),
    *("the server is currently unable", "unauthorized", "must be logged in", "x509", "context deadline exceeded"),
    *("client.timeout", "invalid configuration", "service unavailable", "etcdserver", "too many requests"),
    *("connection to the server", "getting credentials", "internal error occurred"),
    *("(toomanyrequests)", "(serviceunavailable)", "(servertimeout)", "(timeout)", "(internalerror)"),
    *("unexpected eof", ": eof", "connection reset by peer", "broken pipe", "http2: "),
)


def is_not_yet_known(complaint: str) -> bool:
    """Return whether the webhook of Trainer does not know a TrainingRuntime yet that was just created."""
    return "must be created before" in complaint


def refusal(target: str, kubectl: Kubectl, result: CallResult) -> SeatrialError:
    """Return the error to raise for a call that failed: a RequestError where the request must change."""
    complaint = result.complaint
    text = complaint.lower()
    # A script as --kubectl ends as its shell does.
    if number := -result.code if result.code < 0 else result.code - 128 if 128 < result.code < 160 else 0:
        return SeatrialError(
            f"kubectl was ended by {signal_words(number)}; see who or what ends it here, then try again"
        )
    if text.startswith(TOO_LARGE):
        return SeatrialError(f"the cluster gave {_tail(complaint)}; see which objects there are so large")
    if "(conflict)" in text or "operation cannot be fulfilled" in text:
        return SeatrialError(f"another request at the same time was in the way: {_tail(complaint)}; try again")
    if unknown := _UNKNOWN.search(complaint):
        return _missing_kind(target, unknown[1], unknown[2] or "")
    if "doesn't have a resource" in text:
        return _missing_kind(target)
    if gone := re.search(r'namespaces? "([^"]{1,80})" not found', complaint):
        create = kubectl.command_line("create", "namespace", gone[1])
        return RequestError(
            f"the namespace {gone[1]} does not exist; create it ({create}) or name another: --namespace."
        )
    if "exceeded quota" in text:
        return SeatrialError(
            f"a quota of the namespace does not allow it: {_tail(complaint)}; request less, or raise the quota"
        )
    if is_not_yet_known(complaint):
        return SeatrialError(
            f"the webhook of the operator does not know the objects of the run: {_tail(complaint)}; see whether the"
            " operator is healthy, then try again"
        )
    if "violates podsecurity" in text or "would violate podsecurity" in text:
        return RequestError(
            f"the Pod Security level of the namespace does not admit these pods: {_tail(complaint)}; leave out the"
            " option that asks for it, or use a namespace with a lower level (pod-security.kubernetes.io/enforce)."
        )
    if "immutable" in text or "already exists" in text or "alreadyexists" in text:
        return RequestError(f"objects of this name already exist: {_tail(complaint)}; choose another --name.")
    if "(forbidden)" in text or "forbidden:" in text:
        return PermissionDeniedError(
            f"a permission is missing: {_tail(complaint)}; request it, or use another --namespace."
        )
    if any(sign in text for sign in _UNREACHABLE):
        try_it = kubectl.command_line("get", "pods")
        return TargetUnreachableError(f"the cluster does not answer: {_tail(complaint)}; make sure that {try_it} works")
    return RequestError(f"the cluster refused the manifests: {_tail(complaint)}; change the field that it names.")


def _missing_kind(target: str, what: str | None = None, version: str = "") -> RequestError:
    """Return the error for a kind of object that the API server does not know; None: the kind of the workload."""
    operator = KINDS[target].operator
    if operator is not None and (what is None or what in operator.api_kinds):
        return RequestError(
            f"--on {target}: this cluster has no {what or operator.api_kinds[0]}; install {operator.release}, or use"
            f" {operator.instead}."
        )
    if what == "SecurityContextConstraints":
        return RequestError("--openshift custom-scc: this cluster is not OpenShift; leave --openshift out.")
    group = version.rpartition("/")[0]
    if "." in group and (group.endswith(".x-k8s.io") or not group.endswith(".k8s.io")):
        # An operator brings such a group, never a release of Kubernetes.
        return RequestError(
            f"--on {target}: this cluster has no {what} of {version}; install the operator that provides it."
        )
    return RequestError(f"--on {target}: this cluster has no {what or target}; Kubernetes 1.25 or newer is required.")


def _tail(complaint: str) -> str:
    text = complaint.partition("; if you choose to ignore")[0].strip()
    return re.sub(r"^(?:error: |Error from server(?: \(\w+\))?: )", "", text).rstrip(".")[:500]
