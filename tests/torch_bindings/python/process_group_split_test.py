"""split_group() over "horon", and meshes of a job that has said device_id to init_process_group().

No GPU is needed: torch 2.11 looks for one in the default group alone, and in torch.cuda.
"""

import copy
import datetime
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)

import groups_of_some
import horon.torch as hvd
from groups_of_some import assert_trains_as_one_process, layers, total
from horon import native, process_group

GPU = torch.device("cuda:0")
if not hasattr(dist.ProcessGroup, "split_group"):
    pytest.skip("this torch splits groups of NCCL alone", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def group():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(dist.Backend.backend_capability, "horon", ["cpu", "cuda"])
        with pytest.MonkeyPatch.context() as a_while:
            a_while.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: GPU)
            a_while.setattr(torch.accelerator, "device_count", lambda: 1)
            dist.init_process_group("horon", device_id=GPU)
        assert dist.group.WORLD.bound_device_id == GPU
        yield
        dist.destroy_process_group()


def backend(group):
    return group._get_backend(torch.device("cpu"))


def is_member(group):
    return group not in (None, dist.GroupMember.NON_GROUP_MEMBER)


def split(*parts, parent=None, **options):
    """Returns None on ranks of no part: versions of torch differ in what they return there."""
    part = dist.split_group(parent, [list(ranks) for ranks in parts], **options)
    return part if is_member(part) else None


def check(group, ranks):
    assert group.bound_device_id == GPU
    group.bound_device_id = None  # else torch looks for the tensor of a barrier on that GPU
    groups_of_some.check(group, ranks)


def test_beside_groups_of_new_group(rank, size):
    """With the device told to init_process_group(), torch has ranks outside of them do something
    too. Groups of Gloo need ranks that have made as many groups, so this is the first test."""
    ranks = list(range(size - 1))
    groups = [dist.new_group(ranks), split(ranks), dist.new_group(ranks)]
    gloo = dist.new_group(ranks, backend="gloo")
    if rank in ranks:
        for each in groups:
            check(each, ranks)
            dist.destroy_process_group(each)
        dist.destroy_process_group(gloo)


def test_options_can_be_copied():
    options = backend(dist.group.WORLD).options
    copied = copy.deepcopy(options)
    assert copied is not options and type(copied) is type(options)
    assert copied.backend == "horon" and copied._timeout == options._timeout
    assert copied.global_ranks_in_group == list(range(dist.get_world_size()))
    copied.group_name = "another"
    assert backend(dist.group.WORLD).options.group_name == dist.group.WORLD.group_name


def test_halves(rank, size):
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    mine = halves[rank >= size // 2]
    parts = [split(*halves) for _ in range(3)]
    for part in parts:
        check(part, mine)
        assert backend(part).options.global_ranks_in_group == mine
        assert part._get_backend(GPU) is not None
    dist.destroy_process_group(parts[1])
    groups_of_some.check(parts[2], mine)
    for part in (parts[0], parts[2]):
        dist.destroy_process_group(part)
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x[0] == size


def test_ranks_of_no_part_wait_for_nobody(rank, size):
    ranks = list(range(size - 1))
    if rank == size - 1:
        assert split(ranks) is None
        hvd.barrier()
        return
    hvd.barrier()  # behind the call of the last rank
    part = split(ranks)
    check(part, ranks)
    dist.destroy_process_group(part)


def test_one_process_set_for_several_kinds_of_devices(rank, size, monkeypatch):
    """Torch 2.11 asks for one after the other."""
    made, make = [], process_group.make_part

    def counted(ranks, timeout_s):
        made.append(ranks)
        return make(ranks, timeout_s)
    monkeypatch.setattr(process_group, "make_part", counted)
    sets = len(native.process_sets())
    part = split(*[[each] for each in range(size)])
    assert made == [[rank]]
    check(part, [rank])
    dist.destroy_process_group(part)
    assert len(native.process_sets()) == sets


def test_a_part_of_all_ranks(size):
    part = split(list(range(size)))
    assert part is not dist.group.WORLD
    check(part, list(range(size)))
    dist.destroy_process_group(part)


def test_a_part_of_a_part(rank, size):
    if size < 3:
        pytest.skip("parts of parts need three ranks")
    outer = split(list(range(1, size)))  # rank 0 has made fewer groups from now on
    if rank > 0:
        inner = split([0], list(range(1, size - 1)), parent=outer)
        ranks = [1] if rank == 1 else list(range(2, size))
        check(inner, ranks)
        dist.destroy_process_group(inner)
        dist.destroy_process_group(outer)
    everyone = split(list(range(size)))
    check(everyone, list(range(size)))
    dist.destroy_process_group(everyone)


def test_names_and_timeouts(rank, size):
    part = split(list(range(size)), timeout=datetime.timedelta(seconds=7), group_desc="of mine")
    assert part.group_desc == "of mine" and backend(part).options.group_name == part.group_name
    assert backend(part).options._timeout == datetime.timedelta(seconds=7)
    one = split(*[[each] for each in range(size)], timeout=datetime.timedelta.max)
    assert backend(one).options._timeout >= datetime.timedelta(days=365)
    check(one, [rank])
    for each in (part, one):
        dist.destroy_process_group(each)


def test_a_member_that_does_not_come(rank, size):
    if size < 3:
        pytest.skip("parts of some ranks need three")
    ranks, timeout = list(range(size - 1)), datetime.timedelta(seconds=1)
    if rank == 0:
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match=r"rank.* 1.* not come within 1 s.* split_group\(\)"):
            dist.group.WORLD.split_group(ranks, timeout=timeout)
        assert time.monotonic() - begin < 30
    hvd.barrier()
    if 0 < rank < size - 1:  # too late, which is told
        with pytest.raises(RuntimeError, match="not come within 1 s"):
            dist.group.WORLD.split_group(ranks, timeout=timeout)
    hvd.barrier()
    part = split(ranks)
    if rank in ranks:
        check(part, ranks)
        dist.destroy_process_group(part)


class Alarm(Exception):
    pass


def test_a_member_that_is_interrupted(rank, size):
    """Its own exception comes back through torch's C++."""
    if size < 3:
        pytest.skip("parts of some ranks need three")
    ranks = list(range(size - 1))

    def ring(*_):
        raise Alarm
    if rank == 0:
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Alarm):
            split(ranks)
        signal.signal(signal.SIGALRM, before)
    hvd.barrier()
    if 0 < rank < size - 1:
        with pytest.raises(RuntimeError, match="rank 0 gave up.*Alarm"):
            split(ranks)
    hvd.barrier()
    part = split(ranks)
    if rank in ranks:
        check(part, ranks)
        dist.destroy_process_group(part)


def test_wrong_ranks(rank, size):
    """By the way that torch 2.15 takes: 2.11 sorts them first."""
    if size < 2 or not hasattr(type(backend(dist.group.WORLD)), "split"):
        pytest.skip("this torch sorts")
    with pytest.raises(RuntimeError, match=r"split_group\(\) of ranks \[1, 0.*ascending order"):
        dist.group.WORLD.split_group([1, 0, *range(2, size)])
    with pytest.raises(RuntimeError, match=f"rank {size} is not in this group"):
        dist.group.WORLD.split_group([rank, size])


@pytest.fixture
def splits(monkeypatch):
    """How often a mesh has called split_group(); it does so where it sees a GPU."""
    calls = []

    def counted(*given, **named):
        calls.append(named["split_ranks"])
        return dist.split_group(*given, **named)
    monkeypatch.setattr(device_mesh, "split_group", counted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if hasattr(torch, "accelerator"):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    return calls


def mesh_of(splits, monkeypatch, *shape, names):
    """`names` that no other test has: torch takes meshes that are alike for one, even if the groups
    of the first are gone."""
    mesh = device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
    monkeypatch.undo()
    assert splits
    return mesh


def test_fsdp_and_tensor_parallel_over_a_mesh(rank, size, splits, monkeypatch):
    inner = 2 if size % 2 == 0 else 1
    mesh = mesh_of(splits, monkeypatch, size // inner, inner, names=("rows", "layers"))
    for name, ranks in (("rows", range(rank % inner, size, inner)),
                        ("layers", range(rank // inner * inner, (rank // inner + 1) * inner))):
        x = torch.tensor([rank + 1.0])
        dist.all_reduce(x, group=mesh.get_group(name))
        assert x[0] == total(ranks)
    model = layers(12)
    parallelize_module(model, mesh["layers"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["rows"])
    assert_trains_as_one_process(model, layers(12), rank // inner, size // inner)


def test_replicas_of_shards_over_a_mesh(rank, size, splits, monkeypatch):
    replicas = 2 if size % 2 == 0 else 1
    mesh = mesh_of(splits, monkeypatch, replicas, size // replicas, names=("copies", "pieces"))
    model = layers(12)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    assert_trains_as_one_process(model, layers(12), rank, size)
