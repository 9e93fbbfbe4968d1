"""Each object against the schema of its kind: the operators' strictly, built-in kinds by kubernetes-validate."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes.schemas import problems
from kubernetes.workloads import CASES, case, templates, workload_object

pytestmark = pytest.mark.slow

_BUILT_IN = ("v1", "batch/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1")
_OPENSHIFT = ("security.openshift.io/v1",)
_FLOOR = "1.25"
_FOLDER = "SEATRIAL_TEST_KUBERNETES_VALIDATE"
_MOST_FIELDS = {
    *(name for name in CASES if name.endswith("-everything")),
    *("job-arbitrary-uid", "job-image-has-seatrial", "trainjob-mpi", "mpijob-custom-scc"),
}
"""Each kind with all that it can have, and what that excludes; the others are parts of these."""


@pytest.fixture(scope="module")
def validate() -> Iterator[Callable[[dict[str, Any], str], None]]:
    """Raises for an object that this release of Kubernetes would refuse, or of which it would drop a field."""
    before = list(sys.path)
    if folder := os.environ.get(_FOLDER):
        # At the end: it lies there with all that it needs, and we have some of that.
        sys.path.append(folder)
    try:
        module = importlib.import_module("kubernetes_validate")
    except ModuleNotFoundError:
        pytest.skip(f"kubernetes-validate is not there; {_FOLDER} may name the folder that it was installed into")
    yield lambda thing, version: module.validate(thing, version, strict=True)
    sys.path[:] = before


@pytest.mark.parametrize("name", CASES)
def test_operators_take_it(name: str) -> None:
    custom = [thing for thing in case(name) if thing["apiVersion"] not in _BUILT_IN + _OPENSHIFT]
    assert custom or CASES[name][0] == "job"
    for thing in custom:
        assert problems(thing) == []


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("job-") and name != "job"])
def test_a_field_that_an_operator_does_not_know_is_found(name: str) -> None:
    thing = copy.deepcopy(workload_object(case(name)))
    thing["spec"]["replicasPerNode"] = 1
    assert problems(thing)


def test_a_number_where_the_operator_has_a_string_is_found() -> None:
    thing = copy.deepcopy(workload_object(case("pytorchjob")))
    thing["spec"]["nprocPerNode"] = 8
    assert problems(thing)


@pytest.mark.parametrize("version", [_FLOOR, "1.37"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _MOST_FIELDS else pytest.mark.nightly) for name in CASES]
)
def test_kubernetes_takes_it(name: str, version: str, validate: Callable[[dict[str, Any], str], None]) -> None:
    objects = case(name)
    pods = [{"apiVersion": "v1", "kind": "Pod", **template} for thing in objects for template in templates(thing)]
    assert pods
    for thing in [*(thing for thing in objects if thing["apiVersion"] in _BUILT_IN), *pods]:
        validate(thing, version)


def test_a_field_that_kubernetes_does_not_know_is_found(validate: Callable[[dict[str, Any], str], None]) -> None:
    job = copy.deepcopy(workload_object(case("job")))
    job["spec"]["template"]["spec"]["containers"][0]["shmSize"] = "1Gi"
    with pytest.raises(Exception, match="shmSize"):
        validate(job, _FLOOR)
