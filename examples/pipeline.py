"""Train with a pipeline: half of the layers on every other rank, and copies of the pipeline in parallel. Only torch.

    torchrun --master-port 29500 --nproc-per-node 4 examples/pipeline.py
    seatrial launch --nproc-per-node 4 examples/pipeline.py

Ranks 0 and 1 are a pipeline of two stages, ranks 2 and 3 another one, and so on; an odd number of ranks is refused.
Works with GPUs and NCCL, and on CPUs with Gloo (seen with torch 2.13; older ones wait for the wrong message there). Use
it when layers fit on a device, the whole model does not, and the network is slow (docs/model-parallelism.md).
"""

import argparse
import math
import os
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

BATCH_SIZE, LEARNING_RATE, NUM_TRAIN = 64, 0.05, 1_437  # samples a step over all ranks; the highest rate; samples
NUM_STAGES, NUM_MICROBATCHES, HIDDEN = 2, 4, 128
IGNORED = -100  # the label of samples that only fill a microbatch: cross_entropy leaves them out
DIGITS = Path(__file__).parents[1] / "src/seatrial/training/data/digits.bin"
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--data", type=Path, default=DIGITS, help="rows of 65 bytes: label, then 8 x 8 pixels")
args = parser.parse_args()

rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
if world_size % NUM_STAGES:
    raise SystemExit(
        f"{world_size} ranks cannot be divided into pipelines of {NUM_STAGES} stages; start an even number."
    )
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
mesh = init_device_mesh(device.type, (world_size // NUM_STAGES, NUM_STAGES), mesh_dim_names=("copies", "stages"))
copy_rank, num_copies, copies = mesh.get_local_rank("copies"), mesh.size(0), mesh.get_group("copies")
stage_index, stages = mesh.get_local_rank("stages"), mesh.get_group("stages")
is_first, is_last = stage_index == 0, stage_index == NUM_STAGES - 1

rows = torch.frombuffer(bytearray(args.data.read_bytes()), dtype=torch.uint8).view(-1, 65).to(device)
images, labels = (rows[:, 1:].float() - 4.88) / 6.01, rows[:, 0].long()
steps_per_epoch = math.ceil(NUM_TRAIN / BATCH_SIZE)

# The seed makes all layers on all ranks; each rank keeps those of its stage.
torch.manual_seed(1)
layers = nn.Sequential(
    nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU()),
    nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)),
).to(device)
model = layers[stage_index]
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4)


class Stage(PipelineStage):
    """Refuses the pickled objects by which stages exchange shapes: to read them runs code of their sender.

    With the shapes given no stage needs them, but newer versions of torch obey a stage that asks for them.
    """

    def _send_meta(self, *_):
        raise ConnectionError("another stage asks for pickled objects")

    _recv_meta = _send_meta


# All microbatches have one size.
microbatch_size = math.ceil(BATCH_SIZE / num_copies / NUM_MICROBATCHES)
widths = (64, HIDDEN, 10)
stage = Stage(
    model,
    stage_index,
    NUM_STAGES,
    device,
    input_args=torch.empty(microbatch_size, widths[stage_index], device="meta", requires_grad=not is_first),
    output_args=torch.empty(microbatch_size, widths[stage_index + 1], device="meta", requires_grad=True),
    group=stages,
)
losses = []  # of the microbatches of a step, on the last stage


def scaled_loss(scores, wanted):
    """Return the loss of a microbatch, so that the sum over microbatches and copies is the mean over the batch."""
    loss_sum = nn.functional.cross_entropy(scores, wanted, reduction="sum", ignore_index=IGNORED)
    losses.append(loss_sum.detach())
    return loss_sum / len(batch)


# 1F1B: each stage alternates between a forward and a backward, so all stages work and few activations are kept.
schedule = Schedule1F1B(stage, NUM_MICROBATCHES, loss_fn=scaled_loss, scale_grads=False)


def evaluate():
    """Return the accuracy: the first stage sends what it computed, the last one counts."""
    part = slice(NUM_TRAIN + copy_rank, None, num_copies)
    values, num_correct = images[part], torch.zeros((), dtype=torch.int64, device=device)
    with torch.no_grad():
        if not is_first:
            values = torch.empty(len(values), widths[stage_index], device=device)
            dist.recv(values, rank - 1)
        values = model(values)
        if is_last:
            num_correct += (values.argmax(1) == labels[part]).sum()
        else:
            dist.send(values, rank + 1)
    dist.all_reduce(num_correct)
    return num_correct.item() / (len(labels) - NUM_TRAIN)


for step in range(args.epochs * steps_per_epoch):
    epoch, start = step // steps_per_epoch, step % steps_per_epoch * BATCH_SIZE
    generator = torch.Generator().manual_seed(zlib.crc32(f"1 {epoch}".encode()))
    batch = torch.randperm(NUM_TRAIN, generator=generator)[start : start + BATCH_SIZE]
    share = batch[copy_rank::num_copies].to(device)
    missing = NUM_MICROBATCHES * microbatch_size - len(share)
    optimizer.zero_grad()
    losses.clear()
    if is_first:
        schedule.step(torch.cat([images[share], images.new_zeros(missing, 64)]))
    else:
        schedule.step(target=torch.cat([labels[share], labels.new_full((missing,), IGNORED)]), losses=[])

    # The copies of a stage add up their gradients.
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=copies)
    progress = step / (args.epochs * steps_per_epoch)
    optimizer.param_groups[0]["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * progress))
    optimizer.step()
    if (step + 1) % steps_per_epoch == 0:
        loss_sum = sum(losses, torch.zeros((), device=device))
        dist.all_reduce(loss_sum)
        accuracy = evaluate()
        if rank == 0:
            print(
                f"epoch {epoch}: loss of the last batch {loss_sum / len(batch):.4f}, accuracy {accuracy:.4f}",
                flush=True,
            )

dist.destroy_process_group()
os._exit(0)  # at once: threads of Gloo would sometimes abort Python's usual end (torch 2.13)
