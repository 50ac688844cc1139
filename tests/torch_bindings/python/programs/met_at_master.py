"""A job script gives the address of a master, as for torchrun; the ranks are MPI's.

usage: met_at_master.py PORT PORT PORT    one for each meeting: who comes early must not find the
                                          store of the one before, which is about to end
"""

import os
import sys

import torch
import torch.distributed as dist

os.environ.update(MASTER_ADDR="127.0.0.1")
for name in ("RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)

ways = ({}, {"world_size": 2}, {"init_method": "env://?world_size=2"})
for port, given in zip(sys.argv[1:], ways, strict=True):
    os.environ["MASTER_PORT"] = port  # the store is torch's, at that address
    dist.init_process_group("horon", **given)
    assert dist.get_world_size() == 2
    x = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3
    dist.barrier()
    dist.destroy_process_group()
print(f"has met as rank {os.environ['OMPI_COMM_WORLD_RANK']}")
