"""Train with DistributedDataParallel under mpirun, over MPI itself or over Gloo or NCCL.

    mpirun -np 2 --bind-to none python3 examples/mpi.py
    mpirun -np 2 -H node0,node1 -x MASTER_ADDR=node0 python3 examples/mpi.py
    mpirun -np 2 --bind-to none python3 examples/mpi.py --backend mpi

Without --backend it needs only torch: mpirun numbers the ranks, which then talk over Gloo, or over NCCL on GPUs. With
`--backend mpi` they talk over MPI, which needs seatrial and mpi4py (docs/mpi.md), and on GPUs an MPI that knows them.
"""

import argparse
import math
import os
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

BATCH_SIZE, LEARNING_RATE, NUM_TRAIN = 64, 0.05, 1_437  # samples a step over all ranks; the highest rate; samples
DIGITS = Path(__file__).parents[1] / "src/seatrial/training/data/digits.bin"
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--backend", choices=["mpi", "gloo", "nccl"])
parser.add_argument("--data", type=Path, default=DIGITS, help="rows of 65 bytes: label, then 8 x 8 pixels")
args = parser.parse_args()


def of_mpi(open_mpi, mpich):
    """Return a number that mpirun gives this process: Open MPI and MPICH have different names for it."""
    value = os.environ.get(f"OMPI_COMM_WORLD_{open_mpi}") or os.environ.get(mpich)
    if value is None:
        raise SystemExit("this process has no rank of MPI: start it with mpirun -np 2 python3 examples/mpi.py.")
    return int(value)


rank, world_size = of_mpi("RANK", "PMI_RANK"), of_mpi("SIZE", "PMI_SIZE")
local_rank, local_world_size = of_mpi("LOCAL_RANK", "MPI_LOCALRANKID"), of_mpi("LOCAL_SIZE", "MPI_LOCALNRANKS")
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
else:  # mpirun sets no number of threads: without this each rank would take all cores
    torch.set_num_threads(max(1, os.cpu_count() // local_world_size))
if args.backend == "mpi":
    import seatrial.mpi

    dist.init_process_group(seatrial.mpi.BACKEND, init_method="mpi://")  # needs no address and no port
else:
    if "MASTER_ADDR" not in os.environ and local_world_size < world_size:
        raise SystemExit("MASTER_ADDR is not set: give every rank the host of rank 0, mpirun -x MASTER_ADDR=HOST.")
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **os.environ})
    backend = args.backend or ("nccl" if device.type == "cuda" else "gloo")
    dist.init_process_group(backend, rank=rank, world_size=world_size)

rows = torch.frombuffer(bytearray(args.data.read_bytes()), dtype=torch.uint8).view(-1, 65).to(device)
images, labels = (rows[:, 1:].float() - 4.88) / 6.01, rows[:, 0].long()
steps_per_epoch = math.ceil(NUM_TRAIN / BATCH_SIZE)

torch.manual_seed(1)
network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
model = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4)


def evaluate():
    """Return the accuracy: each rank evaluates its part of the test set, and the ranks add up what was correct."""
    part = slice(NUM_TRAIN + rank, None, world_size)
    with torch.inference_mode():
        num_correct = (network(images[part]).argmax(1) == labels[part]).sum()
    dist.all_reduce(num_correct)
    return num_correct.item() / (len(labels) - NUM_TRAIN)


for step in range(args.epochs * steps_per_epoch):
    epoch, start = step // steps_per_epoch, step % steps_per_epoch * BATCH_SIZE
    generator = torch.Generator().manual_seed(zlib.crc32(f"1 {epoch}".encode()))
    batch = torch.randperm(NUM_TRAIN, generator=generator)[start : start + BATCH_SIZE]
    share = batch[rank::world_size].to(device)
    optimizer.zero_grad()
    loss_sum = nn.functional.cross_entropy(model(images[share]), labels[share], reduction="sum")
    (loss_sum * (world_size / len(batch))).backward()  # DDP averages over ranks, however unequal their shares
    progress = step / (args.epochs * steps_per_epoch)
    optimizer.param_groups[0]["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * progress))
    optimizer.step()
    if (step + 1) % steps_per_epoch == 0:
        dist.all_reduce(loss_sum := loss_sum.detach())
        accuracy = evaluate()
        if rank == 0:
            print(
                f"epoch {epoch}: loss of the last batch {loss_sum / len(batch):.4f}, accuracy {accuracy:.4f}",
                flush=True,
            )

dist.destroy_process_group()
if args.backend != "mpi":
    os._exit(0)  # at once: threads of Gloo would sometimes abort Python's usual end (torch 2.13)
