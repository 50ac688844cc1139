"""A program for torchrun and Gloo, that knows nothing of MPI."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert int(os.environ["LOCAL_RANK"]) == rank and os.environ["LOCAL_WORLD_SIZE"] == str(size)
assert sys.argv[1:] == ["--steps", "2"]

init_device_mesh("cpu", (size,))  # makes the default group, of what is usual on the device
assert dist.get_backend() == "horon"
dist.destroy_process_group()
dist.init_process_group("gloo")
group = dist.new_group(list(range(size)), backend="gloo")
assert dist.get_backend() == dist.get_backend(group) == "horon"
assert (dist.get_rank(), dist.get_world_size()) == (rank, size)

model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    optimizer.step()
weights = [torch.empty(1, 2) for _ in range(size)]
dist.all_gather(weights, model.module.weight.detach(), group=group)
assert all(torch.equal(each, weights[0]) for each in weights)
dist.destroy_process_group()
print(f"rank {rank} of {size} over horon", flush=True)
