"""What people mistype: each answer is one sentence that says what, where, and what to do. Both parsers, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.cli import argparse_app
from seatrial.cli.click_app import main

FILES = {
    "plan.yaml": "level: quick\n",
    "typo.toml": 'level = "qick"\n',
    "key.toml": 'level = "quick"\n[compute]\nsise = 2\n',
    "wrong.json": '{"level": "quick",}',
    "empty.toml": "",
    "hosts.txt": "a slots=two\n",
    "nobody.txt": "# none\n",
    "train.py": "",
}

# What is typed -> what the answer must contain.
MISTYPED: dict[str, tuple[str, ...]] = {
    # commands
    "rum": ("no such command 'rum'", "'run'"),
    "luanch x.py": ("no such command 'luanch'", "'launch'"),
    "reports": ("no such command 'reports'", "'report'"),
    "xyz": ("no such command 'xyz'", "run, train"),
    "plan shaw": ("shaw", "show"),
    "data fetsh": ("fetsh", "fetch"),
    "--verson": ("--verson",),
    "completion tcsh": ("SHELL tcsh", "bash, zsh, fish"),
    "completion": ("SHELL",),
    "report": ("PATH",),
    "report no-such-folder": ("no-such-folder",),
    "bundle": ("FILE",),
    "plan from": ("RUN",),
    "plan from no-such-run": ("no-such-run",),
    "data fetch": ("NAME",),
    "data fetch mnits": ("mnits", "'mnist'"),
    "data fetch mnist --data train.py": ("--data train.py", "name a folder"),
    # plans
    "run quik": ("quik", "quick"),
    "run burnin": ("burnin", "burn-in"),
    "run nothing.toml": ("nothing.toml", "no level and no file"),
    "run .": (".", "directory"),
    "run plan.yaml": ("plan.yaml", "TOML", "not YAML"),
    "run typo.toml": ("typo.toml", "'qick'", "quick"),
    "run key.toml": ("key.toml", "'sise'", "size"),
    "run wrong.json": ("wrong.json", "JSON"),
    "run empty.toml": ("empty.toml", "empty", "level"),
    "run smoke quick": ("quick",),
    "plan show quik": ("quik", "quick"),
    "plan show smoke --deadline 5x": ("--deadline 5x", "5m"),
    # checks
    "run --only compote": ("--only compote", "compute"),
    "run --only": ("--only",),
    "run --only ,": ("--only ,", "expected one of"),
    "run --only compute,": ("--only compute,", "expected one of"),
    "run --skip trianing": ("--skip trianing", "training"),
    "run --skip bootstrap": ("--skip takes out bootstrap", "collectives"),
    "run --only training --skip training": ("--only asks for training", "leave one"),
    "run --only network": ("network", "at least 2 nodes"),
    "run --only diagnostics --device cpu --skip diagnostics": ("diagnostics", "leave one"),
    "run --only compute --epochs 3": ("--epochs", "training", "leave --epochs out"),
    # numbers and times
    "run --nproc-per-node 0": ("--nproc-per-node 0", "from 1"),
    "run --nproc-per-node -1": ("--nproc-per-node -1", "from 1"),
    "run --nproc-per-node two": ("--nproc-per-node two", "auto, gpu or cpu"),
    "run --nproc-per-node 1.5": ("--nproc-per-node 1.5", "a number from 1"),
    "run --nproc-per-node gpus": ("--nproc-per-node gpus", "auto, gpu or cpu"),
    "run --nproc-per-node gpu --device cpu": ("--nproc-per-node gpu", "--device cpu"),
    "run --nproc-per-node 500 --device cpu": ("500 processes", "--oversubscribe"),
    "run --nproc-per-node 5000 --device cpu": ("--nproc-per-node 5000", "at most 512"),
    "run --nproc-per-node": ("--nproc-per-node",),
    "run --nodes 0": ("--nodes 0", "at least 1"),
    "run --nodes x": ("--nodes x", "a whole number"),
    "run --nnodes 1:4": ("--nodes 1:4", "a whole number"),
    "run --deadline 0 --device cpu": ("--deadline 0", "more than 0"),
    "run --deadline -5": ("--deadline -5", "90s"),
    "run --deadline 5d": ("--deadline 5d", "5m or 2h"),
    "run --deadline nan": ("--deadline nan", "5m or 2h"),
    "run --deadline 1h30m": ("--deadline 1h30m", "5m or 2h"),
    "run --deadline=": ("--deadline ''", "5m or 2h"),
    "run --epochs two": ("--epochs two", "a whole number"),
    "run --epochs 2.5": ("--epochs 2.5", "a whole number"),
    "run --batch-size big": ("--batch-size big", "a whole number"),
    # words
    "run --device gpu": ("--device gpu", "cuda (NVIDIA)", "rocm (AMD)"),
    "run --device CPU": ("--device CPU", "cpu"),
    "run --device=": ("--device ''", "cuda"),
    "run --backend ncll": ("--backend ncll", "nccl"),
    "run --backend nccl --device cpu": ("--backend nccl", "--backend gloo"),
    "run --backend mpi --device cpu": ("--backend mpi", "mpirun"),
    "run --comm-profile roce": ("--comm-profile roce",),
    "run --python /nonexistent/python": ("--python /nonexistent/python", "does not run"),
    "run --env NAME": ("--env NAME", "NAME=VALUE"),
    "run --env =x": ("--env =", "NAME=VALUE"),
    "run --env RANK=0": ("--env RANK", "leave it out"),
    "run --env SEATRIAL_TOKEN=x": ("--env SEATRIAL_TOKEN", "leave it out"),
    # options that are none
    "run --nonsense": ("--nonsense",),
    "run --hots a": ("no such option --hots", "did you mean --hosts?"),
    "run --nproc 2": ("no such option --nproc ", "did you mean --nproc-per-node?"),
    "run --dead 1": ("no such option --dead ", "did you mean --deadline?"),
    "run -x": ("-x",),
    "run --json=1": ("--json",),
    # where it runs
    "run --on moon": ("--on moon", "there is local"),
    "run --on k8s": ("--on k8s", "there is local"),
    "run --on": ("--on",),
    "run --hosts a": ("--hosts is for --on ssh", "leave one"),
    "run --partition gpu": ("--partition is for --on slurm", "leave one"),
    "run --on ssh": ("hosts are missing", "--hosts a,b"),
    "run --on ssh --hosts a,,b": ("--hosts a,,b", "HOST"),
    "run --on ssh --hosts a:0": ("a:0", "1 to 65535"),
    "run --on ssh --hosts a:x": ("a:x", "HOST"),
    "run --on ssh --hosts=-oProxy=x": ("-oProxy", "HOST"),
    "run --on ssh --hosts a --hostfile hosts.txt": ("--hosts and --hostfile", "one of them"),
    "run --on ssh --hostfile hosts.txt": ("hosts.txt, line 1", "1 to 65535"),
    "run --on ssh --hostfile nobody.txt": ("nobody.txt", "no host"),
    "run --on ssh --hostfile missing.txt": ("missing.txt", "cannot be read"),
    "run --on ssh --hosts a,b --nodes 3": ("--nodes 3", "2 hosts"),
    "run --on ssh --hosts a --ssh-port 0": ("--ssh-port 0", "65535"),
    "run --on ssh --hosts a --ssh-port 99999": ("--ssh-port 99999", "65535"),
    "run --on ssh --hosts a --min-hosts 0": ("--min-hosts 0", "at least 1"),
    "run --on ssh --hosts a:2,b:4": ("different slots", "--nproc-per-node"),
    "run --on ssh --hosts a:2 --nproc-per-node 4": ("2 slots", "--nproc-per-node"),
    "run --on mpirun --mpirun /nonexistent/mpirun": ("/nonexistent/mpirun", "--mpirun"),
    "run --on slurm --device cpu --nproc-per-node cpu --dry-run": ("--nproc-per-node cpu", "give a number"),
    "run --out train.py/x --device cpu": ("--out train.py/x", "cannot be written"),
    # launch
    "launch": ("SCRIPT",),
    "launch missing.py": ("missing.py",),
    "launch --nproc-per-node 0 train.py": ("--nproc-per-node 0",),
    "launch --grace soon train.py": ("--grace soon", "90s"),
    "launch --max-restarts -1 train.py": ("--max-restarts -1", "0 or more"),
    "launch --max-restarts many train.py": ("--max-restarts many", "a whole number"),
    "launch --output rank1 train.py": ("--output rank1", "rank0, all, none"),
    "launch --pass-local-rank --per-node train.py": ("local rank",),
    "launch --on moon train.py": ("--on moon", "there is local"),
    "launch --backend gloo train.py": ("--backend",),
    # train
    "train": ("data set", "digits"),
    "train digit": ("digit", "digits"),
    "train digits five": ("TOTAL_EPOCHS five", "a whole number"),
    "train digits 3 --epochs 3": ("TOTAL_EPOCHS and --epochs", "one of them"),
    "train digits 3 1 --save-every 1": ("SAVE_EVERY and --save-every", "one of them"),
    "train digits --epochs -1": ("--epochs -1", "0 or more"),
    "train digits --lr fast": ("--lr fast", "a number"),
    "train digits --lr 0": ("--lr 0", "positive"),
    "train digits --lr nan": ("--lr nan", "positive"),
    "train digits --optimizer adm": ("--optimizer adm", "sgd"),
    "train digits --strategy zero": ("--strategy zero", "ddp"),
    "train digits --amp half": ("--amp half",),
    "train digits --model resnet81": ("resnet81", "resnet18"),
    "train digits --batch-size 0": ("--batch-size 0", "1 or more"),
    "train digits --batch-size 8 --global-batch-size 8": ("--batch-size and --global-batch-size", "one of them"),
    "train digits --target-accuracy 95": ("--target-accuracy 95", "0.95"),
    "train digits --timeout 0": ("--timeout 0", "positive"),
    "train digits --timeout never": ("--timeout never", "5m or 2h"),
    "train digits --init udp://x": ("--init udp://x", "tcp://HOST:PORT"),
    "train digits --node-rank 0": ("--node-rank 0", "--spawn"),
    "train digits --spawn --nnodes 2": ("--nnodes 2", "--node-rank"),
    "train digits --spawn --nnodes 2 --node-rank 2": ("--node-rank 2", "0 to 1"),
    "train digits --spawn --nnodes 2 --node-rank 1": ("rendezvous", "--init"),
    "train digits --spawn --max-restarts 2": ("--max-restarts 2", "--spawn"),
    "train digits --model-parallel-size 2": ("--model-parallel-size 2", "--strategy"),
    "train digits --num-microbatches 2": ("--num-microbatches 2", "--strategy"),
    "train digits --strategy dp --nproc-per-node 2 --device cpu": ("--strategy dp", "must be 1"),
    "train digits --seed x": ("--seed x", "a whole number"),
}


@pytest.mark.parametrize("entry", [main, argparse_app.main], ids=["click", "argparse"])
@pytest.mark.parametrize("typed", MISTYPED)
def test_each_answer_is_a_sentence(
    entry: Callable[[], None],
    typed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["seatrial", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        entry()
    shown, complaint = capfd.readouterr()
    sentence = complaint.rpartition("Error: ")[2]
    assert (ended.value.code, shown) == (2, ""), complaint
    assert sentence.count("\n") == 1
    assert "Traceback" not in complaint
    assert [word for word in MISTYPED[typed] if word not in sentence] == [], sentence
    assert {path.name for path in tmp_path.iterdir()} == set(FILES), "nothing was begun"
