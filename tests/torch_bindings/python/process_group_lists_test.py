"""Results that go into a list of tensors, one for what comes from each rank: straight there where
that can be, else by way of a copy. A program can't tell these two ways apart."""

import datetime
import gc

import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def of(rank, count, dtype=torch.float32):
    """What a rank sends: no two alike."""
    return (torch.arange(count) % 50 + 7 * rank).to(dtype)


def expect(tensors, count, dtype=torch.float32):
    for source, tensor in enumerate(tensors):
        assert torch.equal(tensor.reshape(-1), of(source, count, dtype)), f"from rank {source}"


# In the cell of the exchange, longer than that, and long enough for the copies of the kernel.
COUNTS = [0, 1, 1000, 50_000, 1_500_000]
TYPES = [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.uint16]


@pytest.mark.parametrize("count", COUNTS)
def test_all_gather_gather_and_all_to_all(rank, size, count):
    out = [torch.full((count,), -1.0) for _ in range(size)]
    dist.all_gather(out, of(rank, count))
    expect(out, count)
    for root in range(size):
        out = [torch.full((count,), -1.0) for _ in range(size)] if rank == root else None
        dist.gather(of(rank, count), out, root)
        expect(out or [], count)
    out = [torch.full((count,), -1.0) for _ in range(size)]
    dist.all_to_all(out, [of(rank, count) + 100 * to for to in range(size)])
    expect([each - 100 * rank for each in out], count)


@pytest.mark.skipif(not hasattr(dist, "gather_single"), reason="torch has it since 2.15")
@pytest.mark.parametrize("count", COUNTS)
def test_gather_into_one_tensor(rank, size, count):
    for root in range(size):
        whole = torch.full((size, count), -1.0) if rank == root else None
        dist.gather_single(of(rank, count), whole, root)
        expect([] if whole is None else whole, count)
    whole = torch.zeros(size * count + 1) if rank == 0 else None
    with pytest.raises(ValueError, match="elements for one of them"):
        dist.gather_single(of(rank, count), whole, 0)


@pytest.mark.parametrize("dtype", TYPES)
def test_types(rank, size, dtype):
    out = [torch.zeros(40, 50).to(dtype) for _ in range(size)]
    dist.all_gather(out, of(rank, 2000, dtype).view(40, 50))
    expect(out, 2000, dtype)


def test_unequal_lengths(rank, size):
    out = [torch.zeros(2 * source) for source in range(size)]
    dist.all_gather(out, of(rank, 2 * rank))
    for source, each in enumerate(out):
        assert torch.equal(each, of(source, 2 * source))
    # To rank r from rank s: (r + s) % 3 rows.
    sent = [(rank + to) % 3 for to in range(size)]
    out = torch.zeros(sum(sent), 4)
    dist.all_to_all_single(out, torch.full((sum(sent), 4), float(rank)), sent, sent)
    assert out[:, 0].tolist() == [source for source in range(size) for _ in range(sent[source])]


@pytest.mark.parametrize("count", [5, 1_500_000])
def test_the_own_output_is_the_input(rank, size, count):
    out = [torch.zeros(count) for _ in range(size)]
    out[rank].copy_(of(rank, count))
    dist.all_gather(out, out[rank])
    expect(out, count)
    out[rank].copy_(of(rank, count))
    dist.gather(out[rank], out if rank == 1 else None, 1)
    expect(out if rank == 1 else [], count)


@pytest.mark.parametrize("count", [5, 1_500_000])
def test_the_output_for_another_rank_is_the_input(rank, size, count):
    """It is overwritten, but what this rank sends was in it before."""
    out = [torch.zeros(count) for _ in range(size)]
    out[(rank + 1) % size].copy_(of(rank, count))
    dist.all_gather(out, out[(rank + 1) % size])
    expect(out, count)


def test_outputs_that_overlap(rank, size):
    same = torch.zeros(3)
    dist.all_gather([same] * size, of(rank, 3))
    assert torch.equal(same, of(size - 1, 3))  # the last one's
    shared = torch.zeros(2 * size + 1)
    dist.all_gather([shared[2 * i:2 * i + 3] for i in range(size)], torch.full((3,), 1.0 + rank))
    assert shared.tolist() == [1 + i // 2 for i in range(2 * size)] + [size]


def test_parts_of_one_tensor_and_of_one_that_is_not_row_major(rank, size):
    whole = torch.zeros(size, 5)
    dist.all_gather(list(whole.unbind()), of(rank, 5))
    expect(whole, 5)
    columns = torch.zeros(5, size)
    dist.all_gather(list(columns.unbind(1)), of(rank, 5))
    expect(columns.t(), 5)


@pytest.mark.parametrize("count", [4, 60_000])
def test_an_output_of_another_length_is_an_error_of_its_rank_alone(rank, size, count):
    out = [torch.zeros(count) for _ in range(size)]
    if rank == 0:
        out[1] = torch.zeros(count + 1)
        with pytest.raises(hvd.HorovodInternalError,
                           match=f"rank 1 of the group sent {count} elements, but output 1 has "):
            dist.all_gather(out, of(rank, count))
        assert not any(each.any() for each in out)
    else:
        dist.all_gather(out, of(rank, count))
        expect(out, count)
    out = [torch.zeros(count) for _ in range(size)]
    dist.all_gather(out, of(rank, count))
    expect(out, count)


def test_autograd_sees_what_was_written(rank, size):
    saved = torch.ones(3)
    weight = torch.ones(3, requires_grad=True)
    loss = (saved * weight).sum()
    dist.all_gather([saved if source == 0 else torch.zeros(3) for source in range(size)],
                    of(rank, 3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_root_of_a_broadcast_is_not_written(rank, size):
    weight = torch.ones(3, requires_grad=True)
    saved = weight.exp()
    dist.broadcast(saved.detach(), 0)
    if rank == 0:
        saved.sum().backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.sum().backward()


def test_a_timeout_leaves_the_memory_of_the_outputs(rank, size):
    """The collective goes on, and writes when the program has let go of the list."""
    if rank == 0:
        out = [torch.zeros(1000) for _ in range(size)]
        work = dist.all_gather(out, torch.ones(1000), async_op=True)
        with pytest.raises(RuntimeError, match="has not come within"):
            work.wait(datetime.timedelta(milliseconds=50))
        for tensor in out:
            tensor.data = torch.zeros(1)  # lets go of the memory, though the tensor stays
        del out, work
        gc.collect()
        others = [torch.full((1000,), 7.0) for _ in range(20)]  # in its memory, were it free
    hvd.barrier()
    if rank != 0:
        out = [torch.zeros(1000) for _ in range(size)]
        dist.all_gather(out, torch.ones(1000))
        assert all((each == 1).all() for each in out)
    dist.barrier()
    if rank == 0:
        assert all((each == 7).all() for each in others)
