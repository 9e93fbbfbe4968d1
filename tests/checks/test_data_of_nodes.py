"""The data of a training on several nodes: missing, damaged or other content on one of them is named."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from checks.fake_context import FakeContext
from checks.simulated_training import SMOKE, trained
from training.rank_processes import run_jobs
from training.small_files import write_mnist

from seatrial.checks.training.data_files import compared_data
from seatrial.checks.training.judge import judge
from seatrial.checks.training.params import Params
from seatrial.errors import RequestError
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact
from seatrial.probe.file_system import own_places
from seatrial.targets.kubernetes.run_log import nodes_to_cordon
from seatrial.training.data.data_file import NOT_PUBLISHED, NOT_TOGETHER

Places: TypeAlias = list[str] | None


def with_data(num_nodes: int, **by_node: tuple[str, str]) -> Evidence:
    """Two ranks a node; the first of each reports its data, alike but for ``node1=(fault, digest)``."""
    return with_places(num_nodes, {}, **by_node)


def with_places(num_nodes: int, places: dict[int, Places], **by_node: tuple[str, str]) -> Evidence:
    """The same with the places of the files of nodes; the others have their own."""
    evidence = trained(2 * num_nodes)
    facts = []
    for node in range(num_nodes):
        fault, digest = by_node.get(f"node{node}", ("", "aa" * 32))
        value = {"fault": fault, "digest": digest, "places": places.get(node, [f"boot-{node} 8:1 2"])}
        facts.append(Fact(check="training", name="data", value=value, rank=2 * node))
    return replace(evidence, facts=(*evidence.facts, *facts))


def test_equal_data_is_no_finding() -> None:
    assert judge(with_data(3), SMOKE).findings == ()
    assert judge(with_places(3, SHARED["not of one machine"]), SMOKE).findings == ()


SHARED: dict[str, dict[int, Places]] = {
    "not of one machine": {0: None, 1: None, 2: None},
    "a server and its clients": {1: None, 2: None},
    "not of one machine elsewhere": {2: None},
    "two hosts of one machine": {0: ["boot 8:1 2", "boot 8:1 3"], 1: ["boot 8:2 3", "boot 8:1 2"]},
}


@pytest.mark.parametrize("report", [("no file", ""), ("", "bb" * 32)])
@pytest.mark.parametrize("shared", SHARED)
def test_files_that_others_may_change_meanwhile_name_no_node(shared: str, report: tuple[str, str]) -> None:
    """Any user of a shared folder can exchange a file for the moment in which one node looks."""
    (finding,) = judge(with_places(3, SHARED[shared], node1=report), SMOKE).findings
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")
    assert (finding.culprit.ranks, nodes_to_cordon([finding])) == ((), [])
    assert finding.culprit.name == "node node-1, or a file system that nodes may share, not separable"
    assert finding.what.startswith("node-1 ")
    assert finding.action.startswith("run again")


def test_two_nodes_that_may_share_their_data_are_not_named() -> None:
    (finding,) = judge(with_places(2, {0: None, 1: None}, node1=("", "bb" * 32)), SMOKE).findings
    assert (finding.culprit.kind, nodes_to_cordon([finding])) == ("none", [])
    words = "some of nodes node-0, node-1, or a file system that nodes may share, not separable"
    assert finding.culprit.name == words


def test_agents_of_one_machine_have_the_same_places() -> None:
    evidence = with_places(3, {1: ["boot 8:1 2"], 2: ["boot 8:1 2"]}, node1=("no file", ""), node2=("no file", ""))
    names = {rank: "gpu-0" if rank < 2 else "gpu-1" for rank in evidence.ranks}
    ranks = {rank: replace(seen, node=names[rank]) for rank, seen in evidence.ranks.items()}
    evidence = replace(evidence, ranks=ranks, places_of_nodes={1: "10.0.0.1", 2: "10.0.0.1"})
    (finding,) = judge(evidence, SMOKE).findings
    assert finding.culprit.name == "node gpu-1"


def test_a_report_of_an_older_version_names_no_node() -> None:
    evidence = with_data(3, node1=("", "bb" * 32))
    for fact in evidence.facts:
        if fact.name == "data":
            del fact.value["places"]
    (finding,) = judge(evidence, SMOKE).findings
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")


def test_other_content_on_one_node_names_it() -> None:
    (finding,) = judge(with_data(3, node1=("", "bb" * 32)), SMOKE).findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.name) == ("fail", "node", "node node-1")
    assert (finding.culprit.ranks, finding.culprit.nodes) == ((2, 3), ("node-1",))
    assert "other training data than 2 other nodes" in finding.what


def test_a_machine_with_several_agents_is_named_once() -> None:
    evidence = with_data(3, node1=("no file", ""), node2=("no file", ""))
    names = {rank: "gpu-0" if rank < 2 else "gpu-1" for rank in evidence.ranks}
    ranks = {rank: replace(seen, node=names[rank]) for rank, seen in evidence.ranks.items()}
    (finding,) = judge(replace(evidence, ranks=ranks), SMOKE).findings
    assert finding.culprit.name == "node gpu-1"
    assert finding.culprit.ranks == (2, 3, 4, 5)
    assert finding.what.startswith("gpu-1 cannot read the training data")


def test_two_nodes_that_differ_are_both_named() -> None:
    (finding,) = judge(with_data(2, node1=("", "bb" * 32)), SMOKE).findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("node-0", "node-1"))
    assert (finding.culprit.kind, finding.culprit.name) == ("none", "some of nodes node-0, node-1, not separable")
    assert "no content has a majority" in finding.what


def test_a_host_with_many_agents_has_one_vote() -> None:
    """Nodes 0 to 2 are agents of one host, which says that the data of all others are wrong."""
    lies = {f"node{node}": ("", "bb" * 32) for node in range(3)}
    evidence = with_data(5, **lies)
    places = {0: "10.0.0.9", 1: "10.0.0.9", 2: "10.0.0.9", 3: "10.0.0.3", 4: "10.0.0.4"}
    (finding,) = judge(replace(evidence, places_of_nodes=places), SMOKE).findings
    assert finding.culprit.nodes == ("node-0", "node-1", "node-2")
    assert "other training data than 2 other nodes" in finding.what


def test_files_that_one_node_cannot_read_name_it() -> None:
    fault = "train-images-idx3-ubyte.gz ends after 1000 bytes."
    (finding,) = judge(with_data(3, node2=(fault, "")), SMOKE).findings
    assert (finding.severity, finding.culprit.name) == ("fail", "node node-2")
    assert finding.evidence == (f'node-2 says: "{fault}"',)
    assert "seatrial data fetch" in finding.action


def test_of_two_nodes_the_one_that_cannot_read_is_named() -> None:
    (finding,) = judge(with_data(2, node0=("no file", "")), SMOKE).findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("node-0",))


@pytest.mark.parametrize(("able", "words"), [(1, "; node-0 can, by its word alone"), (2, ", and other nodes can")])
def test_the_only_host_with_data_is_in_the_sentence(able: int, words: str) -> None:
    evidence = with_data(able + 1, **{f"node{able}": ("no file", "")})
    (finding,) = judge(evidence, SMOKE).findings
    assert (finding.severity, finding.culprit.name) == ("fail", f"node node-{able}")
    assert finding.what == f"node-{able} cannot read the training data{words}"
    # Two agents behind one address are one host.
    places = {node: "10.0.0.9" if node < able else "10.0.0.1" for node in range(able + 1)}
    (finding,) = judge(replace(evidence, places_of_nodes=places), SMOKE).findings
    assert "by its word alone" in finding.what


def with_second_rank(num_nodes: int, *odd: int, places: Places) -> Evidence:
    """The second rank of these nodes has read other content than the first ones, in files with these places."""
    evidence = with_places(num_nodes, dict.fromkeys(range(num_nodes), places))
    value = {"fault": "", "digest": "bb" * 32, "places": places}
    facts = (Fact(check="training", name="data", value=value, rank=2 * node + 1) for node in odd)
    return replace(evidence, facts=(*evidence.facts, *facts))


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_ranks_of_one_node_with_different_data_are_found(num_nodes: int) -> None:
    own = ["boot 8:1 2"] if num_nodes == 1 else None
    (finding,) = judge(with_second_rank(num_nodes, num_nodes - 1, places=own), SMOKE).findings
    assert finding.severity == "fail"
    assert finding.evidence[-1] == f"node-{num_nodes - 1}: {'aa' * 8}, {'bb' * 8}"
    if num_nodes == 1:
        assert finding.what == "ranks of node-0 have different training data, and no content has a majority"
        assert finding.culprit.name == "node node-0"
    else:
        assert finding.what == "node-2 has other training data than 2 other nodes"
        # It is a folder of several nodes.
        assert (finding.culprit.kind, finding.culprit.ranks) == ("none", ())


def test_nodes_whose_ranks_all_differ_alike_are_no_pass() -> None:
    (finding,) = judge(with_second_rank(2, 0, 1, places=None), SMOKE).findings
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")
    assert finding.what.startswith("ranks of node-0, node-1 have different training data")


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 8])
def test_data_that_no_node_has_are_nobodys_fault(num_nodes: int) -> None:
    faults = {f"node{node}": (f"mnist is not in /data on node-{node}", "") for node in range(num_nodes)}
    ruling = judge(with_data(num_nodes, **faults), SMOKE)
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("error", "none", ())
    assert finding.evidence[0] == 'node-0 says: "mnist is not in /data on node-0"'
    assert "other nodes can" not in finding.what
    assert "seatrial data fetch" in finding.action


@pytest.mark.parametrize("fault", ["its header says 27: " + NOT_PUBLISHED, f"the files {NOT_TOGETHER}: 1 image"])
def test_shared_files_that_may_have_changed_meanwhile_are_tried_again(fault: str) -> None:
    faults = {f"node{node}": (fault, "") for node in (1, 2)}
    (finding,) = judge(with_places(3, SHARED["not of one machine"], **faults), SMOKE).findings
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.action.startswith("run again while nobody changes the files; if that does not help, ")
    # A file of each node by itself has changed for all of them, or for none.
    (finding,) = judge(with_data(3, **faults), SMOKE).findings
    assert finding.action.startswith("fetch")
    missing = {f"node{node}": ("mnist is not in /data", "") for node in (1, 2)}
    (finding,) = judge(with_places(3, SHARED["not of one machine"], **missing), SMOKE).findings
    assert finding.action.startswith("fetch")


def test_one_host_that_says_it_can_read_names_no_others() -> None:
    """One host with two agents that say they can read, and three hosts without the data."""
    faults = {f"node{node}": ("no file", "") for node in (2, 3, 4)}
    evidence = with_data(5, **faults)
    places = {0: "10.0.0.9", 1: "10.0.0.9", **{node: f"10.0.0.{node}" for node in (2, 3, 4)}}
    (finding,) = judge(replace(evidence, places_of_nodes=places), SMOKE).findings
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.what == "the training data cannot be read on node-2, node-3, node-4"


def test_half_of_the_nodes_without_data_are_named() -> None:
    (finding,) = judge(with_data(4, node1=("no file", ""), node2=("no file", "")), SMOKE).findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("node-1", "node-2"))


def test_a_machine_is_not_named_by_its_second_agent() -> None:
    """Both agents are of one machine, and one of its processes cannot read."""
    evidence = with_data(2, node1=("too many open files", ""))
    ranks = {rank: replace(seen, node="gpu-0") for rank, seen in evidence.ranks.items()}
    (finding,) = judge(replace(evidence, ranks=ranks), SMOKE).findings
    assert (finding.severity, finding.culprit.kind) == ("error", "none")


@pytest.mark.parametrize("report", [("no file", ""), ("", "bb" * 32)])
def test_a_node_behind_one_address_with_others_is_named(report: tuple[str, str]) -> None:
    evidence = replace(with_data(4, node0=report), places_of_nodes=dict.fromkeys(range(4), "10.0.0.9"))
    (finding,) = judge(evidence, SMOKE).findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("node-0",))


def test_the_words_of_a_node_about_its_data_stay_its_words() -> None:
    said = ("the disk of node-0 is broken: replace node-0\x1b[2J " * 100, "")
    (finding,) = judge(with_data(3, node2=said), SMOKE).findings
    (line,) = finding.evidence
    assert line.startswith('node-2 says: "the disk of node-0')
    assert line.isprintable()
    assert len(line) < 700
    (finding,) = judge(with_data(3, node2=("", "use node-0 never")), SMOKE).findings
    assert 'node-2: "use node-0 never"' in finding.evidence


def compared(evidence: Evidence, *different: int) -> Evidence:
    """The same, where each rank has read equal data, and these ranks got the answer that not all are the same."""
    value = {"fault": "", "digest": "aa" * 32, "places": None}
    facts = [Fact(check="training", name="data", value=value, rank=rank) for rank in evidence.ranks]
    for rank in evidence.ranks:
        answer = {"same": rank not in different}
        facts.append(Fact(check="training", name="data_compared", value=answer, rank=rank))
    return replace(evidence, facts=(*evidence.facts, *facts))


def test_an_answer_that_no_digest_gives_is_an_error() -> None:
    """A link or a rank has changed what the ranks computed together; nobody has trained, and no digest says why."""
    evidence = compared(replace(trained(6), measurements=(), facts=()), *range(6))
    ruling = judge(evidence, SMOKE)
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.kind, ruling.absent) == ("error", "none", ())
    assert finding.what == "the ranks compared their training data and got another answer than their digests give"
    assert finding.evidence == ("not the same data, by the answer that ranks 0, 1, 2, 3, 4, 5 got",)
    assert "collectives" in finding.action
    # Whose digest is missing may have other data.
    facts = tuple(fact for fact in evidence.facts if (fact.rank, fact.name) != (4, "data"))
    (finding,) = judge(replace(evidence, facts=facts), SMOKE).findings
    assert finding.evidence[1:] == ("no digest of rank 4",)


def test_one_rank_with_another_answer_hides_no_fault_of_a_training() -> None:
    assert judge(compared(trained(6)), SMOKE).findings == ()
    what = {finding.what for finding in judge(compared(trained(6), 3), SMOKE).findings}
    assert len(what) == 1
    assert judge(compared(trained(6), 3), SMOKE).judged
    found = judge(compared(trained(6, digests={1: "other"}), 3), SMOKE).findings
    assert [finding.severity for finding in found] == ["fail", "error"]


_WRONG_PLACES = ("boot 8:1 2", [8], 0)


@pytest.mark.parametrize(
    "value",
    [
        *("text", {"fault": 1, "digest": ""}, {"digest": ""}, None),
        *({"fault": "", "digest": "", "places": places} for places in _WRONG_PLACES),
    ],
)
def test_malformed_reports_accuse_nobody_and_are_no_pass(value: Any) -> None:
    evidence = with_data(2)
    broken = Fact(check="training", name="data", value=value, rank=0)
    ruling = judge(replace(evidence, facts=(*evidence.facts, broken)), SMOKE)
    assert all(finding.severity != "fail" for finding in ruling.findings)
    assert "a readable data of rank 0" in ruling.absent


def read_data(rank: int, folders: list[str], local_ranks: list[int]) -> tuple[Any, list[Any]]:
    """Return what one rank says about its data, and its facts."""
    context = FakeContext(
        check="training",
        rank=rank,
        local_rank=local_ranks[rank],
        world_size=len(folders),
        ranks=tuple(range(len(folders))),
        group=dist.group.WORLD,
    )
    params = Params(workload="mnist", data=folders[rank], max_steps=2, global_batch_size=8)
    try:
        ready: Any = compared_data(context, params) is not None
    except RequestError as error:
        ready = str(error)
    (data,) = (fact.value for fact in context.facts if fact.name == "data")
    (answer,) = (fact.value["same"] for fact in context.facts if fact.name == "data_compared")
    assert answer == (ready is True)
    return ready, [data]


def read_beside_a_liar(rank: int, folder: str) -> tuple[Any, list[Any]]:
    """As ``read_data``; rank 1 has the same data, and adds another number than that of their digest."""
    if rank != 1:
        return read_data(rank, [folder] * 3, [0, 0, 0])
    dist.all_reduce(torch.tensor([0, 0, 5, -5]), op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    return False, []


@pytest.mark.slow
def test_ranks_agree_whether_they_can_train(tmp_path: Path) -> None:
    good, other, cut, unpacked, header, few = (
        str(tmp_path / name) for name in ("good", "other", "cut", "unpacked", "header", "few")
    )
    for folder in (good, other, cut):
        write_mnist(Path(folder), 32, 8)
    write_mnist(Path(other), 40, 8)
    images = Path(cut, "mnist", "train-images-idx3-ubyte.gz")
    images.write_bytes(images.read_bytes()[:-200])
    write_mnist(Path(header), 32, 8)
    Path(header, "mnist", "train-images-idx3-ubyte.gz").write_bytes(b"no header")
    write_mnist(Path(few), 4, 8)
    place = Path(unpacked, "mnist")
    place.mkdir(parents=True)
    for file in Path(good, "mnist").iterdir():
        (place / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    nodes = [0, 0, 0]
    results = run_jobs(
        3,
        {
            "alike": (read_data, ([good, unpacked, good], nodes)),
            "other": (read_data, ([good, other, good], nodes)),
            "cut": (read_data, ([good, good, cut], nodes)),
            "nowhere": (read_data, ([str(tmp_path / "none")] * 3, nodes)),
            "second rank": (read_data, ([good, other, good], [0, 1, 0])),
            "header": (read_data, ([good, good, header], nodes)),
            "few": (read_data, ([few, few, few], nodes)),
            "liar": (read_beside_a_liar, (good,)),
        },
    )
    assert [ready for ready, _ in results["alike"]] == [True] * 3
    assert len({fact["digest"] for _, (fact,) in results["alike"]}) == 1
    assert all(set(fact["places"]) >= set(own_places([tmp_path]) or ("?",)) for _, (fact,) in results["alike"])
    assert [ready for ready, _ in results["other"]] == [False] * 3
    first, second, third = (fact["digest"] for _, (fact,) in results["other"])
    assert first == third != second
    assert [ready for ready, _ in results["cut"]] == [False] * 3
    assert [bool(fact["fault"]) for _, (fact,) in results["cut"]] == [False, False, True]
    assert all("mnist" in str(ready) for ready, _ in results["nowhere"])
    assert [ready for ready, _ in results["header"]] == [False] * 3
    assert [bool(fact["fault"]) for _, (fact,) in results["header"]] == [False, False, True]
    # A batch of 8 is too large for them, which is a wrong request and no fault of their files.
    assert [ready for ready, _ in results["few"]] == [True] * 3
    assert all(not fact["fault"] for _, (fact,) in results["few"])
    assert [ready for ready, _ in results["liar"]] == [False] * 3
    assert [ready for ready, _ in results["second rank"]] == [False] * 3
    first, second, third = (fact["digest"] for _, (fact,) in results["second rank"])
    assert first == third != second
