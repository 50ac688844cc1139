"""What the tests of groups of some ranks have in common.

Their members may have made unlike numbers of groups, after which torch names a group.
"""

import datetime

import torch
import torch.distributed as dist


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
