"""The objects beside the workload."""

from __future__ import annotations

import json

import pytest
from kubernetes.workloads import workload

from seatrial.errors import RequestError
from seatrial.kubernetes.objects import code_map, code_name


def test_the_largest_file_that_travels_passes_plain_kubectl_apply() -> None:
    (code,) = code_map(workload(run="x" * 40, namespace="n" * 63, bundle=b"x" * 194_000))
    # kubectl keeps the object in an annotation, and all annotations of an object together have 256 KiB.
    kept = json.dumps(code, separators=(",", ":"))
    assert len("kubectl.kubernetes.io/last-applied-configuration") + len(kept) <= 256 * 1024


def test_a_larger_one_is_refused() -> None:
    with pytest.raises(RequestError, match="an image that has seatrial"):
        code_map(workload(bundle=b"x" * 180_000, files={"plan.json": b"x" * 20_000}))


def test_the_name_tells_what_is_in_it() -> None:
    names = {
        code_name(workload()),
        code_name(workload(bundle=b"other")),
        code_name(workload(run="other")),
        code_name(workload(files={"plan.json": b"{}"})),
        code_name(workload(files={"plan.json": b"{ }"})),
        code_name(workload(files={"plan.jso": b"n{}"})),
    }
    assert len(names) == 6
    assert code_name(workload()) == code_name(workload(image="other", nodes=3))
    assert code_name(workload(bundle=None)) is None


def test_runs_in_the_network_of_the_hosts_differ_in_their_port() -> None:
    ports = {workload(run=f"seatrial-{number:06x}").master_port for number in range(200)}
    assert len(ports) > 150
    assert all(20_000 <= port < 32_000 for port in ports)
