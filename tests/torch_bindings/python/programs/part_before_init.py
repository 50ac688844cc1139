"""Three ranks of gloo, two of which ask for a group of Horon before anybody has started it.

usage: part_before_init.py FOLDER    an empty folder that all ranks see
"""

import os
import sys

import torch
import torch.distributed as dist

import horon.torch as hvd

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
dist.init_process_group("gloo", store=dist.FileStore(f"{sys.argv[1]}/store", 3), rank=rank,
                        world_size=3)
try:
    dist.new_group([0, 1], backend="horon")
    refused = False
except RuntimeError as error:
    assert "call horon.torch.init() on all ranks" in str(error), error
    refused = True
assert refused == (rank < 2)
hvd.init()
group = dist.new_group([0, 1], backend="horon")
x = torch.ones(2)
if rank < 2:
    dist.all_reduce(x, group=group)
assert x[0] == (2 if rank < 2 else 1)
print(f"[{rank}] was told so, and has its group", flush=True)
