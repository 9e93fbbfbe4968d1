"""The objects besides the workload."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest
from kubernetes.kubectl_script_double import scripted
from kubernetes.workloads import workload

from seatrial import start
from seatrial.errors import RequestError
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.manifest.objects import code_maps, code_volume, part_names
from seatrial.targets.kubernetes.manifest.pod import seatrial_argv
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.workload import Object, Workload


def kept_bytes(made: Object) -> int:
    """What a plain ``kubectl apply`` keeps of the object, in an annotation; all of them together may have 256 KiB."""
    return len("kubectl.kubernetes.io/last-applied-configuration") + len(json.dumps(made, separators=(",", ":")))


@pytest.mark.parametrize("size", [1, 184_000, 190_000, 633_079, 5_000_000])
@pytest.mark.parametrize("plan", [b"{}", b'"' * 3_000, b"x" * 60_000, b"x" * 225_000])
def test_the_parts_are_the_bundle_and_pass_plain_kubectl_apply(size: int, plan: bytes) -> None:
    made = workload(run="x" * 40, namespace="n" * 63, bundle=os.urandom(size), files={"plan.json": plan})
    maps = code_maps(made)
    assert max(map(kept_bytes, maps)) <= 256 * 1024
    assert len(maps) <= size // 190_000 + 3
    held = {name: base64.b64decode(part) for each in maps for name, part in each["binaryData"].items()}
    assert max(map(len, held.values())) <= 190_000
    assert b"".join(held[name] for name in part_names(made)) == made.bundle
    assert [sorted(each.get("data", ())) for each in maps] == [["plan.json", "start.py"], *[[]] * (len(maps) - 1)]
    assert maps[0]["data"]["start.py"] == Path(start.__file__).read_text()


def test_a_plan_that_is_too_long_is_refused() -> None:
    with pytest.raises(RequestError, match="use a shorter plan"):
        code_maps(workload(files={"plan.json": b"x" * 262_000}))


def test_a_pod_sees_all_parts_in_one_folder_and_compares_the_digest() -> None:
    made = workload(bundle=os.urandom(500_000))
    maps = code_maps(made)
    assert len({each["metadata"]["name"] for each in maps}) == 3
    sources = [{"configMap": {"name": each["metadata"]["name"]}} for each in maps]
    assert code_volume(made) == {"projected": {"sources": sources}}
    assert made.bundle is not None
    assert seatrial_argv(made) == [
        *("python3", "/tmp/seatrial/start.py", hashlib.sha256(made.bundle).hexdigest(), "/tmp/seatrial"),
        *(f"/tmp/seatrial/seatrial.pyz.{number}" for number in (1, 2, 3)),
        *("--", *made.arguments),
    ]


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
    return str(code["metadata"]["name"])


def test_runs_in_the_network_of_the_hosts_differ_in_their_port() -> None:
    ports = {workload(run=f"seatrial-{number:06x}").master_port for number in range(200)}
    assert len(ports) > 150
    assert all(20_000 <= port < 32_000 for port in ports)


@pytest.mark.parametrize("bundle", [b"a bundle", None])
@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_what_containers_wait_for_is_created_last(kind: str, bundle: bytes | None, tmp_path: Path) -> None:
    """A container of an image with seatrial, which has no ConfigMap, could start before the NetworkPolicy."""
    kubectl = Kubectl(
        program=scripted(tmp_path, ("*", f"cat >> {tmp_path}/sent; echo >> {tmp_path}/sent")), namespace="ml"
    )
    AppliedObjects(kubectl, kind, manifest(kind, workload(bundle=bundle))).apply()
    sent = [json.loads(line) for line in (tmp_path / "sent").read_text().splitlines() if line]
    kinds = [thing["kind"] for document in sent for thing in document.get("items", [document])]
    last = ["Secret", *("ConfigMap" for name in kinds if name == "ConfigMap")]
    assert bool(bundle) == ("ConfigMap" in last)
    assert kinds[-len(last) :] == last
    assert "NetworkPolicy" in kinds
