"""A program for torchrun and Gloo, that knows nothing of MPI."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert int(os.environ["LOCAL_RANK"]) == rank and os.environ["LOCAL_WORLD_SIZE"] == str(size)
assert (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["ROLE_NAME"]) == ("0", "default")
assert int(os.environ["TORCHELASTIC_MAX_RESTARTS"]) == 0 and dist.is_torchelastic_launched()
assert sys.argv[1:] == ["--steps", "2"]


def destroy_group():
    """Rank 1 is at the next meeting while the store of this group still serves, if that has the
    master's port."""
    if rank == 0:
        time.sleep(1)
    dist.destroy_process_group()


init_device_mesh("cpu", (size,))  # makes the default group, of what is usual on the device
assert dist.get_backend() == "horon"
destroy_group()
dist.init_process_group("gloo")
group = dist.new_group(list(range(size)), backend="gloo")
assert dist.get_backend() == dist.get_backend(group) == "horon"
assert (dist.get_rank(), dist.get_world_size()) == (rank, size)

dist.monitored_barrier()
dist.monitored_barrier(group, datetime.timedelta.max, wait_all_ranks=True)
only_rank_0 = dist.new_group([0])
dist.monitored_barrier(only_rank_0, timeout=60.0)  # rank 1 is told that it is no member
late = dist.new_group()
if rank == 0:
    try:
        dist.monitored_barrier(late, datetime.timedelta(seconds=3))
        raise SystemExit("rank 1 was missing, and nobody has noticed")
    except RuntimeError as error:
        assert "waiting for rank 1" in str(error), error
dist.barrier(group)
if rank == 1:
    dist.monitored_barrier(late)  # the one that rank 0 has left goes on

model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    optimizer.step()
weights = [torch.empty(1, 2) for _ in range(size)]
dist.all_gather(weights, model.module.weight.detach(), group=group)
assert all(torch.equal(each, weights[0]) for each in weights)
destroy_group()

master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=size)
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} has met at {master}", flush=True)
print(f"rank {rank} of {size} over horon", flush=True)
