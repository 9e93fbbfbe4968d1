"""The progress lines and the log of a training, and the rank that is named when digests differ."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import RequestError
from seatrial.training.progress_lines import progress_words, result_lines
from seatrial.worker import train_log
from seatrial.worker.digests import difference, voters
from seatrial.worker.train_log import EpochLog

RESULT: dict[str, Any] = {
    "world_size": 2,
    "step": 40,
    "num_steps": 40,
    "first_step": 0,
    "loss": 0.25,
    "accuracy": 0.5,
    "num_correct": 1,
    "num_evaluated": 2,
    "samples_per_s": 1234.5,
    "digest": "abc",
    "difference": "",
    "nonfinite": None,
    "stopped": False,
    "missed": None,
    "resumed_from": None,
    "notes": [],
    "checkpoint": None,
    "log": None,
    "profile": None,
}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_the_last_lines_say_all_that_is_known() -> None:
    assert result_lines(RESULT) == [
        "trained 40 of 40 steps: accuracy 0.5000 (1 of 2), loss 0.2500, 1,234 samples/s",
        "digests of all ranks equal: abc",
    ]
    resumed = {**RESULT, "resumed_from": "step 20", "first_step": 20, "checkpoint": "c/x.pt", "log": "l.jsonl"}
    assert result_lines({**resumed, "notes": ["it rounds."]})[1:] == [
        "resumed from the checkpoint of step 20",
        "it rounds.",
        "digests of all ranks equal: abc",
        "checkpoint: c/x.pt",
        "log: l.jsonl",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"nonfinite": {"what": "loss", "own": False}, "loss": None},
            "stopped at step 40 of 40: the loss was NaN or Inf; lower --lr. It spreads with the gradients: if one"
            " rank alone reports it of itself, check its device and the links that lead to it; otherwise all devices"
            " and links.",
        ),
        (
            {"nonfinite": {"what": "parameters", "own": True}, "loss": None},
            "NaN or Inf in the parameters; no checkpoint was written",
        ),
        (
            {"nonfinite": {"what": "gradients", "own": False}, "loss": None},
            "stopped at step 40 of 40: gradients overflow in fp16 even with the lowest scale of the loss",
        ),
        ({"stopped": True, "accuracy": None}, "nothing was saved"),
        ({"stopped": True, "accuracy": None, "checkpoint": "c"}, "the training is saved"),
        ({"missed": 0.9}, "the target accuracy 0.9 was missed"),
        ({"accuracy": None, "loss": None, "samples_per_s": None, "step": 0, "num_steps": 0}, "trained 0 of 0 steps"),
    ],
    ids=str,
)
def test_the_first_line_says_how_it_ended(changes: dict[str, Any], words: str) -> None:
    assert words in result_lines({**RESULT, **changes})[0]


def test_different_digests_are_never_called_equal() -> None:
    lines = result_lines({**RESULT, "difference": "rank 1 has other parameters."})
    assert not any("equal" in line for line in lines)


def test_progress_says_where_how_good_how_fast_and_how_long() -> None:
    progress: dict[str, Any] = {"step": 30, "num_steps": 60, "epoch": 2, "num_epochs": 5, "loss": 0.5, "accuracy": 0.75}
    progress |= {"samples_per_s": 1000.0, "left_s": 3725.0}
    words = progress_words(progress)
    assert words == "epoch 3/5, step 30/60, loss 0.5000, accuracy 0.7500, 1,000 samples/s, 1:02:05 left"
    progress |= {"loss": None, "accuracy": None, "samples_per_s": None, "left_s": None}
    assert progress_words(progress) == "epoch 3/5, step 30/60"


@pytest.mark.parametrize(
    ("digests", "words"),
    [
        ("aaaa", ""),
        ("a", ""),
        ("ab", "not separable"),
        ("aabaa", "rank 2 has other parameters than the 4 others"),
        ("aabaa", "check its device and the links that lead to it."),  # the last hop of a ring reaches one rank only
        ("abaca", "ranks 1, 3 have other"),
        ("baa", "rank 0 has"),
        ("aabb", "no set has a majority"),
        ("abc", "no set has a majority"),
    ],
)
def test_the_odd_rank_is_named_by_majority_and_by_nothing_else(digests: str, words: str) -> None:
    for machines in ("0" * len(digests), "0123456789"[: len(digests)]):
        sentence = difference(digests, machines)
        assert (words in sentence) if words else sentence == ""


@pytest.mark.parametrize(
    ("digests", "machines", "words"),
    [
        ("bbbbbaaaa", "000001122", "ranks 0, 1, 2, 3, 4 have other parameters than the 4 others, which most"),
        ("aaaabbbbb", "001122222", "ranks 4, 5, 6, 7, 8 have other"),
        ("aaabbbbbb", "012222222", "ranks 3, 4, 5, 6, 7, 8 have other parameters than the 3 others, which most hosts"),
        ("bbbbba", "000001", "no set has a majority"),
        ("bbbbac", "000012", "no set has a majority"),
        ("aaaaaaab", "00001111", "rank 7 has other parameters than the 7 others;"),
    ],
)
def test_a_host_with_most_of_the_ranks_makes_no_other_one_odd(digests: str, machines: str, words: str) -> None:
    assert words in difference(digests, machines)


@pytest.mark.parametrize(
    ("machines", "local_world_size", "expected"),
    [
        ("0011", 2, "0011"),
        ("0023", 2, "0022"),  # the second host gives each of its ranks another name
        ("00002345", 4, "00002222"),
        ("0000", 1, "0000"),  # an agent for each rank
        ("0123", 1, "0123"),
        ("0101", 2, "0101"),  # dealt out in turn
        ("000111", 2, "000000"),  # other numbers of ranks: fewer votes, and never more
        ("00", 0, "00"),
    ],
)
def test_a_host_has_no_more_votes_for_more_names(machines: str, local_world_size: int, expected: str) -> None:
    assert voters(machines, local_world_size) == list(expected)


def test_a_host_of_many_names_makes_no_other_one_odd() -> None:
    assert "ranks 0, 1 have other parameters" in difference("bbaa", "1123")  # as its ranks name themselves
    assert "no set has a majority" in difference("bbaa", voters("1123", 2))
    assert "rank 3 has other parameters than the 5 others" in difference("aaabaa", voters("001122", 2))


def test_a_restart_adds_no_epoch_twice_and_a_new_run_is_a_new_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    log = EpochLog(path, None, continued=False)
    for epoch in range(3):
        log.add(epoch, 10 * epoch + 10, {"loss": 1.0})
    log.close()
    log = EpochLog(path, None, continued=True)
    for epoch in (1, 2, 3):
        log.add(epoch, 10 * epoch + 10, {"loss": 2.0})
    log.close()
    log = EpochLog(path, None, continued=False)
    log.add(0, 10, {"loss": 3.0})
    log.close()
    assert [(line["run"], line["epoch"], line["loss"]) for line in read(path)] == [
        (1, 0, 1.0),
        (1, 1, 1.0),
        (1, 2, 1.0),
        (1, 3, 2.0),
        (2, 0, 3.0),
    ]


def test_a_disk_that_gives_a_file_in_parts_loses_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class InParts(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 7)) or b""

    monkeypatch.setattr(train_log, "open_to_append", lambda path: InParts(os.open(path, os.O_RDWR | os.O_APPEND), "r+"))
    path = tmp_path / "log.jsonl"
    path.touch()
    for run, epochs in ((1, (0, 1)), (1, (0, 1, 2)), (2, (0,))):
        log = EpochLog(path, None, continued=len(epochs) == 3)
        assert log.run == run
        for epoch in epochs:
            log.add(epoch, 10 * epoch + 10, {})
        log.close()
    assert [(line["run"], line["epoch"]) for line in read(path)] == [(1, 0), (1, 1), (1, 2), (2, 0)]


@pytest.mark.parametrize("number", ["9" * 4_300, str(1 << 63), "-1", "true", "1.0", '"1"', "1e999", "null"])
@pytest.mark.parametrize("key", ["run", "epoch", "step"])
def test_a_number_that_no_run_wrote_counts_nowhere(key: str, number: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    row = {"run": "7", "epoch": "0", "step": "10", "checkpoint_dir": "null", key: number}
    path.write_text("{" + ", ".join(f'"{name}": {value}' for name, value in row.items()) + "}\n")
    log = EpochLog(path, None, continued=False)
    log.add(0, 10, {})
    log.close()
    assert json.loads(path.read_text().splitlines()[-1])["run"] == log.run == 1


def test_a_line_that_was_cut_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = EpochLog(path, None, continued=False)
    log.add(0, 10, {})
    log.close()
    path.write_bytes(path.read_bytes() + b'not ours\n[1]\n{"run":1,"epo')
    log = EpochLog(path, None, continued=True)
    log.add(1, 20, {})
    log.close()
    *_, cut, last = path.read_text().splitlines()
    assert cut == '{"run":1,"epo'
    assert json.loads(last) == {"run": 1, "epoch": 1, "step": 20, "checkpoint_dir": None}


@pytest.mark.parametrize("line", ["[" * 100_000, '{"run": 1e999, "epoch": 0, "step": 0, "checkpoint_dir": null}'])
def test_a_foreign_line_of_the_log_is_left_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{line}\n")
    log = EpochLog(path, None, continued=True)
    log.add(1, 20, {})
    log.close()
    assert path.read_text().splitlines()[0] == line


@pytest.mark.parametrize("mode", [0o755, 0o777])
@pytest.mark.parametrize(
    "text",
    ["", '{"run":1,"epo', "notes of mine\n", 'notes{"run":1}\n'],
    ids=["empty", "cut", "another file", "another with such words"],
)
def test_a_restart_appends_to_no_other_file_that_neighbors_put_there(text: str, mode: int, tmp_path: Path) -> None:
    (team := tmp_path / "team").mkdir()
    (mine := tmp_path / "mine").mkdir()
    (mine / "log").write_text(text)
    (team / "u").symlink_to(mine)
    team.chmod(mode)
    if text.startswith("notes") and mode == 0o777:
        said = f"--log {team}/u/log: cannot write this file (it is no log of a training, and other users can write to"
        with pytest.raises(RequestError, match=re.escape(f"{said} {team}); name another one with --log.")):
            EpochLog(team / "u/log", None, continued=True)
        assert (mine / "log").read_text() == text
    else:
        log = EpochLog(team / "u/log", None, continued=True)
        log.add(0, 10, {})
        log.close()
        assert (mine / "log").read_text().startswith(text)
        assert len(read(mine / "log") if not text else (mine / "log").read_text().splitlines()) == 1 + bool(text)


def test_an_epoch_completed_by_a_longer_training_has_two_lines(tmp_path: Path) -> None:
    for continued, steps in ((False, ((0, 23), (1, 30))), (True, ((1, 46), (2, 60)))):
        log = EpochLog(tmp_path / "log", "kept", continued=continued)
        for epoch, step in steps:
            log.add(epoch, step, {})
        log.close()
    rows = [(line["run"], line["epoch"], line["step"]) for line in read(tmp_path / "log")]
    assert rows == [(1, 0, 23), (1, 1, 30), (1, 1, 46), (1, 2, 60)]


def test_of_two_trainings_in_one_log_each_continued_with_its_own_run(tmp_path: Path) -> None:
    for folder, continued, epoch in (("a", False, 0), ("b", False, 0), ("b", True, 1), ("a", True, 1), ("c", True, 1)):
        log = EpochLog(tmp_path / "log", folder, continued=continued)
        log.add(epoch, 10 * epoch + 10, {})
        log.close()
    rows = [(line["run"], line["epoch"]) for line in read(tmp_path / "log")]
    assert rows == [(1, 0), (2, 0), (2, 1), (1, 1), (3, 1)]


def test_a_log_that_cannot_be_written_is_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "log"):
        with pytest.raises(RequestError, match="--log"):
            EpochLog(path, None, continued=False)


def test_a_full_disk_raises_and_the_line_does_not_count(tmp_path: Path) -> None:
    log = EpochLog(tmp_path / "log", None, continued=False)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._file.fileno())
    os.close(full)
    with pytest.raises(OSError, match="space"):
        log.add(0, 10, {})
    log.close()


def test_a_log_that_somebody_made_terabytes_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(RequestError, match="it has more than 64 MiB"):
        EpochLog(path, None, continued=False)
