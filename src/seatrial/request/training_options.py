"""The options of ``seatrial train``."""

from __future__ import annotations

from seatrial.targets.option import Option, duration_s
from seatrial.training.recipe import CHOICES

USUAL = (
    Option(
        flags=(), name="workload", help="Data set to train on: digits, mnist, fashion-mnist, cifar10, synthetic-1x8x8."
    ),
    Option(flags=(), name="total_epochs", help="Epochs.", type=int),
    Option(
        flags=(), name="save_after", help="Epochs from one checkpoint to the next.", type=int, metavar="[SAVE_EVERY]"
    ),
    Option(flags=("--epochs",), name="epochs", help="Passes over the training set.", type=int, metavar="N"),
    Option(flags=("--model",), name="model", help="toy, mlp, convnet or resnet18; else by WORKLOAD."),
    Option(
        flags=("--batch-size",), name="batch_size", help="Samples of each process in a step.", type=int, metavar="N"
    ),
    Option(flags=("--lr",), name="lr", help="Peak learning rate.", type=float, metavar="RATE"),
    Option(
        flags=("--strategy",),
        name="strategy",
        help="ddp (the default), dp, fsdp, pipeline or tensor.",
        type=CHOICES["strategy"],
        metavar="KIND",
    ),
    Option(flags=("--data",), name="data", help="Folder with the files of the data set.", metavar="DIR"),
    Option(
        flags=("--checkpoint-dir",),
        name="checkpoint_dir",
        help="Folder for checkpoints. Default: checkpoints, if an option requests any.",
        metavar="DIR",
    ),
    Option(
        flags=("--resume",),
        name="resume",
        help="auto (the newest, the default), never, or a path.",
        default="auto",
        metavar="PATH",
    ),
    Option(
        flags=("--target-accuracy",),
        name="target_accuracy",
        help="Exit with code 1 below this final accuracy.",
        type=float,
        metavar="SHARE",
    ),
)
"""The options that help always shows."""
LEARNING = (
    Option(
        flags=("--max-steps",),
        name="max_steps",
        help="Optimizer steps, instead of --epochs.",
        type=int,
        metavar="N",
        rare=True,
    ),
    Option(
        flags=("--global-batch-size",),
        name="global_batch_size",
        help="Samples of all processes together in a step.",
        type=int,
        metavar="N",
        rare=True,
    ),
    Option(flags=("--optimizer",), name="optimizer", help="Optimizer.", type=CHOICES["optimizer"], rare=True),
    Option(flags=("--schedule",), name="schedule", help="Learning rate schedule.", type=CHOICES["schedule"], rare=True),
    Option(flags=("--augment",), name="augment", help="Image augmentation.", type=CHOICES["augment"], rare=True),
    Option(flags=("--amp",), name="amp", help="Number format of the passes.", type=CHOICES["amp"], rare=True),
    Option(
        flags=("--seed",),
        name="seed",
        help="Seed of parameters, sample order and augmentation. Default: 1.",
        type=int,
        default=1,
        rare=True,
    ),
    Option(
        flags=("--model-parallel-size",),
        name="model_parallel_size",
        help="Ranks that hold one copy of the model: pipeline stages or tensor shards. Default: 2.",
        type=int,
        metavar="N",
        rare=True,
    ),
    Option(
        flags=("--num-microbatches",),
        name="num_microbatches",
        help="Microbatches of a batch, for pipeline. Default: 4.",
        type=int,
        metavar="N",
        rare=True,
    ),
    Option(flags=("--compile",), name="compile", help="Compile the model with torch.compile.", flag=True, rare=True),
    Option(
        flags=("--channels-last",),
        name="channels_last",
        help="Use the NHWC memory format for images.",
        flag=True,
        rare=True,
    ),
)
"""The learning of the model."""
FILES = (
    Option(
        flags=("--save-every",),
        name="save_every",
        help="Epochs between checkpoints; the last one is written at the end.",
        type=int,
        metavar="N",
        rare=True,
    ),
    Option(
        flags=("--log", "--log-file"),
        name="log",
        help="Append one JSON line for each epoch to FILE. Under torchrun use --log-file, since torchrun takes --log.",
        metavar="FILE",
        rare=True,
    ),
    Option(
        flags=("--profile",),
        name="profile",
        help="Write a profiler trace of some steps to this file.",
        metavar="PATH",
        rare=True,
    ),
)
"""Files that the training writes."""
RENDEZVOUS = (
    Option(
        flags=("--spawn",),
        name="spawn",
        help="Start the processes of this node directly, without agents.",
        flag=True,
        rare=True,
    ),
    Option(
        flags=("--node-rank",),
        name="node_rank",
        help="With --spawn: index of this node, from 0.",
        type=int,
        metavar="R",
        rare=True,
    ),
    Option(
        flags=("--init",),
        name="init",
        help="Rendezvous: env (MASTER_ADDR and MASTER_PORT), tcp://HOST:PORT, or file:///PATH (a new file).",
        metavar="URL",
        rare=True,
    ),
    Option(
        flags=("--timeout",),
        name="timeout",
        help="How long the processes wait for one another. Default: 5m.",
        type=duration_s,
        metavar="TIME",
        rare=True,
    ),
)
"""The start and the rendezvous of processes that no agent starts."""
TRAIN = (*USUAL, *LEARNING, *FILES, *RENDEZVOUS)
"""Options of ``seatrial train`` alone, in addition to PROGRAM and TARGET_OPTIONS."""
