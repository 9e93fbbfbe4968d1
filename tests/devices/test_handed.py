"""Files that other tools wrote: DCGM's JSON, old and new, and the answers of NCCL's RAS, as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from devices.recorded_samples import sample
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.devices.handed import MOST_BYTES, HandedFile, read
from seatrial.devices.plain_json import from_json, to_json
from seatrial.protocol.wire import encode
from seatrial.run.handed_files import events_of

# The form of NVIDIA/DCGM testing/python3/dcgm_diag_schema.json.
NEW: dict[str, Any] = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Hardware",
                "tests": [
                    {
                        "name": "memory",
                        "results": [
                            {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass"},
                            {
                                "entity_group": "GPU",
                                "entity_group_id": 1,
                                "entity_id": 1,
                                "status": "Fail",
                                "warnings": [
                                    {
                                        "error_category": 10,
                                        "error_id": 52,
                                        "error_severity": 2,
                                        "warning": "GPU 1 has faulty memory",
                                    }
                                ],
                            },
                        ],
                        "test_summary": {"status": "Fail"},
                    }
                ],
            }
        ]
    },
    "entity_groups": [
        {
            "entity_group": "GPU",
            "entity_group_id": 1,
            "entities": [{"entity_id": 0, "device_id": "2330", "serial_num": "1650000000001"}, {
                "entity_id": 1, "device_id": "2330", "serial_num": "1650000000002"}],
        }
    ],
    "metadata": {"version": "4.2.3", "Driver Version Detected": "580.105.08"},
}  # fmt: skip
# The form of nvvs/tests/JsonResultTests.cpp and of DCGM 3: numbers and lists in quotes, null between the tests.
OLD: dict[str, Any] = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "Persistence Mode",
                        "results": [{"gpu_ids": "0,1", "status": "FAIL", "warnings": ["off"]}],
                    },
                    None,
                    {"name": "Page Retirement/Row Remap", "results": [{"gpu_ids": "0,1", "status": "PASS"}]},
                ],
            },
            {
                "category": "Integration",
                "tests": [
                    {
                        "name": "PCIe",
                        "results": [
                            {"gpu_id": "0", "status": "Pass"},
                            {"gpu_ids": 1, "status": "Fail", "warnings": "bandwidth of 3.1 GB/s"},
                        ],
                    },
                    {"name": "Memory", "results": [{"gpu_ids": "0", "status": "SKIP"}]},
                ],
            },
        ],
        "version": "3.3.5",
        "Driver Version Detected": "535.129.03",
        "GPU Device Serials": {"0": "1650000000001", "1": "1650000000002"},
    }
}
# The form of NVIDIA/nccl src/ras/client_support.cc.
TEXT = """NCCL version 2.28.3 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       3-4         8         7   RUNNING  INCOMPLETE

Errors
======

{errors}
Warnings
========

{warnings}
"""
DEAD = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 4711 on node 10.0.0.2 managing GPU 0 (NVML 3)

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 7 -- GPU 0 (NVML 3) managed by process 4711 on node 10.0.0.2
"""
BEHIND = """#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 100
  Rank 3 has launched up to operation 90 -- GPU 3 managed by process 14 on node gpu-00
  Rank 4 has launched up to operation 99 -- GPU 4 managed by process 15 on node gpu-00
"""


def ras(**changes: Any) -> dict[str, Any]:
    """Return an answer of RAS in JSON about four ranks on two nodes; ``changes``: of its communicator."""
    ranks = [
        {
            "rank": rank,
            "host": f"gpu-{rank // 2:02d}",
            "pid": 100 + rank,
            "cuda_dev": rank % 2,
            "nvml_dev": rank % 2,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                       "abort_flag": False},
            "collective_counts": {"AllReduce": 100, "Send": rank},
        }
        for rank in range(4)
    ]  # fmt: skip
    communicator = {"hash": "0x1", "size": 4, "ranks_count": 4, "missing_ranks_count": 0, "ranks": ranks}
    return {"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [{**communicator, **changes}]}


def told(content: str | dict[str, Any]) -> tuple[HandedFile, list[tuple[str, int | None, str]]]:
    """Return what a file says, and verdict, device and text of each of its results."""
    handed = read((content if isinstance(content, str) else json.dumps(content)).encode())
    return handed, [(result.verdict, result.gpu, result.what) for result in handed.results]


def test_dcgm_4() -> None:
    handed, results = told(NEW)
    assert (handed.form, handed.driver, handed.gpus) == ("DCGM diagnostics 4.2.3", "580.105.08", (0, 1))
    assert handed.serials == {"0": "1650000000001", "1": "1650000000002"}
    assert results == [("broken", 1, "failed the test memory of DCGM")]
    assert handed.results[0].lines == ("GPU 1 has faulty memory",)
    assert handed.passed == 1


@pytest.mark.parametrize(("severity", "verdict"), [(0, "broken"), (1, "warning"), (5, "warning"), (6, "broken")])
def test_how_grave_dcgm_calls_an_error(severity: int, verdict: str) -> None:
    text = json.dumps(NEW).replace('"error_severity": 2', f'"error_severity": {severity}')
    assert [result.verdict for result in read(text.encode()).results] == [verdict]


def test_a_test_that_fails_as_a_whole_is_of_the_machine() -> None:
    text = json.dumps(NEW).replace('"status": "Fail", "warnings"', '"status": "Pass", "warnings"')
    assert told(text)[1] == [("broken", None, "failed the test memory of DCGM")]


def test_dcgm_3() -> None:
    handed, results = told(OLD)
    assert (handed.form, handed.driver, len(handed.serials)) == ("DCGM diagnostics 3.3.5", "535.129.03", 2)
    assert results == [
        ("warning", 0, "failed the test Persistence Mode of DCGM"),
        ("warning", 1, "failed the test Persistence Mode of DCGM"),
        ("broken", 1, "failed the test PCIe of DCGM"),
        ("not checked", 0, "DCGM skipped the test Memory"),
    ]


@pytest.mark.parametrize("serial", ["<<<NOT_SUPPORTED>>>", "", "0", "[N/A]"])
def test_a_serial_number_that_is_none(serial: str) -> None:
    assert "1650000000001" not in read(json.dumps(NEW).replace("1650000000001", serial).encode()).serials.values()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "it is empty"),
        ("read socket: Connection reset by peer\n", "it is in none of the known forms"),
        ('{"a": 1}', "it is in none of the known forms"),
        ("[1, 2]", "it is in none of the known forms"),
        ("\x00\xff", "it is in none of the known forms"),
        (json.dumps(NEW)[:-200], "its JSON is cut or damaged"),
        (json.dumps(ras())[:-20], "its JSON is cut or damaged"),
        (json.dumps(NEW).replace('"Fail"', '"Broken"'), "the test memory has the unknown status 'Broken'"),
        ({**NEW, "DCGM Diagnostic": {"test_categories": []}}, "it has no results"),
        ({**NEW, "DCGM Diagnostic": {"runtime_error": "no GPU"}}, 'the diagnostics ended with an error: "no GPU"'),
        (
            json.dumps(OLD).replace('"0,1"', '"0,x"'),
            "gpu_ids of Persistence Mode is no number of up to nine digits: 'x'",
        ),
        (ras(ranks_count=5), "a communicator has another number of ranks than it says"),
        (TEXT.format(errors="", warnings="").partition("Warnings")[0], "it is cut: its section Warnings is missing"),
        ("{" * 100_000, "it is in none of the known forms"),
    ],
)
def test_a_file_that_says_nothing(content: str | dict[str, Any], problem: str) -> None:
    handed, results = told(content)
    assert handed.problem.startswith(problem)
    assert results == []


def test_many_results_hide_none_that_is_broken() -> None:
    """A large machine has hundreds of skipped tests, and a file keeps 512 results."""
    tests = [
        {
            "name": "Memory",
            "results": [{"entity_group": "GPU", "entity_id": gpu, "status": status} for gpu in range(700)],
        }
        for status in ("Skip", "Warn")
    ]
    broken = {"entity_group": "GPU", "entity_id": 5, "status": "Fail"}
    tests.append({"name": "Memory", "results": [broken]})
    content = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}
    handed, _ = told(content)
    assert (handed.results[0].verdict, handed.results[0].gpu, len(handed.results)) == ("broken", 5, 512)
    assert (handed.results[-1].verdict, handed.results[-1].what) == ("not checked", "890 more results of DCGM")


def test_a_file_that_is_too_large() -> None:
    assert read(b" " * (MOST_BYTES + 1)).problem == "it has more than 32 MiB"


def test_ras_of_a_healthy_job() -> None:
    assert told(TEXT.format(errors="", warnings=""))[1] == []
    handed, results = told(ras())
    assert (handed.form, handed.hosts, handed.passed, results) == ("NCCL RAS 2.29.1", ("gpu-00", "gpu-01"), 4, [])


def test_ras_names_a_dead_process_once() -> None:
    handed, results = told(TEXT.format(errors=DEAD, warnings=""))
    assert results == [("warning", 3, "is dead by the answer of RAS, did not answer RAS")]
    (result,) = handed.results
    assert (result.host, result.pid, result.rank, len(result.lines)) == ("10.0.0.2", 4711, 7, 2)


def test_ras_names_only_a_rank_that_is_far_behind() -> None:
    handed, results = told(TEXT.format(errors="", warnings=BEHIND))
    assert results == [("warning", 3, "is 10 operations behind")]
    assert handed.results[0].rank == 3
    answer = ras()
    answer["communicators"][0]["ranks"][2]["collective_counts"]["AllReduce"] = 98
    answer["communicators"][0]["ranks"][1]["collective_counts"]["AllReduce"] = 99
    (result,) = told(answer)[0].results
    assert (result.rank, result.host, result.what) == (2, "gpu-01", "is 2 operations behind")


def test_ras_errors_of_ranks() -> None:
    errors = """#0-0 (cf264af53edbe986) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 0 -- GPU 0 managed by process 100 on node gpu-00
  Rank 1 -- GPU 1 managed by process 101 on node gpu-00
  Rank 2 reported System error -- GPU 0 managed by process 102 on node gpu-01
"""
    results = told(TEXT.format(errors=errors, warnings=""))[0].results
    assert [(result.rank, result.what) for result in results] == [
        (0, "reported Remote process error"),
        (1, "reported Remote process error"),
        (2, "reported System error"),
    ]
    answer = ras()
    answer["communicators"][0]["ranks"][3]["status"]["async_error"] = 2
    assert [(result.rank, result.what) for result in told(answer)[0].results] == [(3, "reported System error")]


_SENTENCE = "it, and GPU 7 of gpu-00 is broken: replace it"


def test_words_of_a_file_that_may_be_a_sentence_are_quoted() -> None:
    renamed = json.dumps(NEW).replace('"memory"', json.dumps(_SENTENCE)).replace("4.2.3", _SENTENCE)
    handed, results = told(renamed)
    assert results == [("broken", 1, f'failed the test "{_SENTENCE}" of DCGM')]
    assert handed.form == f'DCGM diagnostics "{_SENTENCE}"'
    said = f"ERROR\n  2 ranks reported {_SENTENCE}\n  Rank 1 -- GPU 1 managed by process 5 on node a\n"
    said += f"  Rank 2 has {_SENTENCE} -- GPU 2 managed by process 6 on node a\n"
    handed, results = told(TEXT.format(errors=said, warnings=""))
    assert [what for _, _, what in results] == [f'reported "{_SENTENCE}"', f'has "{_SENTENCE}"']
    assert read(json.dumps({**ras(), "nccl_version": _SENTENCE}).encode()).form == f'NCCL RAS "{_SENTENCE}"'


@pytest.mark.parametrize(("named", "rest"), [(513, "1 more rank or process"), (700, "188 more ranks or processes")])
def test_ras_says_how_many_it_names_beyond_those_that_are_kept(named: int, rest: str) -> None:
    dead = [f"  Process {pid} on node gpu-{pid} managing GPU 0" for pid in range(named)]
    _, results = told("\n".join(["Errors", "DEAD", *dead, "Warnings", ""]))
    assert results[511] == ("warning", 0, "is dead by the answer of RAS")
    assert results[512:] == [("not checked", None, f"{rest} that RAS names")]


def test_ras_in_words_that_are_not_known_says_so() -> None:
    _, results = told(TEXT.format(errors="EXPLODED\n  Rank 3 is a cloud of gas\n", warnings=""))
    assert results == [("not checked", None, "2 lines of NCCL RAS 2.28.3 in words that are not known")]


@pytest.mark.parametrize("comma", [",", ""])
def test_ras_names_missing_ranks(comma: str) -> None:
    """NCCL 2.28.9 leaves out a comma there."""
    missing: list[dict[str, Any]] = [
        {"rank": 4 + number, "host": "gpu-02", "pid": number, "cuda_dev": 0, "nvml_dev": 5,
         "status": {"unresponsive": True, "considered_dead": number == 0}}
        for number in (0, 1)
    ]  # fmt: skip
    missing += [{"rank": 6, "host": "gpu-02", "pid": 3, "unresponsive": False, "considered_dead": False}]
    text = json.dumps(ras(missing_ranks_count=3, missing_ranks=missing), indent=2)
    results = told(text.replace('"nvml_dev": 5,', f'"nvml_dev": 5{comma}'))[0].results
    assert [(result.rank, result.what) for result in results] == [
        (4, "is dead by the answer of RAS"),
        (5, "did not answer RAS"),
    ]


@given(st.sampled_from([NEW, OLD, ras()]), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_no_changed_value_raises(document: dict[str, Any], random: Any) -> None:
    changed = json.loads(json.dumps(document))
    for _ in range(random.randint(1, 3)):
        _change(changed, random)
    from_json(HandedFile, json.loads(json.dumps(to_json(read(json.dumps(changed).encode())))))


def _change(value: Any, random: Any) -> None:
    """Replace one value somewhere below."""
    while isinstance(value, (dict, list)) and value:
        key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if not isinstance(value[key], (dict, list)) or random.random() < 0.2:
            value[key] = random.choice([None, "", "x", -1, 1e30, True, [], {}, [None], {"a": 1}, "0" * 5000])
            return
        value = value[key]


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_no_cut_or_mixed_text_raises(data: st.DataObject) -> None:
    lines = (TEXT.format(errors=DEAD, warnings=BEHIND)).splitlines()
    chosen = data.draw(st.lists(st.one_of(st.sampled_from(lines), st.text(max_size=30)), max_size=40))
    read("\n".join(chosen).encode())


@pytest.mark.parametrize(
    ("name", "form", "verdicts"),
    [
        ("dcgm/gb10-level1.json", "DCGM diagnostics 4.2.3", ["warning"]),
        ("dcgm/gb10-level2-plugins-allowed.json", "DCGM diagnostics 4.5.2", ["warning"]),
        ("dcgm/gb10-level2-plugins-gated.json", "DCGM diagnostics 4.5.2", ["warning", "not checked", "not checked"]),
        ("ras/rccl_v2283_text_healthy.txt", "RCCL RAS 2.28.3", []),
        ("ras/rccl_v2283_text_degraded.txt", "RCCL RAS 2.28.3", ["warning"]),
        ("ras/rccl_v2289_json_healthy.json", "NCCL RAS 2.28.9", []),
    ],
)
def test_recorded(name: str, form: str, verdicts: list[str]) -> None:
    path: Path = sample(name)
    handed = read(path.read_bytes())
    assert (handed.problem, handed.form) == ("", form)
    assert [result.verdict for result in handed.results] == verdicts


def _ras(*lines: str) -> str:
    return "\n".join(["NCCL version 2.28.9", "Job summary", "Errors", *lines, "Warnings", ""])


_MANY = 60_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (_ras(*(f"  Process {pid} on node h managing GPU 0" for pid in range(_MANY))), ""),
        (
            _ras(*(f"  Process 1 on node h managing GPU {gpu}" for gpu in range(999))),
            "process 1 has more than 64 devices",
        ),
        (_ras("  The missing ranks: " + ", ".join(map(str, range(10 * _MANY)))), ""),
        (
            json.dumps(
                {
                    "nccl_version": "2.28",
                    "communicators": [
                        {
                            "ranks_count": _MANY // 10,
                            "ranks": [
                                {"host": "h", "rank": rank, "status": {}, "collective_counts": {f"op{rank}": 1}}
                                for rank in range(_MANY // 10)
                            ],
                        }
                    ],
                }
            ),
            "it counts more than 100 kinds of operations",
        ),
        (
            json.dumps({"DCGM GPU Diagnostic": {"test_categories": [
                {"category": "x", "tests": [{"name": "m", "results": [
                    {"gpu_ids": "0", "status": "FAIL", "warnings": [f"w{number}" for number in range(_MANY)],
                     "info": [f"i{number}" for number in range(_MANY)]}]}]}]}}),
            "",
        ),
        (
            json.dumps({"DCGM GPU Diagnostic": {"test_categories": [
                {"category": "x", "tests": [{"name": "m", "results": [
                    {"gpu_ids": ",".join(map(str, range(5_000))), "status": "PASS"}]}]}]}}),
            "it names more than 4,096 devices",
        ),
    ],
)  # fmt: skip
def test_a_file_that_names_very_much_is_read_in_seconds(content: str, problem: str) -> None:
    handed = read(content.encode())
    assert handed.problem == problem
    assert all(len(result.what) <= 500 and len(result.lines) <= 10 for result in handed.results)


_DIGITS = "9" * 24


@pytest.mark.parametrize(
    "line",
    [
        f"  Process {_DIGITS} on node gpu-00 managing GPU 0",
        f"  Rank {_DIGITS} -- GPU 0 managed by process 5 on node gpu-00",
        f"  Rank 3 -- GPU 0 managed by process {_DIGITS} on node gpu-00",
        f"  The missing ranks: 2, {_DIGITS}",
        "  Process \u0661\u0662 on node gpu-00 managing GPU 0",
    ],
)
def test_a_number_that_no_judge_reads_is_a_problem_of_the_file(line: str) -> None:
    assert "is no number of up to nine digits" in read(_ras(line).encode()).problem


def _many_hosts(of_each: str) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0}
    ranks = [{"host": f"{rank}{of_each}", "rank": rank, "pid": rank, "status": status} for rank in range(4_096)]
    return {"nccl_version": "2.28", "communicators": [{"ranks_count": len(ranks), "ranks": ranks}]}


def _many_serials(of_each: str) -> dict[str, Any]:
    entities = [{"entity_id": number, "serial_num": f"{number}{of_each}"} for number in range(4_096)]
    return {**NEW, "entity_groups": [{"entity_group": "GPU", "entities": entities}]}


@pytest.mark.parametrize("content", [_many_hosts("\u00e9" * 500), _many_serials("\u00e9" * 500)])
def test_a_file_that_no_event_can_hold_is_a_problem(content: dict[str, Any]) -> None:
    assert read(json.dumps(content).encode()).problem == "it says too much: more than 4 MiB"


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(_many_hosts("h" * 500)),
        json.dumps(_many_serials("s" * 500)),
        _ras(*(f"  Process {pid} on node {'h' * 30_000} managing GPU 0" for pid in range(600))),
        f"RCCL version {'9' * 5_000_000}\nJob summary\nErrors\nWarnings\n",
    ],
)
def test_names_are_short_and_each_event_can_be_written(content: str) -> None:
    handed = read(content.encode())
    assert handed.problem == ""
    assert max(map(len, (handed.form, *handed.hosts, *handed.serials.values()))) < 270
    (event, _) = events_of("run", [handed])
    assert encode(event)


@pytest.mark.timeout(20)
def test_blank_lines_without_end_keep_nobody() -> None:
    """With 32 MiB of them a pattern that looks back over all of them again for each one takes hours."""
    assert read(b'{"pid": 3' + b"\n" * 2_000_000).problem
