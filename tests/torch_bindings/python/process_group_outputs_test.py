"""Which result goes to which tensor that the caller of torch.distributed gives, and what is refused
since it does not fit. A call that is wrong on one rank is an error on all, and takes one place in
the order of calls everywhere."""

import datetime
import gc
import os
import time
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
    all_goes_on()


def refused_on_rank_0(call, match):
    """For a call that is wrong on rank 0 alone."""
    with pytest.raises(ValueError if dist.get_rank() == 0 else RuntimeError, match=match):
        call()
    all_goes_on()


def all_goes_on():
    x = torch.full((2,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    size = dist.get_world_size()
    assert x.tolist() == [size * (size + 1) / 2] * 2


def all_gather_coalesced(lists, tensors, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return dist.all_gather_coalesced(lists, tensors, **options)


def of(rank, tensors):
    return [torch.full((2,), 10.0 * rank + i) for i in range(tensors)]


@pytest.mark.parametrize("tensors", [1, 2, 3])
def test_all_gather_coalesced_has_a_list_for_each_rank(rank, size, tensors):
    every = [[torch.empty(2) for _ in range(tensors)] for _ in range(size)]
    all_gather_coalesced(every, of(rank, tensors))
    for r, each in enumerate(every):
        assert [x.tolist() for x in each] == [x.tolist() for x in of(r, tensors)]


def test_all_gather_coalesced_of_unlike_shapes(rank, size):
    def shapes(r):
        return [torch.full((2, 2), float(r)), torch.full((r + 1,), 5.0 + r), torch.tensor(9.0 + r)]
    every = [[torch.empty_like(x) for x in shapes(r)] for r in range(size)]
    future = all_gather_coalesced(every, shapes(rank), async_op=True)
    future.wait()
    for r, each in enumerate(every):
        assert all(torch.equal(x, y) for x, y in zip(each, shapes(r)))
    complex_ones = [[torch.empty(2, dtype=torch.complex64)] for _ in range(size)]
    all_gather_coalesced(complex_ones, [torch.full((2,), 1j * rank)])
    assert [x[0][0].imag for x in complex_ones] == list(range(size))


def test_lists_of_all_gather_coalesced_that_do_not_fit(rank, size):
    right = [[torch.empty(2), torch.empty(2)] for _ in range(size)]
    refused_on_rank_0(lambda: all_gather_coalesced(
        right[1:] if rank == 0 else right, of(rank, 2)), "lists")
    refused_on_rank_0(lambda: all_gather_coalesced(
        [each[1:] for each in right] if rank == 0 else right, of(rank, 2)), "list")


def test_results_are_not_converted(rank, size):
    whole, part = torch.ones(2 * size), torch.ones(2)
    integers = torch.zeros(2 * size, dtype=torch.int64)
    refused(lambda: dist.all_gather_into_tensor(integers, part + 0.5), "Long")
    refused(lambda: dist.reduce_scatter_tensor(integers[:2], whole), "Long")
    refused(lambda: dist.reduce_scatter_tensor(torch.ones(2), whole + 1j), "ComplexFloat")
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(whole, part)
        dist.all_gather_into_tensor(integers, part.long())
    assert integers.tolist() == [1] * (2 * size)
    group = dist.group.WORLD
    refused(lambda: group.allgather_into_tensor_coalesced([whole, integers], [part, part]), "Long")
    refused(lambda: group.alltoall(list(integers.chunk(size)), list(whole.chunk(size))), "Long")
    mixed = [part] * (size - 1) + [part.double()]
    refused(lambda: group.reduce_scatter([part], [mixed]), "Double")
    refused_on_rank_0(lambda: dist.all_gather_into_tensor(
        integers if rank == 0 else whole, part), "Long")
    assert integers.tolist() == [1] * (2 * size)


def test_every_rank_has_an_equal_part_of_a_whole_tensor(rank, size):
    uneven = torch.ones(1 + rank)  # all together as many as the output has
    whole = torch.zeros(sum(range(1, size + 1)))
    with pytest.raises(RuntimeError, match="elements"):
        dist.all_gather_into_tensor(whole, uneven)
    assert not whole.any()
    all_goes_on()
    # Each rank's own output fits its own input; that of rank 0 does not fit the other's.
    mine = torch.ones(2 if rank == 0 else 3)
    with pytest.raises(RuntimeError, match=r"the output has \d+ elements, but the result has"):
        dist.all_gather_into_tensor(torch.zeros(mine.numel() * size), mine)
    all_goes_on()
    share = torch.zeros(2 if rank == 0 else 1)
    with pytest.raises(RuntimeError, match="elements"):
        dist.reduce_scatter_tensor(share, torch.ones(size + 1))
    all_goes_on()
    refused_on_rank_0(lambda: dist.all_gather_into_tensor(
        torch.zeros(2 * size + (rank == 0)), torch.ones(2)), "elements")


def test_all_to_all_single_divides_rows(rank, size):
    odd = torch.arange(2.0 * (size + 1) * size).view(size + 1, 2 * size)
    refused(lambda: dist.all_to_all_single(torch.zeros_like(odd), odd), "input_split_sizes")
    even = torch.ones(size, 3)
    refused(lambda: dist.all_to_all_single(torch.zeros(1, 3 * size), even), "output_split_sizes")
    refused(lambda: dist.all_to_all_single(
        torch.zeros(size, 3), even, [1] * size + [0], None), "output_split_sizes")
    refused(lambda: dist.all_to_all_single(
        torch.zeros(size, 3), even, None, [size + 1] + [0] * (size - 1)), "input_split_sizes")


def test_all_to_all_single_writes_nothing_that_was_not_expected(rank, size):
    # Two rows from rank 0, none from rank 1: as many as the output has.
    splits = [2 if rank == 0 else 0 if rank == 1 else 1] * size
    send = torch.ones(sum(splits), 2)
    output = torch.zeros(size, 2)
    with pytest.raises(hvd.HorovodInternalError, match="rank 0 of the group sent 4 elements"):
        dist.all_to_all_single(output, send, None, splits)
    with pytest.raises(hvd.HorovodInternalError, match="rank 0 of the group sent 4 elements"):
        dist.all_to_all_single(output, send, [1] * size, splits)
    assert not output.any()
    received = [2, 0] + [1] * (size - 2)
    dist.all_to_all_single(output, send, received, splits)
    assert output.all()


def test_several_dtypes_take_as_many_calls_where_one_is_refused(rank, size):
    def sums():
        return [torch.ones(2), torch.ones(2, dtype=torch.int64)]
    overlapping = torch.ones(1).expand(2)  # can't be written
    wrong = [overlapping, torch.ones(2, dtype=torch.int64)]
    group = dist.group.WORLD
    for _ in range(2):
        refused_on_rank_0(lambda: group.allreduce_coalesced(
            wrong if rank == 0 else sums()).wait(), "several elements at one address")
    right = sums()
    group.allreduce_coalesced(right).wait()
    assert all(x.tolist() == [size, size] for x in right)


def test_results_that_were_read_are_given_back(rank, size):
    """Each Work is kept, as a program may. Columns are not written at once."""
    works = []
    for i in range(100):
        every = [torch.empty(40_000, 2)[:, 0] for _ in range(size)]
        works.append(dist.all_gather(every, torch.full((40_000,), float(i)), async_op=True))
        works[-1].wait()
        assert every[-1][7] == i
        if i == 9:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) - before < 9


def test_many_long_results_leave_descriptors_to_the_program(rank, size):
    """Results lie in shared memory on their way, and a segment keeps its descriptor for good."""
    before = len(os.listdir("/proc/self/fd"))
    parts = 150
    mine = [torch.full((40_000,), float(rank + i)) for i in range(parts)]
    whole = [torch.empty(40_000 * size) for _ in range(parts)]
    dist.group.WORLD.allgather_into_tensor_coalesced(whole, mine).wait()
    for i, each in enumerate(whole):
        assert each.view(size, -1)[:, 7].tolist() == [float(r + i) for r in range(size)]
    assert len(os.listdir("/proc/self/fd")) - before < parts


def test_coalesced_lists_that_do_not_fit(rank, size):
    group = dist.group.WORLD
    whole, part = torch.empty(size), torch.ones(1)
    refused_on_rank_0(lambda: group.allgather_into_tensor_coalesced(
        [whole] if rank == 0 else [whole, whole], [part, part]).wait(), "list")
    refused_on_rank_0(lambda: group.reduce_scatter_tensor_coalesced(
        [part] if rank == 0 else [part, part], [whole, whole]).wait(), "list")


def test_what_libtorch_can_not_do_is_told_to_all(rank, size):
    def ones(count):
        return torch.ones(1).expand(count)
    many = 2 ** 50  # elements, for which no rank has memory
    with pytest.raises(RuntimeError, match="memory"):
        if rank == 0:
            dist.all_gather_into_tensor(ones(many * size), ones(many))
        else:
            dist.all_gather_into_tensor(torch.ones(2 * size), torch.ones(2))
    all_goes_on()


def test_roots_of_reduce_are_compared(rank, size):
    x = torch.ones(2)
    with pytest.raises(hvd.HorovodInternalError, match="disagree.*rank 0.*rank 1"):
        dist.reduce(x, 0 if rank == 0 else 1)
    with pytest.raises(hvd.HorovodInternalError, match="disagree"):
        dist.reduce(x, 0) if rank == 0 else dist.all_reduce(x)
    x = torch.ones(2)
    dist.reduce(x, 1)
    assert x[0] == (size if rank == 1 else 1)


def test_a_root_of_reduce_that_is_no_rank_is_refused(rank, size):
    """Nobody would have the result. Torch looks at the ranks of groups of some alone."""
    for root in (size, -1):
        with pytest.raises(ValueError, match="not in the process set"):
            dist.reduce(torch.ones(2), root)
    all_goes_on()


def test_outputs_that_share_memory_with_inputs(rank, size):
    whole = torch.arange(4.0 * size) + rank
    mine = whole[4 * rank:4 * rank + 4]
    dist.reduce_scatter_tensor(mine, whole)
    total = size * torch.arange(4.0 * size) + sum(range(size))
    assert torch.equal(mine, total[4 * rank:4 * rank + 4])
    assert torch.equal(whole[:4 * rank], torch.arange(4.0 * rank) + rank)  # the rest is as it was
    gathered = torch.full((2 * size,), -1.0)
    own = gathered[2 * rank:2 * rank + 2].fill_(rank)
    dist.all_gather_into_tensor(gathered, own)
    assert gathered.tolist() == [each // 2 for each in range(2 * size)]


def test_outputs_that_are_not_row_major(rank, size):
    columns = torch.zeros(3, 2 * size).t()
    dist.all_gather_into_tensor(columns, torch.full((2, 3), float(rank)))
    assert columns.tolist() == [[each // 2] * 3 for each in range(2 * size)]
    part = torch.zeros(3, 2).t()
    dist.reduce_scatter_tensor(part, torch.ones(2 * size, 3))
    assert torch.equal(part, torch.full((2, 3), float(size)))


def test_a_timeout_leaves_the_memory_of_the_output(rank, size):
    """The collective goes on, and writes when the program has let go of the output."""
    if rank == 0:
        output = torch.zeros(1000 * size)
        work = dist.all_gather_into_tensor(output, torch.ones(1000), async_op=True)
        with pytest.raises(RuntimeError, match="has not come within"):
            work.wait(datetime.timedelta(milliseconds=50))
        del output, work
        gc.collect()
        others = [torch.full((1000 * size,), 7.0) for _ in range(20)]  # in its memory, were it free
    hvd.barrier()
    if rank != 0:
        output = torch.zeros(1000 * size)
        dist.all_gather_into_tensor(output, torch.ones(1000))
        assert output.sum() == 1000 * size
    dist.barrier()
    if rank == 0:
        assert all((each == 7).all() for each in others)


def begin(kind, value, rank, size):
    """The work of a call that brings `value`, and the tensors that it is to lie in."""
    if kind == "all_gather":
        out = [torch.zeros(1) for _ in range(size)]
        return dist.all_gather(out, torch.full((1,), value), async_op=True), out
    if kind == "all_to_all":
        out = torch.zeros(size)
        return dist.all_to_all_single(out, torch.full((size,), value), async_op=True), [out]
    if kind == "scatter":
        out = torch.zeros(2)
        parts = [torch.full((2,), value)] * size if rank == 0 else None
        return dist.scatter(out, parts, 0, async_op=True), [out]
    assert kind == "not contiguous"
    out = torch.full((2, 3), value if rank == 0 else 0.0).t()
    return dist.broadcast(out, 0, async_op=True), [out]


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "scatter", "not contiguous"])
def test_who_waits_for_the_last_finds_what_those_before_have_brought(kind, rank, size):
    works, outputs = zip(*[begin(kind, float(i), rank, size) for i in range(1, 5)], strict=True)
    works[-1].wait()
    del works
    dist.barrier()
    for i, tensors in enumerate(outputs, 1):
        assert all((tensor == i).all() for tensor in tensors), f"{i}: {tensors}"


def test_what_nobody_waits_for_is_not_kept(rank, size):
    for i in range(300):
        out = [torch.zeros(1) for _ in range(size)]
        work = dist.all_gather(out, torch.full((1,), float(i)), async_op=True)
        while not work.is_completed():
            time.sleep(0.0001)
        assert out[0] == i


@pytest.mark.parametrize("asks", ["a future", "is_completed"])
def test_outputs_that_a_future_or_a_poll_has_found_are_not_kept(asks, rank, size):
    array = np.zeros(2, np.float32)
    kept = weakref.ref(array)
    out = [torch.from_numpy(array), *(torch.empty(2) for _ in range(size - 1))]
    work = dist.all_gather(out, torch.ones(2), async_op=True)
    if asks == "a future":
        work.get_future().wait()
    while not work.is_completed():
        time.sleep(0.0001)
    assert array.tolist() == [1, 1]
    del array, out, work
    gc.collect()
    for _ in range(5000):  # the thread that has completed the future may still hold them
        if kept() is None:
            break
        time.sleep(0.001)
    assert kept() is None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.uint64])
def test_types_that_are_moved_but_not_reduced(rank, size, dtype):
    def of(source):
        return (torch.arange(4.0) + source).to(dtype)

    def same(got, expected):
        return got.dtype == dtype and torch.equal(got.view(torch.uint8), expected.view(torch.uint8))

    x = of(rank)
    dist.broadcast(x, 1)
    assert same(x, of(1))
    flat = torch.empty(4 * size, dtype=torch.uint8).to(dtype)
    dist.all_gather_into_tensor(flat, of(rank))
    lists = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(lists, of(rank))
    for source in range(size):
        assert same(flat[4 * source:4 * source + 4], of(source)) and same(lists[source], of(source))
    refused(lambda: dist.all_reduce(of(rank)), "can be moved but not reduced")
