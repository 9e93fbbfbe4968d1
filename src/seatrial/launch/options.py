"""The commands that travel and their options, as data: click's and argparse's are made from the same tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.launch.comm import PROFILES
from seatrial.launch.option import Option
from seatrial.launch.targets import TARGETS
from seatrial.plan.source import DEFAULT_LEVEL
from seatrial.training.recipe import CHOICES

__all__ = ["LAUNCH", "PROGRAM", "RUN", "SUBCOMMANDS", "TRAIN", "WHERE", "Subcommand", "own_words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """What is typed after ``seatrial``, and after the name of the file that travels."""

    help: str
    """A line for the list of commands."""
    text: str
    """Some paragraphs for its own help."""
    own: tuple[Option, ...]
    """Beside those that say where it runs."""
    where: tuple[Option, ...] = ()
    """That part of ``WHERE`` which it takes; empty: all."""
    module: str
    """It has ``run(options, *, debug)``, which takes a mapping from the options' names to their values, and returns the
    exit code."""

    @property
    def groups(self) -> Mapping[str, tuple[Option, ...]]:
        """All its options, as its help shows them: heading -> options."""
        return {"Options": self.own, "Where it runs": self.where or WHERE, **_of_targets()}

    @property
    def options(self) -> tuple[Option, ...]:
        """All of them, each once."""
        return tuple(option for group in self.groups.values() for option in group)


def _of_targets() -> Mapping[str, tuple[Option, ...]]:
    """Each option once, with those that the same targets take."""
    takers: dict[Option, list[str]] = {}
    for target in TARGETS.values():
        for option in target.options:
            takers.setdefault(option, []).append(target.name)
    groups: dict[str, tuple[Option, ...]] = {}
    for option, names in takers.items():
        heading = f"With --on {', '.join(names)}"
        groups[heading] = (*groups.get(heading, ()), option)
    return groups


WHERE = (
    Option(flags=("--on",), name="target", help=f"Where: {', '.join(TARGETS)}.", default="local", metavar="TARGET"),
    Option(
        flags=("--nproc-per-node",),
        name="nproc_per_node",
        help="Processes of a node; default: one per accelerator, else 2.",
        type=int,
        metavar="M",
    ),
    Option(
        flags=("--device",),
        name="device",
        help="What the ranks run on; auto: the accelerators, else the CPU.",
        type=("auto", "cuda", "rocm", "cpu"),
        default="auto",
    ),
    Option(
        flags=("--backend",),
        name="backend",
        help="What moves the data; auto: the device's own; mpi: under mpirun.",
        type=("auto", "nccl", "gloo", "mpi"),
        default="auto",
    ),
    Option(flags=("--python",), name="python", help="The interpreter of the ranks; default: this one.", metavar="PATH"),
    Option(
        flags=("--env",),
        name="env",
        help="Put this into the environment of the ranks.",
        metavar="NAME=VALUE",
        multiple=True,
    ),
    Option(
        flags=("--comm-profile",),
        name="comm_profile",
        help="Settings of NCCL, MPI and what is below for this kind of network.",
        type=tuple(PROFILES),
    ),
    Option(
        flags=("--comm-debug",), name="comm_debug", help="Have NCCL and torch tell what they choose and why.", flag=True
    ),
    Option(flags=("--dry-run",), name="dry_run", help="Print what would be executed, and nothing else.", flag=True),
)
"""Where it runs: the same for all commands that start ranks, and for all targets, which add their own."""

RUN = (
    Option(
        flags=(),
        name="plan",
        help="A file (TOML, or JSON named *.json) or a level: smoke (seconds), quick (under a minute;"
        " the default), standard (minutes), burn-in (hours).",
        default=DEFAULT_LEVEL,
    ),
    Option(
        flags=("--only",),
        name="only",
        help="Ask for these checks only (and what they need).",
        metavar="CHECK[,..]",
        multiple=True,
    ),
    Option(
        flags=("--skip",),
        name="skip",
        help="Leave these checks out; a PASS is then partial.",
        metavar="CHECK[,..]",
        multiple=True,
    ),
    Option(flags=("--validation-only",), name="validation_only", help="Leave the training out.", flag=True),
    Option(flags=("--workload",), name="workload", help="What to train on: digits, synthetic-1x8x8, ..."),
    Option(flags=("--model",), name="model", help="What to train: convnet."),
    Option(flags=("--epochs",), name="epochs", help="Epochs of the training.", type=int),
    Option(flags=("--batch-size",), name="batch_size", help="Batch size per process of the training.", type=int),
    Option(
        flags=("--deadline",),
        name="deadline",
        help="The whole trial ends by then.",
        type=float,
        metavar="SECONDS",
    ),
    Option(flags=("--out",), name="out", help="Where reports go.", type=Path, default=Path("reports")),
    Option(
        flags=("--json",),
        name="as_json",
        help="Print the report alone, as JSON, on standard output.",
        flag=True,
    ),
)
"""``seatrial run``, beside WHERE."""

PROGRAM = (
    Option(
        flags=("--max-restarts",),
        name="max_restarts",
        help="So often all processes start again when one dies; default: 0.",
        type=int,
        default=0,
        metavar="N",
    ),
    Option(
        flags=("--grace",),
        name="grace",
        help="From SIGTERM to SIGKILL when it is stopped: time to save.",
        type=float,
        default=30.0,
        metavar="SECONDS",
    ),
    Option(
        flags=("--output",),
        name="output",
        help="Whose output is shown, line by line; all of it is in the files of the run.",
        type=("rank0", "all", "none"),
        default="rank0",
    ),
    Option(flags=("--out",), name="out", help="Where the files of the run go.", type=Path, default=Path("reports")),
)
"""What ``train`` and ``launch`` have in common, beside WHERE."""

LAUNCH = (
    Option(
        flags=(),
        name="script",
        help="The script, and all that it gets: what follows SCRIPT is its own.",
        metavar="SCRIPT [ARGS]...",
        rest=True,
    ),
    Option(flags=("-m",), name="module", help="SCRIPT is the name of a module, as for python -m.", flag=True),
    Option(
        flags=("--pass-local-rank",),
        name="pass_local_rank",
        help="Give the script --local_rank=N before its own arguments, as torch.distributed.launch did.",
        flag=True,
    ),
    Option(
        flags=("--per-node",),
        name="per_node",
        help="Start the script once a node: it starts the M processes of its node itself.",
        flag=True,
    ),
)
"""``seatrial launch``, beside PROGRAM and WHERE."""

TRAIN = (
    Option(flags=(), name="workload", help="What: digits, mnist, fashion-mnist, cifar10, synthetic-1x8x8."),
    Option(flags=(), name="total_epochs", help="Epochs.", type=int),
    Option(
        flags=(), name="save_after", help="Epochs from one checkpoint to the next.", type=int, metavar="[SAVE_EVERY]"
    ),
    Option(flags=("--model",), name="model", help="toy, mlp, convnet or resnet18; default: what suits the workload."),
    Option(flags=("--epochs",), name="epochs", help="Passes over the training part.", type=int, metavar="N"),
    Option(flags=("--max-steps",), name="max_steps", help="Optimizer steps, instead of epochs.", type=int, metavar="N"),
    Option(flags=("--batch-size",), name="batch_size", help="Samples a step of each process.", type=int, metavar="N"),
    Option(
        flags=("--global-batch-size",),
        name="global_batch_size",
        help="Samples a step of all processes together.",
        type=int,
        metavar="N",
    ),
    Option(flags=("--lr",), name="lr", help="Highest learning rate.", type=float, metavar="RATE"),
    Option(flags=("--optimizer",), name="optimizer", help="What updates the parameters.", type=CHOICES["optimizer"]),
    Option(flags=("--schedule",), name="schedule", help="How the learning rate goes.", type=CHOICES["schedule"]),
    Option(flags=("--augment",), name="augment", help="How images are varied.", type=CHOICES["augment"]),
    Option(flags=("--seed",), name="seed", help="Decides parameters, order and augmentation.", type=int, default=1),
    Option(
        flags=("--save-every",),
        name="save_every",
        help="Epochs from one checkpoint to the next; one is always written at the end.",
        type=int,
        metavar="N",
    ),
    Option(
        flags=("--checkpoint-dir",),
        name="checkpoint_dir",
        help="Where checkpoints go; default: checkpoints, if any are asked for.",
        metavar="DIR",
    ),
    Option(
        flags=("--resume",),
        name="resume",
        help="auto: go on from the newest checkpoint if there is one; never; or the path of one.",
        default="auto",
        metavar="auto|never|PATH",
    ),
    Option(
        flags=("--target-accuracy",),
        name="target_accuracy",
        help="Exit with 1 when the accuracy is below this share at the end.",
        type=float,
        metavar="SHARE",
    ),
    Option(
        flags=("--strategy",),
        name="strategy",
        help="How the processes share the work; default: ddp.",
        type=CHOICES["strategy"],
    ),
    Option(
        flags=("--model-parallel-size",),
        name="model_parallel_size",
        help="Ranks that hold one copy of the model together: stages of pipeline, cuts of tensor; default: 2.",
        type=int,
        metavar="N",
    ),
    Option(
        flags=("--num-microbatches",),
        name="num_microbatches",
        help="Parts that pipeline makes of each batch; default: 4.",
        type=int,
        metavar="N",
    ),
    Option(flags=("--amp",), name="amp", help="Type of the numbers in forward and backward.", type=CHOICES["amp"]),
    Option(flags=("--compile",), name="compile", help="Have torch.compile prepare the model.", flag=True),
    Option(flags=("--channels-last",), name="channels_last", help="Lay images out as NHWC.", flag=True),
    Option(flags=("--data",), name="data", help="Folder with the files of the workload.", metavar="DIR"),
    Option(
        flags=("--log", "--log-file"),
        name="log",
        help="Append a JSON line an epoch to this file. Under torchrun write --log-file: it takes --log for its own.",
        metavar="FILE",
    ),
    Option(flags=("--profile",), name="profile", help="Write a trace of some steps to this file.", metavar="PATH"),
    Option(
        flags=("--spawn",), name="spawn", help="Start the processes of this node right here, without agents.", flag=True
    ),
    Option(flags=("--nnodes",), name="nnodes", help="With --spawn: how many nodes.", type=int, metavar="N"),
    Option(flags=("--node-rank",), name="node_rank", help="With --spawn: which node this is.", type=int, metavar="R"),
    Option(
        flags=("--init",),
        name="init",
        help="Where the processes meet: env (MASTER_ADDR and MASTER_PORT), tcp://HOST:PORT, or file:///PATH, which must"
        " not exist yet.",
        metavar="WHERE",
    ),
    Option(
        flags=("--timeout",),
        name="timeout",
        help="How long the processes wait for one another; default: 300.",
        type=float,
        metavar="SECONDS",
    ),
)
"""``seatrial train``, beside PROGRAM and WHERE."""

SUBCOMMANDS: Mapping[str, Subcommand] = {
    "run": Subcommand(
        help="the acceptance trial: a verdict and a report",
        text="""Run the acceptance trial of PLAN and answer PASS or FAIL.

PLAN is a file (TOML, or JSON named *.json) or a level: smoke (seconds), quick (under a minute; the default), standard
(minutes), burn-in (hours). Exit code: 0 PASS, 1 FAIL, 2 the request is wrong, 3 INCONCLUSIVE, 130 stopped.
""",
        own=RUN,
        module="seatrial.launch.trial",
    ),
    "train": Subcommand(
        help="reference distributed training",
        text="""Train WORKLOAD for TOTAL_EPOCHS, with a checkpoint every SAVE_EVERY epochs.

In a shell it starts one process per accelerator, else two, on this machine. Typed under torchrun, mpirun or srun, this
process is the rank. With --spawn it starts the processes of one node, and the others are typed by hand on theirs.
Exit code: 0 trained, 1 no good result or a process died, 2 the request is wrong, 130 stopped.
""",
        own=(*TRAIN, *PROGRAM),
        module="seatrial.launch.train",
    ),
    "launch": Subcommand(
        help="any PyTorch script, unmodified",
        text="""Start SCRIPT with ARGS in every process of the job, each with its own RANK, LOCAL_RANK and so on.

In ARGS, {rank}, {local_rank}, {node_rank}, {nnodes}, {nproc_per_node}, {master_addr} and {master_port} are replaced;
{{rank}} becomes {rank}. In a shell it starts one process per accelerator, else two, on this machine. Typed under
torchrun, mpirun or srun, this process becomes SCRIPT. Exit code: 0 all ended well, 1 a process failed, 2 the request
is wrong, 3 it could not be started, 130 stopped.
""",
        own=(*LAUNCH, *PROGRAM),
        # The script chooses its backend itself.
        where=tuple(option for option in WHERE if option.name != "backend"),
        module="seatrial.launch.script",
    ),
}
"""All that the file that travels can do."""


def own_words(arguments: Sequence[str]) -> int:
    """How many of the words are ours: what follows the script that is to be launched belongs to the script."""
    takes_value: set[str] | None = None
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if takes_value is not None and (word == "--" or not word.startswith("-")):
            return at
        if takes_value is None and not word.startswith("-"):
            told = SUBCOMMANDS.get(word)
            if told is None or not any(option.rest for option in told.options):
                break
            takes_value = {flag for option in told.options if not option.flag for flag in option.flags}
        at += 2 if takes_value and word in takes_value else 1
    return len(arguments)
