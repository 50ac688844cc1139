"""The hooks of horon.comm_hooks under DDP: averages, in fewer bits where the bucket travels."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import horon.torch as hvd
from horon import comm_hooks

LONG = 3000  # elements: more than 4 KiB, which travel exactly


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon", init_method="horon://")
    yield
    dist.destroy_process_group()


class Weight(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(LONG, dtype=dtype))

    def forward(self, values):
        return (self.weight * values).sum()


def values_of(rank, step, dtype=torch.float32):
    return torch.randn(LONG, generator=torch.Generator().manual_seed(100 * step + rank)).to(dtype)


def gradient_with(hook, state=None, step=0, dtype=torch.float32):
    """(what DDP leaves in .grad, the exact mean)"""
    model = DistributedDataParallel(Weight(dtype))
    model.register_comm_hook(state, hook)
    for _ in range(3):
        model.zero_grad()
        model(values_of(dist.get_rank(), step, dtype)).backward()
    size = dist.get_world_size()
    mean = sum(values_of(rank, step, torch.float64) for rank in range(size)) / size
    return model.module.weight.grad, mean


def hosts():
    """The ranks of each host."""
    found = {}
    for rank, host in enumerate(hvd.allgather_object(hvd.cross_rank())):
        found.setdefault(host, []).append(rank)
    return list(found.values())


@pytest.mark.parametrize("hook, error", [(comm_hooks.fp16_hook, 2**-10),
                                         (comm_hooks.bf16_hook, 2**-7)])
def test_16_bits(hook, error):
    found, mean = gradient_with(hook)
    off = (found - mean).abs()
    largest = max(values_of(rank, 0).abs().max().item() for rank in range(dist.get_world_size()))
    assert off.max() <= error * largest
    assert off.max() > 1e-6 or dist.get_world_size() == 1


def test_a_group_whose_calls_torch_checks():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts another backend around that of the group."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group(backend="horon")
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)
    found, mean = gradient_with(comm_hooks.bf16_hook, state=group)
    assert (found - mean).abs().max() < 0.1


def test_int8_rounds_between_hosts_only():
    for state in (None, dist.group.WORLD):
        found, mean = gradient_with(comm_hooks.int8_hook, state)
        off = (found - mean).abs().max().item()
        if len(hosts()) == 1:
            assert off < 1e-6
            continue
        sums = [sum(values_of(rank, 0) for rank in ranks) for ranks in hosts()]
        steps = sum(each.abs().max().item() for each in sums) / dist.get_world_size()
        if len(sums) > 2:
            steps += mean.abs().max().item()
        assert 1e-4 < off <= 1.01 * steps / 254


def test_the_ranks_have_the_same_bits():
    found, _ = gradient_with(comm_hooks.int8_hook, step=1)
    low, high = found.clone(), found.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    assert torch.equal(low, high)


def test_other_dtypes_travel_as_they_are():
    for hook in (comm_hooks.fp16_hook, comm_hooks.int8_hook):
        found, mean = gradient_with(hook, dtype=torch.float64)
        exact = sum(values_of(rank, 0).double() for rank in range(dist.get_world_size()))
        assert torch.allclose(found, exact / dist.get_world_size(), rtol=1e-12, atol=1e-12)
        assert torch.allclose(found, mean, atol=1e-6)


def test_a_group_of_another_backend_is_named():
    gloo = [dist.new_group([rank], backend="gloo") for rank in range(dist.get_world_size())]
    mine = gloo[dist.get_rank()]

    class Bucket:
        @staticmethod
        def buffer():
            return torch.zeros(3)
    with pytest.raises(ValueError, match='"horon", not "gloo"'):
        comm_hooks.int8_hook(mine, Bucket)
    dist.destroy_process_group(mine)
