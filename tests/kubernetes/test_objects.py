"""The objects beside the workload."""

from __future__ import annotations

import json

import pytest
from kubernetes.workloads import workload

from seatrial.errors import RequestError
from seatrial.kubernetes.objects import code_maps, code_volume
from seatrial.kubernetes.workload import Workload


def test_the_largest_file_that_travels_passes_plain_kubectl_apply() -> None:
    (code,) = code_maps(workload(run="x" * 40, namespace="n" * 63, bundle=b"x" * 194_000))
    # kubectl keeps the object in an annotation, and all annotations of an object together have 256 KiB.
    kept = json.dumps(code, separators=(",", ":"))
    assert len("kubectl.kubernetes.io/last-applied-configuration") + len(kept) <= 256 * 1024


def test_a_larger_one_is_refused() -> None:
    with pytest.raises(RequestError, match="an image that has seatrial"):
        code_maps(workload(bundle=b"x" * 180_000, files={"plan.json": b"x" * 20_000}))


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
    assert code_volume(workload(bundle=None)) is None


def code_name(made: Workload) -> str:
    (code,) = code_maps(made)
    assert code_volume(made) == {"configMap": {"name": code["metadata"]["name"]}}
    return str(code["metadata"]["name"])


def test_what_lies_beside_it_has_a_map_of_its_own_and_is_seen_in_the_same_folder() -> None:
    made = workload(bundle=b"x" * 194_000, more=b"y" * 100_000)
    first, second = code_maps(made)
    assert (list(first["binaryData"]), list(second["binaryData"])) == (["seatrial.pyz"], ["seatrial.pyz.more"])
    names = [each["metadata"]["name"] for each in (first, second)]
    assert len(set(names)) == 2
    assert code_volume(made) == {"projected": {"sources": [{"configMap": {"name": name}} for name in names]}}


def test_runs_in_the_network_of_the_hosts_differ_in_their_port() -> None:
    ports = {workload(run=f"seatrial-{number:06x}").master_port for number in range(200)}
    assert len(ports) > 150
    assert all(20_000 <= port < 32_000 for port in ports)
