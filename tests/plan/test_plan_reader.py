"""The strict reader: layers, origins, and one sentence for every wrong request."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.errors import RequestError
from seatrial.plan.model import Plan, Setting
from seatrial.plan.plan_file import LEVELS
from seatrial.plan.plan_reader import Override, read_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Parameters of every type that a plan can fill, for an invented check."""

    size: int = 4096
    seconds_s: float = 2.0
    dtype: str = "fp32"
    exact: bool = True
    sizes: tuple[int, ...] = (1, 2)
    span: tuple[int, float] = (1, 1.0)
    pauses_s: tuple[float, ...] = ()
    min_tflops: float | None = None

    def __post_init__(self) -> None:
        if self.size % 2:
            raise ValueError(f"size is {self.size}, expected an even number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Parameters of invented checks that differ only in their scope."""

    epochs: int = 1

    def __post_init__(self) -> None:
        if self.epochs > 1000:
            raise RequestError(f"epochs is {self.epochs}; nobody waits for that.")


SCHEMAS: dict[str, type[Any]] = {
    "training": Plain,
    "bootstrap": Plain,
    "collectives": Plain,
    "compute": Probe,
    "memory": Plain,
}
SCOPES = {"training": "world", "collectives": "world", "bootstrap": "bootstrap", "compute": "alone", "memory": "alone"}
LEVEL = '{"deadline_s": 120, "checks": ["training", "compute", "bootstrap", "collectives"], "compute": {"size": 64}}'


@pytest.fixture(autouse=True)
def invented_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the built-in levels: these tests are about reading, not about the values of levels."""
    monkeypatch.setattr("seatrial.plan.plan_reader.read_level", lambda name: json.loads(LEVEL))


def read(source: str | Path, **options: Any) -> Plan:
    return read_plan(str(source), schemas=SCHEMAS, scopes=SCOPES, **options)


def write(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_bytes(text.encode())
    return path


def refused(source: str | Path, **options: Any) -> str:
    with pytest.raises(RequestError) as caught:
        read(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_each_value_keeps_its_origin(tmp_path: Path) -> None:
    path = write(tmp_path, 'level = "quick"\n[compute]\ndtype = "bf16"\nseconds_s = 3\n[training]\nepochs = 4\n')
    plan = read(path, overrides=[("training", "epochs", 5, "--epochs")])
    assert plan.name == str(path)
    assert plan.settings["compute"]["exact"] == Setting(value=True, origin="default")
    assert plan.settings["compute"]["size"] == Setting(value=64, origin="level quick")
    assert plan.settings["compute"]["dtype"] == Setting(value="bf16", origin=f"plan {path}:compute.dtype")
    assert plan.settings["training"]["epochs"] == Setting(value=5, origin="--epochs")
    assert plan.deadline_s == Setting(value=120.0, origin="level quick")
    assert type(plan.settings["compute"]["seconds_s"].value) is float
    assert plan.params("compute", Probe) == Probe(size=64, dtype="bf16", seconds_s=3.0)


def test_a_file_says_where_it_has_a_value_from(tmp_path: Path) -> None:
    words = "from 3 runs: median 812, lowest 800 less 10 % of the median"
    path = write(
        tmp_path, f'level = "quick"\n[compute]\nsize = 4\nseconds_s = 3\n[origins]\ncompute.size = "{words}"\n'
    )
    settings = read(path).settings["compute"]
    assert settings["size"].origin == f"plan {path}: {words}"
    assert settings["seconds_s"].origin == f"plan {path}:compute.seconds_s"


@pytest.mark.parametrize(
    ("origins", "words"),
    [
        ("origins = 3", "origins is 3 (a whole number), expected a table [origins]"),
        ("[origins]\ncompute = 3", "origins.compute is 3 (a whole number), expected CHECK.PARAMETER = WORDS"),
        ("[origins.compute]\nsize = 3", "origins.compute.size is 3 (a whole number), expected a text"),
        ('[origins]\ncompute.size = ""', "origins.compute.size is "),
        (
            '[origins]\ncompute.dtype = "a run"',
            "origins.compute.dtype is the origin of a value that the plan does not set",
        ),
        ('[origins]\ntraining.epochs = "a run"', "set epochs in [training], or take the origin out"),
    ],
)
def test_an_origin_of_nothing_is_refused(origins: str, words: str, tmp_path: Path) -> None:
    table = "[compute]\nsize = 3\n"
    text = f"{origins}\n{table}" if origins == "origins = 3" else f"{table}{origins}\n"
    head = 'level = "quick"\n'
    assert words in refused(write(tmp_path, head + text))


def test_checks_are_in_the_order_of_a_trial() -> None:
    assert read("quick").checks == ("compute", "bootstrap", "training", "collectives")


def test_a_plan_survives_the_wire(tmp_path: Path) -> None:
    plan = read(write(tmp_path, 'level = "quick"\n[compute]\nsizes = [8, 16]\n'), skip=["training"])
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again.to_json() == json.loads(json.dumps(plan.to_json()))
    assert again.params("compute", Probe) == plan.params("compute", Probe)


def test_checks_left_out_by_a_file_are_not_asked(tmp_path: Path) -> None:
    path = write(tmp_path, 'level = "quick"\nchecks = ["compute", "memory"]\n')
    origin = f"plan {path}"
    assert read(path).not_asked == {"training": origin, "bootstrap": origin, "collectives": origin}
    path = write(tmp_path, 'deadline_s = 5\nchecks = ["compute"]\n')
    assert set(read(path).not_asked) == {"training", "bootstrap", "collectives", "memory"}
    assert read(path).deadline_s.origin == f"{origin}:deadline_s"
    assert read("quick").not_asked == {}


@pytest.mark.parametrize(
    ("options", "checks", "not_asked"),
    [
        ({"only": ["compute"]}, ("compute",), {"bootstrap", "training", "collectives"}),
        ({"only": ["training"]}, ("bootstrap", "training"), {"compute", "collectives"}),
        ({"only": ["training, compute"]}, ("compute", "bootstrap", "training"), {"collectives"}),
        ({"only": ["training", "compute"]}, ("compute", "bootstrap", "training"), {"collectives"}),
        ({"only": ["memory"]}, ("memory",), {"compute", "bootstrap", "training", "collectives"}),
        ({"only": ["memory,training"]}, ("memory", "bootstrap", "training"), {"compute", "collectives"}),
        ({"skip": ["training,bootstrap", "collectives"]}, ("compute",), {"training", "bootstrap", "collectives"}),
        ({"skip": ["memory"]}, ("compute", "bootstrap", "training", "collectives"), set()),
        ({"validation_only": True}, ("compute", "bootstrap", "collectives"), {"training"}),
    ],
)
def test_only_and_skip(options: dict[str, Any], checks: tuple[str, ...], not_asked: set[str]) -> None:
    plan = read("quick", **options)
    assert plan.checks == checks
    assert set(plan.not_asked) == not_asked
    assert set(plan.settings) == set(checks)
    option = "--validation-only" if options.get("validation_only") else f"--{next(iter(options))}"
    assert set(plan.not_asked.values()) <= {option}


def test_only_takes_a_check_that_a_file_does_not_name_and_what_it_needs(tmp_path: Path) -> None:
    path = write(tmp_path, 'deadline_s = 5\nchecks = ["compute"]\n')
    plan = read(path, only=["collectives"])
    assert plan.checks == ("bootstrap", "collectives")
    assert plan.not_asked == {"training": f"plan {path}", "memory": f"plan {path}", "compute": "--only"}
    assert plan.settings["collectives"]["epochs"].origin == "default"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ["trianing"]}, ["--only", "'trianing'", "did you mean training?"]),
        ({"skip": ["compute,"]}, ["--skip compute,", "''", "expected one of: training"]),
        ({"skip": ["bootstrap"]}, ["--skip takes out bootstrap", "collectives"]),
        ({"only": ["training"], "skip": ["bootstrap"]}, ["--skip takes out bootstrap", "training"]),
        ({"only": ["training"], "validation_only": True}, ["--only asks for training", "--validation-only"]),
        ({"skip": ["training,bootstrap,collectives,compute"]}, ["nothing is left", "--skip took out every check"]),
        ({"overrides": [("training", "epochs", -1.5, "--epochs")]}, ["--epochs", "training.epochs", "-1.5", "whole"]),
        (
            {"overrides": [("training", "epochs", 1001, "--epochs")]},
            ["training: epochs is 1001; nobody waits for that (values from --epochs)."],
        ),
        ({"overrides": [("compute", "size", 3, "--size")]}, ["size is 3, expected an even number", "--size"]),
        (
            {"overrides": [("training", "epochs", 1, "--epochs")], "validation_only": True},
            ["--epochs", "training is not asked for"],
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], words: list[str]) -> None:
    message = refused("quick", **options)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is empty"]),
        ("# only a comment\n", ["is empty"]),
        ("checks = [", ["not valid TOML", "end of document"]),
        ("a = 1\nb = = 2", ["not valid TOML", "line 2"]),
        ('level = "quick"\nlevel = "quick"\n', ["not valid TOML", "line 2"]),
        ("a = " + "9" * 5000, ["not valid TOML"]),
        ("a = " + "[" * 100_000, ["not valid TOML", "nested too deep"]),
        ('level = "qick"', ["level", "'qick'", "did you mean quick?"]),
        ("level = 3", ["level", "3 (a whole number)", "smoke"]),
        ('checks = ["compute"]', ["deadline_s is missing"]),
        ("deadline_s = 3", ["checks is missing"]),
        ('level = "quick"\nthresholds = 3', ["'thresholds'", "expected one of"]),
        ('level = "quick"\n[colectives]\n', ["'colectives'", "did you mean collectives"]),
        ('level = "quick"\n[memory]\n', ["[memory]", "does not ask for memory"]),
        ('level = "quick"\ncompute = 3', ["compute is 3", "expected a table"]),
        ('level = "quick"\n[[compute]]\nsize = 2', ["expected a table"]),
        ('level = "quick"\n[compute]\nsise = 2', ["compute", "'sise'", "did you mean size"]),
        ('level = "quick"\n[compute]\nsize = "2"', ["compute.size", "'2' (a string)", "a whole number"]),
        ('level = "quick"\n[compute]\nsize = 2.0', ["compute.size", "2.0", "a whole number"]),
        ('level = "quick"\n[compute]\nsize = true', ["compute.size", "True (true or false)", "a whole number"]),
        ('level = "quick"\n[compute]\nsize = 0x' + "f" * 5000, ["compute.size", "a whole number"]),
        ('level = "quick"\n[compute]\nseconds_s = inf', ["compute.seconds_s", "inf", "finite"]),
        ('level = "quick"\n[compute]\nseconds_s = nan', ["compute.seconds_s", "nan", "finite"]),
        ('level = "quick"\n[compute]\nseconds_s = -1', ["compute.seconds_s", "-1", "0 or more"]),
        ('level = "quick"\n[compute]\npauses_s = [1, -1]', ["compute.pauses_s", "0 or more"]),
        ('level = "quick"\n[compute]\nexact = 1', ["compute.exact", "true or false"]),
        ('level = "quick"\n[compute]\nsizes = 1', ["compute.sizes", "a list, each entry a whole number"]),
        ('level = "quick"\n[compute]\nsizes = [1, true]', ["compute.sizes", "a list, each entry a whole number"]),
        ('level = "quick"\n[compute]\nspan = [1]', ["compute.span", "a list of 2"]),
        ('level = "quick"\n[compute]\nmin_tflops = "fast"', ["compute.min_tflops", "a finite number"]),
        ('level = "quick"\n[compute]\nsize = 3', ["compute", "size is 3", "expected an even number", "compute.size"]),
        ('level = "quick"\ndeadline_s = 0', ["deadline_s is 0", "above 0"]),
        ('level = "quick"\ndeadline_s = 1979-05-27', ["deadline_s", "date"]),
        ('level = "quick"\nchecks = []', ["checks", "at least one"]),
        ('level = "quick"\nchecks = [1]', ["checks", "name"]),
        ('level = "quick"\nchecks = ["compute", "compute"]', ["compute more than once"]),
        ('level = "quick"\nchecks = ["computer"]', ["'computer'", "did you mean compute"]),
        ('level = "quick"\nchecks = ["training"]', ["training cannot run without bootstrap", "add bootstrap"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_files(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refused(write(tmp_path, text))
    assert [word for word in ["plan.toml", *words] if word not in message] == []


def test_a_level_may_have_tables_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = '{"deadline_s": 1, "checks": ["compute"], "memory": {"epochs": 7}}'
    monkeypatch.setattr("seatrial.plan.plan_reader.read_level", lambda name: json.loads(level))
    assert read("quick").checks == ("compute",)
    plan = read(write(tmp_path, 'level = "quick"\nchecks = ["memory"]\n'))
    assert plan.settings["memory"]["epochs"] == Setting(value=7, origin="level quick")


def test_a_level_starts_from_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.plan.plan_reader.read_level", lambda name: {"level": "smoke", **json.loads(LEVEL)})
    assert "level quick" in refused("quick")


def test_a_parameter_without_a_value_is_named() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Needs:
        steps: int

    with pytest.raises(RequestError, match=r"training\.steps has no value"):
        read_plan("quick", schemas={**SCHEMAS, "training": Needs}, scopes=SCOPES)


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    assert "did you mean quick" in refused("quik")
    assert "is a directory" in refused(tmp_path)
    assert "no level and no file" in refused(tmp_path / "absent.toml")
    assert "NUL" in refused("a\0b")
    assert "no level and no file" in refused("")
    path = tmp_path / "plan.toml"
    path.write_bytes(b'level = "quick"\n# \xff\n')
    assert "line 2 contains byte 0xff" in refused(path)
    path.write_bytes(b'level = "quick"\0')
    assert "NUL bytes" in refused(path)
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    assert "more than 1048576 bytes" in refused(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "pipe is a FIFO and no regular file" in refused(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be read" in refused(loop)


def test_a_file_with_a_bom_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(b'\xef\xbb\xbflevel = "quick"\r\n[compute]\r\nsize = 2\r\n')
    assert read(path).settings["compute"]["size"].value == 2


def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.toml")
    Path(path).write_text('level = "quick"\n')
    plan = read(path)
    assert plan.name.encode().endswith(b"\\udcff.toml")


NAMES = st.sampled_from([*SCHEMAS, "level", "deadline_s", "checks", "size", "seconds_s", "sizes", "epochs", "x", ""])
VALUES = st.recursive(
    st.one_of(
        st.integers(),
        st.integers(min_value=10**4400, max_value=10**4401),
        st.floats(),
        st.booleans(),
        st.text(),
        st.none(),
        st.sampled_from([*LEVELS, *SCHEMAS]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=8,
)
TABLES = st.fixed_dictionaries(
    {},
    optional={
        "level": st.sampled_from(["quick", "quik"]) | VALUES,
        "deadline_s": st.floats() | VALUES,
        "checks": st.lists(st.sampled_from([*SCHEMAS, "other"]), max_size=5) | VALUES,
        "compute": st.dictionaries(NAMES, VALUES, max_size=4) | VALUES,
        "training": st.dictionaries(NAMES, VALUES, max_size=4) | VALUES,
    },
) | st.dictionaries(NAMES, VALUES)


@given(
    table=TABLES,
    overrides=st.lists(st.tuples(st.sampled_from([*SCHEMAS]), NAMES, VALUES, st.just("--option")), max_size=2),
)
def test_any_table_ends_in_a_valid_plan_or_a_request_error(table: dict[str, Any], overrides: list[Override]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seatrial.plan.plan_reader.read_file", lambda path: table)
        try:
            plan = read("any.toml", overrides=overrides)
        except RequestError as error:
            message = str(error)
            assert message
            return
    assert plan.checks
    assert not set(plan.checks) & set(plan.not_asked)
    assert math.isfinite(plan.deadline_s.value)
    assert plan.deadline_s.value > 0
    for check in plan.checks:
        plan.params(check, SCHEMAS[check])
    json.dumps(plan.to_json(), allow_nan=False)


PLAN_TEXT = b"""level = "quick"
deadline_s = 60
checks = ["compute", "bootstrap", "training"]
[compute]
size = 128
sizes = [1, 2, 3]
dtype = "bf16"
[training]
epochs = 3
"""


@given(data=st.data())
def test_any_mutated_file_ends_in_a_plan_or_a_request_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = bytearray(PLAN_TEXT)
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        start = data.draw(st.integers(min_value=0, max_value=len(text)))
        end = data.draw(st.integers(min_value=start, max_value=min(len(text), start + 12)))
        text[start:end] = data.draw(st.binary(max_size=6) | st.sampled_from([b"[", b'"""', b"\n", b"=", b"inf", b"-"]))
    path = tmp_path_factory.getbasetemp() / "mutated.toml"
    path.write_bytes(text)
    try:
        plan = read(path)
    except RequestError as error:
        message = str(error)
        assert "mutated.toml" in message
    else:
        assert plan.checks
