"""Options of how a training is computed, in one process: each trains and gives the expected result."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checks.fake_context import FakeContext
from hostile_files import HOSTILE, assert_unharmed
from neighbor_mount import NEIGHBOR, mounted_and_unasked
from training.rank_processes import run_ranks
from training.small_files import write_cifar10, write_mnist
from training.training_doubles import RecordingCallbacks, build_normed_dropout_net

from seatrial.checks.training import CHECK
from seatrial.checks.training.params import Params
from seatrial.errors import RequestError, SeatrialError
from seatrial.training import trainer
from seatrial.training.data import find_workload
from seatrial.training.defaults import make_recipe
from seatrial.training.outcome import Outcome
from seatrial.training.precision import LossScale
from seatrial.training.profile import StepProfile
from seatrial.training.recipe import Recipe
from seatrial.training.strategies.dp import build

CPU = torch.device("cpu")
SHORT = Recipe(workload="digits", model="convnet", max_steps=60, global_batch_size=64, lr=0.1)


def _train(recipe: Recipe, group: dist.ProcessGroup, data_dir: Path | None = None, **options: Any) -> Outcome:
    return trainer.train(recipe, recipe.data(data_dir), device=CPU, group=group, phase=lambda label: None, **options)


@pytest.mark.parametrize(
    "change",
    [
        {"amp": "bf16"},
        {"amp": "fp16", "model": "mlp"},
        {"channels_last": True},
        {"optimizer": "adam", "lr": 0.003},
        {"optimizer": "adamw", "lr": 0.003},
        {"strategy": "dp"},
        {"momentum": 0.0, "lr": 1.0},
    ],
    ids=str,
)
def test_each_setting_learns(alone: dist.ProcessGroup, change: dict[str, Any]) -> None:
    outcome = _train(replace(SHORT, **change), alone)
    assert outcome.losses[-1] < outcome.losses[0] / 2
    assert outcome.counts.accuracy > 0.75


def test_the_smaller_type_is_really_computed_in(alone: dist.ProcessGroup) -> None:
    plain, bf16, fp16 = (_train(replace(SHORT, max_steps=3, amp=amp), alone) for amp in ("off", "bf16", "fp16"))
    assert len({plain.digest, bf16.digest, fp16.digest}) == 3
    assert plain.losses == pytest.approx(fp16.losses, rel=1e-2)
    assert all(parameter.dtype == torch.float32 for parameter in bf16.model.parameters())


def test_channels_last_is_really_laid_out_so_and_rounds_alike(alone: dist.ProcessGroup) -> None:
    plain, last = (_train(replace(SHORT, max_steps=3, channels_last=value), alone) for value in (False, True))
    assert last.losses == pytest.approx(plain.losses, abs=1e-5)
    assert any(
        parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
        for parameter in last.model.parameters()
        if parameter.shape[1:2] != (1,)
    )


def test_dp_is_what_ddp_is_in_one_process(alone: dist.ProcessGroup) -> None:
    first, second = (_train(replace(SHORT, max_steps=4, strategy=name), alone) for name in ("ddp", "dp"))
    assert first.digest == second.digest


@pytest.mark.parametrize("length", [{"max_steps": 0}, {"max_steps": None, "epochs": 0}], ids=str)
def test_no_steps_evaluate_the_untrained_model(alone: dist.ProcessGroup, length: dict[str, Any]) -> None:
    outcome = _train(replace(SHORT, **length), alone, callbacks=RecordingCallbacks())
    assert outcome.losses == ()
    assert outcome.times == ()
    assert outcome.counts.num_evaluated == 360
    assert outcome.counts.accuracy < 0.3
    assert outcome.samples_per_s is None


def test_max_steps_within_an_epoch_report_a_part_of_it(alone: dist.ProcessGroup) -> None:
    callbacks = RecordingCallbacks()
    outcome = _train(replace(SHORT, max_steps=25), alone, callbacks=callbacks)
    assert [(stats.epoch, stats.step, stats.num_samples) for stats in callbacks.epochs] == [(0, 23, 1437), (1, 25, 128)]
    assert callbacks.epochs[-1].counts.num_correct == outcome.counts.num_correct
    assert callbacks.epochs[-1].loss == pytest.approx(sum(outcome.losses[23:]) / 2)


def test_evaluating_on_the_way_changes_nothing(alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "build_model", build_normed_dropout_net)
    recipe = replace(SHORT, max_steps=30)
    assert _train(recipe, alone).digest == _train(recipe, alone, callbacks=RecordingCallbacks()).digest


@pytest.mark.parametrize(
    ("name", "model"),
    [("mnist", "mlp"), pytest.param("fashion-mnist", "convnet", marks=pytest.mark.slow), ("cifar10", "mlp")],
)
def test_files_in_the_published_formats_are_learned(
    alone: dist.ProcessGroup, tmp_path: Path, name: str, model: str
) -> None:
    if name == "cifar10":
        write_cifar10(tmp_path, 500, 100)
    else:
        write_mnist(tmp_path, 500, 100, name=name)
    recipe = make_recipe(name, model=model, max_steps=80, global_batch_size=50, augment="crop-flip")
    outcome = _train(recipe, alone, data_dir=tmp_path)
    assert find_workload(name, num_samples=1, data_dir=tmp_path).num_test == outcome.counts.num_evaluated == 100
    # Digits are no longer digits when they are mirrored, so little is asked; by chance it would be 0.1.
    assert outcome.counts.accuracy > 0.3


def test_dp_in_several_processes_is_refused(alone: dist.ProcessGroup) -> None:
    class TwoRanks:
        def size(self) -> int:
            return 2

    two: Any = TwoRanks()
    with pytest.raises(RequestError, match="there are 2 ranks; start one, or use ddp"):
        build(torch.nn.Linear(1, 1), SHORT, device=CPU, group=two, clock=two)


def test_a_profile_holds_the_steps_of_the_middle(alone: dist.ProcessGroup, tmp_path: Path) -> None:
    profile = StepProfile(tmp_path / "new" / "trace.json", CPU)

    class Profiling(RecordingCallbacks):
        def on_step(self, step: int) -> None:
            super().on_step(step)
            profile.step()

    _train(replace(SHORT, max_steps=16), alone, callbacks=Profiling())
    profile.stop()
    text = (tmp_path / "new" / "trace.json").read_text()
    assert profile.is_written
    assert "convolution" in text
    assert "ProfilerStep#5" in text
    assert "ProfilerStep#14" in text
    assert "ProfilerStep#16" not in text


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link"])
def test_a_profile_is_written_through_no_link(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "shared" / "trace.json"
    profile = StepProfile(path, CPU)
    HOSTILE[kind][0](path)
    for _ in range(16):
        profile.step()
    profile.stop()
    assert profile.is_written
    assert not path.is_symlink()
    assert_unharmed(path)


def test_a_profile_replaces_nothing_in_a_folder_that_is_exchanged(tmp_path: Path) -> None:
    (team := tmp_path / "team").mkdir()
    (mine := tmp_path / "mine").mkdir()
    (mine / "trace.json").write_text("of last week")
    profile = StepProfile(team / "u/trace.json", CPU)
    (team / "u").rename(team / "v")
    (team / "u").symlink_to(mine)
    for _ in range(16):
        profile.step()
    profile.stop()
    assert profile.is_written
    assert (mine / "trace.json").read_text() == "of last week"
    assert "ProfilerStep" in (team / "v/trace.json").read_text()


@pytest.mark.root
@pytest.mark.parametrize("name", ["trace.json", "link.json"])
def test_a_neighbors_file_system_at_the_place_of_a_profile(name: str, tmp_path: Path) -> None:
    (trace := tmp_path / "trace.json").touch()
    (tmp_path / "link.json").symlink_to("trace.json")
    with mounted_and_unasked(trace):
        said = f"{name}: cannot write this file .*trace.json is on a file system of user {NEIGHBOR}, who decides"
        with pytest.raises(RequestError, match=said):
            StepProfile(tmp_path / name, CPU)


@pytest.mark.root
def test_a_neighbors_file_system_that_comes_before_a_profile(tmp_path: Path) -> None:
    (trace := tmp_path / "trace.json").touch()
    profile = StepProfile(trace, CPU)
    with mounted_and_unasked(trace):
        for _ in range(14):
            profile.step()
        with pytest.raises(SeatrialError, match=r"could not be written to [^:]+: .*busy"):
            profile.step()


def _recorded(path: Path) -> StepProfile:
    profile = StepProfile(path, CPU)
    for _ in range(16):
        torch.ones(2)
        profile.step()
    profile.stop()
    return profile


def test_a_profile_is_made_where_no_neighbor_can_exchange_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a TMPDIR that is open to all he renames; torch writes by a name, and the file was read by it."""
    (secret := tmp_path / "secret").write_text("private")
    (temporary := tmp_path / "tmp").mkdir()
    (theirs := tmp_path / "theirs").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    export: Any = torch.autograd.profiler.profile.export_chrome_trace

    def exchanged(profiler: Any, path: str, *more: Any) -> None:
        (made,) = temporary.glob("seatrial-*")  # torch may make a folder of its own there
        made.rename(tmp_path / "old")
        for suffix in ("", ".tmp"):
            (theirs / f"{Path(path).name}{suffix}").symlink_to(secret)
        theirs.rename(made)
        export(profiler, path, *more)

    monkeypatch.setattr(torch.autograd.profiler.profile, "export_chrome_trace", exchanged)
    assert _recorded(tmp_path / "trace.json").is_written
    assert secret.read_text() == "private"
    assert "ProfilerStep#5" in (tmp_path / "trace.json").read_text()
    assert list((tmp_path / "old").iterdir()) == []


def test_a_compressed_profile_uses_no_other_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch writes it by a name in TMPDIR first, which a neighbor could have made a link."""
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr("tempfile.NamedTemporaryFile", None)
    assert _recorded(tmp_path / "trace.json.gz").is_written
    assert "ProfilerStep#5" in gzip.decompress((tmp_path / "trace.json.gz").read_bytes()).decode()
    assert list(temporary.glob("seatrial-*")) == []


def test_a_profile_is_not_made_in_another_folder_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbor renamed one in which he can write."""
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    (shared / "file").touch()
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: str(shared))
    with pytest.raises(SeatrialError, match="shared was exchanged for a folder with drwxrwxrwx"):
        _recorded(tmp_path / "trace.json")
    assert [path.name for path in shared.iterdir()] == ["file"]


def test_a_profile_without_steps_or_permission_is_reported(tmp_path: Path) -> None:
    profile = StepProfile(tmp_path / "trace.json", CPU)
    profile.step()
    profile.stop()
    assert not profile.is_written
    assert not (tmp_path / "trace.json").exists()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(".")
    for path in (tmp_path, tmp_path / "link", tmp_path / "file" / "trace.json", Path("/proc/trace.json")):
        with pytest.raises(RequestError, match="cannot write this file"):
            StepProfile(path, CPU)


def test_the_factor_of_fp16_is_not_taken_from_a_training_without_one() -> None:
    # The wrong way: 1, and small gradients round to 0 for some 30,000 steps until it has been doubled often enough.
    scale = LossScale(replace(SHORT, amp="fp16"))
    before = scale.state()
    scale.load(LossScale(SHORT).state())
    assert scale.state() == before
    assert before["factor"] == 65_536
    scale.load({"factor": 8.0, "good_steps": 3})
    assert scale.state() == {"factor": 8.0, "good_steps": 3}


def test_nonfinite_parameters_are_reported_without_a_store(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last loss was still finite: nobody would see what its gradients did.
    monkeypatch.setattr(LossScale, "unscale", _spoil)
    outcome = _train(replace(SHORT, max_steps=1), alone)
    assert outcome.nonfinite is not None
    assert (outcome.nonfinite.what, outcome.nonfinite.group_ranks) == ("parameters", (0,))


def test_a_rank_with_finite_parameters_is_not_named_by_the_sum_of_others(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_ranks_with", lambda flag, group, device: (0, 3))
    outcome = _train(replace(SHORT, max_steps=1), alone)
    assert outcome.nonfinite is not None
    assert (outcome.nonfinite.what, outcome.nonfinite.group_ranks) == ("parameters", (3,))


def test_the_check_reports_what_a_rank_knows_of_its_own_loss(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss follows from the gradients that arrived: the parameters were spoiled before that step."""
    monkeypatch.setattr(LossScale, "unscale", _spoil)
    context = FakeContext(check="training", rank=0, group_rank=0, world_size=1, ranks=(0,), group=alone)
    CHECK.measure(context, Params(max_steps=3))
    (said,) = (fact.value for fact in context.facts if fact.name == "nonfinite")
    assert said == {"what": "loss", "step": 1, "seed": 1, "ranks": [0], "ordinary": False, "samples": 64}


def test_one_sample_by_running_statistics_tells_nothing_of_the_rank(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank has made all parameters 500: that is below 1,000, and only one sample overflows by it."""
    monkeypatch.setattr(LossScale, "unscale", _make_large)
    context = FakeContext(check="training", rank=0, group_rank=0, world_size=1, ranks=(0,), group=alone)
    CHECK.measure(context, Params(model="resnet18", max_steps=2, global_batch_size=1))
    (said,) = (fact.value for fact in context.facts if fact.name == "nonfinite")
    assert (said["ranks"], said["samples"], said["ordinary"]) == ([0], 1, None)


def _make_large(scale: LossScale, parameters: list[torch.nn.Parameter], group: dist.ProcessGroup) -> bool:
    for parameter in parameters:
        parameter.data.fill_(500.0)
    return False


def _spoil(scale: LossScale, parameters: list[torch.nn.Parameter], group: dist.ProcessGroup) -> bool:
    gradient = parameters[0].grad
    assert gradient is not None
    gradient.fill_(torch.nan)
    return True


def _compiled_losses(rank: int) -> dict[bool, tuple[float, ...]]:
    group = dist.group.WORLD
    assert group is not None
    return {value: _train(replace(SHORT, max_steps=3, compile=value), group).losses for value in (False, True)}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_compiled_it_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # No helper processes; the threads that compile outlive it, so it has a process of its own.
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    (losses,) = run_ranks(1, _compiled_losses)
    assert losses[True] == pytest.approx(losses[False], abs=1e-4)
