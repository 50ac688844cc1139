"""send, recv and their kind over "horon", in the group of all ranks and in a part of it."""

import datetime
import os
import time

import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def last_two():
    """A group whose ranks are not those of the job, where there are three."""
    size = dist.get_world_size()
    return dist.new_group([size - 2, size - 1])


def pass_on(tensor, rank, size, **options):
    """Sends to the next rank, and receives from the one before at the same time."""
    received = torch.full_like(tensor, 7)
    works = [dist.isend(tensor, (rank + 1) % size, **options),
             dist.irecv(received, (rank - 1) % size, **options)]
    for work in works:
        work.wait()
    return received


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16,
                                   torch.uint8, torch.bool, torch.int64, torch.complex64])
def test_ring(rank, size, dtype):
    def of_rank(r):
        return (torch.arange(6).reshape(2, 3) + 10 * r).to(dtype)
    before = of_rank((rank - 1) % size)
    assert torch.equal(pass_on(of_rank(rank), rank, size), before)
    assert torch.equal(pass_on(of_rank(rank).t(), rank, size), before.t())
    every_second = torch.zeros(2, 6, dtype=dtype)[:, ::2]
    works = [dist.irecv(every_second, (rank - 1) % size), dist.isend(of_rank(rank),
                                                                     (rank + 1) % size)]
    assert all(work.wait() for work in works) and torch.equal(every_second, before)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (300000,)])
def test_sizes(rank, size, shape):
    received = pass_on(torch.full(shape, float(rank)), rank, size)
    assert torch.equal(received, torch.full(shape, float((rank - 1) % size)))


def test_send_and_recv(rank, size):
    x = torch.full((4,), float(rank), requires_grad=True)
    y = torch.empty(4)
    for source in range(size):
        for target in range(size):
            if rank == source != target:
                dist.send(x, target)
            if rank == target != source:
                assert dist.recv(y, source) == source and y[0] == source


def test_a_recv_knows_its_source_in_the_group(rank, size, last_two):
    if rank < size - 2:
        return
    other = size - 1 if rank == size - 2 else size - 2
    received = torch.empty(1)
    sent = dist.isend(torch.tensor([float(rank)]), other, group=last_two)
    came = dist.irecv(received, other, group=last_two)
    for work in (sent, came):
        work.wait()
    assert received[0] == other and came._source_rank() == dist.get_group_rank(last_two, other)
    with pytest.raises(RuntimeError, match="recv"):
        sent._source_rank()


def test_from_any_rank(rank, size):
    """Several are posted before anything is sent; each message comes once."""
    received = [torch.full((3,), -1.0) for _ in range(size - 1)]
    works = [dist.irecv(y, tag=21) for y in received]
    with pytest.raises(ValueError, match=r"wait\(\) first"):
        works[0]._source_rank()
    hvd.barrier()
    sent = [dist.isend(torch.full((3,), float(rank)), other, tag=21)
            for other in range(size) if other != rank]
    for work, y in zip(works, received):
        assert work.wait() and torch.equal(y, torch.full((3,), float(work._source_rank())))
    assert sorted(work._source_rank() for work in works) == [r for r in range(size) if r != rank]
    for work in sent:
        work.wait()
    hvd.barrier()
    if rank == 1:
        dist.send(torch.arange(4), 0, tag=22)
    if rank == 0:
        y = torch.empty(2, 2, dtype=torch.int64)
        assert dist.recv(y, tag=22) == 1 and y.flatten().tolist() == [0, 1, 2, 3]
        x = torch.empty(1)
        done = dist.irecv(x, tag=23).get_future()
    hvd.barrier()
    if rank == 1:
        dist.send(torch.ones(1), 0, tag=23)
    if rank == 0:
        assert done.wait()[0] == 1


def test_from_any_rank_of_a_group(rank, size, last_two):
    """Its ranks are those of the group; what is sent elsewhere is apart."""
    if rank < size - 2:
        return
    other = size - 1 if rank == size - 2 else size - 2
    x = torch.empty(1)
    works = [dist.isend(torch.tensor([1.0]), other),
             dist.isend(torch.tensor([2.0]), other, group=last_two)]
    assert dist.recv(x, group=last_two) == other and x[0] == 2
    work = dist.irecv(x)
    assert work.wait() and x[0] == 1 and work._source_rank() == other
    for work in works:
        work.wait()


def test_a_receive_from_any_rank_that_is_late_or_wrong(rank, size):
    alone = [dist.new_group([r]) for r in range(size)][rank]
    with pytest.raises(ValueError, match="there is no other rank to receive from"):
        dist.recv(torch.ones(1), group=alone)
    if rank == 0:
        x = torch.zeros(1)
        work = dist.irecv(x, tag=24)
        with pytest.raises(RuntimeError, match="recv 0 from any, tag 24.* has not come within"):
            work.wait(datetime.timedelta(milliseconds=50))
    hvd.barrier()
    if rank == 1:
        dist.send(torch.ones(1), 0, tag=24)
        with pytest.raises(hvd.HorovodInternalError, match="float64"):
            dist.send(torch.ones(1, dtype=torch.float64), 0, tag=24)
    if rank == 0:
        assert work.wait() and x[0] == 1 and work._source_rank() == 1
        with pytest.raises(hvd.HorovodInternalError, match="float64"):
            dist.recv(x, tag=24)
    hvd.barrier()


def test_tags_in_any_order_and_one_tag_in_order(rank, size):
    if rank == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in range(5)]
        works += [dist.isend(torch.tensor([10.0 + i]), 1, tag=9) for i in range(40)]
        for work in works:
            work.wait()
    if rank == 1:
        for tag in reversed(range(5)):
            x = torch.empty(1)
            dist.recv(x, 0, tag=tag)
            assert x[0] == tag
        for i in range(40):
            dist.recv(x, 0, tag=9)
            assert x[0] == 10 + i


def test_batch(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    sent = [torch.full((3,), 10.0 * rank + i) for i in range(3)]
    received = [torch.empty(3) for _ in range(3)]
    batch = [dist.P2POp(dist.isend, x, right, tag=i) for i, x in enumerate(sent)]
    batch += [dist.P2POp(dist.irecv, x, left, tag=i) for i, x in enumerate(received)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert [int(x[0]) for x in received] == [10 * left + i for i in range(3)]


def test_in_a_part_of_the_ranks(rank, size, last_two):
    """Counted apart from the messages of all ranks, which come in between."""
    one, other = size - 2, size - 1
    x, y = torch.ones(2), torch.full((2,), 2.0)
    if rank == one:
        works = [dist.isend(x, other), dist.isend(y, group=last_two, group_dst=1)]
        dist.recv(x, other, group=last_two)
        assert x[0] == 5
    elif rank == other:
        dist.recv(x, group=last_two, group_src=0)
        dist.recv(y, one)
        assert x[0] == 2 and y[0] == 1
        works = [dist.isend(torch.full((2,), 5.0), one, group=last_two)]
    else:
        return
    for work in works:
        assert work.wait() and work.is_success()
    objects = [None] if rank == other else [{"x": 1}]
    if rank == one:
        dist.send_object_list(objects, other, group=last_two)
    else:
        dist.recv_object_list(objects, one, group=last_two)
        assert objects == [{"x": 1}]


def test_between_collectives(rank, size):
    """Ranks that send take part in nothing meanwhile; futures end."""
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    y = pass_on(torch.full((2,), float(rank)), rank, size)
    work.wait()
    assert x[0] == size and y[0] == (rank - 1) % size
    if rank == 0:
        assert dist.isend(x, 1).get_future().wait()[0].data_ptr() == x.data_ptr()
    if rank == 1:
        z = torch.empty(3)
        assert dist.irecv(z, 0).get_future().then(lambda done: done.value()[0] * 2).wait()[0] \
            == 2 * size


def test_futures_end_in_any_order(rank, size):
    """The first one's sender waits until the second one and a collective have ended."""
    x, y = torch.zeros(1), torch.zeros(1)
    if rank == 1:
        late = dist.irecv(x, 0, tag=1).get_future()
        assert dist.irecv(y, 0, tag=2).get_future().wait()[0] == 2
    if rank == 0:
        dist.send(torch.full((1,), 2.0), 1, tag=2)
    assert dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()[0] == size
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=1)
    if rank == 1:
        assert late.wait()[0] == 1


def test_futures_of_many_messages_need_few_threads(rank, size):
    """They come last one first; a callback of the last one's future waits for the first one's."""
    count = 100
    if rank == 0:
        received = torch.zeros(count)
        threads = len(os.listdir("/proc/self/task"))
        futures = [dist.irecv(received[i:i + 1], 1, tag=i).get_future() for i in range(count)]
        both = futures[-1].then(lambda done: done.value()[0] + futures[0].wait()[0])
        assert len(os.listdir("/proc/self/task")) - threads < 10
    hvd.barrier()
    if rank == 1:
        for i in reversed(range(count)):
            dist.send(torch.full((1,), float(i + 1)), 0, tag=i)
    if rank == 0:
        for future in futures:
            future.wait()
        assert both.wait()[0] == count + 1
        assert torch.equal(received, torch.arange(1.0, count + 1))


def test_the_timeout_of_a_future(rank, size, set_timeout):
    """Also of one that is asked for while a thread waits for one that has more time."""
    group = dist.new_group()
    if rank == 1:
        x = torch.zeros(2)
        long = dist.irecv(x[:1], 0, group=group, tag=1).get_future()
        set_timeout(group, datetime.timedelta(milliseconds=50))
        late = dist.irecv(x[1:], 0, group=group, tag=2).get_future()
        with pytest.raises(RuntimeError, match="tag 2.* has not come within"):
            late.wait()
        assert not long.done()
    hvd.barrier()
    if rank == 0:
        for tag in (1, 2):
            dist.send(torch.ones(1), 1, group=group, tag=tag)
    if rank == 1:
        assert long.wait()[0] == 1
    dist.destroy_process_group(group)


def test_a_future_that_is_late_holds_up_no_other(rank, size, set_timeout):
    """Each has the time of the group from its call on, and one that can end does."""
    group = dist.new_group()
    if rank == 1:
        set_timeout(group, datetime.timedelta(seconds=2))
        begin = time.monotonic()
        late = [dist.irecv(torch.zeros(1), 0, group=group, tag=tag).get_future()
                for tag in (1, 2, 3)]
        for future in late:
            with pytest.raises(RuntimeError, match="has not come within 2 s"):
                future.wait()
        assert time.monotonic() - begin < 3 * 2  # not one behind the other
    hvd.barrier()
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.ones(1), 1, group=group, tag=tag)
    hvd.barrier()
    dist.destroy_process_group(group)


def test_the_timeout_of_a_message_begins_with_the_wait(rank, size):
    """A receive may be posted at the start of a program, for a message that comes at its end."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    if rank == 1:
        x = torch.zeros(1)
        work = dist.irecv(x, 0, group=group)
        time.sleep(5.2)
        work.wait()
        assert x[0] == 3
        with pytest.raises(RuntimeError, match="has not come within 5 s"):
            dist.irecv(x, 0, group=group, tag=1).wait()
    if rank == 0:
        time.sleep(5.5)
        dist.send(torch.full((1,), 3.0), 1, group=group)
    hvd.barrier()
    if rank == 0:
        dist.send(torch.ones(1), 1, group=group, tag=1)
    dist.destroy_process_group(group)


def test_as_many_elements_are_enough(rank, size):
    """As torch.distributed documents broadcast; torch's own pipelines rely on it in messages."""
    shapes = [(2, 2), (4,), (1, 4), (4, 1)]
    mine = torch.arange(4.0).add(10 * rank).view(shapes[rank])
    if rank == 0:
        dist.send(mine, 1)
        dist.send(torch.tensor(7.0), 1)
    if rank == 1:
        got, scalar = torch.zeros(4), torch.zeros(1)
        dist.recv(got, 0)
        dist.recv(scalar, 0)
        assert got.tolist() == [0.0, 1.0, 2.0, 3.0] and scalar.tolist() == [7.0]
    for call, expected in (
            (lambda x: dist.broadcast(x, 1), [10.0, 11.0, 12.0, 13.0]),
            (lambda x: dist.all_reduce(x, dist.ReduceOp.MAX),
             [10.0 * (size - 1) + i for i in range(4)])):
        x = mine.clone()
        call(x)
        assert x.shape == mine.shape and x.flatten().tolist() == expected
    turned = torch.empty(2, 2).t() if rank == 0 else torch.empty(4)  # row by row, however it lies
    turned.copy_(mine.view(turned.shape))
    dist.broadcast(turned, 1)
    assert turned.flatten().tolist() == [10.0, 11.0, 12.0, 13.0]
    x = mine.clone()
    dist.reduce(x, 1)
    if rank == 1:
        assert x.tolist() == [size * i + 10.0 * sum(range(size)) for i in range(4)]


def test_a_pipeline(rank, size):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    torch.manual_seed(3)
    layers = [torch.nn.Linear(4, 4) for _ in range(size)]
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    torch.nn.functional.mse_loss(torch.nn.Sequential(*layers)(x), y).backward()
    expected = layers[rank].weight.grad.clone()
    layers[rank].zero_grad()
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)
    schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == size - 1 else {}))
    assert torch.allclose(layers[rank].weight.grad, expected, atol=1e-6)


def test_errors(rank, size):
    if rank < 2:
        x = torch.ones(2 + rank)
        with pytest.raises(hvd.HorovodInternalError, match="rank 1"):
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        x = torch.ones(2, dtype=torch.float64 if rank else torch.float32)
        with pytest.raises(hvd.HorovodInternalError, match="float64"):
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    with pytest.raises(ValueError):
        dist.send(torch.ones(1), rank)
    if rank == 1:
        y = torch.empty(2)
        work = dist.irecv(y, 0, tag=3)
        with pytest.raises(RuntimeError, match="send 0 to 1, tag 3.* has not come within"):
            work.wait(datetime.timedelta(milliseconds=50))
    hvd.barrier()
    if rank == 0:
        dist.send(torch.ones(2), 1, tag=3)
    if rank == 1:
        assert work.wait() and y[0] == 1
