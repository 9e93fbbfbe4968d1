"""From the command line to the manifests."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.kubectl_script_double import scripted
from test_docs_commands import commands_of

from seatrial.cli.argparse_app import parse
from seatrial.cli.commands.run import run
from seatrial.environment.identity import Identity
from seatrial.errors import RequestError
from seatrial.plan.model import Plan
from seatrial.request import script_request, trial_request
from seatrial.request.training_request import resolve
from seatrial.request.trial_request import job_of, plan_of, request_of
from seatrial.run.run_program import dry_run
from seatrial.targets.kubernetes import kubernetes_target
from seatrial.targets.registry import dry_run_lines

_NOBODY = Identity(launcher="none", level="none")
_IMAGE = "--image example/train:1 --dry-run"


@pytest.fixture(autouse=True)
def bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text: building the real bundle takes seconds."""
    monkeypatch.setattr(kubernetes_target, "_bundle", lambda: b"a double of the bundle")


def printed(typed: str) -> list[dict[str, Any]]:
    command, *words = shlex.split(typed)
    values = parse("seatrial", command, words)
    if command == "run":
        lines = dry_run_lines(job_of(request_of(values), _NOBODY, None)[0], values["out"])
    elif command == "launch":
        lines = dry_run(
            script_request.job_of(values, script_request.script_target_request(values), _NOBODY, None, {})[0],
            values["out"],
        )
    else:
        lines = resolve(values, _NOBODY, {}, debug=False).dry_run()
    return list(yaml.safe_load_all("\n".join(lines)))


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = objects[-1]["spec"]["template"]["spec"]["containers"][0]
    return found


def arguments_of(objects: list[dict[str, Any]]) -> list[str]:
    """Return the arguments of ``seatrial``, which follow those of the start script."""
    command: list[str] = container(objects)["command"]
    assert "/tmp/seatrial/start.py" in command
    return command[command.index("--") + 1 :]


def test_a_dry_run_prints_only_manifests(capsys: pytest.CaptureFixture[str]) -> None:
    typed = shlex.split(f"smoke --on job --nodes 2 --gpus-per-node 8 {_IMAGE}")
    assert run(parse("seatrial", "run", typed), debug=False) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [thing["kind"] for thing in objects] == ["Secret", "ConfigMap", "NetworkPolicy", "Service", "Job"]
    names = {thing["metadata"]["labels"]["app.kubernetes.io/instance"] for thing in objects}
    assert len(names) == 1
    assert names.pop().startswith("seatrial-")


def test_two_runs_share_no_name_and_no_secret() -> None:
    first, second = (printed(f"run --on job --gpus-per-node 1 {_IMAGE}") for _ in range(2))
    assert not {thing["metadata"]["name"] for thing in first} & {thing["metadata"]["name"] for thing in second}
    assert first[0]["stringData"] != second[0]["stringData"]


def test_the_pods_run_the_same_command() -> None:
    typed = f"run standard --only collectives --skip memory --deadline 99 --out /x --on job --gpus-per-node 8 {_IMAGE}"
    assert arguments_of(printed(typed)) == [
        *("run", "--device=cuda", "--nproc-per-node=8", "--only=collectives", "--skip=memory", "--deadline=99"),
        *("--", "standard"),
    ]


def test_a_plan_file_is_sent_along(tmp_path: Path) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text('level = "smoke"\n[collectives]\nmax_latency_us = 9000.0\n')
    objects = printed(f"run {plan} --on job --gpu-resource none {_IMAGE}")
    assert arguments_of(objects)[-2:] == ["--", "/tmp/seatrial/plan.json"]
    assert json.loads(objects[1]["data"]["plan.json"]) == {"level": "smoke", "collectives": {"max_latency_us": 9000.0}}
    assert objects[1]["metadata"]["name"] in json.dumps(objects[-1])


@pytest.mark.parametrize("content", ['{"password": "hunter2"}', '{"level": "smoke", "compute": {"token": "hunter2"}}'])
def test_no_cluster_sees_a_file_that_is_no_plan(content: str, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(content)
    context = {"current-context": "c", "clusters": [{"cluster": {"server": "https://c"}}]}
    kubectl = scripted(tmp_path, ("*'config view'*", f"echo '{json.dumps(context)}'"), ("*", f"cat > {tmp_path}/seen"))
    image = _IMAGE.removesuffix(" --dry-run")
    with pytest.raises(RequestError, match=r"settings\.json: .*(is missing|has no parameter)"):
        printed(f"run {tmp_path}/settings.json --on job --gpu-resource none --kubectl {kubectl} {image}")
    assert not (tmp_path / "seen").exists()


def test_the_plan_that_is_sent_along_is_the_one_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may exchange the file meanwhile."""
    (plan := tmp_path / "mine.json").write_text('{"level": "smoke"}')

    def exchanged_afterwards(values: Mapping[str, Any]) -> Plan:
        found = plan_of(values)
        plan.write_text('{"password": "hunter2"}')
        return found

    monkeypatch.setattr(trial_request, "plan_of", exchanged_afterwards)
    objects = printed(f"run {plan} --on job --gpu-resource none {_IMAGE}")
    assert json.loads(objects[1]["data"]["plan.json"]) == {"level": "smoke"}


def test_a_trial_of_cpus_must_be_requested() -> None:
    with pytest.raises(RequestError, match="--gpu-resource none"):
        printed(f"run --on job {_IMAGE}")
    arguments = arguments_of(printed(f"run --on job --gpu-resource none {_IMAGE}"))
    assert arguments == ["run", "--device=cpu", "--nproc-per-node=2", "--", "quick"]


def test_a_training_gets_the_timeout_of_the_pods() -> None:
    objects = printed(f"train digits 3 1 --output all --seed 2 --on jobset --nodes 2 --gpus-per-node 2 {_IMAGE}")
    spec = objects[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    command = spec["containers"][0]["command"]
    assert command[command.index("train") :] == [
        *("train", "--device=cuda", "--nproc-per-node=2", "--seed=2", "--timeout=900", "--", "digits", "3", "1"),
    ]
    assert "activeDeadlineSeconds" not in spec


def test_a_script_in_the_image_is_launched() -> None:
    objects = printed(f"launch --on job --nodes 2 --gpus-per-node 1 --max-restarts 2 {_IMAGE} train.py --out x --lr 1")
    assert arguments_of(objects) == [
        *("launch", "--device=cuda", "--nproc-per-node=1", "--max-restarts=2"),
        *("--", "train.py", "--out", "x", "--lr", "1"),
    ]


def test_restarts_are_those_of_the_jobset() -> None:
    objects = printed(f"train digits --max-restarts 3 --on jobset --nodes 2 --gpus-per-node 1 {_IMAGE}")
    assert objects[-1]["spec"]["failurePolicy"] == {"maxRestarts": 3}
    assert "--max-restarts" not in json.dumps(objects)


def test_faults_are_planted_in_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_PLANT", "kill@collectives:1")
    env = container(printed(f"run smoke --on job --gpus-per-node 2 {_IMAGE}"))["env"]
    assert {"name": "SEATRIAL_PLANT", "value": "kill@collectives:1"} in env


def test_all_nodes_get_one_pod_each() -> None:
    objects = printed(f"run --on job --all-nodes pool=gpu,zone=a --nodes 3 --gpus-per-node 8 {_IMAGE}")
    spec = objects[-1]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "zone": "a"}
    assert "requiredDuringSchedulingIgnoredDuringExecution" in spec["affinity"]["podAntiAffinity"]


def test_the_backend_may_be_mpi_under_mpirun() -> None:
    objects = printed(f"run --on mpijob --nodes 2 --gpus-per-node 1 --backend mpi --image-has-seatrial {_IMAGE}")
    launcher = objects[-1]["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert "--backend=mpi" in launcher["command"]


def test_amd_is_rocm() -> None:
    objects = printed(f"run --on job --gpu-resource amd.com/gpu --gpus-per-node 4 {_IMAGE}")
    assert arguments_of(objects)[1] == "--device=rocm"
    spec = objects[-1]["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"key": "amd.com/gpu", "operator": "Exists"}]
    assert spec["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "4"}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("run --on job --gpus-per-node 1 --image x --kubectl /nowhere/kubectl", "there is no such program"),
        ("run --on job --gpus-per-node 1 --dry-run", "--image IMAGE is required"),
        (f"run --on job --gpus-per-node 1 --runtime mpi {_IMAGE}", "--runtime is for --on trainjob"),
        (f"run --on mpijob --gpus-per-node 1 --trainer-version 2.0 {_IMAGE}", "--trainer-version is for --on trainjob"),
        (f"run --on job --gpus-per-node 1 --all-nodes a=b {_IMAGE}", "give it with --nodes"),
        (f"run --on job --gpus-per-node 1 --device rocm {_IMAGE}", "means cuda"),
        (f"run --on job --gpu-resource none --backend nccl {_IMAGE}", "between GPUs only"),
        (f"run --on job --gpus-per-node -1 {_IMAGE}", "--gpus-per-node -1: expected a number from 1"),
        (f"run --on job --gpus-per-node 1 --gpu-resource none {_IMAGE}", "leave one of them out"),
        (f"run --on mpijob --gpus-per-node 1 --backend mpi {_IMAGE}", "--image-has-seatrial"),
        (f"run --on job --gpus-per-node 1 --backend mpi --image-has-seatrial {_IMAGE}", "--on mpijob"),
        (f"run --on job --nodes 0 --gpus-per-node 1 {_IMAGE}", "--nodes 0"),
        (f"run --on job --gpus-per-node 1 --env HF_TOKEN=x {_IMAGE}", "put it into a Secret"),
        (f"run nowhere.toml --on job --gpus-per-node 1 {_IMAGE}", "no level and no file"),
        (f"run --on job --gpus-per-node 1 --patch /nowhere {_IMAGE}", "cannot be read"),
        (
            f"train digits --on pytorchjob --nodes 2 --gpus-per-node 1 --init file:///x/y {_IMAGE}",
            "--pvc NAME:PATH",
        ),
        (f"train digits --on pytorchjob --gpus-per-node 1 --init tcp://a:1 {_IMAGE}", "leave it out"),
        (f"train digits --on pytorchjob --nodes 2 --gpus-per-node 1 --max-restarts 1 {_IMAGE}", "use --on jobset"),
        ("train digits --on local --image x --dry-run", "--image is for --on job, jobset"),
        (
            f"train mnist --on mpijob --nodes 2 --gpus-per-node 1 {_IMAGE}",
            "train mnist: the pods do not have the files of this data set.*--pvc NAME:/data --data /data",
        ),
        (
            f"train mnist --data /data --on job --gpus-per-node 1 {_IMAGE}",
            "train mnist --data /data: the pods do not have the files",
        ),
        (
            f"run quick --on pytorchjob --nodes 4 --gpus-per-node 2 --host-network {_IMAGE}",
            "add --spread required, let pods share nodes with --on job or --on jobset",
        ),
    ],
)
def test_it_is_refused(typed: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        printed(typed)


def test_a_script_under_mpirun_is_conducted() -> None:
    """The exit code of mpirun proves nothing; and an option that mpirun decides would be refused by the rank."""
    for device, typed in (("--gpu-resource none", "cpu"), ("--gpus-per-node 1", "cuda")):
        objects = printed(f"launch --on mpijob --nodes 2 {device} {_IMAGE} /code/script.py")
        launcher = objects[-1]["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        words = launcher["command"][launcher["command"].index("launch") :]
        assert words == ["launch", f"--device={typed}", "--", "/code/script.py"]
        assert {"name": "SEATRIAL_CONDUCT", "value": "1"} in launcher["env"]
        assert "SEATRIAL_CONDUCT" in launcher["command"], "mpirun passes it on"


def test_the_pods_of_a_trial_by_hand_print_the_report() -> None:
    objects = printed(f"run quick --on job --gpus-per-node 1 --name trial-9 {_IMAGE}")
    container = objects[-1]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "SEATRIAL_REPORT_LINE", "value": "1"} in container["env"]


def test_egress_is_allowed_among_the_pods_and_to_dns() -> None:
    def policy(more: str) -> Any:
        objects = printed(f"run quick --on job --gpus-per-node 1 {more} {_IMAGE}")
        return next(thing["spec"] for thing in objects if thing["kind"] == "NetworkPolicy")

    assert policy("")["policyTypes"] == ["Ingress"]
    spec = policy("--allow-egress")
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"][0]["to"] == spec["ingress"][0]["from"]
    assert {port["protocol"] for port in spec["egress"][1]["ports"]} == {"UDP", "TCP"}


def test_a_patch_reaches_the_runtime_of_a_trainjob(tmp_path: Path) -> None:
    patch = tmp_path / "patch.yaml"
    patch.write_text("runtime: {spec: {podGroupPolicy: {coscheduling: {}}}}\n")
    objects = printed(f"run quick --on trainjob --gpus-per-node 1 --patch {patch} {_IMAGE}")
    (runtime,) = [thing for thing in objects if thing["kind"] == "TrainingRuntime"]
    assert runtime["spec"]["podGroupPolicy"] == {"coscheduling": {}}
    assert "podGroupPolicy" not in objects[-1]["spec"]
    with pytest.raises(RequestError, match="--patch: runtime is for --on trainjob"):
        printed(f"run quick --on job --gpus-per-node 1 --patch {patch} {_IMAGE}")


@pytest.mark.parametrize(("page", "least"), [("kubernetes.md", 7), ("openshift.md", 2)])
def test_every_command_of_a_page_prints_manifests(page: str, least: int) -> None:
    lines = [line for line in commands_of(page) if " --on " in line and " report " not in line]
    assert len(lines) >= least
    for line in lines:
        assert printed(line.removeprefix("seatrial "))[-1]["spec"]
