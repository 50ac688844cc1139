"""DDP over "horon": N ranks on shards train as one process on the whole batch does."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (default_hooks, post_localSGD_hook,
                                                          powerSGD_hook)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

ROWS = 4  # of each rank
STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon", init_method="horon://")
    yield
    dist.destroy_process_group()


class Branches(torch.nn.Module):
    """Uses `first` in steps of even number only."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 5)
        self.second = torch.nn.Linear(6, 5)
        self.last = torch.nn.Linear(5, 2)

    def forward(self, x, step=0):
        return self.last(torch.tanh(self.first(x) if step % 2 == 0 else self.second(x)))


def batch(step, rank, size):
    """(the rows of this rank, all rows)"""
    rows = torch.randn(ROWS * size, 6, generator=torch.Generator().manual_seed(step))
    return rows[rank * ROWS:(rank + 1) * ROWS], rows


def pair(**options):
    torch.manual_seed(0)
    whole = Branches()
    mine = copy.deepcopy(whole)
    if dist.get_rank() != 0:
        torch.nn.init.zeros_(mine.last.weight)  # DDP begins with rank 0's
    return whole, DistributedDataParallel(mine, bucket_cap_mb=0.0001, **options)


def train(whole, mine, parts=1, step_of=lambda step: 0):
    """Trains both, step by step; `parts`: backward passes, all but the last within no_sync()."""
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)
                  for each in (whole, mine)]
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        for each in optimizers:
            each.zero_grad()
        for part in range(parts):
            rows, all_rows = batch(step * parts + part, rank, size)
            with mine.no_sync() if part < parts - 1 else contextlib.nullcontext():
                mine(rows, step_of(step)).square().mean().backward()
            whole(all_rows, step_of(step)).square().mean().backward()
        for each in optimizers:
            each.step()


def expect_alike(whole, mine, **tolerance):
    for (name, a), b in zip(whole.named_parameters(), mine.parameters()):
        torch.testing.assert_close(b, a, msg=lambda text: f"{name}: {text}", **tolerance)
        other = b.detach().clone()
        dist.broadcast(other, 0)
        assert torch.equal(other, b)


@pytest.mark.parametrize("options", [
    {}, {"gradient_as_bucket_view": True}, {"broadcast_buffers": False}])
def test_equal_to_one_process(options):
    whole, mine = pair(find_unused_parameters=True, **options)
    train(whole, mine)
    expect_alike(whole, mine)


def test_static_graph():
    torch.manual_seed(0)
    whole = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    mine = DistributedDataParallel(copy.deepcopy(whole), static_graph=True)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        for model, rows in zip((mine, whole), batch(step, rank, size)):
            model.zero_grad()
            model(rows).square().mean().backward()
        for a, b in zip(whole.parameters(), mine.parameters()):
            torch.testing.assert_close(b.grad, a.grad)


def test_unused_parameters_that_change():
    whole, mine = pair(find_unused_parameters=True)
    train(whole, mine, step_of=lambda step: step)
    expect_alike(whole, mine)


def test_no_sync():
    whole, mine = pair(find_unused_parameters=True)
    train(whole, mine, parts=3)
    expect_alike(whole, mine)


def test_hook_of_16_bits():
    whole, mine = pair(find_unused_parameters=True)
    mine.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(whole, mine)
    expect_alike(whole, mine, rtol=1e-2, atol=1e-3)


def test_hook_power_sgd():
    """Its callbacks do collectives of their own, in an order that only one bucket makes the same on
    all ranks."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    mine = DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    mine.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.05)
    losses = []
    for _ in range(6):
        rows, _ = batch(0, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = mine(rows).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for parameter in mine.parameters():
        other = parameter.detach().clone()
        dist.broadcast(other, 0)
        assert torch.equal(other, parameter)


def test_post_local_sgd(rank, size):
    """Gradients are averaged in the first steps, and later the parameters in each fourth."""
    warmup, period = 3, 4
    model = torch.nn.Linear(6, 2)
    mine = DistributedDataParallel(model)
    alone, _ = dist.new_subgroups(1)
    mine.register_comm_hook(post_localSGD_hook.PostLocalSGDState(None, alone, warmup),
                            post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                      PeriodicModelAverager(period, warmup))
    copy_alone = None  # of what this rank does since the last average
    for step in range(12):
        rows, _ = batch(step, rank, size)
        for each in filter(None, (model, copy_alone)):
            each.zero_grad()
        mine(rows).square().sum().backward()
        optimizer.step()
        if copy_alone is None:
            if step == warmup - 1:
                copy_alone = copy.deepcopy(model)
            continue
        copy_alone(rows).square().sum().backward()
        with torch.no_grad():
            for parameter in copy_alone.parameters():
                parameter -= 0.1 * parameter.grad
                if (step - warmup) % period == 0:
                    dist.all_reduce(parameter)
                    parameter /= size
        for got, want in zip(model.parameters(), copy_alone.parameters()):
            torch.testing.assert_close(got, want)


def test_join(rank, size):
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(2 + rank):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    weights = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(each, weights[0]) for each in weights)


def test_buffers_and_sparse_gradients(rank, size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.BatchNorm1d(4))
    mine = DistributedDataParallel(model)
    mine(torch.tensor([rank, 9])).square().sum().backward()
    gradient = mine.module[0].weight.grad
    assert gradient.is_sparse
    dense = gradient.to_dense()
    assert dense[9].abs().sum() > 0 and dense[5].abs().sum() == 0
    mean = mine.module[1].running_mean.clone()
    mine(torch.tensor([1, 2]))
    dist.broadcast(mean, 0)
    for other in range(size):
        row = dense.clone()
        dist.broadcast(row, other)
        assert torch.equal(row, dense)
