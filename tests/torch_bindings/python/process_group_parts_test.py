"""What of torch.distributed is built on groups, over "horon"."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def rows_of(step, rank, size):
    rows = torch.randn(2 * size, 6, generator=torch.Generator().manual_seed(step))
    return rows[2 * rank:2 * rank + 2], rows


def test_groups(rank, size):
    """A second group of all ranks has an order of its own."""
    second = dist.new_group()
    x = torch.ones(3)
    late = dist.all_reduce(x, group=second, async_op=True) if rank == 0 else None
    y = torch.ones(3)
    dist.all_reduce(y)
    if rank != 0:
        dist.all_reduce(x, group=second)
    else:
        late.wait()
    assert x[0] == y[0] == size


def test_zero_redundancy_optimizer(rank, size):
    whole = layers()
    mine = DistributedDataParallel(copy.deepcopy(whole))
    of_whole = torch.optim.Adam(whole.parameters(), lr=0.01)
    of_mine = ZeroRedundancyOptimizer(mine.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
        for model, optimizer, rows in zip((mine, whole), (of_mine, of_whole),
                                          rows_of(step, rank, size)):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
    for a, b in zip(whole.parameters(), mine.parameters()):
        torch.testing.assert_close(b, a)
    of_mine.consolidate_state_dict(0)
    assert rank != 0 or len(of_mine.state_dict()["state"]) == 4


def test_fully_sharded(rank, size, tmp_path):
    mesh = init_device_mesh("cpu", (size,))
    whole, mine = layers(), layers()
    for layer in (mine[0], mine[2], mine):
        fully_shard(layer, mesh=mesh)
    of_whole, of_mine = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (whole, mine))
    for step in range(3):
        for model, optimizer, rows in zip((mine, whole), (of_mine, of_whole),
                                          rows_of(step, rank, size)):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
    for a, b in zip(whole.parameters(), mine.parameters()):
        torch.testing.assert_close(b.full_tensor(), a)

    folder = [str(tmp_path)]
    dist.broadcast_object_list(folder)
    saved = {name: value.clone() for name, value in mine.state_dict().items()}
    checkpoint.save({"model": mine.state_dict()}, checkpoint_id=folder[0])
    with torch.no_grad():
        for parameter in mine.parameters():
            parameter.zero_()
    state = {"model": mine.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0])
    for name, value in state["model"].items():
        assert torch.equal(value.to_local(), saved[name].to_local())


def test_distributed_tensors(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0 * size).reshape(2 * size, 6)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(rows.redistribute(placements=[Shard(1)]).full_tensor(), whole)
    assert torch.equal(rows.redistribute(placements=[Replicate()]).to_local(), whole)
    total = rows.sum()
    assert total.full_tensor() == whole.sum()
    product = rows @ distribute_tensor(torch.ones(6, 2), mesh, [Replicate()])
    assert torch.equal(product.full_tensor(), whole @ torch.ones(6, 2))


def test_derivatives(rank, size):
    import torch.distributed.nn as collectives
    x = torch.full((2,), float(rank + 1), requires_grad=True)
    (collectives.all_reduce(x) ** 2).sum().backward()
    total = sum(range(1, size + 1))
    assert x.grad.tolist() == [2 * total * size] * 2
