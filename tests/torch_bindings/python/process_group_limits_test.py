"""As many calls of a group are under way as there may be, and one more comes."""

import datetime
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd

COLLECTIVES, MESSAGES = 32, 1024  # of a group; from one rank to another with one tag


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def of_number(i):
    return torch.tensor([float(i)])


def test_sends_before_the_other_rank_receives(rank, size):
    """The next one is refused where it is called, and the order is kept."""
    more = 76
    if rank == 0:
        works = [dist.isend(of_number(i), 1) for i in range(MESSAGES)]
        with pytest.raises(hvd.HorovodInternalError,
                           match="1024 messages from rank 0 to rank 1 with tag 0 are in flight"):
            dist.isend(of_number(-1), 1)
        works.append(dist.isend(of_number(7), 1, tag=1))
    hvd.barrier()
    x = torch.empty(1)
    if rank == 0:
        for i in range(more):
            works[i].wait()
            works.append(dist.isend(of_number(MESSAGES + i), 1))
        for work in works:
            work.wait()
    if rank == 1:
        for i in range(MESSAGES + more):
            dist.recv(x, 0)
            assert x[0] == i
        dist.recv(x, 0, tag=1)
        assert x[0] == 7


def test_receives_before_the_other_rank_sends(rank, size):
    received = torch.empty(MESSAGES + 1, 1)
    if rank == 1:
        works = [dist.irecv(received[i], 0, tag=2) for i in range(MESSAGES)]
        with pytest.raises(hvd.HorovodInternalError,
                           match="1024 messages from rank 0 to rank 1 with tag 2 are in flight"):
            dist.irecv(received[MESSAGES], 0, tag=2)
    hvd.barrier()
    if rank == 0:
        for i in range(MESSAGES + 1):
            dist.send(of_number(i), 1, tag=2)
    if rank == 1:
        works[0].wait()
        works.append(dist.irecv(received[MESSAGES], 0, tag=2))
        for work in works:
            work.wait()
        assert torch.equal(received[:, 0], torch.arange(MESSAGES + 1.0))


def test_messages_of_another_thread_end_the_wait_to_begin(rank, size):
    """Rank 0's next collective waits for the others, who come when they have its message."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=60))
    tensors = [torch.ones(1) for _ in range(COLLECTIVES + 1)]
    full = threading.Event()

    def reduce_all():
        works = []
        for tensor in tensors:
            if len(works) == COLLECTIVES:
                full.set()
            works.append(dist.all_reduce(tensor, group=group, async_op=True))
        for work in works:
            work.wait()
    if rank == 0:
        with ThreadPoolExecutor(1) as pool:
            reduced = pool.submit(reduce_all)
            full.wait()
            time.sleep(0.2)  # nothing fails without it: most likely the thread waits by now
            received = torch.zeros(1)
            works = [dist.irecv(received, 1, group=group),
                     dist.isend(of_number(5), 1, group=group)]
            for work in works:
                work.wait()
            reduced.result()
            assert received[0] == 6
    else:
        if rank == 1:
            x = torch.zeros(1)
            dist.recv(x, 0, group=group)
            assert x[0] == 5
        reduce_all()
        if rank == 1:
            dist.send(of_number(6), 0, group=group)
    assert all(tensor[0] == size for tensor in tensors)
    dist.destroy_process_group(group)


def wait_for_all(works):
    for work in works:
        work.wait()


def reduce_each(tensors, group):
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)


def test_a_collective_that_can_not_begin_in_time(rank, size):
    """For the other ranks, it was never called."""
    group = dist.new_group()
    tensors = [torch.ones(1) for _ in range(COLLECTIVES)]
    if rank == 0:
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        options = dist.AllreduceOptions()
        options.timeout = datetime.timedelta(milliseconds=50)
        with pytest.raises(RuntimeError, match="has not come within 0.05 s.* has not begun"):
            group.allreduce([torch.ones(1)], options)
    hvd.barrier()
    if rank == 0:
        wait_for_all(works)
    else:
        reduce_each(tensors, group)
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    assert x[0] == size and all(tensor[0] == size for tensor in tensors)
    dist.destroy_process_group(group)


def test_a_monitored_barrier_waits_as_long_as_it_is_told(rank, size):
    group = dist.group.WORLD
    group.monitored_barrier(datetime.timedelta(seconds=60))
    if rank == 0:
        with pytest.raises(RuntimeError, match="has not come within 0.05 s"):
            group.monitored_barrier(datetime.timedelta(milliseconds=50))
    hvd.barrier()
    if rank != 0:
        group.monitored_barrier(datetime.timedelta(seconds=60))


def test_torch_monitors_barriers_of_this_backend_too(rank, size):
    dist.monitored_barrier(wait_all_ranks=True)
    dist.distributed_c10d.monitored_barrier(dist.group.WORLD, datetime.timedelta.max)
    beside = dist.new_group(backend="gloo")
    dist.monitored_barrier(beside)
    if rank == 0:
        with pytest.raises(RuntimeError, match="has not come within 0.05 s"):
            dist.monitored_barrier(timeout=datetime.timedelta(milliseconds=50))
    hvd.barrier()
    if rank != 0:
        dist.monitored_barrier()


def test_a_call_of_several_dtypes_that_can_not_begin_in_time(rank, size):
    """One collective of it could begin, the other not: neither does."""
    group = dist.new_group()
    tensors = [torch.ones(1) for _ in range(COLLECTIVES - 1)]
    if rank == 0:
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        options = dist.distributed_c10d.AllreduceCoalescedOptions()
        options.timeout = datetime.timedelta(milliseconds=50)
        with pytest.raises(RuntimeError, match="has not come within 0.05 s.* has not begun"):
            group.allreduce_coalesced([torch.ones(1), torch.ones(1, dtype=torch.int64)], options)
    hvd.barrier()
    if rank == 0:
        wait_for_all(works)
    else:
        reduce_each(tensors, group)
    for dtype in (torch.float64, torch.int64):
        x = torch.ones(2, dtype=dtype)
        dist.all_reduce(x, group=group)
        assert x[0] == size
    assert all(tensor[0] == size for tensor in tensors)
    dist.destroy_process_group(group)
