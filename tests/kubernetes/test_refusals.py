"""Errors of kubectl 1.32, word for word, and the errors that seatrial raises for them."""

from __future__ import annotations

import pytest

from seatrial.errors import RequestError, SeatrialError, TargetUnreachableError
from seatrial.targets.kubernetes.kubectl import CallResult, Kubectl
from seatrial.targets.kubernetes.refusals import refusal


def _kubectl(namespace: str | None) -> Kubectl:
    return Kubectl(program="/opt/kubectl", namespace=namespace)


def _failed(complaint: str, code: int = 1) -> CallResult:
    return CallResult(code=code, out="", err=complaint)


_NO_JOBSET = (
    'error: resource mapping not found for name: "t" namespace: "ml" from "STDIN": no matches for kind "JobSet" in'
    ' version "jobset.x-k8s.io/v1alpha2"'
)


@pytest.mark.parametrize(
    ("target", "complaint", "words"),
    [
        ("jobset", _NO_JOBSET, ["this cluster has no JobSet", "install JobSet 0.6", "--on job"]),
        (
            "mpijob",
            'no matches for kind "MPIJob" in version "kubeflow.org/v2beta1"',
            ["mpi-operator 0.5", "neither an operator nor MPI"],
        ),
        ("trainjob", 'no matches for kind "TrainingRuntime" in version "x"', ["Kubeflow Trainer 2.0"]),
        ("pytorchjob", 'error: the server doesn\'t have a resource type "pytorchjobs"', ["training-operator"]),
        (
            "job",
            'no matches for kind "NetworkPolicy" in version "networking.k8s.io/v1"',
            ["has no NetworkPolicy", "Kubernetes 1.25"],
        ),
        (
            "job",
            'no matches for kind "Job" in version "batch.volcano.sh/v1alpha1"',
            ["this cluster has no Job of batch.volcano.sh/v1alpha1"],
        ),
        (
            "job",
            'no matches for kind "SecurityContextConstraints" in version "security.openshift.io/v1"',
            ["is not OpenShift"],
        ),
        (
            "job",
            'Error from server (NotFound): error when creating "STDIN": namespaces "ml" not found',
            ["the namespace ml does not exist", "create namespace ml"],
        ),
        (
            "job",
            'Error from server (Forbidden): error when creating "STDIN": jobs.batch is forbidden: User "me" cannot'
            ' create resource "jobs" in API group "batch" in the namespace "ml"',
            ["a permission is missing", 'User "me" cannot create resource "jobs"'],
        ),
        (
            "job",
            'The Secret "t" is invalid: data: Forbidden: field is immutable when `immutable` is set',
            ["choose another --name"],
        ),
        ("job", 'error: Job in version "v1" cannot be handled', ["refused the manifests", "cannot be handled"]),
    ],
)
def test_a_refused_request_is_a_request_error(target: str, complaint: str, words: list[str]) -> None:
    found = refusal(target, _kubectl("ml"), _failed(complaint))
    assert isinstance(found, RequestError)
    for word in words:
        assert word in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "complaint",
    [
        "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout",
        "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
        "error: You must be logged in to the server (Unauthorized)",
        "no answer within 20 s",
        "unexpected EOF",
        'Post "https://10.0.0.1:6443/apis/batch/v1/namespaces/ml/jobs?dryRun=All": EOF',
        *("Error from server (TooManyRequests): wait", "Error from server (ServerTimeout): wait"),
        "error: read tcp 10.0.0.2:51000->10.0.0.1:6443: read: connection reset by peer",
    ],
)
def test_an_unreachable_cluster_is_no_request_error(complaint: str) -> None:
    found = refusal("job", _kubectl(None), _failed(complaint))
    assert type(found) is TargetUnreachableError
    assert "does not answer" in str(found)


def test_a_quota_is_no_request_error() -> None:
    complaint = 'Error from server (Forbidden): jobs.batch "t" is forbidden: exceeded quota: jobs'
    found = refusal("job", _kubectl(None), _failed(complaint))
    assert type(found) is SeatrialError
    assert "exceeded quota: jobs" in str(found)


def test_what_to_try_names_the_namespace() -> None:
    complaint = "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout"
    assert str(refusal("job", _kubectl("ml"), _failed(complaint))).endswith(
        "; make sure that /opt/kubectl -n ml get pods works"
    )
    assert str(refusal("job", _kubectl(None), _failed(complaint))).endswith(
        "; make sure that /opt/kubectl get pods works"
    )


def test_a_namespace_that_is_not_there_is_named_once() -> None:
    complaint = 'Error from server (NotFound): namespaces "nlp" not found'
    said = (
        "the namespace nlp does not exist; create it (/opt/kubectl create namespace nlp) or name another: --namespace."
    )
    assert str(refusal("job", _kubectl("nlp"), _failed(complaint))) == said
    assert str(refusal("job", _kubectl(None), _failed(complaint))) == said


@pytest.mark.parametrize(
    ("complaint", "code", "words"),
    [
        ("", -9, "kubectl was ended by signal 9"),
        ('Warning: would violate PodSecurity "restricted:latest"', 137, "kubectl was ended by signal 9"),
        ("Error from server (Conflict): Operation cannot be fulfilled on resourcequotas", 1, "another request"),
        ("an answer of more than 256 MiB to kubectl create -f -", 1, "an answer of more than 256 MiB"),
    ],
)
def test_what_no_other_request_would_mend_is_no_wrong_one(complaint: str, code: int, words: str) -> None:
    found = refusal("job", _kubectl("ml"), _failed(complaint, code))
    assert type(found) is SeatrialError
    assert words in str(found)
    assert "change the field" not in str(found)
