"""``seatrial train`` for real: two ranks on this machine, deaths, restarts, signals."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from live.trainings import RECIPE, SEATRIAL, TORCHRUN, Training, here, log_lines, train


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the parameters that the recipe ends with when nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = train(folder, *RECIPE, *here(folder), "--log", "log.jsonl")
    assert ended.exit_code == 0, ended.errors
    assert "seatrial train digits: mlp, 4 epochs" in ended.errors
    first, *_ = ended.output.splitlines()
    assert first.startswith("trained 92 of 92 steps: accuracy 0.")
    lines = log_lines(folder / "log.jsonl")
    assert [(line["run"], line["epoch"], line["step"]) for line in lines] == [(1, n, 23 * (n + 1)) for n in range(4)]
    assert lines[-1]["loss"] < lines[0]["loss"]
    times = lines[-1]["step_times_s"]
    assert set(times) == {"data_s", "compute_s", "wait_s", "optimizer_s"}
    assert all(0 <= row["min"] <= row["median"] <= row["max"] for row in times.values())
    assert len(list((folder / "checkpoints").glob("step-*.pt"))) == 2
    (run,) = (folder / "reports").iterdir()
    assert "rank 1 of 2" in (run / "rank1.gen0.log").read_text()
    return ended.digest


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_restart_ends_with_the_same_bits(tmp_path: Path, undisturbed: str) -> None:
    plant = {"SEATRIAL_PLANT": "kill@train/step 50 forward:1"}
    running = Training(tmp_path, *RECIPE, *here(tmp_path), "--log", "log.jsonl", "--max-restarts", "3", env=plant)
    ended = running.ended()
    assert ended.exit_code == 0, ended.errors
    assert (
        'was killed by signal 9 (SIGKILL) in "step 50 forward"; all ranks restart (restart 1 of at most 3)'
        in ended.errors
    )
    assert "resumed from the checkpoint of step 46" in ended.output
    assert "restarts: 1" in ended.output
    assert ended.digest == undisturbed
    assert [line["epoch"] for line in log_lines(tmp_path / "log.jsonl")] == [0, 1, 2, 3]
    assert [trouble["seen"][0]["rank"] for trouble in running.events("trouble")] == [1]
    started = [event["gen"] for event in running.events("generation")]
    assert started == [0, 1]


@pytest.mark.slow
def test_without_restarts_a_dead_rank_is_named_with_code_1(tmp_path: Path) -> None:
    plant = {"SEATRIAL_PLANT": "kill@train/step 5 backward:0"}
    ended = train(tmp_path, *RECIPE, *here(tmp_path), env=plant)
    assert ended.exit_code == 1
    last = ended.errors.splitlines()[-1]
    assert last.startswith("Error: rank 0 on ")
    assert 'was killed by signal 9 (SIGKILL) in "step 5 backward"; all output is in' in last


@pytest.mark.slow
def test_sigterm_at_a_rank_saves_and_the_same_command_resumes(tmp_path: Path, undisturbed: str) -> None:
    plant = {"SEATRIAL_PLANT": "term@train/step 30 forward:1"}
    ended = train(tmp_path, *RECIPE, *here(tmp_path), env=plant)
    assert ended.exit_code == 130, ended.errors
    match = re.search(r"stopped on request after step (\d+) of 92; the training is saved", ended.output)
    # At the next sync point, and no later than the end of the epoch, after 46.
    assert match is not None, ended.output
    assert 31 <= int(match[1]) <= 46
    ended = train(tmp_path, *RECIPE, *here(tmp_path))
    assert ended.exit_code == 0, ended.errors
    assert f"resumed from the checkpoint of step {match[1]}" in ended.output
    assert ended.digest == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=lambda number: number.name
)
def test_ctrl_c_at_the_controller_saves_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    endless = ("train", "digits", "--max-steps", "1000000", "--model", "mlp", "--device", "cpu")
    running = Training(tmp_path, *endless, *here(tmp_path))
    running.until(lambda: running.events("epoch"))
    running.process.send_signal(number)
    ended = running.ended()
    assert ended.exit_code == 130, ended.errors
    assert f"interrupted by {number.name}" in ended.errors
    assert "the training is saved" in ended.output
    assert len(list((tmp_path / "checkpoints").glob("step-*.pt"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("disturbed", [False, True], ids=["calm", "killed"])
def test_under_torchrun_a_restart_ends_with_the_same_bits(tmp_path: Path, undisturbed: str, disturbed: bool) -> None:
    plant = {"SEATRIAL_PLANT": "kill@train/step 50 forward:1"} if disturbed else {}
    command = (*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "3", *SEATRIAL[1:])
    running = Training(
        tmp_path, *RECIPE, "--checkpoint-dir", "c", "--log-file", "log.jsonl", command=command, env=plant
    )
    ended = running.ended()
    assert ended.exit_code == 0, ended.errors
    assert ended.digest == undisturbed
    assert ("resumed from the checkpoint of step 46" in ended.output) == disturbed
    assert [line["epoch"] for line in log_lines(tmp_path / "log.jsonl")] == [0, 1, 2, 3]
    assert ended.errors.count("seatrial train digits") == (2 if disturbed else 1)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["tcp", pytest.param("file", marks=pytest.mark.slow)])
def test_ranks_started_by_hand_train_the_same(tmp_path: Path, undisturbed: str, place: str) -> None:
    from seatrial.util.ports import free_port

    init = f"tcp://127.0.0.1:{free_port()}" if place == "tcp" else f"file://{tmp_path}/meet"
    by_hand = ("--spawn", "--nnodes", "2", "--nproc-per-node", "1", "--init", init)
    nodes = [Training(tmp_path, *RECIPE, *by_hand, "--node-rank", str(at), "--checkpoint-dir", "c") for at in (0, 1)]
    ends = [node.ended() for node in nodes]
    assert [ended.exit_code for ended in ends] == [0, 0], ends
    assert ends[0].digest == undisturbed
    assert ends[1].output == ""
    assert not (tmp_path / "meet").exists()


@pytest.mark.slow
def test_spawned_ranks_are_stopped_and_saved_by_one_signal(tmp_path: Path) -> None:
    endless = ("train", "digits", "--max-steps", "1000000", "--model", "mlp", "--device", "cpu", "--spawn")
    running = Training(tmp_path, *endless, "--checkpoint-dir", "c", "--log", "log.jsonl")
    running.until(lambda: (tmp_path / "log.jsonl").exists() and (tmp_path / "log.jsonl").stat().st_size)
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal's Ctrl-C, which all of them get
    ended = running.ended()
    assert ended.exit_code == 130, ended.errors
    assert "the training is saved" in ended.output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("--checkpoint-dir", "file/below"), "file/below"),
        pytest.param(("--log", "file/below"), "--log file/below", marks=pytest.mark.slow),
        pytest.param(("--data", "empty"), "or train on digits or synthetic-1x28x28", marks=pytest.mark.slow),
    ],
    ids=["checkpoints", "log", "data"],
)
def test_a_wrong_request_that_only_ranks_see_is_one_sentence(
    tmp_path: Path, changes: tuple[str, ...], words: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    recipe = ("train", "mnist", "1", "--device", "cpu") if changes[0] == "--data" else RECIPE
    ended = train(tmp_path, *recipe, "--out", str(tmp_path / "reports"), *changes, "--max-restarts", "3")
    assert ended.exit_code == 2, ended.errors
    (error,) = [line for line in ended.errors.splitlines() if line.startswith("Error: ")]
    assert words in error
    assert "all ranks restart" not in ended.errors


@pytest.mark.slow
def test_a_missed_target_is_reported_and_not_restarted(tmp_path: Path) -> None:
    ended = train(tmp_path, *RECIPE, *here(tmp_path), "--target-accuracy", "1.0", "--max-restarts", "3")
    assert ended.exit_code == 1
    assert "the target accuracy 1 was missed" in ended.output
    assert "all ranks restart" not in ended.errors


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_frozen_rank_is_named_and_all_ranks_restart(tmp_path: Path, undisturbed: str) -> None:
    plant = {"SEATRIAL_PLANT": "stop@train/step 50 forward:1"}
    ended = train(tmp_path, *RECIPE, *here(tmp_path), "--max-restarts", "1", env=plant)
    assert ended.exit_code == 0, ended.errors
    # On a busy machine it takes some seconds more.
    words = r"made no progress for [0-9]+ s in \"step 50 forward\" \(state T \(stopped\)\) while others waited"
    assert re.search(words, ended.errors)
    assert ended.digest == undisturbed


@pytest.mark.slow
def test_an_agent_that_dies_is_named_and_its_ranks_die_with_it(tmp_path: Path) -> None:
    plant = {"SEATRIAL_PLANT": "agent-kill@train/step 50 forward:1"}
    ended = train(tmp_path, *RECIPE, *here(tmp_path), "--max-restarts", "1", env=plant)
    assert ended.exit_code == 1
    assert "node 0 (" in ended.errors
    assert "was lost: the control connection was closed" in ended.errors
