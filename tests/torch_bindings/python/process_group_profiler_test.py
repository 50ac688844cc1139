"""What torch.profiler shows of the calls of a group."""

import contextlib
import datetime
import time

import pytest
import torch
import torch.distributed as dist


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def profile():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                  record_shapes=True)


def events_of(profiler, name):
    return [event for event in profiler.events() if event.name == "horon:" + name]


def test_a_call_lasts_until_the_others_have_come(rank, size):
    """Also where it is waited for in the call, and where somebody waits later."""
    x = torch.ones(3, 5)
    late = 0.05
    with profile() as profiler:
        dist.barrier()
        if rank == size - 1:
            time.sleep(late)
        dist.all_reduce(x)
        dist.broadcast(x, 0, async_op=True).wait()
    reduced, = events_of(profiler, "all_reduce")
    sent, = events_of(profiler, "broadcast")
    assert reduced.input_shapes == sent.input_shapes == [[3, 5]]
    assert reduced.is_async and sent.is_async
    if rank == 0 and size > 1:
        assert reduced.time_range.elapsed_us() > 0.5e6 * late
    assert x[0, 0].item() == size


def test_each_kind_has_its_name(rank, size):
    x, rows = torch.ones(size), torch.zeros(size, size)
    other = (rank + 1) % size
    with profile() as profiler:
        dist.all_gather(list(rows), x)
        dist.all_gather_into_tensor(rows, x)
        dist.gather(x, list(rows) if rank == 0 else None)
        dist.scatter(x, list(rows) if rank == 0 else None)
        dist.reduce(x, 0)
        dist.reduce_scatter(torch.ones(1), list(x.view(size, 1)))
        dist.reduce_scatter_tensor(torch.ones(1), x)
        dist.all_to_all_single(torch.empty(size), x)
        dist.barrier()
        if size > 1:
            dist.isend(x, other)
            dist.recv(torch.empty(size), (rank - 1) % size)
    names = ["all_gather", "_all_gather_base", "gather", "scatter", "reduce", "reduce_scatter",
             "_reduce_scatter_base", "all_to_all", "barrier"] + ["send", "recv"] * (size > 1)
    assert [len(events_of(profiler, name)) for name in names] == [1] * len(names)


def test_a_sparse_call_is_one_event():
    x = torch.ones(4).to_sparse()
    with profile() as profiler:
        dist.all_reduce(x)
    assert len(events_of(profiler, "all_reduce")) == 1


def test_a_profiler_may_end_at_once_behind_a_call():
    """What it has recorded is gone then, and no thread may write there."""
    x = torch.ones(1000)
    for _ in range(30):
        with profile():
            works = [dist.all_reduce(x, async_op=True) for _ in range(20)]
            for work in works:
                work.wait()


def test_a_profiler_may_end_before_a_call(rank, size):
    """The call ends after the profiler, and while another one runs."""
    x = torch.ones(1000)
    for _ in range(20):
        with profile() as first:
            works = [dist.all_reduce(x, async_op=True) for _ in range(20)]
        with profile() as second:
            for work in works:
                work.wait()
            dist.broadcast(x, 0)
        assert len(events_of(first, "all_reduce")) == 20
        assert not events_of(second, "all_reduce") and len(events_of(second, "broadcast")) == 1


def test_who_polls_may_hold_the_gil(size):
    """A thread that looks for the end of a call wants nothing of Python's then."""
    x = torch.ones(10)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), profile():
        for _ in range(300):
            work = dist.all_reduce(x, async_op=True)
            while not work.is_completed():
                pass
    assert work.is_success()


@pytest.mark.parametrize("profiled", [False, True])
def test_a_message_has_its_time_from_the_wait_on(rank, size, profiled):
    """Its future too, which nobody has asked for before."""
    if size == 1:
        pytest.skip("no messages")
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    x = torch.ones(1)
    with profile() if profiled else contextlib.nullcontext():
        if rank == 0:
            work = dist.irecv(x, 1, group)
            time.sleep(1.5)
            future = work.get_future()
            dist.barrier()
            future.wait()
        else:
            dist.barrier()
            if rank == 1:
                dist.send(x, 0, group)
    dist.destroy_process_group(group)


def test_ddp_shows_its_buckets(size):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    with profile() as profiler:
        model(torch.ones(3, 4)).sum().backward()
    assert len(events_of(profiler, "all_reduce")) >= 1
