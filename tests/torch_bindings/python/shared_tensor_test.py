"""Tensors in memory that the ranks of a host share."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd


def test_shapes_dtypes_and_derivatives():
    for size in (((),), (3,), (2, 5), ((2, 5),), (torch.Size([4]),)):
        assert torch.equal(hvd.shared_zeros(*size), torch.zeros(*size))
    assert hvd.shared_zeros(np.int64(4)).shape == hvd.shared_zeros(size=(4,)).shape == (4,)
    assert hvd.shared_zeros(2, dtype=torch.int64).dtype == torch.int64
    weight = hvd.shared_zeros(3, requires_grad=True)
    (weight * 2).sum().backward()
    assert torch.equal(weight.grad, torch.full((3,), 2.0))
    with pytest.raises(ValueError, match=r"the shape \[-1\] has an extent below 0"):
        hvd.shared_zeros(-1)


def test_collectives_of_both_interfaces(rank, size):
    dist.init_process_group("horon")
    mine = hvd.shared_zeros(size * 10_000)
    mine.copy_(torch.arange(size * 10_000) + rank)
    blocks = hvd.shared_zeros(size * 10_000)
    dist.all_to_all_single(blocks, mine)
    part = torch.arange(rank * 10_000, (rank + 1) * 10_000, dtype=torch.float32)
    assert torch.equal(blocks, torch.cat([part + other for other in range(size)]))
    hvd.allreduce_(mine, op=hvd.Sum)
    assert torch.equal(mine, torch.arange(size * 10_000) * size + sum(range(size)))
    dist.destroy_process_group()
    assert mine[0] == sum(range(size))  # the memory outlives the group
