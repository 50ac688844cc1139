"""Ends, without shutdown(), while collectives are under way: handles dropped, kept, and of tensors
over memory of NumPy. `raise` as argument: rank 1 ends by an exception instead."""

import sys

import numpy as np
import torch

import horon.torch as hvd

sys.modules["mpi4py"] = None  # not needed for all ranks
hvd.init(comm=[0, 1])
kept = []
for i in range(20):
    hvd.allreduce_async_(torch.ones(100000), name=f"dropped.{i}")
    hvd.allreduce_async(torch.from_numpy(np.ones(100000, np.float32)), name=f"numpy.{i}")
    kept.append(hvd.allgather_async(torch.ones(1000), name=f"kept.{i}"))
if sys.argv[1:] == ["raise"] and hvd.rank() == 1:
    raise ValueError("as it should")
