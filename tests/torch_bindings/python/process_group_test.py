"""init_process_group("horon"): every collective of torch.distributed, and its errors."""

import datetime

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import horon.torch as hvd
from horon import process_group


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")  # under MPI: no address, no rank, no import of horon
    yield
    dist.destroy_process_group()


def of_rank(rank, shape=(2, 3), dtype=torch.float32):
    return (torch.arange(6).reshape(shape) + 10 * rank).to(dtype)


def test_group(rank, size):
    assert dist.get_backend() == "horon"
    assert dist.get_rank() == rank and dist.get_world_size() == size


def test_gpus_are_registered_where_a_driver_is(monkeypatch):
    for files, devices in [((), ["cpu"]), (("/dev/nvidiactl",), ["cpu", "cuda"])]:
        monkeypatch.setattr(process_group.os.path, "exists", files.__contains__)
        assert process_group._devices() == devices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16,
                                   torch.uint8, torch.int32, torch.int64, torch.complex64])
def test_all_reduce(rank, size, dtype):
    x = of_rank(rank, dtype=dtype)
    dist.all_reduce(x)
    assert torch.equal(x, sum(of_rank(r, dtype=dtype) for r in range(size)))


def test_reductions(rank, size):
    parts = torch.stack([of_rank(r) + 1 for r in range(size)])
    for op, expected in [(dist.ReduceOp.AVG, parts.mean(0)), (dist.ReduceOp.MIN, parts.amin(0)),
                         (dist.ReduceOp.MAX, parts.amax(0)),
                         (dist.ReduceOp.PRODUCT, parts.prod(0))]:
        x = of_rank(rank) + 1
        dist.all_reduce(x, op)
        torch.testing.assert_close(x, expected)
    halved = of_rank(rank)
    dist.all_reduce(halved, dist._make_nccl_premul_sum(0.5))
    torch.testing.assert_close(halved, sum(of_rank(r) for r in range(size)) / 2)
    strided = of_rank(rank).t()
    dist.all_reduce(strided)
    assert torch.equal(strided, sum(of_rank(r) for r in range(size)).t())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.bool])
def test_bitwise_reductions(rank, size, dtype):
    def of(r):
        return (torch.tensor([0, 1, 12, 101, 85 + r]) % 2**(r + 3)).to(dtype)
    for op, join in [(dist.ReduceOp.BAND, torch.bitwise_and),
                     (dist.ReduceOp.BOR, torch.bitwise_or),
                     (dist.ReduceOp.BXOR, torch.bitwise_xor)]:
        expected = of(0)
        for r in range(1, size):
            expected = join(expected, of(r))
        x = of(rank)
        dist.all_reduce(x, op)
        assert torch.equal(x, expected)
        y = of(rank)
        dist.reduce(y, size - 1, op)
        assert torch.equal(y, expected if rank == size - 1 else of(rank))
    with pytest.raises(ValueError, match="float32"):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR)


def test_asynchronous(rank, size):
    tensors = [torch.full((1000,), float(i)) for i in range(100)]  # more than there are names
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in reversed(works):
        assert work.wait() and work.is_completed() and work.is_success()
    assert all(torch.equal(x, torch.full((1000,), float(i * size)))
               for i, x in enumerate(tensors))
    future = dist.all_reduce(tensors[1], async_op=True).get_future()
    twice = future.then(lambda done: done.value()[0] * 2)
    assert twice.wait()[0] == 2 * size * size


def test_callbacks_may_wait_for_later_collectives(rank, size):
    """As the hook PowerSGD does: with one thread for futures it would wait for ever."""
    def next_one(done, depth):
        x = done.value()[0]
        if depth == 0:
            return x
        inner = dist.all_reduce(x, async_op=True).get_future()
        return inner.then(lambda later: next_one(later, depth - 1)).wait()
    ends = [dist.all_reduce(torch.ones(3), async_op=True).get_future().then(
        lambda done: next_one(done, 2)) for _ in range(1)]
    assert [end.wait()[0] for end in ends] == [size ** 3]


def test_broadcast_and_reduce(rank, size):
    for root in range(size):
        x = of_rank(rank)
        dist.broadcast(x, root)
        assert torch.equal(x, of_rank(root))
        y = of_rank(rank)
        dist.reduce(y, root)
        kept = sum(of_rank(r) for r in range(size)) if rank == root else of_rank(rank)
        assert torch.equal(y, kept)
        z = of_rank(rank, dtype=torch.complex64).t()
        work = dist.reduce(z, root, dist.ReduceOp.SUM, async_op=True)
        work.wait()
        assert torch.equal(z, kept.to(torch.complex64).t())
        scalar = torch.tensor(float(rank + 1))
        dist.reduce(scalar, root, dist.ReduceOp.AVG)
        assert scalar == ((size + 1) / 2 if rank == root else rank + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_all_gather(rank, size, dtype):
    x = of_rank(rank, dtype=dtype)
    every = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(every, x)
    whole = torch.empty(2 * size, 3, dtype=dtype)
    dist.all_gather_into_tensor(whole, x)
    expected = [of_rank(r, dtype=dtype) for r in range(size)]
    assert all(torch.equal(a, b) for a, b in zip(every, expected))
    assert torch.equal(whole, torch.cat(expected))
    in_place = torch.zeros(2 * size, 3, dtype=dtype)
    mine = in_place[2 * rank:2 * rank + 2]
    mine.copy_(x)
    dist.all_gather_into_tensor(in_place, mine)
    assert torch.equal(in_place, whole)
    scalars = [torch.tensor(0) for _ in range(size)]
    dist.all_gather(scalars, torch.tensor(rank))
    assert [int(each) for each in scalars] == list(range(size))


def test_all_gather_in_inference_mode(rank, size):
    with torch.inference_mode():
        every = [torch.empty(2) for _ in range(size)]
        dist.all_gather(every, torch.full((2,), float(rank)))
    assert [float(each[0]) for each in every] == list(range(size))


def test_reduce_scatter(rank, size):
    whole = torch.arange(2.0 * size) + rank
    total = size * torch.arange(2.0 * size) + sum(range(size))
    mine = torch.empty(2)
    dist.reduce_scatter_tensor(mine, whole)
    assert torch.equal(mine, total[2 * rank:2 * rank + 2])
    dist.reduce_scatter(mine, list(whole.clone().chunk(size)), dist.ReduceOp.AVG)
    torch.testing.assert_close(mine, total[2 * rank:2 * rank + 2] / size)
    in_place = whole.clone()
    part = in_place[2 * rank:2 * rank + 2]
    dist.reduce_scatter_tensor(part, in_place)
    assert torch.equal(part, total[2 * rank:2 * rank + 2])


def test_gather_and_scatter(rank, size):
    root = size - 1
    parts = [torch.empty(2, 3) for _ in range(size)] if rank == root else None
    dist.gather(of_rank(rank), parts, dst=root)
    if rank == root:
        assert all(torch.equal(part, of_rank(r)) for r, part in enumerate(parts))
    mine = torch.empty(3, 2).t()  # not row-major
    dist.scatter(mine, [of_rank(r) for r in range(size)] if rank == root else None, src=root)
    assert torch.equal(mine, of_rank(rank))


def test_all_to_all(rank, size):
    send = [torch.full((r + 1, 2), 10.0 * rank + r) for r in range(size)]
    receive = [torch.empty(rank + 1, 2) for _ in range(size)]
    dist.all_to_all(receive, send)
    assert all(torch.equal(part, torch.full((rank + 1, 2), 10.0 * r + rank))
               for r, part in enumerate(receive))
    output = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(output, torch.cat(send), [rank + 1] * size,
                           [r + 1 for r in range(size)])
    assert torch.equal(output, torch.cat(receive))
    even = torch.empty(size)
    dist.all_to_all_single(even, torch.arange(float(size)) + 10 * rank)
    assert torch.equal(even, 10 * torch.arange(float(size)) + rank)


def test_coalesced(rank, size):
    sums = [torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.int64)]
    dist.all_reduce_coalesced(sums[:2])
    with dist._coalescing_manager():
        for x in sums:
            dist.all_reduce(x)
    assert [int(x[0]) for x in sums] == [size * size, size * size, size]
    wholes = [torch.empty(2 * size), torch.empty(size)]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(wholes[0], torch.full((2,), float(rank)))
        dist.all_gather_into_tensor(wholes[1], torch.full((1,), float(rank)))
    assert torch.equal(wholes[1], torch.arange(float(size))) and wholes[0][-1] == size - 1
    parts = [torch.empty(2), torch.empty(1)]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(parts[0], torch.arange(2.0 * size))
        dist.reduce_scatter_tensor(parts[1], torch.arange(1.0 * size))
    assert parts[0][0] == 2 * rank * size and parts[1][0] == rank * size


def test_barrier_and_objects(rank, size):
    dist.barrier()
    every = [None] * size
    dist.all_gather_object(every, {"rank": rank, "text": "x" * rank})
    assert every == [{"rank": r, "text": "x" * r} for r in range(size)]
    told = [rank, "some"]
    dist.broadcast_object_list(told, src=size - 1)
    assert told == [size - 1, "some"]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None)
    assert mine == [f"for {rank}"]
    all_of_them = [None] * size if rank == 0 else None
    dist.gather_object(rank, all_of_them)
    assert all_of_them == (list(range(size)) if rank == 0 else None)


def test_functional_collectives(rank, size):
    world = dist.group.WORLD
    total = functional.all_reduce(torch.ones(3), "sum", world)
    assert total.tolist() == [size] * 3
    rows = functional.all_gather_tensor(torch.full((1,), float(rank)), 0, world)
    assert rows.tolist() == list(range(size))
    part = functional.reduce_scatter_tensor(torch.ones(size), "sum", 0, world)
    assert part.tolist() == [size]


def test_sparse(rank, size):
    x = torch.sparse_coo_tensor([[rank, 5]], [1.0, 2.0], (6,))
    dist.all_reduce(x)
    expected = torch.zeros(6)
    expected[:size] = 1
    expected[5] += 2 * size
    assert torch.equal(x.to_dense(), expected)


def test_ranks_that_differ_are_told_so(rank, size):
    with pytest.raises(hvd.HorovodInternalError, match="rank 0"):
        dist.all_reduce(torch.ones(2 + (rank == 0)))
    with pytest.raises(hvd.HorovodInternalError):
        dist.all_reduce(torch.ones(2)) if rank == 0 else dist.broadcast(torch.ones(2), 0)
    with pytest.raises(hvd.HorovodInternalError,
                       match=r"call: \(barrier\) on rank 0, a plain allreduce on rank"):
        dist.barrier() if rank == 0 else dist.all_reduce(torch.ones(1))
    with pytest.raises(RuntimeError, match="elements|bytes"):
        dist.all_gather([torch.empty(2)] * size, torch.ones(3))
    with pytest.raises(ValueError, match="float"):
        dist.all_reduce(torch.ones(2, dtype=torch.int32), dist._make_nccl_premul_sum(0.5))
    x = torch.ones(2)
    dist.all_reduce(x)  # all goes on
    assert x[0] == size


def test_there_is_no_abort():
    """Nothing would end, and the caller would not know."""
    with pytest.raises(ValueError, match="the backend \"horon\" has no abort"):
        dist.group.WORLD.abort()


def test_timeout_of_a_wait(rank, size):
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True) if rank == 0 else None
    if rank == 0:
        with pytest.raises(RuntimeError, match="has not come within"):
            work.wait(datetime.timedelta(milliseconds=50))
    hvd.barrier()
    if rank != 0:
        work = dist.all_reduce(x, async_op=True)
    assert work.wait() and x[0] == size
