"""all_reduce of sparse tensors over "horon"."""

import datetime

import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_sum_and_average(rank, size, dtype):
    for op, divisor in [(dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)]:
        # Row 5 of all ranks, another row of each but rank 0.
        rows = [5, 5] if rank == 0 else [rank, 5]
        mine = torch.sparse_coo_tensor(
            [rows], (torch.tensor([[1.0, 2.0], [3.0, 6.0]]) * size).to(dtype), (6, 2))
        dense = mine.to_dense()
        dist.all_reduce(mine, op)
        assert mine.is_sparse and mine.dtype == dtype
        every = [torch.empty_like(dense) for _ in range(size)]
        dist.all_gather(every, dense)
        expected = torch.stack(every).sum(0) / divisor
        assert torch.equal(mine.to_dense(), expected.to(dtype))


def test_ranks_without_entries(rank, size):
    x = torch.zeros(4, 3).to_sparse()
    dist.all_reduce(x)
    assert not x.to_dense().any()
    if rank == 0:
        x = torch.sparse_coo_tensor([[1], [2]], [4.0], (4, 3))
    dist.all_reduce(x)
    assert x.to_dense()[1, 2] == 4 and x.to_dense().sum() == 4


def test_rows_of_one_element_and_of_none(rank, size):
    # The gradient of one row of an embedding of one column: its values have strides of 0.
    embedding = torch.nn.Embedding(4, 1, sparse=True)
    embedding(torch.tensor([rank])).sum().backward()
    dist.all_reduce(embedding.weight.grad)
    expected = torch.zeros(4, 1)
    expected[:size] = 1
    assert torch.equal(embedding.weight.grad.to_dense(), expected)

    empty = torch.sparse_coo_tensor([[rank]], torch.empty(1, 0), (4, 0))
    dist.all_reduce(empty)
    assert empty.to_dense().shape == (4, 0)


def test_what_is_refused(rank, size):
    x = torch.eye(3).to_sparse()
    for op in (dist.ReduceOp.MAX, dist._make_nccl_premul_sum(0.5)):  # would drop the factor
        with pytest.raises(ValueError, match="sparse"):
            dist.all_reduce(x, op)
    with pytest.raises(hvd.HorovodInternalError, match="disagree"):
        dist.all_reduce(x if rank == 0 else torch.eye(3))
    with pytest.raises(hvd.HorovodInternalError, match="disagree"):
        dist.all_reduce(x if rank == 0 else x.double())
    with pytest.raises(ValueError if rank == 0 else RuntimeError, match="bool"):
        dist.all_reduce(x.bool() if rank == 0 else x)
    dist.all_reduce(x)
    assert torch.equal(x.to_dense(), size * torch.eye(3))


def test_it_goes_on_while_the_program_does_something_else(rank, size):
    """Rank 0 calls it before its message, and the others after theirs."""
    x = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,)).coalesce()
    dense = x.to_dense()
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        for other in range(1, size):
            dist.send(torch.ones(2), other)
    else:
        dist.recv(torch.zeros(2), 0)
        work = dist.all_reduce(x, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0].to_dense())
    assert work.wait()
    assert torch.equal(work.result()[0].to_dense(), x.to_dense())
    dist.all_reduce(dense)
    assert torch.equal(x.to_dense(), dense)
    assert torch.equal(future.wait(), dense)


def test_the_timeout_of_the_group(rank, size, set_timeout):
    group = dist.new_group()
    x = torch.eye(3).to_sparse()
    if rank == 0:
        set_timeout(group, datetime.timedelta(milliseconds=100))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="has not come within"):
                dist.all_reduce(x, group=group)
    hvd.barrier()
    if rank != 0:
        for _ in range(2):
            dist.all_reduce(torch.eye(3).to_sparse(), group=group)
    assert torch.equal(x.to_dense(), torch.eye(3))
    hvd.barrier()
    dist.destroy_process_group(group)
