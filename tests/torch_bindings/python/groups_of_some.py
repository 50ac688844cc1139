"""What the tests of groups of some ranks have in common.

Their members may have made unlike numbers of groups, after which torch names a group.
"""

import datetime

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def total(ranks):
    return float(sum(r + 1 for r in ranks))


def check(group, ranks):
    """Its collectives, on a member."""
    me = dist.get_rank()
    assert dist.get_process_group_ranks(group) == ranks
    assert dist.get_rank(group) == ranks.index(me) and dist.get_world_size(group) == len(ranks)
    x = torch.full((3,), me + 1.0)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [total(ranks)] * 3
    every = [torch.empty(1) for _ in ranks]
    dist.all_gather(every, torch.full((1,), float(me)), group=group)
    assert [int(each) for each in every] == ranks
    for root in ranks:
        y = torch.full((2,), float(me))
        dist.broadcast(y, root, group=group)
        assert y[0] == root
        z = torch.ones(2)
        dist.reduce(z, root, group=group)
        assert z[0] == (len(ranks) if root == me else 1)
        part = torch.empty(1)
        parts = [torch.full((1,), float(r)) for r in ranks] if root == me else None
        dist.scatter(part, parts, src=root, group=group)
        assert part[0] == me
        dist.gather(part, every if root == me else None, dst=root, group=group)
    exchanged = torch.empty(len(ranks))
    dist.all_to_all_single(exchanged, torch.full((len(ranks),), float(me)), group=group)
    assert exchanged.tolist() == ranks
    share = torch.empty(1)
    dist.reduce_scatter_tensor(share, torch.ones(len(ranks)), group=group)
    assert share[0] == len(ranks)
    objects = [None] * len(ranks)
    dist.all_gather_object(objects, {"rank": me}, group=group)
    assert objects == [{"rank": r} for r in ranks]
    dist.barrier(group=group)


def make(ranks, timeout_s):
    """A group that its members alone make, each waiting so long for the others."""
    return dist.new_group(ranks, timeout=datetime.timedelta(seconds=timeout_s),
                          use_local_synchronization=True)


def make_and_check(ranks):
    """Of such a group, by its members, until it is destroyed."""
    group = make(ranks, 60)
    check(group, ranks)
    dist.destroy_process_group(group)


def layers(width):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(),
                               torch.nn.Linear(width, 3))


def assert_trains_as_one_process(model, whole, part, of_parts):
    """This process has one part of each batch. `whole`: the same model, of this process alone."""
    for step in range(3):
        rows = torch.randn(2 * of_parts, 6, generator=torch.Generator().manual_seed(step))
        for net, mine in ((model, rows[2 * part:2 * part + 2]), (whole, rows)):
            net(mine).square().mean().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    for mine, expected in zip(model.parameters(), whole.parameters()):
        mine = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(mine, expected)
