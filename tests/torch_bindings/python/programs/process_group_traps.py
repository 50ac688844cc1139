"""Two ranks of init_process_group("horon") that import nothing of Horon: Ctrl-C, a rank that holds
the GIL, a group that is made again, workers that are forked, and an end with everything in flight.

usage: process_group_traps.py FOLDER    an empty folder that both ranks see
"""

import ctypes
import datetime
import fcntl
import os
import pathlib
import sys
import threading
import time

import numpy as np
import torch
import torch.distributed as dist

from interruption import interrupted

folder = pathlib.Path(sys.argv[1])
dist.init_process_group("horon")
rank = dist.get_rank()


def ctrl_c_is_answered():
    tensor = torch.ones(2)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        waiters = [threading.Thread(target=work.wait) for _ in range(3)]  # none of them is asked
        for waiter in waiters:
            waiter.start()
        assert all(interrupted(work.wait, (KeyboardInterrupt,)) for _ in range(5))
        assert interrupted(lambda: dist.broadcast(tensor, 1))
        assert interrupted(dist.barrier)
        (folder / "interrupted").touch()
        work.wait()
        for waiter in waiters:
            waiter.join()
    else:
        while not (folder / "interrupted").exists():
            time.sleep(0.01)
        dist.all_reduce(tensor)  # rank 0's part has gone on
        dist.broadcast(tensor, 1)
        dist.barrier()
    other = torch.ones(2)
    dist.all_reduce(other)
    assert other[0] == 2


def a_holder_of_the_gil_stalls_nobody():
    """Rank 0 drops its works, and waits in C with the GIL for rank 1, which waits for them."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    if rank == 1:
        fcntl.flock(lock, fcntl.LOCK_EX)
    dist.barrier()
    tensors = [torch.from_numpy(np.ones(50000, np.float32)) if i % 2 else torch.ones(50000)
               for i in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if rank == 0:
        del tensors, works
        ctypes.PyDLL(None).flock(lock, fcntl.LOCK_EX)  # PyDLL: with the GIL
    else:
        assert all(work.wait() and tensor[0] == 2 for work, tensor in zip(works, tensors))
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def synchronize_lets_other_threads_run():
    """Rank 1 does its part when a thread of rank 0 has said so."""
    tensor = torch.ones(2)
    if rank == 0:
        def tell():
            time.sleep(0.2)  # nothing fails without it: most likely the other thread waits by now
            (folder / "a thread has run").touch()
        work = dist.all_reduce(tensor, async_op=True)
        thread = threading.Thread(target=tell)
        thread.start()
        work.synchronize()
        thread.join()
    else:
        while not (folder / "a thread has run").exists():
            time.sleep(0.01)
        dist.all_reduce(tensor)
    assert tensor[0] == 2


def a_group_made_again_is_another_one():
    """Torch gives it the same name, and calls of the old one are under way on rank 0."""
    old, new = torch.ones(2), torch.ones(2)
    old_message, new_message = torch.zeros(2), torch.zeros(2)
    if rank == 0:
        works = [dist.all_reduce(old, async_op=True), dist.irecv(old_message, 1, tag=3)]
        for work in works:
            try:
                work.wait(datetime.timedelta(milliseconds=50))
            except RuntimeError as error:
                assert "has not come within" in str(error), error
    dist.destroy_process_group()
    dist.init_process_group("horon", timeout=datetime.timedelta.max)  # never
    dist.all_reduce(new)
    if rank == 0:
        dist.recv(new_message, 1, tag=3)
        assert new_message[0] == 5 and not any(work.is_completed() for work in works)
        assert old.tolist() == [1, 1] and old_message.tolist() == [0, 0]
    else:
        dist.send(torch.full((2,), 5.0), 0, tag=3)
    assert new[0] == 2


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((4,), float(index + rank))


def workers_may_be_forked():
    """Each epoch forks two, which end while the works of DDP come and go."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2,
                                         multiprocessing_context="fork")
    for _ in range(2):
        for batch in loader:
            model.zero_grad()
            model(batch).sum().backward()
            mean = 4 * (batch[:, 0].mean() - rank + 0.5)  # over both ranks
            assert torch.allclose(model.module.weight.grad, torch.full((1, 4), float(mean)))


ctrl_c_is_answered()
print(f"[{rank}] Ctrl-C is answered", flush=True)
a_holder_of_the_gil_stalls_nobody()
print(f"[{rank}] the GIL is not needed", flush=True)
synchronize_lets_other_threads_run()
print(f"[{rank}] synchronize() lets other threads run", flush=True)
a_group_made_again_is_another_one()
print(f"[{rank}] a group is made again", flush=True)
workers_may_be_forked()
print(f"[{rank}] workers were forked", flush=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
model(torch.ones(2, 100)).sum().backward()
kept = []
for i in range(20):
    dist.all_reduce(torch.ones(100000), async_op=True)
    kept.append(dist.all_reduce(torch.from_numpy(np.ones(100000)), async_op=True))
    kept.append(kept[-1].get_future().then(lambda done: done.value()[0].sum()))
print(f"[{rank}] ends with works in flight", flush=True)
