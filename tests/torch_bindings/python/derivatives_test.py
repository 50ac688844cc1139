"""Derivatives are those of Horovod, on every rank."""

import copy
import pickle

import pytest
import torch

import horon.torch as hvd


def leaf(*shape):
    return torch.ones(shape, requires_grad=True)


def test_allreduce(size):
    for op, expected in [(hvd.Sum, size), (hvd.Average, 1.0)]:
        x = leaf(3)
        hvd.allreduce(x, op=op).sum().backward()
        assert x.grad.tolist() == [expected] * 3
    x, y = leaf(2), leaf(3)
    first, second = hvd.grouped_allreduce([x, y], op=hvd.Sum)
    (first.sum() + 2 * second.sum()).backward()
    assert x.grad.tolist() == [size] * 2 and y.grad.tolist() == [2 * size] * 3


def test_allgather_averages_gradients(rank, size):
    x = leaf(rank + 1, 2)
    weights = torch.arange(1.0, size + 1).repeat_interleave(torch.arange(1, size + 1))
    (hvd.allgather(x) * weights[:, None]).sum().backward()
    assert torch.equal(x.grad, torch.full((rank + 1, 2), rank + 1.0))


def test_allgather_without_ranks_that_have_joined(rank, size):
    """The rows of the others, which begin elsewhere then; of the mean over all ranks."""
    if rank > 0:
        x, y = leaf(rank, 2), leaf(1)
        rows, row = hvd.grouped_allgather([x, y])
        assert len(rows) == sum(range(size)) and len(row) == size - 1
        of_row = torch.arange(1.0, size).repeat_interleave(torch.arange(1, size))
        ((rows * of_row[:, None]).sum() + (row * torch.arange(1.0, size)).sum()).backward()
        expected = rank * (size - 1) / size
        torch.testing.assert_close(x.grad, torch.full((rank, 2), expected))
        torch.testing.assert_close(y.grad, torch.full((1,), expected))
    hvd.join()


def test_broadcast(rank, size):
    x = leaf(2)
    (hvd.broadcast(x, size - 1) * (rank + 1)).sum().backward()
    mean = (size + 1) / 2
    assert x.grad.tolist() == ([mean] * 2 if rank == size - 1 else [0.0] * 2)


def test_reducescatter(size):
    for op, expected in [(hvd.Sum, size), (hvd.Average, 1.0)]:
        x = leaf(2 * size)
        hvd.reducescatter(x, op=op).sum().backward()
        assert x.grad.tolist() == [expected] * (2 * size)


def test_alltoall(rank, size):
    x = leaf(size + 1)  # one row stays
    received, counts = hvd.alltoall(x, [1] * size)
    (received * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [*range(1, size + 1), 0.0] and counts.tolist() == [1] * size


def test_derivative_of_a_derivative(size):
    x = leaf(2)
    (grad,) = torch.autograd.grad(hvd.allreduce(x, op=hvd.Sum).pow(3).sum(), x, create_graph=True)
    grad.sum().backward()
    # y = S x with the sum over ranks S: d/dx sum of S * 3 y^2 is 6 S y S.
    assert x.grad.tolist() == [6.0 * size**3] * 2


def test_derivative_of_a_derivative_of_broadcast(rank, size):
    root = size - 1
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    (grad,) = torch.autograd.grad(hvd.broadcast(x, root).pow(3).sum(), x, create_graph=True)
    assert grad.tolist() == ([3.0 * size**2] * 2 if rank == root else [0.0] * 2)
    grad.sum().backward()
    # The others' gradient is none, so of the mean over the ranks the root's part is left: 6 x.
    assert x.grad.tolist() == ([pytest.approx(6.0)] * 2 if rank == root else [0.0] * 2)


def test_what_is_no_number_stays_with_the_root_of_a_broadcast(rank):
    x = leaf(2)
    (hvd.broadcast(x, 0) * float("nan")).sum().backward()
    assert x.grad.isnan().all() if rank == 0 else x.grad.tolist() == [0.0] * 2


def test_sync_batch_norm_is_that_of_the_whole_batch(rank, size):
    torch.manual_seed(5)
    whole = torch.randn(3 * size + 1, 4, 2)
    shares = torch.tensor_split(whole, size)
    plain = torch.nn.BatchNorm1d(4)
    synced = hvd.SyncBatchNorm(4)
    inputs = whole.clone().requires_grad_(), shares[rank].clone().requires_grad_()
    outputs = plain(inputs[0]), synced(inputs[1])
    begin = sum(len(each) for each in shares[:rank])
    mine = slice(begin, begin + len(shares[rank]))
    torch.testing.assert_close(outputs[1], outputs[0][mine])
    for output in outputs:
        output.pow(2).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad[mine], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(synced.running_mean, plain.running_mean)
    torch.testing.assert_close(synced.running_var, plain.running_var)
    synced.eval(), plain.eval()
    torch.testing.assert_close(synced(shares[rank]), plain(shares[rank]))


def test_sync_batch_norm_is_copied_and_saved(rank, size):
    module = hvd.SyncBatchNorm(3)
    part = hvd.add_process_set(range(size))
    of_part = hvd.SyncBatchNorm(3, process_set=part)
    for original, expected in [(module, hvd.global_process_set), (of_part, part)]:
        original(torch.ones(2, 3) * rank).sum().backward()
        for copied in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            assert copied._process_set is expected
            inputs = torch.arange(6.0).reshape(2, 3) * (rank + 1)
            torch.testing.assert_close(copied(inputs), original(inputs))
    hvd.remove_process_set(part)
    assert pickle.loads(pickle.dumps(hvd.ProcessSet([0]))).ranks == [0]


def test_sync_batch_norm_without_affine(rank, size):
    torch.manual_seed(5)
    whole = torch.randn(3 * size, 4, 2)
    share = torch.tensor_split(whole, size)[rank].clone().requires_grad_()
    whole.requires_grad_()
    outputs = (torch.nn.BatchNorm1d(4, affine=False)(whole),
               hvd.SyncBatchNorm(4, affine=False)(share))
    mine = slice(3 * rank, 3 * rank + 3)
    torch.testing.assert_close(outputs[1], outputs[0][mine])
    for output in outputs:
        output.pow(3).sum().backward()
    torch.testing.assert_close(share.grad, whole.grad[mine], atol=1e-5, rtol=1e-4)


def test_sync_batch_norm_goes_on_after_an_uneven_epoch(rank, size):
    module = hvd.SyncBatchNorm(2)
    for _ in range(2):
        for _ in range(2 + rank):
            x = torch.randn(3, 2, requires_grad=True)
            module(x).pow(2).sum().backward()
        hvd.join()
    first, second = module(x), module(x)
    with pytest.raises(RuntimeError, match="rank 0 through call 1"):
        (second if rank else first).sum().backward()
