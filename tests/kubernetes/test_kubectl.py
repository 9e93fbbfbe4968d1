"""Calls of kubectl: their arguments, results and deadlines."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.kubectl_script_double import scripted

from seatrial.errors import RequestError, SeatrialError
from seatrial.targets.kubernetes import kubectl as kubectl_module
from seatrial.targets.kubernetes.kubectl import Kubectl, find_kubectl
from seatrial.util import memory_file, tool

_AT_A = {"current-context": "a", "clusters": [{"name": "c", "cluster": {"server": "https://a"}}]}


def test_calls_name_the_context_the_namespace_and_a_request_timeout(tmp_path: Path) -> None:
    program = scripted(tmp_path, ("*", "exit 0"))
    assert Kubectl(program=program, namespace="ml", context=("--context=a",)).call("get", "pods").code == 0
    assert (tmp_path / "calls").read_text() == "--context=a --namespace ml get pods --request-timeout=15s\n"
    assert Kubectl(program="oc", namespace=None).argv("logs", "x", "--follow", streams=True)[1:] == [
        *("logs", "x", "--follow")
    ]


@pytest.mark.parametrize(
    ("namespace", "of_context", "pinned"),
    [(None, "ml", "ml"), (None, None, "default"), (None, "", "default"), ("mine", "ml", "mine")],
)
def test_a_run_stays_in_its_place_whatever_the_user_chooses_meanwhile(
    tmp_path: Path, namespace: str | None, of_context: str | None, pinned: str
) -> None:
    """With ``kubectl config use-context``, and ``kubectl config set-context --current --namespace``."""
    context = {"cluster": "c", **({} if of_context is None else {"namespace": of_context})}
    answer = json.dumps({**_AT_A, "contexts": [{"name": "a", "context": context}]})
    program = scripted(tmp_path, ("*config*", f"echo '{answer}'"))
    kubectl = Kubectl(program=program, namespace=namespace).in_present_context()
    assert kubectl.argv("get", "pods", streams=True)[1:] == ["--context=a", "--namespace", pinned, "get", "pods"]
    assert f"-n {pinned} get pods" in kubectl.command_line("get", "pods")


@pytest.mark.parametrize("of_context", ["ml", ""])
@pytest.mark.parametrize(("namespace", "pinned"), [(None, "team"), ("mine", "mine")])
def test_a_run_stays_in_the_namespace_that_a_script_adds(
    tmp_path: Path, namespace: str | None, pinned: str, of_context: str
) -> None:
    """kubectl 1.32 prints the namespace of its option, and that of a context only with ``config view``."""
    contexts = [{"name": "a", "context": {"cluster": "c", "namespace": of_context}}]
    answer = json.dumps({**_AT_A, "contexts": contexts})
    printed = json.dumps({"kind": "ConfigMap", "metadata": {"name": "x", "namespace": "team"}})
    program = scripted(
        tmp_path, ("*config' 'view*", f"echo '{answer}'"), ("*create*--dry-run=client*", f"echo '{printed}'")
    )
    kubectl = Kubectl(program=program, namespace=namespace).in_present_context()
    assert kubectl.namespace == pinned


@pytest.mark.parametrize(
    ("server", "begins"),
    [("https://rancher.example/k8s/clusters/c-1", "/k8s/clusters/c-1/api/v1"), ("https://a", "/api/v1")],
)
def test_the_path_of_the_server_counts_for_deletions(tmp_path: Path, server: str, begins: str) -> None:
    """kubectl 1.32 replaces it by the path that ``--raw`` names."""
    answer = json.dumps({**_AT_A, "clusters": [{"name": "c", "cluster": {"server": server}}]})
    program = scripted(tmp_path, ("*config*", f"echo '{answer}'"), ("*", f"cat > {tmp_path}/options"))
    thing = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ml", "uid": "u-1"}}
    kubectl = Kubectl(program=program, namespace=None).in_present_context()
    assert kubectl.start_deletion(thing, grace_s=1).wait().code == 0
    *_, call = (tmp_path / "calls").read_text().splitlines()
    place = "--context=a --namespace default"
    assert call == f"{place} delete --raw {begins}/namespaces/ml/pods/p -f - --request-timeout=15s"
    options = json.loads((tmp_path / "options").read_text())
    assert options["preconditions"] == {"uid": "u-1"}
    assert options["gracePeriodSeconds"] == 1


def test_the_parts_of_a_request_are_quoted() -> None:
    kubectl = Kubectl(program="oc", namespace=None, server_path="/k8s/clusters/c-1")
    *words, path = kubectl.raw("ml", "pods", "a?b#c", "log", sinceTime="2026-01-01T00:00:00+05:30")
    assert words == ["get", "--raw"]
    assert path == (
        "/k8s/clusters/c-1/api/v1/namespaces/ml/pods/a%3Fb%23c/log?sinceTime=2026-01-01T00%3A00%3A00%2B05%3A30"
    )


@pytest.mark.parametrize(
    "view",
    [
        "echo 'error: current-context must exist in order to minify' >&2; exit 1",
        """echo '{"current-context": "", "clusters": null}'""",
        """echo '{"current-context": "a", "clusters": [{"name": "c", "cluster": {"server": ""}}]}'""",
    ],
)
def test_without_a_server_nothing_is_sent(view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubectl would ask http://localhost:8080, and whoever listens there would get the token and give the verdict."""
    program = scripted(tmp_path, ("*config' 'view*", view))
    for namespace in ("ml", None):
        kubectl = Kubectl(program=program, namespace=namespace)
        for name in ("HOST", "PORT"):
            monkeypatch.delenv(f"KUBERNETES_SERVICE_{name}", raising=False)
        with pytest.raises(RequestError, match="would ask http://localhost:8080"):
            kubectl.in_present_context()
        for name in ("HOST", "PORT"):
            monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", "1")
        with pytest.raises(RequestError, match="choose one: kubectl config use-context NAME"):
            kubectl.in_present_context()
        (tmp_path / "token").touch()
        monkeypatch.setattr(kubectl_module, "_ACCOUNT_TOKEN", str(tmp_path / "token"))
        assert kubectl.in_present_context() == kubectl
        monkeypatch.setattr(kubectl_module, "_ACCOUNT_TOKEN", str(tmp_path / "none"))
    assert kubectl.argv("get", "pods")[1:] == ["get", "pods"], "with --request-timeout the account is ignored"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("get", "job.batch,pods", "-l", "a=b"), "oc -n ml get job.batch,pods -l a=b"),
        (("delete", "job.batch/trial-1", "secret/trial-1"), "oc -n ml delete job.batch/trial-1 secret/trial-1"),
        (("get", "pods"), "oc -n ml get pods"),
        # Nodes are in no namespace, and a line with one reads as if they were.
        (("cordon", "gpu-1"), "oc cordon gpu-1"),
        (("get", "nodes", "-l", "pool=a"), "oc get nodes -l pool=a"),
    ],
)
def test_a_line_to_type_names_the_namespace_where_there_is_one(words: tuple[str, ...], line: str) -> None:
    line = f"/usr/bin/{line}"
    assert Kubectl(program="/usr/bin/oc", namespace="ml").command_line(*words) == line
    assert Kubectl(program="/usr/bin/oc", namespace=None).command_line(*words) == line.replace(" -n ml", "")


@pytest.mark.parametrize(("in_path", "program"), [(True, "kubectl-double"), (False, "'{folder}/kubectl-double'")])
def test_a_line_to_type_means_the_cluster_of_the_run(
    in_path: bool, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another context may be current when the line is typed, and another program have the first one's name."""
    (folder := tmp_path / "a b").mkdir()
    whole = scripted(folder, ("*", "exit 0"))
    if in_path:
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    kubectl = Kubectl(program=whole, namespace="ml", context=("--context=my cluster",))
    begin = f"{program.format(folder=folder)} '--context=my cluster'"
    assert kubectl.command_line("cordon", "gpu-1") == f"{begin} cordon gpu-1"
    assert kubectl.command_line("delete", "job.batch/t") == f"{begin} -n ml delete job.batch/t"


@pytest.mark.parametrize(("mode", "at"), [(0o755, "{typed}"), (0o775, "/"), (0o1777, "/")])
def test_no_call_starts_where_others_can_put_files(
    mode: int, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads .kube/config there without HOME, and a login plug-in that this names is executed."""
    (typed := tmp_path / "typed").mkdir()
    typed.chmod(mode)
    monkeypatch.chdir(typed)
    monkeypatch.setenv("KUBECONFIG", "mine:/etc/its::../b c")
    scripted(typed, ("*", 'pwd; echo "$KUBECONFIG"'))
    here, config = Kubectl(program=find_kubectl("./kubectl-double"), namespace=None).call("get").out.splitlines()
    assert here == at.format(typed=typed)
    place = f"/proc/{os.getpid()}/cwd"
    assert config == ("mine:/etc/its::../b c" if at != "/" else f"{place}/mine:/etc/its::{place}/../b c")


@pytest.mark.parametrize("left", ["exp", "exp-15:02", "removed"])
def test_config_and_program_are_those_of_the_folder_typed_in(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbor can exchange a folder below one of a group at any time, and make ``exp-15``, which would be an entry,
    and the name that Linux gives a removed folder."""
    (team := tmp_path / "team").mkdir()
    team.chmod(0o775)
    for owner, folder in (("mine", team / left), ("its", team / "its")):
        (folder / "bin").mkdir(parents=True)
        (folder / "config").write_text(owner)
        scripted(folder / "bin", ("*", f'echo {owner}; cat "$KUBECONFIG"'))
    monkeypatch.chdir(team / left)
    monkeypatch.setenv("KUBECONFIG", "config")
    kubectl = Kubectl(program=find_kubectl("bin/kubectl-double"), namespace=None)
    assert kubectl.command_line("get") == f"{team}/{left}/bin/kubectl-double get"
    assert kubectl.call("get").out == "mine\nmine"
    (team / left).rename(team / "moved")
    places = (team / left, team / "moved (deleted)", team / left.partition(":")[0])
    if left == "removed":
        shutil.rmtree(team / "moved")
    for place in places:
        if not place.exists():
            shutil.copytree(team / "its", place)
    if left == "removed":
        with pytest.raises(RequestError, match="--kubectl bin/kubectl-double: it cannot be started"):
            kubectl.call("get")
        assert kubectl.command_line("get") == f"'{team}/moved (deleted)/bin/kubectl-double' get"
    else:
        assert kubectl.call("get").out == "mine\nmine"


def test_input_and_output_may_be_large(tmp_path: Path) -> None:
    kubectl = Kubectl(program=scripted(tmp_path, ("*", "cat")), namespace=None)
    content = b'{"a": "' + b"x" * 1_000_000 + b'"}'
    assert kubectl.call("apply", stdin_bytes=content).json == {"a": "x" * 1_000_000}


def test_a_full_disk_keeps_no_call_from_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(tempfile, "mkstemp", full)
    kubectl = Kubectl(program=scripted(tmp_path, ("*", "cat; echo told >&2")), namespace=None)
    result = kubectl.call("apply", stdin_bytes=b"given")
    assert (result.code, result.out, result.err) == (0, "given", "told\n")
    assert kubectl.call("apply").out == ""


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC])
def test_a_machine_that_starts_nothing_is_no_wrong_request(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(content: bytes = b"") -> int:
        raise OSError(number, os.strerror(number))

    kubectl = Kubectl(program=scripted(tmp_path, ("*", "exit 0")), namespace=None)
    with pytest.raises(RequestError, match="it cannot be started"):
        replace(kubectl, program=str(tmp_path)).call("get", "pods")
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(memory_file, "create", refused)
    with pytest.raises(SeatrialError, match=f"it cannot be started .{os.strerror(number)}.; see which limit") as raised:
        kubectl.call("get", "pods")
    assert raised.value.exit_code == 3
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_call_that_times_out_is_killed_with_its_children(tmp_path: Path) -> None:
    stays = tmp_path / "stays"
    program = scripted(tmp_path, ("*", f"(sleep 30; touch {stays}) & sleep 30"))
    began = time.monotonic()
    answer = Kubectl(program=program, namespace=None, timeout_s=0.3).call("get", "pods")
    assert answer.code == 124
    assert answer.err == "no answer within 0.3 s"
    assert "no answer within 0.3 s" in answer.complaint
    assert time.monotonic() - began < 25


@pytest.mark.timeout(60)
def test_a_kubectl_that_cannot_be_killed_holds_up_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for one that waits in the kernel (state D), for the disk of its configuration, say."""
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: groups.append(group))
    monkeypatch.setattr(tool, "_KILL_TIMEOUT_S", 0.1)
    try:
        answer = Kubectl(program=scripted(tmp_path, ("*", "exec sleep 600")), namespace=None, timeout_s=0.1).call("get")
        assert (answer.code, answer.err) == (124, "no answer within 0.1 s")
    finally:
        monkeypatch.undo()
        for group in groups:
            os.killpg(group, signal.SIGKILL)


@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.parametrize("then", ["exit 0", "sleep 600"])
def test_an_answer_is_bounded(stream: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl_module, "_MAX_ANSWER_BYTES", 3 << 20)
    program = scripted(tmp_path, ("*", f"head -c 4194304 /dev/zero >&{stream}; {then}"))
    result = Kubectl(program=program, namespace="ml").call("get", "pods")
    assert (result.code, result.out) == (1, "")
    assert "an answer of more than 3 MiB to " in result.complaint
    assert "--namespace ml get pods" in result.complaint


def test_the_complaint_is_the_last_error_line(tmp_path: Path) -> None:
    said = r"printf 'Warning: old\nError from server (Forbidden): no\nhint: ask\n' >&2; exit 1"
    kubectl = Kubectl(program=scripted(tmp_path, ("*", said)), namespace=None)
    assert kubectl.call("get", "pods").complaint == "Error from server (Forbidden): no"
    with pytest.raises(SeatrialError, match=r"get nodes: Error from server \(Forbidden\): no; make sure"):
        kubectl.json("get", "nodes")


def test_the_reason_is_not_cut_from_an_error_of_several_lines(tmp_path: Path) -> None:
    """As kubectl 1.34 prints it where a right is missing."""
    lines = (
        "Error from server (Forbidden): error when retrieving current configuration of:\n"
        'Resource: "batch/v1, Resource=jobs", GroupVersionKind: "batch/v1, Kind=Job"\nName: "a", Namespace: "ml"\n'
        'from server for: "STDIN": jobs.batch "a" is forbidden: User "ann" cannot get resource "jobs"\n'
    )
    (tmp_path / "lines").write_text(lines)
    kubectl = Kubectl(program=scripted(tmp_path, ("*", f"cat {tmp_path}/lines >&2; exit 1")), namespace=None)
    assert kubectl.call("get").complaint == 'jobs.batch "a" is forbidden: User "ann" cannot get resource "jobs"'


def test_objects_are_read_from_a_list_and_one_by_one(tmp_path: Path) -> None:
    named = [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}} for name in ("a", "b")]
    one_by_one = "\n".join(map(json.dumps, named))
    for text in (one_by_one, json.dumps({"kind": "List", "items": [*named, {}]})):
        (tmp_path / "out").write_text(text)
        kubectl = Kubectl(program=scripted(tmp_path, ("*", f"cat {tmp_path}/out")), namespace=None)
        assert [thing["metadata"]["name"] for thing in kubectl.call("create").documents] == ["a", "b"]


def test_a_missing_kubectl_is_a_request_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="neither kubectl nor oc is on PATH"):
        find_kubectl(None)
    oc = tmp_path / "oc"
    oc.write_text("#!/bin/sh\n")
    oc.chmod(0o755)
    assert find_kubectl(None) == str(oc)
    with pytest.raises(RequestError, match="--kubectl /nowhere/kubectl: there is no such program"):
        find_kubectl("/nowhere/kubectl")


@pytest.mark.parametrize("entry", ["", "."])
def test_a_kubectl_of_the_working_folder_is_none(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may have put it there, and an empty entry of PATH means that folder."""
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{entry}:/nowhere")
    with pytest.raises(RequestError, match="neither kubectl nor oc is on PATH"):
        find_kubectl(None)
    assert find_kubectl("./kubectl") == "./kubectl"
