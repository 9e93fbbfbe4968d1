"""What was typed after ``seatrial train``: what it resolves to, and what is refused in one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from seatrial.cli.command import commands, options_of
from seatrial.environment.identity import identify
from seatrial.errors import RequestError, SeatrialError
from seatrial.request.training_request import TrainRequest, resolve
from seatrial.targets.option import Option
from seatrial.worker.train_spec import Spawn, TrainSpec

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4000"}
POD = {"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "RANK": "1", "WORLD_SIZE": "4"}
POD |= {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "PET_MASTER_ADDR": "job-master-0"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
OPENMPI |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "3", "PMIX_NAMESPACE": "7"}


def _untyped(option: Option) -> Any:
    return False if option.flag else () if option.multiple else option.default


def ask(environ: dict[str, str] | None = None, **given: Any) -> TrainRequest:
    """As if typed with these options."""
    values = {option.name: _untyped(option) for option in options_of(commands()["train"])}
    assert given.keys() <= values.keys()
    environ = environ or {}
    return resolve({**values, "workload": "digits", "device": "cpu", **given}, identify(environ), environ, debug=False)


def test_a_plain_shell_gets_a_job_of_two_processes() -> None:
    request = ask()
    assert request.job is not None
    assert (request.job.target, request.job.nodes, request.job.nproc_per_node) == ("local", 1, 2)
    assert request.job.argv[1:3] == ("-m", "seatrial.worker.train_main")
    assert TrainSpec.from_json(request.job.argv[3]) == request.spec
    recipe = request.spec.recipe
    assert (recipe.workload, recipe.model, recipe.seed, recipe.strategy) == ("digits", "convnet", 1, "ddp")
    assert request.summary.startswith("seatrial train digits: convnet, 20 epochs, global batch 64, sgd lr 0.05, ddp;")
    assert request.summary.endswith("2 processes on this machine (cpu, gloo)")


def test_arguments_are_those_of_the_pytorch_examples() -> None:
    spec = ask(total_epochs=50, save_after=10).spec
    assert (spec.recipe.epochs, spec.save_every, spec.checkpoint_dir) == (50, 10, "checkpoints")
    assert ask(total_epochs=50).spec.checkpoint_dir is None
    assert ask(epochs=2, checkpoint_dir="here", save_every=1).spec.checkpoint_dir == "here"


def test_a_batch_per_process_grows_with_the_world() -> None:
    assert ask(batch_size=16, nproc_per_node=4).spec.recipe.global_batch_size == 64
    assert ask(global_batch_size=48, nproc_per_node=4).spec.recipe.global_batch_size == 48
    assert ask(TORCHRUN, batch_size=16).spec.recipe.global_batch_size == 32
    by_hand = ask(spawn=True, nodes=8, node_rank=3, nproc_per_node=1, batch_size=16, init="tcp://10.0.0.1:22222")
    assert by_hand.spec.recipe.global_batch_size == 128


def test_how_a_model_is_cut_reaches_the_recipe() -> None:
    asked = ask(strategy="pipeline", model="mlp", nproc_per_node=6, model_parallel_size=3, num_microbatches=5)
    assert (asked.spec.recipe.model_parallel_size, asked.spec.recipe.num_microbatches) == (3, 5)
    assert "pipeline over 3;" in asked.summary
    assert ask(strategy="tensor", model="mlp").spec.recipe.model_parallel_size == 2


def test_a_checkpoint_on_other_hosts_need_not_be_here(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match=r"^node0\.invalid"):
        ask(resume=str(tmp_path / "none.pt"), target="ssh", hosts="node0.invalid", nproc_per_node=1)
    (tmp_path / "here.pt").touch()
    assert ask(resume=str(tmp_path / "here.pt")).spec.resume == str(tmp_path / "here.pt")


def test_restarts_imply_a_checkpoint_each_epoch() -> None:
    assert (ask().spec.save_every, ask().spec.checkpoint_dir) == (0, None)
    assert (ask(max_restarts=2).spec.save_every, ask(max_restarts=2).spec.checkpoint_dir) == (1, "checkpoints")
    assert ask(max_restarts=2, save_every=0).spec.save_every == 0


def test_spawned_ranks_have_the_time_to_save_that_was_asked_for() -> None:
    spawned = ask(spawn=True, grace=90.0).spec.spawn
    assert spawned is not None
    assert spawned.stop_grace_s == 90.0


def test_under_torchrun_this_process_is_the_rank() -> None:
    request = ask(TORCHRUN)
    assert request.job is None
    assert request.spec.spawn is None
    assert request.env == {"GLOO_SOCKET_IFNAME": "lo"}
    assert not request.prints_summary
    assert ask({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}).prints_summary
    one = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    assert ask(one).job is None


def test_the_words_of_another_launcher_become_those_of_torch() -> None:
    request = ask(OPENMPI)
    port = request.env["MASTER_PORT"]
    told = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    assert request.env == {"GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": port, **told}
    assert ask({**OPENMPI, "OMPI_COMM_WORLD_RANK": "1"}).env["MASTER_PORT"] == port


def test_the_one_process_of_a_pod_starts_the_ranks_of_its_node() -> None:
    request = ask(POD)
    assert request.job is None
    assert request.spec.spawn == Spawn(nnodes=2, node_rank=1, nproc_per_node=2)
    assert request.spec.init == "env://"


def test_spawn_alone_finds_its_own_place_to_meet() -> None:
    request = ask(spawn=True)
    assert request.spec.spawn == Spawn(nnodes=1, node_rank=0, nproc_per_node=2)
    assert request.env["MASTER_ADDR"] == "127.0.0.1"
    assert 0 < int(request.env["MASTER_PORT"]) < 65536
    by_hand = ask({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"}, spawn=True, nodes=2, node_rank=1)
    assert "MASTER_PORT" not in by_hand.env


def test_a_dry_run_prints_what_runs() -> None:
    request = ask(spawn=True)
    assert request.job is None
    (line,) = request.dry_run()
    assert line.endswith(f"-m seatrial.worker.train_main '{request.spec.to_json()}'")
    agent, _, rank = ask().dry_run()
    assert "seatrial.agent.agent_main" in agent
    assert json.loads(rank[rank.index("'") + 1 : -1])["recipe"]["workload"] == "digits"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"workload": None}, "name a data set to train on"),
        ({"workload": "digts"}, "digits"),
        ({"model": "convnett"}, "convnet"),
        ({"total_epochs": 3, "epochs": 4}, "TOTAL_EPOCHS and --epochs"),
        ({"epochs": 3, "max_steps": 4}, "--epochs and --max-steps"),
        ({"total_epochs": 0, "epochs": 4}, "TOTAL_EPOCHS and --epochs"),
        ({"save_after": 3, "save_every": 0}, "SAVE_EVERY and --save-every"),
        ({"model_parallel_size": 2}, "--model-parallel-size 2: strategy ddp does not use it"),
        ({"strategy": "tensor", "num_microbatches": 2}, "add --strategy pipeline, or leave it out"),
        ({"strategy": "pipeline", "model_parallel_size": 0}, "--model-parallel-size 0: expected 2 or more"),
        ({"grace": -1.0}, "--grace -1"),
        ({"grace": math.nan}, "--grace nan"),
        ({"spawn": True, "output": "all"}, "--output all with --spawn"),
        ({"spawn": True, "out": Path("elsewhere")}, "--out elsewhere with --spawn"),
        ({"save_after": 3, "save_every": 4}, "SAVE_EVERY and --save-every"),
        ({"batch_size": 3, "global_batch_size": 4}, "--batch-size and --global-batch-size"),
        ({"nproc_per_node": 0}, "--nproc-per-node 0"),
        ({"max_restarts": -1}, "--max-restarts -1"),
        ({"save_every": -2}, "--save-every -2"),
        ({"epochs": -2}, "--epochs -2: expected 0 or more"),
        ({"batch_size": 0}, "--batch-size 0: expected 1 or more"),
        ({"lr": -1.0}, "--lr -1.0: expected a positive number"),
        ({"lr": math.nan}, "--lr nan: expected a positive number"),
        ({"global_batch_size": 10**9}, "make it smaller"),
        ({"target_accuracy": 95.0}, "--target-accuracy 95"),
        ({"timeout": 0.0}, "--timeout 0"),
        ({"init": "udp://x"}, "--init udp://x"),
        ({"init": "tcp://host"}, "tcp://HOST:PORT"),
        ({"init": "tcp://10.0.0.1:5000"}, "without --spawn"),
        ({"node_rank": 0}, "--node-rank 0 without --spawn"),
        ({"target": "moon"}, "--on moon"),
        ({"spawn": True, "max_restarts": 2}, "--max-restarts 2 with --spawn"),
        ({"spawn": True, "nodes": 2}, "without --node-rank"),
        ({"spawn": True, "nodes": 2, "node_rank": 2, "init": "tcp://h:1"}, "--node-rank 2"),
        ({"spawn": True, "nodes": 2, "node_rank": 1}, "needs a rendezvous"),
        ({"strategy": "dp", "nproc_per_node": 2}, "--strategy dp"),
        ({"resume": "checkpoints/none.pt"}, "--resume checkpoints/none.pt: there is no such file here"),
        ({"backend": "nccl"}, "--backend nccl"),
    ],
    ids=str,
)
def test_a_wrong_request_is_refused_in_one_sentence(given: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError) as refused:
        ask(**given)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"spawn": True}, "torchrun has started this process as rank 1"),
        ({"max_restarts": 3}, "the launcher restarts ranks, not seatrial; use the option of torchrun"),
        ({"nproc_per_node": 2}, "--nproc-per-node 2 under torchrun"),
        ({"nodes": 1}, "--nodes under torchrun"),
        ({"grace": 60.0}, "torchrun decides the time before SIGKILL"),
        ({"nodes": 2}, "--nodes under torchrun"),
    ],
    ids=str,
)
def test_what_the_launcher_has_decided_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        ask(TORCHRUN, **given)
