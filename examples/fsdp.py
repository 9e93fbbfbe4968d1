"""Train with FSDP: each rank keeps a slice of every parameter, gradient and momentum. One file, only torch.

    torchrun --master-port 29500 --nproc-per-node 2 examples/fsdp.py
    seatrial launch --nproc-per-node 2 examples/fsdp.py

Works with GPUs and NCCL, and on CPUs with Gloo from torch 2.6 on. Use it when the model, its gradients and its momenta
do not fit on one device. The same command again resumes after the last epoch (from torch 2.10 on); examples/ddp.py also
has what is left out here: SIGTERM, the best checkpoint, mpirun.
"""

import argparse
import math
import os
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

BATCH_SIZE, LEARNING_RATE, NUM_TRAIN = 64, 0.05, 1_437  # samples a step over all ranks; the highest rate; samples
DIGITS = Path(__file__).parents[1] / "src/seatrial/training/data/digits.bin"
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--data", type=Path, default=DIGITS, help="rows of 65 bytes: label, then 8 x 8 pixels")
parser.add_argument("--checkpoint", type=Path, default=Path("runs/fsdp.pt"), help="file of rank 0; read if it exists")
args = parser.parse_args()
# In a shared folder another user may lead the files elsewhere by a link: into another folder of yours.
for part in args.checkpoint.parents:
    if part.is_symlink() and part.lstat().st_uid not in (0, os.getuid()):
        raise SystemExit(f"{part} is a link of another user; give another --checkpoint.")

rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

rows = torch.frombuffer(bytearray(args.data.read_bytes()), dtype=torch.uint8).view(-1, 65).to(device)
images, labels = (rows[:, 1:].float() - 4.88) / 6.01, rows[:, 0].long()
steps_per_epoch = math.ceil(NUM_TRAIN / BATCH_SIZE)

# First the parts, then the whole: while one part computes, the parameters of the next are gathered.
torch.manual_seed(1)
model = nn.Sequential(
    nn.Sequential(nn.Linear(64, 128), nn.ReLU()),
    nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)),
).to(device)
for part in model:
    fully_shard(part)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4)
own = sum(parameter.to_local().numel() for parameter in model.parameters())
whole = sum(parameter.numel() for parameter in model.parameters())
print(f"rank {rank} keeps {own:,} of {whole:,} parameters", flush=True)


def compute_gradients(step):
    """Run forward and backward on this rank's share of a batch; return the sum of its losses."""
    epoch, start = step // steps_per_epoch, step % steps_per_epoch * BATCH_SIZE
    generator = torch.Generator().manual_seed(zlib.crc32(f"1 {epoch}".encode()))
    batch = torch.randperm(NUM_TRAIN, generator=generator)[start : start + BATCH_SIZE]
    share = batch[rank::world_size].to(device)
    optimizer.zero_grad()
    loss_sum = nn.functional.cross_entropy(model(images[share]), labels[share], reduction="sum")
    (loss_sum * (world_size / len(batch))).backward()  # FSDP, as DDP, averages over ranks
    return loss_sum.detach()


def evaluate():
    """Return the accuracy. All ranks call the model equally often, since each call gathers parameters."""
    part = slice(NUM_TRAIN + rank, None, world_size)
    with torch.no_grad():
        num_correct = (model(images[part]).argmax(1) == labels[part]).sum()
    dist.all_reduce(num_correct)
    return num_correct.item() / (len(labels) - NUM_TRAIN)


def whole_state():
    """Return step, parameters and momenta as plain tensors. All ranks call this: each tensor is gathered."""
    momenta = (optimizer.state[parameter].get("momentum_buffer") for parameter in model.parameters())
    return {
        "model": [parameter.full_tensor().cpu() for parameter in model.parameters()],
        "momenta": [momentum.full_tensor().cpu() for momentum in momenta],
    }


def save(step):
    """Write the whole state on rank 0: a file that any number of ranks can resume from."""
    content = {"step": step, **whole_state()}
    if rank == 0:
        args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        new = Path(f"{args.checkpoint}.new")
        new.unlink(missing_ok=True)
        with open(new, "xb") as file:  # x: a new file, never one that a link of another user leads to
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, args.checkpoint)


def load(path):
    """Return a checkpoint. Before torch 2.10 that could run code of the file (CVE-2025-32434, CVE-2026-24747)."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        raise SystemExit(
            f"torch {torch.__version__} could run code of {path}: resume with torch 2.10, or move it away."
        )
    # A pipe that another user put there would be waited for.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return torch.load(file, map_location=device, weights_only=True)


# Resume: rank 0 reads and sends; each rank copies its slice. A first step makes the momenta.
first_step = torch.zeros(1, dtype=torch.int64, device=device)
if rank == 0 and args.checkpoint.exists():
    saved = load(args.checkpoint)
    first_step += saved["step"]
dist.broadcast(first_step, 0)
if first_step.item() > 0:
    compute_gradients(0)
    optimizer.step()
    momenta = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    for kind, tensors in (("model", list(model.parameters())), ("momenta", momenta)):
        for index, tensor in enumerate(tensors):
            full = saved[kind][index] if rank == 0 else torch.empty(tensor.shape, device=device)
            dist.broadcast(full, 0)
            slices = full.chunk(world_size)  # as fully_shard does; with many ranks the last ones may have nothing
            if rank < len(slices):
                with torch.no_grad():
                    tensor.to_local().copy_(slices[rank])

for step in range(int(first_step.item()), args.epochs * steps_per_epoch):
    loss_sum = compute_gradients(step)
    progress = step / (args.epochs * steps_per_epoch)
    optimizer.param_groups[0]["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * progress))
    optimizer.step()
    if (step + 1) % steps_per_epoch == 0:
        dist.all_reduce(loss_sum)
        epoch, loss = step // steps_per_epoch, loss_sum / (NUM_TRAIN - (steps_per_epoch - 1) * BATCH_SIZE)
        accuracy = evaluate()
        if rank == 0:
            print(f"epoch {epoch}: loss of the last batch {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
        save(step + 1)

dist.destroy_process_group()
os._exit(0)  # at once: threads of Gloo would sometimes abort Python's usual end (torch 2.13)
