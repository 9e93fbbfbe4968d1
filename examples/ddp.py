"""Train a small network on handwritten digits with DistributedDataParallel: one file, only torch, made to be copied.

    torchrun --master-port 29500 --nproc-per-node 2 examples/ddp.py
    seatrial launch --nproc-per-node 2 examples/ddp.py
    mpirun -np 2 python3 examples/ddp.py

The same command again resumes (from torch 2.10 on): with the same number of ranks every bit is as if nothing had
happened. On several hosts mpirun also needs `-x MASTER_ADDR=HOST_OF_RANK_0`. docs/training.md says why each part is as
it is.
"""

import argparse
import math
import os
import signal
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

BATCH_SIZE, LEARNING_RATE, NUM_TRAIN = 64, 0.05, 1_437  # samples a step over all ranks; the highest rate; samples
DIGITS = Path(__file__).parents[1] / "src/seatrial/training/data/digits.bin"
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--data", type=Path, default=DIGITS, help="rows of 65 bytes: label, then 8 x 8 pixels")
parser.add_argument("--checkpoint-dir", type=Path, default=Path("runs/ddp"), help="of rank 0: last.pt and best.pt")
args = parser.parse_args()
# In a shared folder another user may lead the files elsewhere by a link: into another folder of yours.
for part in (args.checkpoint_dir, *args.checkpoint_dir.parents):
    if part.is_symlink() and part.lstat().st_uid not in (0, os.getuid()):
        raise SystemExit(f"{part} is a link of another user; give another --checkpoint-dir.")
recipe = [args.epochs, args.seed, BATCH_SIZE, LEARNING_RATE]  # what decides the result

# torchrun and seatrial set the same variables; Open MPI has other names for them.
get, scopes = os.environ.get, ("", "LOCAL_")
rank, local_rank = (int(get(f"{at}RANK") or get(f"OMPI_COMM_WORLD_{at}RANK", 0)) for at in scopes)
world_size, local_world_size = (int(get(f"{at}WORLD_SIZE") or get(f"OMPI_COMM_WORLD_{at}SIZE", 1)) for at in scopes)
if "MASTER_ADDR" not in os.environ and local_world_size < world_size:
    raise SystemExit("MASTER_ADDR is not set: give every rank the host of rank 0, such as mpirun -x MASTER_ADDR=HOST.")
os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **os.environ})

# A device for each rank; without GPUs its share of the cores. torch takes NCCL for GPUs and Gloo for CPUs.
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world_size))
dist.init_process_group(rank=rank, world_size=world_size, timeout=timedelta(minutes=5))

# The whole data set, on the device: no loader processes, and no order that depends on which of them was faster.
rows = torch.frombuffer(bytearray(args.data.read_bytes()), dtype=torch.uint8).view(-1, 65).to(device)
images, labels = (rows[:, 1:].reshape(-1, 1, 8, 8).float() - 4.88) / 6.01, rows[:, 0].long()
steps_per_epoch = math.ceil(NUM_TRAIN / BATCH_SIZE)
num_steps = args.epochs * steps_per_epoch

# The seed alone decides the parameters, so all ranks start with the same ones.
torch.manual_seed(args.seed)
network = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(256, 10)),
).to(device, memory_format=torch.channels_last)
model = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)


def compute_gradients(step):
    """Run forward and backward on this rank's share of a batch; return the sum of its losses."""
    # The last batch of an epoch is smaller, and a rank may have no sample in it: none is dropped or repeated. DDP
    # averages over ranks, however unequal their shares; the factor makes that the mean over the samples.
    epoch, start = step // steps_per_epoch, step % steps_per_epoch * BATCH_SIZE
    generator = torch.Generator().manual_seed(zlib.crc32(f"{args.seed} {epoch}".encode()))
    batch = torch.randperm(NUM_TRAIN, generator=generator)[start : start + BATCH_SIZE]
    share = batch[(rank - epoch * NUM_TRAIN - start) % world_size :: world_size].to(device)
    torch.manual_seed(zlib.crc32(f"{args.seed} {step} {rank}".encode()))  # of dropout, if the network had any
    optimizer.zero_grad()
    loss_sum = nn.functional.cross_entropy(model(images[share]), labels[share], reduction="sum")
    (loss_sum * (world_size / len(batch))).backward()
    return loss_sum.detach()


def evaluate():
    """Return the accuracy: each rank evaluates its part of the test set, and the ranks add up what was correct."""
    part = slice(NUM_TRAIN + rank, None, world_size)
    with torch.inference_mode():
        num_correct = (network.eval()(images[part]).argmax(1) == labels[part]).sum()
    network.train()
    dist.all_reduce(num_correct)
    return num_correct.item() / (len(labels) - NUM_TRAIN)


def save(name, **content):
    """Write a file on rank 0 that is whole or not there, whenever the process is killed."""
    if rank == 0:
        new = args.checkpoint_dir / f"{name}.new"
        new.unlink(missing_ok=True)
        with open(new, "xb") as file:  # x: a new file, never one that a link of another user leads to
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, args.checkpoint_dir / name)


def load(path):
    """Return a checkpoint. Before torch 2.10 that could run code of the file (CVE-2025-32434, CVE-2026-24747)."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        raise SystemExit(
            f"torch {torch.__version__} could run code of {path}: resume with torch 2.10, or move it away."
        )
    # A pipe that another user put there would be waited for.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return torch.load(file, map_location=device, weights_only=True)


# Resume. Rank 0 alone reads, and sends what it read: the other hosts need no such disk.
args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
position = torch.zeros(4, dtype=torch.float64, device=device)  # steps, loss of this epoch, best accuracy, other recipe
if rank == 0 and (args.checkpoint_dir / "last.pt").exists():
    saved = load(args.checkpoint_dir / "last.pt")
    position += torch.tensor([*saved["position"], saved["recipe"] != recipe], dtype=torch.float64, device=device)
dist.broadcast(position, 0)
first_step, epoch_loss, best_accuracy, is_other_recipe = position.tolist()
if is_other_recipe:
    raise SystemExit(f"{args.checkpoint_dir}/last.pt belongs to another recipe; give another folder.")
if first_step:
    # DDP sums in another order after its first backward, and SGD has momenta after its first step: do one, then load.
    compute_gradients(0)
    optimizer.step()
    if rank == 0:
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for tensor in (*network.state_dict().values(), *(own["momentum_buffer"] for own in optimizer.state.values())):
        dist.broadcast(tensor, 0)

# Train. On SIGTERM, by which schedulers announce the end, all ranks stop after the same step.
requests_to_stop, must_stop, own_loss = [], False, 0.0
signal.signal(signal.SIGTERM, lambda *_: requests_to_stop.append(1))
for step in range(int(first_step), num_steps):
    own_loss += compute_gradients(step)
    optimizer.param_groups[0]["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / num_steps))
    optimizer.step()
    is_epoch_over = (step + 1) % steps_per_epoch == 0
    if (step + 1) % 10 and not is_epoch_over:
        continue
    # Now and then the ranks exchange their losses, and whether one of them must stop.
    sums = torch.tensor([own_loss, len(requests_to_stop)], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    epoch_loss, own_loss, must_stop = epoch_loss + sums[0].item(), 0.0, sums[1].item() > 0 and step + 1 < num_steps
    if not all(value.isfinite().all() for value in (sums, *model.parameters())):
        raise SystemExit(f"a loss or parameter is not finite after step {step}; last.pt is from before that.")
    if is_epoch_over:
        accuracy, loss, epoch_loss = evaluate(), epoch_loss / NUM_TRAIN, 0.0
        if rank == 0:
            print(f"epoch {step // steps_per_epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            save("best.pt", model=network.state_dict(), accuracy=accuracy)
    if is_epoch_over or must_stop:
        position = [step + 1, epoch_loss, best_accuracy]
        save("last.pt", recipe=recipe, position=position, model=network.state_dict(), optimizer=optimizer.state_dict())
    if must_stop:
        break

dist.destroy_process_group()
os._exit(143 if must_stop else 0)  # at once: threads of Gloo would sometimes abort Python's usual end (torch 2.13)
