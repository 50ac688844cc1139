"""Two ranks that also use mpi4py, which is imported before or after Horon begins.

usage: with_mpi4py.py before|after|communicator|process_group
"""

import sys

import torch
import torch.distributed as dist

import horon.torch as hvd

mode = sys.argv[1]
if mode != "after":
    from mpi4py import MPI
    assert MPI.Is_initialized()
if mode == "communicator":
    world = MPI.COMM_WORLD
    turned = world.Split(0, world.Get_size() - world.Get_rank())
    # As Horovod's docs have it: each rank gives the one that it is in.
    own = hvd.ProcessSet(world.Split(world.Get_rank()))
    hvd.init(comm=turned, process_sets=[[0], own, [1]])
    turned.Free()  # Horon has a duplicate
    assert hvd.rank() == world.Get_size() - 1 - world.Get_rank()
    later = hvd.add_process_set(hvd.ProcessSet(world.Split(world.Get_rank())))
    for each in (own, later):
        assert each.ranks == [hvd.rank()] and each.included()
        value = torch.full((2,), float(hvd.rank()))
        assert torch.equal(hvd.allreduce(value, op=hvd.Sum, process_set=each), value)
    assert hvd.remove_process_set(own) and hvd.remove_process_set(later)
elif mode == "process_group":
    dist.init_process_group("horon")
    ones = torch.ones(2)
    dist.all_reduce(ones)
    assert ones.tolist() == [MPI.COMM_WORLD.Get_size()] * 2
else:
    hvd.init()
from mpi4py import MPI  # noqa: E402,F811

assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == MPI.COMM_WORLD.Get_size()
assert MPI.COMM_WORLD.allreduce(1) == hvd.size()
both = hvd.ProcessSet(MPI.COMM_WORLD)
assert both.ranks == [0, 1]
if mode == "process_group":
    dist.destroy_process_group()
elif mode != "after":  # who has begun MPI ends it: here mpi4py, so Horon can begin again
    hvd.shutdown()
    assert not MPI.Is_finalized()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
print("beside mpi4py", flush=True)
