"""Horovod's calls for PyTorch, over Horon.

    import horon.torch as hvd
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

Started with mpirun or srun, one process for each rank. Names, arguments and meaning are those of
horovod.torch 0.28; torch_bindings/COMING_FROM.md of the sources lists what differs. `python -m
horon.as_horovod train.py` runs a program that imports horovod.torch.
"""

from horon import process_group as _process_group
from horon.errors import HorovodInternalError
from horon.torch import elastic
from horon.torch.basics import (
    ccl_built, cross_rank, cross_size, cuda_built, ddl_built, device, gloo_built, gloo_enabled,
    init, is_homogeneous, is_initialized, local_rank, local_size, mpi_built, mpi_enabled,
    mpi_threads_supported, nccl_built, rank, rocm_built, shutdown, size, start_timeline,
    stop_timeline)
from horon.torch.collectives import (
    Adasum, Average, Max, Min, Product, Sum, allgather_async, allreduce_async, allreduce_async_,
    alltoall_async, barrier, broadcast_async, broadcast_async_, grouped_allgather_async,
    grouped_allreduce_async, grouped_allreduce_async_, grouped_reducescatter_async, join, poll,
    reducescatter_async, sparse_allreduce_async, synchronize)
from horon.torch.compression import Compression
from horon.torch.derivatives import (
    allgather, allreduce, allreduce_, alltoall, broadcast, broadcast_, grouped_allgather,
    grouped_allreduce, grouped_allreduce_, grouped_reducescatter, reducescatter)
from horon.torch.optimizer import DistributedOptimizer
from horon.torch.process_sets import (
    ProcessSet, add_process_set, global_process_set, remove_process_set)
from horon.torch.state import (
    allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters)
from horon.torch.sync_batch_norm import SyncBatchNorm
from horon.torch.tensors import shared_zeros

_process_group.register()  # where torch does not load backends by itself

__all__ = [name for name in dir() if not name.startswith("_")]
