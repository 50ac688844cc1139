"""init_process_group("horon"): each kind of collective, with each dtype, against NumPy."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

FLOATING = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGER = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
NUMBERS = FLOATING + INTEGER + COMPLEX
ALL = NUMBERS + [torch.bool]
SHAPES = [(), (5,), (3, 4), (0, 2), (2, 1, 17)]


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def values(rank, shape, dtype):
    """Small whole numbers, so that sums and products are exact in every type."""
    random = np.random.RandomState(100 + rank)
    numbers = random.randint(0 if dtype == torch.uint8 else -2, 3, shape)
    if dtype.is_complex:
        numbers = numbers + 1j * random.randint(-2, 3, shape)
    return torch.from_numpy(np.asarray(numbers)).to(dtype)


def unwritten(shape, dtype):
    """Holds what no rank gives, unless it is bool. Fresh memory may hold the expected values."""
    return torch.full(shape, 77, dtype=dtype)


def as_numpy(tensor):
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()


def same(tensor, expected):
    np.testing.assert_array_equal(as_numpy(tensor), expected)


def stacked(size, shape, dtype):
    return np.stack([as_numpy(values(rank, shape, dtype)) for rank in range(size)])


def reductions(dtype):
    yield dist.ReduceOp.SUM, np.sum
    if not dtype.is_complex:  # as with Gloo
        yield dist.ReduceOp.MIN, np.min
        yield dist.ReduceOp.MAX, np.max
        yield dist.ReduceOp.PRODUCT, np.prod


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_reductions(rank, size, dtype):
    for shape in SHAPES:
        every = stacked(size, shape, dtype)
        for op, reduce in reductions(dtype):
            expected = reduce(every, axis=0)
            x = values(rank, shape, dtype)
            dist.all_reduce(x, op)
            same(x, expected)
            root = size - 1
            y = values(rank, shape, dtype)
            dist.reduce(y, root, op)
            same(y, expected if rank == root else every[rank])


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_reduce_scatter(rank, size, dtype):
    every = stacked(size, (size, 2, 3), dtype)
    for op, reduce in reductions(dtype):
        expected = reduce(every, axis=0)[rank]
        mine = unwritten((2, 3), dtype)
        dist.reduce_scatter(mine, list(values(rank, (size, 2, 3), dtype).unbind()), op)
        same(mine, expected)
        whole = unwritten((2, 3), dtype)
        dist.reduce_scatter_tensor(whole, values(rank, (size, 2, 3), dtype).flatten(0, 1), op)
        same(whole, expected)


@pytest.mark.parametrize("dtype", FLOATING + COMPLEX, ids=str)
def test_averages(rank, size, dtype):
    expected = stacked(size, (4, 3), dtype).mean(axis=0)
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 1e-3}.get(dtype, 1e-6)
    x = values(rank, (4, 3), dtype)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    np.testing.assert_allclose(as_numpy(x), expected, rtol=tolerance)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_from_one_rank_and_to_one(rank, size, dtype):
    for shape in SHAPES:
        every = stacked(size, shape, dtype)
        root = size - 1
        x = values(rank, shape, dtype)
        dist.broadcast(x, root)
        same(x, every[root])
        gathered = [unwritten(shape, dtype) for _ in range(size)]
        dist.gather(values(rank, shape, dtype), gathered if rank == root else None, root)
        if rank == root:
            same(torch.stack(gathered), every)
        given = [values(each, shape, dtype) for each in range(size)]
        mine = unwritten(shape, dtype)
        dist.scatter(mine, given if rank == root else None, root)
        same(mine, every[rank])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_from_all_to_all(rank, size, dtype):
    for shape in SHAPES:
        every = stacked(size, shape, dtype)
        parts = [unwritten(shape, dtype) for _ in range(size)]
        dist.all_gather(parts, values(rank, shape, dtype))
        same(torch.stack(parts), every)
        whole = unwritten((size, *shape), dtype)
        dist.all_gather_into_tensor(whole, values(rank, shape, dtype))
        same(whole, every)
        of_all = stacked(size, (size, *shape), dtype)
        received = [unwritten(shape, dtype) for _ in range(size)]
        dist.all_to_all(received, list(values(rank, (size, *shape), dtype).unbind()))
        same(torch.stack(received), of_all[:, rank])
        single = unwritten((size, *shape), dtype)
        dist.all_to_all_single(single, values(rank, (size, *shape), dtype))
        same(single, of_all[:, rank])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_rows_of_unlike_number(rank, size, dtype):
    sends = [(rank + other) % 3 for other in range(size)]  # the same the other way round
    received = unwritten((sum(sends), 2), dtype)
    dist.all_to_all_single(received, values(rank, (sum(sends), 2), dtype), sends, sends)
    parts = []
    for other in range(size):
        theirs = [(other + each) % 3 for each in range(size)]
        begin = sum(theirs[:rank])
        parts.append(as_numpy(values(other, (sum(theirs), 2), dtype))[begin:begin + theirs[rank]])
    same(received, np.concatenate(parts))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_messages(rank, size, dtype):
    for shape in SHAPES:
        sent = dist.isend(values(rank, shape, dtype), (rank + 1) % size)
        received = unwritten(shape, dtype)
        dist.recv(received, (rank - 1) % size)
        sent.wait()
        same(received, as_numpy(values((rank - 1) % size, shape, dtype)))
