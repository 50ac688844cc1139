"""One process that torch or a launcher believes to be one of several.

usage: not_by_mpi.py all | some    the ranks of the group of Horon
       not_by_mpi.py launched      torch knows nothing either
"""

import sys

import torch.distributed as dist

if sys.argv[1] == "launched":
    dist.init_process_group("horon")
elif sys.argv[1] == "all":
    dist.init_process_group("horon", store=dist.HashStore(), rank=1, world_size=2)
else:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import horon.torch
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    horon.torch.init()
    dist.new_group([0, 1], backend="horon")
