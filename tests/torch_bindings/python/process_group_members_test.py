"""Groups of some of the ranks over "horon". Those of two or more need three ranks."""

import datetime
import gc
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import horon.torch as hvd
from groups_of_some import assert_trains_as_one_process, check, layers, total
from horon import native


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def lists_of_ranks(size):
    every = list(range(size))
    return [every[:1], every[-1:], every[::2], every[1::2], every[:-1], every[1:], every[:-1],
            every]


def test_overlapping_groups_and_the_same_ranks_twice(rank, size):
    some = [ranks for ranks in lists_of_ranks(size) if ranks]
    groups = [dist.new_group(ranks) for ranks in some]
    for _ in range(2):
        for group, ranks in zip(groups, some):
            if rank in ranks:
                check(group, ranks)
    for group, ranks in list(zip(groups, some))[::2]:
        if rank in ranks:
            dist.destroy_process_group(group)
    for group, ranks in list(zip(groups, some))[1::2]:
        if rank in ranks:
            check(group, ranks)
            dist.destroy_process_group(group)


def test_each_group_has_an_order_of_its_own(rank, size):
    ranks = list(range(size - 1))
    first, second = dist.new_group(ranks), dist.new_group(ranks)
    if rank in ranks:
        x, y = torch.ones(2), torch.ones(3)
        order = [(first, x), (second, y)][::1 if rank == 0 else -1]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for group, tensor in order]
        for work in works:
            work.wait()
        assert x[0] == y[0] == len(ranks)
        dist.destroy_process_group(first)
        dist.destroy_process_group(second)
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x[0] == size


def test_a_message_to_a_group_of_the_same_name(rank, size):
    """The message to the earlier group is still under way."""
    if size < 3:
        pytest.skip("a group of one rank has no messages")
    if rank > 1:
        return
    received = [torch.zeros(2), torch.zeros(2)]
    for x in received:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        if rank == 0:
            work = dist.irecv(x, 1, group=group, tag=3)
            if x is received[0]:
                with pytest.raises(RuntimeError, match="has not come within"):
                    work.wait(datetime.timedelta(milliseconds=50))
            else:
                work.wait()
        elif x is received[1]:
            dist.send(torch.ones(2), 0, group=group, tag=3)
        dist.destroy_process_group(group)
    assert rank == 1 or [x.tolist() for x in received] == [[0, 0], [1, 1]]


def shared_memories():
    """The memories of earlier groups may be given back a little later, so they are told apart."""
    with open("/proc/self/maps") as maps:
        return {tuple(line.split()[i] for i in (0, 4)) for line in maps
                if "memfd:" in line or "/dev/shm" in line}


def test_destroyed_groups_are_given_back(rank, size):
    ranks = list(range(size - 1)) if size > 2 else [rank]
    sets, before = len(native.process_sets()), shared_memories()
    seen = set()
    for _ in range(4):
        group = dist.new_group(ranks, use_local_synchronization=True) if rank in ranks else None
        if rank in ranks:
            check(group, ranks)
            seen |= shared_memories() - before
            dist.destroy_process_group(group)
        assert len(native.process_sets()) == sets
    deadline = time.monotonic() + 60
    while shared_memories() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not shared_memories() - before
    assert rank not in ranks or seen


def test_destroyed_groups_of_the_debug_mode_are_given_back(rank, size):
    """Torch wraps their backends in its own, which tells them nothing of the end. Beside each it
    makes a group of Gloo, whose members meet by torch's number of the group: so all count anew."""
    dist.destroy_process_group()
    dist.init_process_group("horon")
    ranks = list(range(size - 1)) if size > 2 else [rank]
    sets, level = len(native.process_sets()), dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group(ranks, use_local_synchronization=True) if rank in ranks else None
    dist.set_debug_level(level)
    if rank in ranks:
        assert len(native.process_sets()) == sets + 1
        check(group, ranks)
        dist.destroy_process_group(group)
    del group
    gc.collect()
    assert len(native.process_sets()) == sets


def test_a_group_is_destroyed_while_others_use_it(rank, size):
    if size < 3:
        pytest.skip("groups of one rank")
    ranks = [0, 1]
    group = dist.new_group(ranks)
    if rank == 0:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        dist.destroy_process_group(group)  # nobody is waited for
    hvd.barrier()
    if rank == 1:
        x = torch.ones(2)
        dist.all_reduce(x, group=group)  # rank 0's part came before it left
        assert x[0] == 2
        with pytest.raises(hvd.HorovodInternalError, match="rank 0"):
            dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
    if rank == 0:
        assert work.wait()


def test_a_mesh_of_two_dimensions(rank, size):
    inner = 2 if size % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (size // inner, inner), mesh_dim_names=("data", "model"))
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x, group=mesh.get_group("model"))
    assert x[0] == total(r for r in range(size) if r // inner == rank // inner)
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x, group=mesh.get_group("data"))
    assert x[0] == total(range(rank % inner, size, inner))
    whole = torch.arange(8.0 * size).reshape(2 * size, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert torch.equal(rows.full_tensor(), whole)
    assert torch.equal(rows.redistribute(placements=[Replicate(), Shard(0)]).full_tensor(), whole)
    product = rows @ distribute_tensor(torch.ones(4, 2), mesh, [Replicate(), Shard(0)])
    assert torch.equal(product.full_tensor(), whole @ torch.ones(4, 2))


def test_replicas_of_shards(rank, size):
    if size % 2:
        pytest.skip("an even number of ranks")
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replica", "shard"))
    model = layers(8)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    assert_trains_as_one_process(model, layers(8), rank, size)


def test_ddp_in_a_part_of_the_ranks(rank, size):
    ranks = list(range(size - 1))
    group = dist.new_group(ranks)
    if rank in ranks:
        model = DistributedDataParallel(layers(8), process_group=group)
        assert_trains_as_one_process(model, layers(8), rank, len(ranks))
        dist.destroy_process_group(group)


def test_subgroups(rank, size):
    ones, _ = dist.new_subgroups(1)
    check(ones, [rank])
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    mine, _ = dist.new_subgroups_by_enumeration(halves)
    check(mine, halves[0] if rank in halves[0] else halves[1])


def test_subgroups_of_groups_without_a_common_rank(rank, size):
    """Torch gives them the same names."""
    if size % 2 != 0:
        pytest.skip("needs halves")
    halves = [list(range(0, size, 2)), list(range(1, size, 2))]
    half, _ = dist.new_subgroups_by_enumeration(halves)
    for _ in range(3):
        mine, _ = dist.new_subgroups(1, group=half)
        check(mine, [rank])


def test_beside_gloo(rank, size):
    """Gloo's store is that of all groups."""
    gloo = dist.new_group(list(range(size - 1)), backend="gloo")
    horon = dist.new_group(list(range(size - 1)), backend="cpu:horon")
    if rank < size - 1:
        for group in (gloo, horon):
            x = torch.ones(2)
            dist.all_reduce(x, group=group)
            assert x[0] == size - 1
            dist.destroy_process_group(group)
