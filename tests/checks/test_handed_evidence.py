"""What files of other tools do to the ruling: whom they name, and that nothing counts that is about somebody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seatrial.checks.diagnostics.judge import judge
from seatrial.checks.diagnostics.params import Params
from seatrial.devices.handed import HandedFile, HandedResult
from seatrial.devices.plain_json import to_json
from seatrial.devices.state import DeviceState, NodeState
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact

BROKEN = HandedResult(verdict="broken", what="failed the test memory of DCGM", gpu=1, lines=("faulty memory",))
DCGM = HandedFile(
    name="diag.json",
    sha256="ab",
    form="DCGM diagnostics 4.2.3",
    driver="580.105.08",
    serials={"0": "S0", "1": "S1"},
    gpus=(0, 1),
    passed=9,
    results=(BROKEN,),
)
DEAD = HandedResult(verdict="warning", what="did not answer RAS", gpu=3, host="10.0.0.2", rank=7, pid=4711)
RAS = HandedFile(name="ras.txt", sha256="cd", form="NCCL RAS 2.28.3", hosts=("10.0.0.2",), results=(DEAD,))

_SENTENCE = "S0, and GPU 7 is broken"


def rule(
    *files: HandedFile,
    nodes: int = 2,
    used: tuple[int, ...] = (0, 1),
    claimed: str = "",
    domain: str = "",
    others: dict[str, int] | None = None,
    places: dict[int, str] | None = None,
    damaged: object = None,
    disputed: frozenset[str] = frozenset(),
) -> Ruling:
    """Return the ruling about nodes with two devices each: serial numbers S0 and S1 on gpu-00, S2 and S3 on gpu-01.

    ``claimed``: serial number of one more device, which only gpu-01 says that it has.
    """
    facts = list[Fact]()
    for node_rank in range(nodes):
        devices = tuple(
            DeviceState(
                vendor="nvidia",
                index=index,
                uuid=f"GPU-{node_rank}{index}",
                serial=f"S{2 * node_rank + index}",
                driver="580.105.08",
                bus=f"0000:1{index}:00",
            )
            for index in (0, 1)
        )
        visible = tuple(devices[index].uuid for index in used)
        if claimed and node_rank == 1:
            devices += (DeviceState(vendor="nvidia", index=2, uuid="GPU-x", serial=claimed, bus="0000:1f:00"),)
        state = to_json(NodeState(devices=devices, visible=visible))
        facts += [
            Fact(check="diagnostics", name=name, value=state, node_rank=node_rank) for name in ("before", "after")
        ]
    facts += [Fact(check="diagnostics", name="handed", value=to_json(file)) for file in files]
    facts += [Fact(check="diagnostics", name="handed", value=damaged)] if damaged is not None else []
    names = {node: f"gpu-{node:02d}{domain}" for node in range(nodes)}
    known = {f"10.0.0.{node + 1}": node for node in range(nodes)} | {"gpu-01.example.com": 1}
    evidence = Evidence(
        ranks=dict[int, RankRecord](),
        asked=(),
        measurements=(),
        facts=tuple(facts),
        device_type="cuda",
        nodes=names,
        other_names=known | (others or {}),
        places_of_nodes=places or {},
        disputed_names=disputed,
    )
    return judge(evidence, Params())


def test_a_broken_device_fails_by_its_serial_number() -> None:
    ruling = rule(replace(DCGM, serials={"0": "S2", "1": "S3"}))
    (finding,) = ruling.findings
    assert finding.severity == "fail"
    assert finding.what == "GPU 1 (0000:11:00) of node gpu-01 failed the test memory of DCGM (diag.json)"
    assert finding.culprit.nodes == ("gpu-01",)
    assert finding.evidence == ("DCGM diagnostics 4.2.3, handed over as diag.json:", "faulty memory")
    assert ruling.unjudged == ()


@pytest.mark.parametrize(("results", "severity"), [(DCGM.results, "error"), ((), "warn")])
def test_a_name_that_several_hosts_claim_drops_no_failure(results: tuple[HandedResult, ...], severity: str) -> None:
    """One host calls itself as the one that the file is about: what is broken there is no PASS."""
    file = replace(DCGM, serials={"0": "S2", "1": "S3"}, node="login-7", results=results)
    (finding,) = rule(file, disputed=frozenset({"login-7"})).findings
    assert finding.severity == severity
    assert "several hosts of this trial call themselves login-7" in finding.what


@pytest.mark.parametrize(
    ("others", "disputed", "places"),
    [
        # The honest host adds a domain; the other one claims the short name, or a longer one.
        ({"login-7.cluster": 0, "login-7": 1}, (), {}),
        ({"login-7.cluster": 0, "login-7.other": 1}, (), {}),
        ({"login-7": 1}, ("login-7.cluster",), {}),
        # Agents of one machine dispute nothing.
        ({"login-7.cluster": 0, "login-7": 1}, (), {0: "10.0.0.1", 1: "10.0.0.1"}),
    ],
)
def test_a_short_name_of_two_hosts_is_disputed(
    others: dict[str, int], disputed: tuple[str, ...], places: dict[int, str]
) -> None:
    file = replace(DCGM, serials={"0": "S2", "1": "S3"}, node="login-7")
    (finding,) = rule(file, others=others, disputed=frozenset(disputed), places=places).findings
    assert ("several hosts of this trial call themselves login-7" in finding.what) == (not places)


def test_a_device_that_no_rank_used_only_warns() -> None:
    (finding,) = rule(DCGM, used=(0,)).findings
    assert (finding.severity, "no rank used it" in finding.what) == ("warn", True)


def test_clean_files_change_nothing() -> None:
    assert rule(replace(DCGM, results=()), replace(RAS, results=())) == rule()


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (replace(DCGM, serials={"0": "S8", "1": "S9"}), "it is about other devices (serial number S8)"),
        (replace(DCGM, serials={}), "it names no serial number, so nobody knows whose devices it is about"),
        (replace(DCGM, serials={}, node="gpu-07"), "no node of this trial is called gpu-07"),
        (
            replace(DCGM, serials={}, node="gpu-00", driver="535.1"),
            "it was written with driver 535.1, and gpu-00 has 5",
        ),
        (replace(DCGM, serials={}, node="gpu-00", gpus=(5,)), "gpu-00 has no device 5"),
        (replace(DCGM, node="gpu-01"), "it is about other devices (serial number S0)"),
        (replace(RAS, hosts=("10.9.9.9",)), "it is about 10.9.9.9, and no node of this trial has such a name"),
        (replace(DCGM, serials={"0": _SENTENCE}), f'it is about other devices (serial number "{_SENTENCE}")'),
        (replace(RAS, hosts=(_SENTENCE,)), f'it is about "{_SENTENCE}", and no node'),
        (
            replace(DCGM, serials={}, node="gpu-00", driver=_SENTENCE),
            f'it was written with driver "{_SENTENCE}", and gpu-00 has 5',
        ),
        (replace(RAS, hosts=()), "it names no node; say whose it is with --evidence NODE=ras.txt"),
        (HandedFile(name="x", problem="it is empty"), "it is empty"),
    ],
)
def test_a_file_about_others_is_said_and_no_pass(file: HandedFile, why: str) -> None:
    ruling = rule(file)
    (finding,) = ruling.findings
    assert finding.severity == "warn"
    assert finding.what.startswith(f"{file.name}, which was handed over, counts for nothing: {why}")
    assert ruling.unjudged == (f"{file.name} not used",)


@pytest.mark.parametrize(
    ("damaged", "which"),
    [
        ({**to_json(RAS), "passed": 1 << 70}, "ras.txt"),
        ({"name": "GPU 3 is broken. Replace it", "hosts": 5}, '"GPU 3 is broken. Replace it"'),
        (5, "a file"),
    ],
)
def test_one_unreadable_file_hides_no_broken_device(damaged: object, which: str) -> None:
    ruling = rule(DCGM, damaged=damaged)
    assert [finding.severity for finding in ruling.findings] == ["fail"]
    (absent,) = ruling.absent
    assert absent.startswith(f"what {which} says, which was handed over (")


def test_the_person_says_whose_file_it_is() -> None:
    (finding,) = rule(replace(DCGM, serials={}, node="gpu-01")).findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("gpu-01",))


@pytest.mark.parametrize("host", ["10.0.0.2", "gpu-01", "gpu-01.example.com"])
def test_a_rank_that_ras_misses_is_named(host: str) -> None:
    (finding,) = rule(replace(RAS, hosts=(host,), results=(replace(DEAD, host=host),))).findings
    assert finding.severity == "warn"
    assert finding.what == "rank 7 of a job (GPU 3, process 4711 of gpu-01) did not answer RAS (ras.txt)"
    assert finding.culprit.nodes == ("gpu-01",)


def test_ranks_of_other_machines_are_left_out() -> None:
    results = (DEAD, replace(DEAD, host="10.9.9.9", pid=1))
    (finding,) = rule(replace(RAS, hosts=("10.0.0.2", "10.9.9.9"), results=results)).findings
    assert finding.culprit.nodes == ("gpu-01",)


def test_a_loopback_address_is_no_node_of_several() -> None:
    assert rule(replace(RAS, hosts=("127.0.0.1",))).unjudged == ("ras.txt not used",)


def test_a_test_that_dcgm_skipped_is_not_checked() -> None:
    skipped = tuple(HandedResult(verdict="not checked", what="DCGM skipped the test pcie", gpu=gpu) for gpu in (0, 1))
    (finding,) = rule(replace(DCGM, results=skipped)).findings
    assert finding.severity == "info"
    assert finding.what == (
        "not checked: DCGM skipped the test pcie on GPU 0 (0000:10:00) of node gpu-00,"
        " GPU 1 (0000:11:00) of node gpu-00 (diag.json)"
    )


def test_a_serial_number_that_another_node_claims_hides_no_device() -> None:
    ruling = rule(DCGM, claimed="S1")
    (finding,) = ruling.findings
    assert finding.severity == "error"
    assert finding.what == (
        "GPU 1 of diag.json failed the test memory of DCGM, and several devices have its serial number S1:"
        " GPU 1 (0000:11:00) of node gpu-00, GPU 2 (0000:1f:00) of node gpu-01"
    )
    assert (finding.culprit.kind, finding.culprit.nodes) == ("none", ("gpu-00", "gpu-01"))
    assert "--evidence NODE=diag.json" in finding.action
    (finding,) = rule(replace(DCGM, node="gpu-00"), claimed="S1").findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("gpu-00",))
    clean = replace(DCGM, results=())
    assert rule(clean, claimed="S1") == rule(claimed="S1")
    # Two agents of one host that both see a device.
    (finding,) = rule(DCGM, claimed="S1", places={0: "10.0.0.1", 1: "10.0.0.1"}).findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("gpu-00",))
    # Where all are disputed, too.
    (finding,) = rule(replace(DCGM, serials={"1": "S1"}, gpus=(1,)), claimed="S1").findings
    assert finding.severity == "error"


def test_devices_of_one_board_are_told_apart_by_their_numbers() -> None:
    shared = replace(DCGM, serials={"1": "S3", "2": "S3"}, gpus=(1, 2), results=(BROKEN,))
    (finding,) = rule(shared, claimed="S3").findings
    assert finding.what.startswith("GPU 1 (0000:11:00) of node gpu-01 failed")


@pytest.mark.parametrize("name", ["gpu-00.x", "gpu-00"])
def test_names_of_the_controller_come_before_those_that_hosts_claim(name: str) -> None:
    file = replace(RAS, hosts=("gpu-00",), results=(replace(DEAD, verdict="broken", host="gpu-00"),))
    (finding,) = rule(file, domain=".dc", others={name: 1}).findings
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("gpu-00.dc",))


def test_a_file_is_about_the_machine_of_all_agents_of_its_name() -> None:
    """With an agent for each rank the first one of a machine reports its devices, and others have its name, too."""
    state = NodeState(devices=tuple(DeviceState(vendor="nvidia", index=index, uuid=f"GPU-{index}") for index in (0, 1)))
    facts = [Fact(check="diagnostics", name=name, value=to_json(state), node_rank=0) for name in ("before", "after")]
    file = replace(DCGM, serials={}, driver="", node="gpu-00")
    facts.append(Fact(check="diagnostics", name="handed", value=to_json(file)))
    nodes = {0: "gpu-00", 1: "gpu-00"}
    ruling = judge(Evidence(ranks={}, asked=(), measurements=(), facts=tuple(facts), nodes=nodes), Params())
    assert [(finding.severity, finding.culprit.name[:5]) for finding in ruling.findings] == [("fail", "GPU 1")]


def test_a_broken_result_of_an_unknown_device_or_machine_is_not_judged() -> None:
    ruling = rule(replace(DCGM, serials={"0": "S0", "1": "S9"}))
    assert ruling.findings == ()
    assert ruling.unjudged == ("diag.json: 1 failure of a device or machine that is not known to this trial",)
    elsewhere = replace(DEAD, verdict="broken", host="10.9.9.9")
    ruling = rule(replace(RAS, hosts=("10.0.0.2", "10.9.9.9"), results=(elsewhere, replace(elsewhere, pid=2))))
    assert ruling.unjudged == ("ras.txt: 2 failures of a device or machine that is not known to this trial",)
