"""Two ranks: what happens around the GIL, signals and forks. Ends with handles in flight.

usage: traps.py FOLDER    an empty folder that both ranks see
"""

import ctypes
import fcntl
import os
import pathlib
import sys
import threading
import time

import numpy as np
import torch

import horon.torch as hvd
from horon import native
from interruption import interrupted

folder = pathlib.Path(sys.argv[1])
for too_early in (hvd.rank, hvd.barrier, lambda: hvd.allreduce(torch.ones(1))):
    try:
        too_early()
    except ValueError as error:
        assert "init()" in str(error)
    else:
        raise AssertionError("a call before init() is an error")
hvd.shutdown()  # does nothing
hvd.init()
rank = hvd.rank()


def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)


def tell(name):
    (folder / name).touch()


def a_wait_lets_other_threads_run():
    """Rank 1 does its part only when rank 0's main thread has said so, while another one waits."""
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    everybody = hvd.ProcessSet(range(hvd.size()))
    waits = [
        hvd.barrier,
        lambda: hvd.allreduce(torch.ones(2)),
        lambda: hvd.synchronize(hvd.allgather_async(torch.ones(2))),
        lambda: hvd.sparse_allreduce_async(torch.eye(2).to_sparse(1), "sparse", hvd.Sum)(),
        lambda: hvd.broadcast_object(rank, root_rank=1),
        lambda: hvd.allgather_object(rank),
        lambda: hvd.broadcast_parameters(model.state_dict(), 1),
        lambda: hvd.add_process_set(everybody),
        lambda: hvd.remove_process_set(everybody),
        lambda: model(torch.ones(1, 2)).sum().backward(),
        lambda: hvd.SyncBatchNorm(2)(torch.ones(2 + rank, 2)),
        optimizer.synchronize,
        hvd.join,
    ]
    for number, wait in enumerate(waits):
        if rank == 1:
            wait_for(f"waits.{number}")
            wait()
            continue
        begins = threading.Event()

        def begin_and_wait(wait=wait, begins=begins):
            begins.set()
            wait()
        thread = threading.Thread(target=begin_and_wait)
        thread.start()
        begins.wait()
        tell(f"waits.{number}")
        thread.join()


def a_holder_of_the_gil_stalls_nobody():
    """Rank 0 lets go of its handles, and waits in C with the GIL for rank 1, which waits for the
    collectives. The tensors are Python's, also over memory of NumPy."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    if rank == 1:
        fcntl.flock(lock, fcntl.LOCK_EX)
    hvd.barrier()
    names = [f"gil.{i}" for i in range(6)]
    tensors = [torch.from_numpy(np.ones(50000, np.float32)) if i % 2 else torch.ones(50000)
               for i in range(6)]
    if rank == 0:
        for name, tensor in zip(names, tensors):
            hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)
        del tensors, tensor
        ctypes.PyDLL(None).flock(lock, fcntl.LOCK_EX)  # PyDLL: with the GIL
    else:
        for name, tensor in zip(names, tensors):
            assert hvd.allreduce_(tensor, name=name, op=hvd.Sum)[0] == 2
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def ctrl_c_is_answered():
    tensor = torch.ones(2)
    if rank == 0:
        assert interrupted(lambda: hvd.allreduce(tensor, name="late", op=hvd.Sum))
        assert interrupted(lambda: hvd.allgather(tensor, name="late"))
        assert interrupted(hvd.barrier, (KeyboardInterrupt,))
        assert interrupted(hvd.barrier, (KeyboardInterrupt,))
        assert interrupted(lambda: native.barrier_within(60), (KeyboardInterrupt,))
        tell("interrupted")
        hvd.barrier()  # the same one
        native.barrier_within(60)
        assert hvd.allreduce(tensor, name="next", op=hvd.Sum)[0] == 2
    else:
        wait_for("interrupted")
        hvd.allreduce(tensor, name="late", op=hvd.Sum)  # rank 0's part has gone on
        hvd.allgather(tensor, name="late")
        hvd.barrier()
        native.barrier_within(60)
        hvd.allreduce(tensor, name="next", op=hvd.Sum)


def ctrl_c_is_answered_in_join():
    everybody = hvd.add_process_set(range(hvd.size()))
    for _ in range(3):
        hvd.allreduce(torch.ones(1))  # calls without a name, which are counted until the join()
    if rank == 0:
        for _ in range(2):
            assert interrupted(hvd.join, (KeyboardInterrupt,))
        hvd.allreduce_async(torch.ones(1), name="of another set", process_set=everybody)
        for call in (lambda: hvd.allreduce(torch.ones(1)), lambda: hvd.broadcast_object(rank),
                     lambda: hvd.SyncBatchNorm(2)(torch.ones(2, 2))):
            try:
                call()
                raise AssertionError("the join() goes on")
            except ValueError as error:
                assert "call join() again" in str(error), error
        tell("interrupted in join")
    else:
        wait_for("interrupted in join")
        hvd.allreduce(torch.ones(1), name="of another set", process_set=everybody)
    assert hvd.join() == 1
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
    hvd.remove_process_set(everybody)


def ctrl_c_is_answered_in_backward():
    normalized = hvd.SyncBatchNorm(2)(torch.ones(2 + rank, 2))
    if rank == 0:
        assert interrupted(lambda: normalized.sum().backward())
        tell("interrupted in SyncBatchNorm")
    else:
        wait_for("interrupted in SyncBatchNorm")
    model = torch.nn.Linear(2, 2)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    if rank == 0:
        assert interrupted(lambda: model(torch.ones(1, 2)).sum().backward())
        tell("interrupted in backward")
    else:
        wait_for("interrupted in backward")
    return optimizer


def forked_workers():
    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            knows = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.global_process_set.rank()
            assert knows == (rank, 2, rank, rank), knows
            return torch.tensor(float(index * index))
    loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2,
                                         multiprocessing_context="fork")
    total = sum(batch.sum() for batch in loader)
    assert hvd.allreduce(total, op=hvd.Sum).item() == 280


def a_fork_ends_nothing():
    """The child of a fork runs what is registered for the end of the process, and does not end the
    session of its parent."""
    kept = hvd.allreduce_async(torch.ones(1000), name="over a fork", op=hvd.Sum)
    child = os.fork()
    if child == 0:
        try:
            hvd.allreduce(torch.ones(1))
        except ValueError as error:
            sys.exit(0 if "fork" in str(error) else 3)
        sys.exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hvd.synchronize(kept)[0] == 2
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2


a_wait_lets_other_threads_run()
print(f"[{rank}] waits let other threads run", flush=True)
a_holder_of_the_gil_stalls_nobody()
print(f"[{rank}] the GIL is not needed", flush=True)
ctrl_c_is_answered()
ctrl_c_is_answered_in_join()
print(f"[{rank}] Ctrl-C is answered", flush=True)
forked_workers()
a_fork_ends_nothing()
print(f"[{rank}] workers are forked", flush=True)
kept = ctrl_c_is_answered_in_backward()
print(f"[{rank}] Ctrl-C is answered in backward", flush=True)
