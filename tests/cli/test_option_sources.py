"""Options from variables and files: which one counts, where it came from, and what is refused. Both parsers alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial.cli import argparse_app
from seatrial.cli.click_app import main
from seatrial.cli.option_sources import with_origins
from seatrial.errors import RequestError

Show = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and a home without files."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / ".config" / "seatrial").mkdir(parents=True)
    return tmp_path


def write(text: str, path: Path = Path("seatrial.toml")) -> None:
    path.write_text(text)
    path.chmod(0o644)


def values(table: str = "run", *, environ: dict[str, str] | None = None, **typed: Any) -> dict[str, Any]:
    return with_origins(table, typed, {"HOME": os.environ["HOME"], **(environ or {})})


def origin_of(name: str, found: dict[str, Any]) -> tuple[Any, str]:
    return found[name], found["origins"].get(name, "default")


def test_the_strongest_source_counts(home: Path) -> None:
    name = "nproc_per_node"
    assert origin_of(name, values()) == (None, "default")
    write("nproc-per-node = 1\n", home / ".config/seatrial/seatrial.toml")
    assert origin_of(name, values()) == (1, "~/.config/seatrial/seatrial.toml: nproc_per_node")
    write("nproc_per_node = 2\n")
    assert origin_of(name, values()) == (2, "./seatrial.toml: nproc_per_node")
    write("nproc_per_node = 2\n[run]\nnproc-per-node = 3\n[train]\nlr = 1\n")
    assert origin_of(name, values()) == (3, "./seatrial.toml: run.nproc_per_node")
    assert origin_of(name, values("train")) == (2, "./seatrial.toml: nproc_per_node")
    assert origin_of("lr", values("train")) == (1.0, "./seatrial.toml: train.lr")
    variable = {"SEATRIAL_OPTION_NPROC_PER_NODE": "4"}
    assert origin_of(name, values(environ=variable)) == (4, "SEATRIAL_OPTION_NPROC_PER_NODE")
    assert origin_of(name, values(environ=variable, nproc_per_node=5)) == (5, "--nproc-per-node")


def test_values_of_all_kinds() -> None:
    write(
        'deadline = "5m"\nhosts = ["a", "b:2"]\nonly = "compute,memory"\njson = true\n'
        'env = ["A=b c", "D=e"]\non = "ssh"'
    )
    found = values()
    assert [found[name] for name in ("deadline", "hosts", "only", "as_json", "env")] == [
        300.0,
        "a,b:2",
        ("compute,memory",),
        True,
        ("A=b c", "D=e"),
    ]
    environ = {"SEATRIAL_OPTION_ENV": "'A=b c' D=e", "SEATRIAL_OPTION_JSON": "false", "SEATRIAL_OPTION_DEADLINE": "90"}
    found = values(environ={**environ, "SEATRIAL_OPTION_HOSTS": "c,d", "SEATRIAL_OPTION_OUT": ""})
    assert [found[name] for name in ("env", "as_json", "deadline", "hosts")] == [("A=b c", "D=e"), False, 90.0, "c,d"]
    assert origin_of("out", found) == (Path("reports"), "default")


def test_options_of_a_target_that_was_chosen_elsewhere_are_left_out() -> None:
    write('on = "ssh"\nhosts = ["a"]\nmin-hosts = 1\n')
    found = values(target="local")
    assert (found["target"], found["hosts"], found["min_hosts"]) == ("local", None, None)
    assert values()["hosts"] == "a"
    assert values(target="local", hosts="b")["hosts"] == "b", "who types both is told"


def test_under_a_launcher_only_typed_options_say_where_ranks_run() -> None:
    write(
        'on = "slurm"\npartition = "p"\nnproc-per-node = 8\ndevice = "cpu"\nskip = "links"\n'
        '[train]\nout = "x"\nlr = 2.0\n'
    )
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    rank |= {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "h", "MASTER_PORT": "1", "GROUP_RANK": "0"}
    found = values(environ=rank)
    assert [found[name] for name in ("target", "partition", "nproc_per_node", "skip")] == [
        "local",
        None,
        None,
        ("links",),
    ]
    assert [values("train", environ=rank)[name] for name in ("lr", "out")] == [2.0, Path("reports")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deadlin = 5", ["./seatrial.toml: deadlin: there is no such option", "did you mean deadline?"]),
        ("xyzzy = 5", ["./seatrial.toml: xyzzy: there is no such option", "see seatrial run --help"]),
        ("[run]\nlr = 1", ["./seatrial.toml: run.lr: there is no such option"]),
        ("[trial]\nlr = 1", ["./seatrial.toml: trial is no table of options", "run, train, launch"]),
        ("run = 3", ["./seatrial.toml: run: there is no such option"]),
        ("deadline = true", ["./seatrial.toml: deadline is True", "such as 90s, 5m or 2h"]),
        ('deadline = "5 d"', ["--deadline 5 d: expected a time", "(from ./seatrial.toml: deadline)"]),
        ("epochs = 2.5", ["./seatrial.toml: epochs is 2.5 (a number), expected a whole number"]),
        ('epochs = "2"', ["./seatrial.toml: epochs is '2' (a string), expected a whole number"]),
        ("json = 1", ["./seatrial.toml: json is 1", "true or false"]),
        ("hosts = [1]", ["./seatrial.toml: hosts is [1] (a list), expected a string or a list"]),
        ('device = "gpu"', ["--device gpu: expected one of auto", "(from ./seatrial.toml: device)"]),
        ("device = 3", ["./seatrial.toml: device is 3", "one of auto"]),
        ('env = ["HF_TOKEN=abcdef"]', ["./seatrial.toml: env has HF_TOKEN", "keep it out of files"]),
        ('[env]\nHF_TOKEN = "abcdef"', ["./seatrial.toml: env is a table, expected a string or a list"]),
        ('[run.env]\nHF_TOKEN = "abcdef"', ["./seatrial.toml: run.env is a table"]),
        ('env = [["PASSWORD=abcdef"]]', ["./seatrial.toml: env is a list"]),
        ('env = [{PASSWORD = "abcdef"}]', ["./seatrial.toml: env is a list"]),
        ('[run.python]\nHF_TOKEN = "abcdef"', ["./seatrial.toml: run.python is a table"]),
        (f'epochs = "ghp_{"abcdef" * 6}"', ["./seatrial.toml: epochs is a string, expected a whole number"]),
        ("epochs = 0x" + "f" * 5_000, ["./seatrial.toml: epochs is a whole number of more than 63 bits"]),
        ("json = 0x" + "f" * 5_000, ["./seatrial.toml: json is a whole number"]),
        ("a-b = 1\na_b = 2", ["./seatrial.toml: a_b is given twice"]),
        ("on = local", ["./seatrial.toml is not valid TOML", "line 1"]),
        ("\xff", ["./seatrial.toml is not UTF-8 text: line 1"]),
        ("#" * 70_000, ["./seatrial.toml: seatrial.toml has more than 65,536 bytes"]),
    ],
)
def test_a_wrong_file_is_a_sentence_with_its_key(text: str, words: list[str]) -> None:
    Path("seatrial.toml").write_bytes(text.encode("latin-1"))
    Path("seatrial.toml").chmod(0o644)
    with pytest.raises(RequestError) as refused:
        values()
    assert all(word in str(refused.value) for word in words), refused.value
    assert "abcdef" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "DEADLIN",
            "5",
            ["SEATRIAL_OPTION_DEADLIN: there is no such option", "did you mean SEATRIAL_OPTION_DEADLINE?"],
        ),
        ("EPOCHS", "two", ["--epochs two: expected a whole number (from SEATRIAL_OPTION_EPOCHS)"]),
        ("JSON", "maybe", ["SEATRIAL_OPTION_JSON=maybe: expected 1, true, 0 or false"]),
        ("ENV", "'A=b", ["SEATRIAL_OPTION_ENV: No closing quotation"]),
    ],
)
def test_a_wrong_variable_is_a_sentence_with_its_name(name: str, text: str, words: list[str]) -> None:
    with pytest.raises(RequestError) as refused:
        values(environ={f"SEATRIAL_OPTION_{name}": text})
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_file_that_others_can_change_is_refused() -> None:
    write("epochs = 2\n")
    for mode in (0o664, 0o646):
        Path("seatrial.toml").chmod(mode)
        with pytest.raises(RequestError, match=r"^\./seatrial\.toml: .* others could have changed it; chmod go-w it"):
            values()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused() -> None:
    write("epochs = 2\n")
    os.chown("seatrial.toml", 12345, 12345)
    with pytest.raises(RequestError, match=r"^\./seatrial\.toml: seatrial.toml is a file of user 12345, not of user 0"):
        values()


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_no_regular_file_is_read(kind: str) -> None:
    if kind == "link":
        write("epochs = 2\n", Path("other.toml"))
        Path("seatrial.toml").symlink_to("other.toml")
    elif kind == "folder":
        Path("seatrial.toml").mkdir()
    else:
        os.mkfifo("seatrial.toml")
    with pytest.raises(RequestError, match=r"^\./seatrial\.toml: seatrial.toml is a .* and no regular file"):
        values()


@pytest.mark.parametrize("entry", [main, argparse_app.main], ids=["click", "argparse"])
def test_plan_show_names_the_source_with_both_parsers(
    entry: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write('deadline = "5m"\nepochs = 9\non = "slurm"\n')
    monkeypatch.setenv("SEATRIAL_OPTION_EPOCHS", "3")
    monkeypatch.setattr(sys, "argv", ["seatrial", "plan", "show", "smoke", "--batch-size", "8", "--json"])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert not ended.value.code
    shown = json.loads(capsys.readouterr().out)
    assert shown["deadline_s"] == [300.0, "./seatrial.toml: deadline"]
    assert shown["settings"]["training"]["epochs"] == [3, "SEATRIAL_OPTION_EPOCHS"]
    assert shown["settings"]["training"]["batch_size"] == [8, "--batch-size"]
    assert shown["options"]["--on"] == ["slurm", "./seatrial.toml: on"]


def test_a_value_of_a_file_does_not_ask_for_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    write("epochs = 9\n")
    command = [sys.executable, "-m", "seatrial", "plan", "show", "smoke", "--only", "bootstrap"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("entry", [main, argparse_app.main], ids=["click", "argparse"])
def test_an_error_names_the_source_of_the_option(
    entry: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write('on = "moon"\n')
    monkeypatch.setattr(sys, "argv", ["seatrial", "run", "smoke"])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("Error: --on moon: no such target")
    assert complaint.endswith(" (--on is from ./seatrial.toml: on)\n")


@pytest.mark.parametrize("by", ["variable", "file", "table"])
def test_nobody_gives_up_a_protection_without_typing_it(by: str) -> None:
    if by != "variable":
        write("unprotected = true\n" if by == "file" else "[run]\nunprotected = true\n")
    environ = {"SEATRIAL_OPTION_UNPROTECTED": "1"} if by == "variable" else {}
    with pytest.raises(RequestError, match="nothing but a person may set it; type --unprotected"):
        values(environ=environ)
