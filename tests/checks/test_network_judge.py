"""The judge of the network check: as few causes as explain which connections failed, for every shape of a firewall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from checks.simulated_network import Failure, network_evidence, with_failed

from seatrial.checks.network.interfaces import chosen_interface, next_round
from seatrial.checks.network.judge import judge
from seatrial.checks.network.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling
from seatrial.evidence.measurement import Fact

SIZES = (3, 4, 8, 200)


def ruling_of(evidence: Evidence) -> Ruling:
    return judge(evidence, Params())


def named(evidence: Evidence) -> list[tuple[str, str]]:
    return [(finding.culprit.kind, finding.culprit.name) for finding in ruling_of(evidence).findings]


def only_finding(evidence: Evidence) -> Finding:
    (finding,) = ruling_of(evidence).findings
    return finding


def into(*closed: int, how: str = "no answer") -> Callable[[int, int], Failure]:
    return lambda source, target: how if target in closed else None


def out_of(*closed: int) -> Callable[[int, int], Failure]:
    return lambda source, target: "no answer" if source in closed else None


def between(sources: set[int], targets: set[int], *, back: bool = False) -> Callable[[int, int], Failure]:
    def failure(source: int, target: int) -> Failure:
        forth = source in sources and target in targets
        return "no answer" if forth or (back and source in targets and target in sources) else None

    return failure


@pytest.mark.parametrize("count", [2, *SIZES])
def test_an_open_network_has_no_finding(count: int) -> None:
    ruling = ruling_of(network_evidence(count))
    assert not ruling.findings
    assert not ruling.absent
    assert ruling.unjudged == ()


def test_above_the_limit_only_distances_are_covered() -> None:
    ruling = ruling_of(network_evidence(200, into(2), max_nodes=100))
    assert [finding.culprit.name for finding in ruling.findings] == ["node node2"]
    assert ruling.unjudged == ("network: each of 200 nodes connected to 8 others, not to all",)


@pytest.mark.parametrize("count", SIZES)
def test_a_node_that_takes_no_connections(count: int) -> None:
    finding = only_finding(network_evidence(count, into(2), by_ssh=True))
    assert (finding.severity, finding.culprit.name) == ("fail", "node node2")
    assert (
        "node node2 takes no connections from the other nodes: no answer at 10.0.0.2:40002 (ssh works)" in finding.what
    )
    assert "open all TCP ports" in finding.action


@pytest.mark.parametrize("count", SIZES)
def test_a_node_that_may_make_no_connections(count: int) -> None:
    finding = only_finding(network_evidence(count, out_of(1)))
    assert finding.culprit.name == "node node1"
    assert "cannot connect to any other node" in finding.what
    assert "outgoing" in finding.action


@pytest.mark.parametrize("count", SIZES)
def test_an_isolated_node(count: int) -> None:
    finding = only_finding(network_evidence(count, lambda a, b: "no route" if 0 in (a, b) else None))
    assert finding.culprit.name == "node node0"
    assert "neither connect to the other nodes nor be reached" in finding.what
    assert "no route" in finding.what


@pytest.mark.parametrize("count", [2, *SIZES])
def test_all_closed_to_one_another(count: int) -> None:
    finding = only_finding(network_evidence(count, lambda a, b: "refused"))
    assert finding.culprit.kind == ("link" if count == 2 else "fabric")
    assert "no node can connect to another one: refused at" in finding.what


@pytest.mark.parametrize(
    ("how", "words"),
    [("another answers", "ip neigh"), ("silent", "proxy or load balancer"), ("no route", "ip route get")],
)
def test_what_is_no_closed_port_has_its_own_remedy(how: str, words: str) -> None:
    assert words in only_finding(network_evidence(3, into(1, how=how))).action
    assert words not in only_finding(network_evidence(3, into(1))).action


def test_of_two_nodes_the_direction_is_named() -> None:
    finding = only_finding(network_evidence(2, into(1)))
    assert (finding.culprit.kind, finding.culprit.name) == ("link", "link node0–node1")
    assert finding.what.startswith("node0 cannot connect to node1: no answer at 10.0.0.1:40001")
    assert "node1 can connect to node0" in finding.what


def test_the_other_direction_works_only_where_that_was_reported() -> None:
    whole = network_evidence(2, into(1))
    facts = tuple(
        replace(fact, value={**fact.value, "untried": [[0, 0]]}) if (fact.name, own) == ("connections", 1) else fact
        for fact in whole.facts
        for own in (fact.node_rank,)
    )
    finding = only_finding(replace(whole, facts=facts))
    assert finding.culprit.name == "link node0–node1"
    assert "node1 can connect" not in finding.what


@pytest.mark.parametrize("back", [False, True])
def test_a_pair(back: bool) -> None:
    finding = only_finding(network_evidence(6, between({1}, {3}, back=back)))
    assert finding.culprit.name == "link node1–node3"
    assert ("nor the other way" in finding.what) == back


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("count", [4, 10, 300])  # of 400, some nodes try nothing but the other subnet
def test_two_subnets(count: int, back: bool) -> None:
    half = count // 2
    addresses = [f"10.{1 + (node >= half)}.{node >> 8}.{node & 255}" for node in range(count)]
    left, right = set(range(half)), set(range(half, count))
    finding = only_finding(network_evidence(count, between(left, right, back=back), addresses=addresses))
    assert finding.culprit.kind == "fabric"
    assert ("nor the other way" in finding.what) == back
    assert "cannot connect to" in finding.what


def test_workers_that_do_not_see_one_another() -> None:
    finding = only_finding(network_evidence(4, between({1, 2, 3}, {1, 2, 3})))
    assert finding.culprit.kind == "fabric"
    assert finding.what.startswith("node1, node2 and node3 cannot connect to one another")


@pytest.mark.parametrize("count", SIZES[1:])
def test_several_closed_nodes_are_one_finding(count: int) -> None:
    assert named(network_evidence(count, into(1, 2))) == [("node", "nodes node1 and node2")]


@pytest.mark.parametrize("count", SIZES[1:])
def test_causes_that_overlap(count: int) -> None:
    """One takes none, another makes none, and one link is closed."""

    def failure(source: int, target: int) -> Failure:
        return "no answer" if target == 1 or source == 2 or (source, target) == (3, 0) else None

    assert named(network_evidence(count, failure)) == [
        ("node", "node node1"),
        ("node", "node node2"),
        ("link", "link node0–node3"),
    ]


@pytest.mark.parametrize("count", SIZES)
def test_lost_large_packets(count: int) -> None:
    def failure(source: int, target: int) -> Failure:
        return ("large to", 1400) if 2 in (source, target) else None

    finding = only_finding(network_evidence(count, failure))
    assert finding.culprit.name == "node node2"
    assert finding.what == "packets above 1,400 bytes are lost to and from node node2, smaller ones pass"


def test_large_packets_lost_in_one_direction() -> None:
    def failure(source: int, target: int) -> Failure:
        return ("large to", 1400) if target == 2 else ("large from", 1400) if source == 2 else None

    assert "are lost to node node2," in only_finding(network_evidence(5, failure)).what


def test_a_link_that_loses_large_packets() -> None:
    def failure(source: int, target: int) -> Failure:
        return ("large to", 1280) if {source, target} == {1, 3} else None

    finding = only_finding(network_evidence(4, failure))
    assert finding.culprit.name == "link node1–node3"
    assert "packets above 1,280 bytes are lost between node1 and node3" in finding.what


def test_a_doubled_address_is_the_only_finding() -> None:
    addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"]
    finding = only_finding(
        network_evidence(4, lambda a, b: "another answers" if b in (1, 2) else None, addresses=addresses)
    )
    assert finding.what == "2 nodes claim the address 10.0.0.2"
    # One of them may only say so.
    assert (finding.culprit.kind, finding.culprit.nodes) == ("none", ("node1", "node2"))
    assert finding.culprit.name == "one of nodes node1 and node2, not separable"


def test_names_that_lead_to_one_address_of_every_node() -> None:
    finding = only_finding(network_evidence(3, lambda a, b: "refused", addresses=["172.17.0.1"] * 3, because="name"))
    assert finding.severity == "fail"
    assert "3 nodes claim the address 172.17.0.1: the own name of each leads to it" in finding.what
    # One of them may have it, and several agents of one other host only say so.
    assert (finding.culprit.kind, len(finding.culprit.nodes)) == ("none", 3)
    assert finding.culprit.name == "some of nodes node0, node1 and node2, not separable"


def test_an_own_name_that_leads_to_an_unreached_address() -> None:
    addresses = ["10.0.0.1", "10.55.0.11", "10.0.0.3", "10.0.0.4"]
    finding = only_finding(network_evidence(4, into(1, how="no route"), addresses=addresses, because="name"))
    assert finding.culprit.name == "node node1"
    assert "the own name of node node1 leads to 10.55.0.11, which no other node reaches (no route" in finding.what


@pytest.mark.parametrize("count", [3, 4])
def test_own_names_only_warn_where_another_address_is_used(count: int) -> None:
    names = ["10.0.0.0", "10.55.0.11", *(f"10.0.0.{node}" for node in range(2, count))]
    evidence = network_evidence(count, names=names, name_failure=lambda a, b: "no route" if b == 1 else None)
    finding = only_finding(evidence)
    assert finding.severity == "warn"
    assert "which no other node reaches (no route)" in finding.what


def test_own_names_that_lead_nowhere_are_one_warning() -> None:
    names = ["10.0.0.0", "10.55.0.11", "10.55.0.12", "10.0.0.3"]
    evidence = network_evidence(4, names=names, name_failure=lambda a, b: "no answer" if b in (1, 2) else None)
    finding = only_finding(evidence)
    assert finding.what == (
        "the own names of nodes node1 and node2 lead to 10.55.0.11 and 10.55.0.12, which no other node reaches"
        " (no answer); this trial uses other addresses"
    )
    assert (finding.severity, finding.culprit.name) == ("warn", "nodes node1 and node2")
    assert finding.evidence[0] == "node0 -> 10.55.0.11:50000: no answer"


def test_an_own_name_that_some_do_not_reach_names_them() -> None:
    names = ["10.0.0.0", "fd00::11", "10.0.0.2", "10.0.0.3"]
    evidence = network_evidence(4, names=names, name_failure=lambda a, b: "refused" if (a, b) == (3, 1) else None)
    finding = only_finding(evidence)
    assert "leads to fd00::11, which node3 cannot reach (refused); this trial uses another address" in finding.what
    assert finding.evidence == ("node3 -> [fd00::11]:50000: refused",)


def test_equal_hostnames_warn() -> None:
    finding = only_finding(network_evidence(3, hostnames=["node0", "worker", "worker"]))
    assert (finding.severity, finding.what) == ("warn", "2 nodes have the hostname worker")
    assert finding.culprit.name == "nodes worker (node 1) and worker (node 2)"
    finding = only_finding(network_evidence(3, hostnames=["node0", "a: node b is broken", "a: node b is broken"]))
    assert finding.what == '2 nodes have the hostname "a: node b is broken"'


def test_the_network_of_one_machine_is_not_applicable() -> None:
    ruling = ruling_of(network_evidence(4, machines=["a"] * 4, silent=range(4)))
    assert ruling.not_applicable == "all nodes are one machine"
    (finding,) = ruling.findings
    assert (finding.severity, finding.culprit.kind) == ("info", "none")
    assert finding.what.startswith("nodes node0, node1, node2 and node3 are one machine: nothing between machines")
    assert not ruling.absent


def test_one_agent_of_each_machine_reports() -> None:
    ruling = ruling_of(network_evidence(4, machines=["a", "a", "b", "b"], silent=[1, 3]))
    assert not ruling.not_applicable
    assert ruling.absent == ()


def test_a_silent_node_is_no_pass() -> None:
    assert ruling_of(network_evidence(3, silent=[1])).absent == ("the connections of node1",)


@pytest.mark.parametrize("count", [2, 3])
def test_a_node_that_cannot_listen_is_no_pass(count: int) -> None:
    ruling = ruling_of(network_evidence(count, deaf=[1]))
    assert ruling.absent == ("a port of node1 to connect to",)
    assert not ruling.not_applicable


def test_agents_of_one_machine_that_cannot_listen_are_no_pass() -> None:
    assert not ruling_of(network_evidence(2, machines=["a"] * 2, deaf=[0, 1])).not_applicable


def test_a_number_that_no_node_has_is_no_pass() -> None:
    evidence = network_evidence(2)
    facts = tuple(replace(fact, node_rank=10**15) if fact.node_rank == 1 else fact for fact in evidence.facts)
    ruling = ruling_of(replace(evidence, facts=facts))
    assert ruling.absent == ("a port of node1 to connect to",)
    assert not ruling.not_applicable


UNREADABLE: dict[str, tuple[str, Any]] = {
    "a node without places": ("node", {"places": "10.0.0.1"}),
    "places of two parts": ("node", {"places": [["data", "10.0.0.1"]]}),
    "a port that is no number": ("node", {"places": [["data", "10.0.0.1", "http"]]}),
    "no machine": ("node", {"machine": None}),
    "failures that are no list": ("connections", {"failed": None}),
    "a failure of an unknown role": (
        "connections",
        {"failed": [{"role": "date", "how": "refused", "passes_bytes": None, "nodes": [[0, 2]]}]},
    ),
    "a failure to reach nobody": (
        "connections",
        {"failed": [{"role": "data", "how": "refused", "passes_bytes": None, "nodes": []}]},
    ),
    "ranges that are no numbers": ("connections", {"untried": [["a", "b"]]}),
    "untried nodes that are no list": ("connections", {"untried": 2}),
}


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize("count", [2, 3])
def test_an_unreadable_report_is_no_pass(case: str, count: int) -> None:
    name, changed = UNREADABLE[case]
    evidence = network_evidence(count)
    facts = tuple(
        replace(fact, value={**fact.value, **changed}) if (fact.name, fact.node_rank) == (name, 1) else fact
        for fact in evidence.facts
    )
    ruling = ruling_of(replace(evidence, facts=facts))
    assert ruling.absent == ("a port of node1 to connect to" if name == "node" else "the connections of node1",)
    assert not ruling.not_applicable


def test_an_unknown_node_has_the_name_that_it_gives_itself() -> None:
    evidence = replace(network_evidence(4, into(2)), nodes={})
    assert only_finding(evidence).culprit.name == "node node2"


def test_a_warning_excuses_no_connection_that_was_not_tried() -> None:
    evidence = network_evidence(3, lambda a, b: "not tried" if a == 1 else None, hostnames=["node0", "same", "same"])
    ruling = ruling_of(evidence)
    assert [finding.severity for finding in ruling.findings] == ["warn"]
    assert ruling.absent == ("all connections of same (node 1) (no descriptor or port left)",)


OVER = {"interface": "eth1", "everybody": True, "untried": [], "failed": []}


@pytest.mark.parametrize(
    ("report", "is_chosen"),
    [
        (OVER, True),
        ({**OVER, "failed": [{"role": "nic:eth1", "how": "refused", "passes_bytes": None, "nodes": [[0, 0]]}]}, False),
        ({**OVER, "untried": [[0, 0]]}, False),
        ({"interface": "eth1"}, False),
        (None, False),
    ],
)
def test_another_interface_is_chosen_where_all_nodes_report_that_it_works(report: Any, is_chosen: bool) -> None:
    evidence = network_evidence(3, into(2))
    facts = [
        Fact(
            check="network", name="connections_over", value=OVER if node < 2 else report, node_rank=node, stage="round"
        )
        for node in range(3)
    ]
    evidence = replace(evidence, facts=(*evidence.facts, *facts))
    assert chosen_interface(evidence, Params()) == ("eth1" if is_chosen else None)
    # What the ranks used is what the conductor gave them: a node may say something else by then.
    assert only_finding(evidence).severity == "fail"
    used = replace(evidence, interface="eth1")
    assert only_finding(used).severity == "warn"
    # The later checks measure another network: such a PASS says so.
    for nothing_closed in (used, replace(used, facts=network_evidence(3).facts)):
        assert "network: the ranks used eth1" in str(ruling_of(nothing_closed).unjudged)


@pytest.mark.parametrize("name", ["node", "connections"])
def test_a_node_that_says_two_things_is_not_believed_in_either(name: str) -> None:
    """The conductor may have gone by the one that its last words left, and this by the other one."""
    evidence = network_evidence(3, into(2))
    (said,) = (fact for fact in evidence.facts if (fact.name, fact.node_rank) == (name, 1))
    ruling = ruling_of(replace(evidence, facts=(*evidence.facts, replace(said, stage="count"))))
    assert [line for line in ruling.absent if "node1" in line]


def test_an_interface_by_a_name_that_no_agent_takes_is_not_asked_for() -> None:
    names = enumerate(("a;b", "x"))
    odd = [(node, f"nic:{name}", f"10.8.{number}.{node}") for number, name in names for node in range(3)]
    assert next_round(_with_places(network_evidence(3, into(2)), *odd), Params()) == ((), {"interface": "x"})


def test_a_node_without_sockets_accuses_nobody() -> None:
    ruling = ruling_of(network_evidence(3, lambda a, b: "not tried" if a == 1 else None))
    assert ruling.findings == ()
    assert "node1" in ruling.absent[0]


def test_a_node_that_no_other_one_could_try_is_named() -> None:
    """It shared nonsense in place of its address; the others tried all that they could."""
    whole = network_evidence(4)
    facts = tuple(
        replace(fact, value={**fact.value, "untried": [[3, 3]]}) if fact.name == "connections" and own != 3 else fact
        for fact in whole.facts
        for own in (fact.node_rank,)
    )
    ruling = ruling_of(replace(whole, facts=facts))
    assert ruling.absent == (
        "connections to node3, which no other node could try (perhaps it shared no address, or time was short)",
    )


def test_a_network_policy_is_the_remedy_in_pods() -> None:
    assert "NetworkPolicy" in only_finding(network_evidence(3, into(0), environment="kubernetes")).action


def _with_places(evidence: Evidence, *places: tuple[int, str, str], **changed: Any) -> Evidence:
    """Add places where nodes listen (node, role, address), and change what node 0 says of itself."""
    facts = []
    for fact in evidence.facts:
        if fact.name == "node":
            added = [[role, address, 29_511] for node, role, address in places if node == fact.node_rank]
            own = changed if fact.node_rank == 0 else {}
            fact = replace(fact, value={**fact.value, "places": [*fact.value["places"], *added], **own})
        facts.append(fact)
    return replace(evidence, facts=tuple(facts))


@pytest.mark.parametrize("is_set", [False, True])
def test_a_rendezvous_port_that_is_closed(is_set: bool) -> None:
    evidence = with_failed(with_failed(network_evidence(4), 1, "master", 0), 3, "master", 0, "no answer")
    finding = only_finding(_with_places(evidence, master_port_set=is_set))
    meaning = "MASTER_PORT" if is_set else "the usual MASTER_PORT"
    assert finding.severity == ("fail" if is_set else "warn")
    assert finding.culprit.name == "node node0"
    assert finding.what.startswith(f"node1 and node3 cannot connect to node node0 at 10.0.0.0:29500 ({meaning})")


def test_a_store_at_another_address_that_is_closed() -> None:
    evidence = _with_places(network_evidence(3), (0, "store", "10.9.0.1"))
    finding = only_finding(with_failed(evidence, 2, "store", 0))
    assert finding.what == "node2 cannot connect to node node0 at 10.9.0.1:29511 (the rendezvous): refused"
    assert finding.severity == "fail"
    # The word of one node against another one.
    assert (finding.culprit.kind, finding.culprit.nodes) == ("link", ("node0", "node2"))
    assert finding.culprit.name == "link node0–node2, endpoints not separable"


def test_agents_of_one_host_do_not_name_the_rendezvous_of_another_node() -> None:
    evidence = _with_places(network_evidence(4), (0, "store", "10.9.0.1"))
    evidence = with_failed(with_failed(evidence, 2, "store", 0), 3, "store", 0)
    assert named(evidence) == [("node", "node node0")]
    places = {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.9", 3: "10.0.0.9"}
    assert named(replace(evidence, places_of_nodes=places)) == [("fabric", "the network between node0, node2, node3")]


def test_a_rendezvous_of_a_closed_node_is_no_second_finding() -> None:
    evidence = with_failed(network_evidence(4, into(0)), 1, "master", 0)
    assert [finding.culprit.name for finding in ruling_of(evidence).findings] == ["node node0"]
    doubled = network_evidence(3, addresses=["10.0.0.1", "10.0.0.1", "10.0.0.3"])
    assert only_finding(with_failed(doubled, 2, "master", 0)).what == "2 nodes claim the address 10.0.0.1"


def test_a_rendezvous_that_was_not_tried_is_no_finding() -> None:
    assert ruling_of(with_failed(network_evidence(3), 1, "master", 0, "not tried")).findings == ()


def test_the_next_interface_is_one_that_all_nodes_have_by_an_own_address() -> None:
    both = [
        (node, f"nic:{name}", f"10.{number}.0.{node}") for node in range(3) for number, name in ((8, "b"), (9, "c"))
    ]
    alike = [(node, "nic:a", "172.17.0.1") for node in range(3)]
    one = [(1, "nic:0", "10.7.0.1")]
    closed = _with_places(network_evidence(3, into(2)), *both, *alike, *one)
    assert next_round(closed, Params()) == ((), {"interface": "b"})
    tried = [
        Fact(check="network", name="connections_over", value={**OVER, "interface": "b"}, node_rank=node, stage="round")
        for node in range(3)
    ]
    assert next_round(replace(closed, facts=(*closed.facts, *tried)), Params()) == ((), {"interface": "c"})
    assert next_round(_with_places(network_evidence(3), *both), Params()) is None
    assert next_round(network_evidence(3, into(2)), Params()) is None
    large = network_evidence(3, lambda a, b: ("large to", 1400) if b == 2 else None)
    assert next_round(_with_places(large, *both), Params()) is None


def test_one_machine_that_joined_from_two_addresses_is_no_fault() -> None:
    """Its agents took two ways to the controller, or one of them lies: nobody is named, and it is no PASS."""
    addresses, machines = ["10.0.0.1", "10.0.0.2", "10.0.0.2"], ["a", "b", "b"]
    evidence = network_evidence(3, addresses=addresses, machines=machines)
    assert ruling_of(evidence).findings == ()
    finding = only_finding(replace(evidence, places_of_nodes={0: "10.0.0.1", 1: "10.0.0.2", 2: "fd00::2"}))
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.what == (
        "nodes node1 and node2 say that they are one machine with the address 10.0.0.2, and joined from 10.0.0.2,"
        " fd00::2"
    )
    assert "MASTER_ADDR" in finding.action


def test_the_agents_of_one_host_name_no_node() -> None:
    """Nodes 0 to 2 joined from one place, and say that they cannot connect to node 3, which can connect to them."""
    evidence = network_evidence(4, between({0, 1, 2}, {3}))
    assert named(evidence) == [("node", "node node3")]
    places = {0: "10.0.0.9", 1: "10.0.0.9", 2: "10.0.0.9", 3: "10.0.0.3"}
    assert named(replace(evidence, places_of_nodes=places)) == [
        ("fabric", "the network between node0, node1, node2, node3")
    ]


@pytest.mark.parametrize("field", ["failed", "untried"])
def test_more_failures_than_there_can_be_are_no_report(field: str) -> None:
    evidence = network_evidence(4)
    entry = {"role": "store", "how": "refused", "passes_bytes": None, "nodes": [[0, 0]]}
    more = [entry] * 1_001 if field == "failed" else [[0, 0]] * ((1 << 17) + 1)
    facts = tuple(
        replace(fact, value={**fact.value, field: more}) if (fact.name, fact.node_rank) == ("connections", 1) else fact
        for fact in evidence.facts
    )
    ruling = ruling_of(replace(evidence, facts=facts))
    assert (ruling.findings, ruling.absent) == ((), ("the connections of node1",))


@pytest.mark.parametrize("stage", ["first", "second"])
def test_a_node_that_claims_to_be_another_machine_hides_nothing(stage: str) -> None:
    """Node 3 can connect to nobody. Node 1 says that it is on the machine of node 3, at once or in a second fact."""
    honest = replace(network_evidence(4, out_of(3)), places_of_nodes={node: f"10.0.0.{node}" for node in range(4)})
    assert named(honest) == [("node", "node node3")]
    own = next(fact for fact in honest.facts if (fact.name, fact.node_rank) == ("node", 1))
    lie = replace(own, value={**own.value, "machine": "m3"})
    facts = [lie if fact is own and stage == "first" else fact for fact in honest.facts]
    lied = replace(honest, facts=(*facts, lie))
    assert named(lied) == named(honest)
    assert [finding.what for finding in ruling_of(lied).findings] == [
        finding.what for finding in ruling_of(honest).findings
    ]


def _untried(evidence: Evidence, by: dict[int, list[list[int]]]) -> Evidence:
    facts = tuple(
        replace(fact, value={**fact.value, "untried": by[own]}) if fact.name == "connections" and own in by else fact
        for fact in evidence.facts
        for own in (fact.node_rank,)
    )
    return replace(evidence, facts=facts)


def test_a_node_that_one_of_several_could_try_is_named_too() -> None:
    """It shared something that most could not use, or one of them only says that it reached it."""
    ruling = ruling_of(_untried(network_evidence(5), {node: [[4, 4]] for node in range(3)}))
    assert ruling.absent == (
        "connections to node4, which most others could not try (perhaps it shared no address, or time was short)",
    )


@pytest.mark.parametrize("count", [2, 3, 8])
def test_who_was_not_tried_is_in_the_line(count: int) -> None:
    ruling = ruling_of(_untried(network_evidence(count), {0: [[1, 1]]}))
    assert ruling.absent == ("all connections of node0 (not tried: node node1)",)


WORDS = "10.0.0.1 is fine, node node2 is broken"


def test_the_words_of_a_node_are_no_address() -> None:
    evidence = network_evidence(3, into(1), addresses=["10.0.0.0", WORDS, "10.0.0.2"])
    ruling = ruling_of(evidence)
    assert WORDS not in repr(ruling)
    assert ruling.absent == ("a port of node1 to connect to",)


def test_the_words_of_a_node_are_no_way_to_fail() -> None:
    evidence = _with_places(network_evidence(3), (0, "store", "10.9.0.1"))
    assert WORDS not in repr(ruling_of(with_failed(evidence, 2, "store", 0, WORDS)))
    large = network_evidence(3, lambda a, b: ("large to", 10**900) if b == 1 else None)
    assert "packets of full size are lost to node node1" in only_finding(large).what


@pytest.mark.parametrize("field", ["untried", "failed"])
def test_more_ranges_than_nodes_are_no_report(field: str) -> None:
    """Each is compared with all nodes: a million of them kept the judge for long."""
    many = [[0, 0]] * 5
    value = many if field == "untried" else [{"role": "data", "how": "refused", "passes_bytes": None, "nodes": many}]
    evidence = network_evidence(4)
    facts = tuple(
        replace(fact, value={**fact.value, field: value}) if (fact.name, fact.node_rank) == ("connections", 1) else fact
        for fact in evidence.facts
    )
    ruling = ruling_of(replace(evidence, facts=facts))
    assert (ruling.findings, ruling.absent) == ((), ("the connections of node1",))
