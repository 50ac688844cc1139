"""Each collective and dtype against NumPy, errors, and names."""

import time

import numpy as np
import pytest
import torch

import horon.torch as hvd
from horon.torch.collectives import received_splits
from horon.torch.compression import FP16Compressor, NoneCompressor
from horon.torch.state import _TensorOf

FLOATING = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGER = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
NUMBERS = FLOATING + INTEGER + COMPLEX
SHAPES = [(), (1,), (5,), (3, 4), (0, 2), (1, 17, 3)]


def values(rank, shape, dtype):
    """Small whole numbers, so that sums are exact in every type."""
    random = np.random.RandomState(100 + rank)
    low = 0 if dtype == torch.uint8 else -4
    numbers = np.asarray(random.randint(low, 5, shape))
    if dtype.is_complex:
        numbers = numbers + 1j * random.randint(low, 5, shape)
    return torch.from_numpy(np.asarray(numbers)).to(dtype)


def all_values(size, shape, dtype):
    return [values(rank, shape, dtype) for rank in range(size)]


def as_numpy(tensor):
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()


def same(tensor, expected, dtype):
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(as_numpy(tensor), expected)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_allreduce(rank, size, dtype):
    for shape in SHAPES:
        stacked = np.stack([as_numpy(each) for each in all_values(size, shape, dtype)])
        mine = values(rank, shape, dtype)
        for op, reduce in [(hvd.Sum, np.sum), (hvd.Min, np.min), (hvd.Max, np.max),
                           (hvd.Product, np.prod)]:
            if op == hvd.Product and dtype in (torch.int8, torch.uint8):
                continue  # overflows
            if dtype.is_complex and op != hvd.Sum:
                continue  # refused
            same(hvd.allreduce(mine, op=op), reduce(stacked, axis=0), dtype)
        mean = np.sum(stacked, axis=0) / size
        if dtype in INTEGER:
            same(hvd.allreduce(mine), np.trunc(mean), dtype)
        else:
            np.testing.assert_allclose(as_numpy(hvd.allreduce(mine)), mean,
                                       rtol=1e-2 if dtype == torch.bfloat16 else 1e-3)
        inplace = mine.clone()
        assert hvd.allreduce_(inplace, op=hvd.Sum) is inplace
        same(inplace, np.sum(stacked, axis=0), dtype)
        same(mine, as_numpy(values(rank, shape, dtype)), dtype)  # untouched


@pytest.mark.parametrize("dtype", NUMBERS + [torch.bool], ids=str)
def test_rows(rank, size, dtype):
    def rows(each):
        return values(each, (each + 1, 3), dtype)

    gathered = np.concatenate([as_numpy(rows(each)) for each in range(size)])
    same(hvd.allgather(rows(rank)), gathered, dtype)
    for root in range(size):
        mine = values(rank, (2, 3), dtype)
        of_root = as_numpy(values(root, (2, 3), dtype))
        same(hvd.broadcast(mine, root), of_root, dtype)
        assert hvd.broadcast_(mine, root) is mine
        same(mine, of_root, dtype)
    splits = [(rank + other) % 3 for other in range(size)]
    sent = values(rank, (sum(splits) + 2, 2), dtype)  # two rows stay
    received, counts = hvd.alltoall(sent, splits)
    parts = []
    for other in range(size):
        theirs = [(other + each) % 3 for each in range(size)]
        begin = sum(theirs[:rank])
        tensor = values(other, (sum(theirs) + 2, 2), dtype)
        parts.append(as_numpy(tensor)[begin:begin + theirs[rank]])
    same(received, np.concatenate(parts), dtype)
    assert counts.tolist() == [len(part) for part in parts]
    equal, rows = hvd.synchronize(hvd.alltoall_async(values(rank, (2 * size,), dtype)))
    assert rows.tolist() == [2] * size
    assert torch.equal(equal, hvd.alltoall(values(rank, (2 * size,), dtype)))
    same(equal, np.concatenate([as_numpy(values(other, (2 * size,), dtype))[2 * rank:2 * rank + 2]
                                for other in range(size)]), dtype)


def test_more_rows_than_horovod_can_count():
    assert received_splits([3, 2**31 - 1]).dtype == torch.int32
    many = received_splits([0, 2**31])
    assert many.dtype == torch.int64 and many.tolist() == [0, 2**31]
    assert received_splits([]).shape == (0,)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_reducescatter(rank, size, dtype):
    count = 2 * size + 1  # the first rank gets one more
    total = sum(as_numpy(values(each, (count, 2), dtype)) for each in range(size))
    shares = np.array_split(np.arange(count), size)
    reduced = hvd.reducescatter(values(rank, (count, 2), dtype), op=hvd.Sum)
    same(reduced, total[shares[rank]], dtype)


def test_integers_are_scaled_in_float64_and_rounded_toward_zero(rank, size):
    big = 2**53 + 1  # not in float64, so only what is scaled may be rounded
    assert hvd.allreduce(torch.tensor([big]), op=hvd.Max).item() == big
    scaled = hvd.allreduce(torch.tensor([-7, 7]), op=hvd.Sum, prescale_factor=0.5)
    assert scaled.tolist() == [-3 * size, 3 * size]
    scaled = hvd.allreduce(torch.tensor([-7, 7]), op=hvd.Sum, postscale_factor=0.5)
    assert scaled.tolist() == [-int(3.5 * size), int(3.5 * size)]
    inplace = torch.tensor([rank + 1, -rank - 1])
    hvd.allreduce_(inplace)
    mean = sum(range(1, size + 1)) // size
    assert inplace.tolist() == [mean, -mean]


@pytest.mark.parametrize("dtype", [*INTEGER, torch.bool, torch.float32], ids=str)
def test_what_is_not_scaled_is_reduced_where_it_lies(rank, size, dtype):
    """Without a copy, so the result is there when the collective has ended."""
    tensor, in_group = torch.full((3,), rank).to(dtype), torch.full((2,), rank).to(dtype)
    for handle in (hvd.allreduce_async_(tensor, op=hvd.Max),
                   hvd.grouped_allreduce_async_([in_group], op=hvd.Max)):
        while not hvd.poll(handle):
            time.sleep(0.001)
    largest = torch.tensor(size - 1).to(dtype)
    assert (tensor == largest).all() and (in_group == largest).all()


@pytest.mark.parametrize("dtype", INTEGER, ids=str)
def test_averages_of_integers_whose_sum_does_not_fit(rank, size, dtype):
    most = torch.iinfo(dtype).max if dtype != torch.int64 else 2**40
    x = torch.tensor([most - rank, most])
    expected = [(sum(most - each for each in range(size))) // size, most]
    inplace, in_group = x.clone().to(dtype), x.clone().to(dtype)
    average = hvd.allreduce(x.to(dtype))
    assert average.dtype == dtype and average.tolist() == expected
    assert hvd.allreduce_(inplace) is inplace and inplace.tolist() == expected
    assert hvd.grouped_allreduce_([in_group])[0].tolist() == expected
    assert hvd.reducescatter(x.to(dtype).repeat(size)).tolist() == expected
    halves = hvd.allreduce(x.to(dtype), prescale_factor=0.5)
    assert abs(halves[1].item() - most // 2) <= 1
    mixed = [x.to(dtype), torch.ones(2, dtype=torch.int64 if rank == 0 else torch.float32)]
    if dtype != torch.int64:
        with pytest.raises(ValueError, match="one dtype"):
            hvd.grouped_allreduce(mixed)


def test_groups(rank, size):
    tensors = [values(rank, shape, torch.float32) for shape in [(3,), (2, 2), ()]]
    sums = [sum(as_numpy(values(each, shape, torch.float32)) for each in range(size))
            for shape in [(3,), (2, 2), ()]]
    for reduced, expected in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), sums):
        same(reduced, expected, torch.float32)
    handle = hvd.grouped_allreduce_async(tensors, op=hvd.Sum, name="group")
    assert len(hvd.synchronize(handle)) == 3 and handle.poll()
    gathered = hvd.grouped_allgather([torch.full((rank + 1,), float(rank)), torch.ones(1)])
    assert [each.shape[0] for each in gathered] == [size * (size + 1) // 2, size]
    hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    same(tensors[0], sums[0], torch.float32)
    parts = hvd.grouped_reducescatter([torch.ones(size, 2), torch.ones(2 * size)], op=hvd.Sum)
    assert [each.shape[0] for each in parts] == [1, 2] and parts[1][0] == size


def test_strided_and_numpy_memory(rank, size):
    expected = size * np.arange(12).reshape(3, 4).T
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    same(hvd.allreduce(torch.from_numpy(array).t(), op=hvd.Sum), expected, torch.float32)
    inplace = torch.from_numpy(array).t()
    hvd.allreduce_(inplace, op=hvd.Sum)
    np.testing.assert_array_equal(array.T, expected)


def test_sparse(rank, size):
    dense = torch.zeros(5, 2)
    dense[rank % 5] = 1.0 + rank
    handle = hvd.sparse_allreduce_async(dense.to_sparse(1), "sparse", hvd.Average)
    assert torch.allclose(handle().to_dense(), hvd.allreduce(dense))


def test_compression(size):
    tensor = torch.full((4,), 1.0 + 2**-9)
    for compression, expected in [(hvd.Compression.fp16, 1.0 + 2**-9), (hvd.Compression.bf16, 1.0)]:
        reduced = hvd.allreduce(tensor, op=hvd.Max, compression=compression)
        assert reduced.dtype == torch.float32 and reduced[0].item() == expected
    with pytest.raises(ValueError, match="DistributedOptimizer"):
        hvd.allreduce(tensor, compression=hvd.Compression.int8)
    assert (NoneCompressor, FP16Compressor) == (hvd.Compression.none, hvd.Compression.fp16)


def test_mismatch_is_an_error_that_names_the_ranks_and_the_job_goes_on(rank, size):
    if size == 1:
        pytest.skip("one rank")
    with pytest.raises(hvd.HorovodInternalError, match="rank") as raised:
        hvd.allreduce(torch.ones(2 + rank), name="differs")
    assert raised.value.code == "mismatch"
    assert hvd.allreduce(torch.ones(2), name="differs", op=hvd.Sum).tolist() == [size, size]


def test_wrong_calls_are_value_errors(rank, size):
    hvd.barrier()
    for call in [lambda: hvd.alltoall(torch.ones(size + 1)) if size > 1 else _raise(),
                 lambda: hvd.alltoall(torch.ones(1), [1] * size + [1]),
                 lambda: hvd.alltoall(torch.ones(1), [0.5] * size),
                 lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum),
                 lambda: hvd.allreduce(torch.ones(1), op=17),
                 lambda: hvd.allreduce(torch.ones(1, dtype=torch.bool)),
                 lambda: hvd.broadcast(torch.ones(1), root_rank=size),
                 lambda: hvd.reducescatter(torch.tensor(1.0)),
                 lambda: hvd.ProcessSet([0, 0])]:
        with pytest.raises(ValueError):
            call()


def test_adasum(rank, size):
    axis = torch.zeros(size)
    axis[rank] = rank + 1.0
    added = hvd.allreduce(axis, op=hvd.Adasum, name="axis")
    assert torch.equal(added, torch.arange(1.0, size + 1))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        same = torch.tensor([1, -2, 4], dtype=dtype)
        assert torch.equal(hvd.allreduce(same, op=hvd.Adasum), same)
    same = torch.tensor([1.0, -2.0, 4.0])
    first, second = hvd.grouped_allreduce([same, axis], op=hvd.Adasum)
    assert torch.equal(first, same) and torch.equal(second, added)
    parallel = hvd.allreduce_(same * (rank + 1), op=hvd.Adasum)
    assert torch.equal(parallel / parallel[0], same)
    if size == 2:
        assert torch.equal(parallel, 1.5 * same)
    with pytest.raises(ValueError, match="Adasum is for floating dtypes"):
        hvd.allreduce(torch.ones(1, dtype=torch.int32), op=hvd.Adasum)
    with pytest.raises(ValueError, match="Adasum is for allreduce"):
        hvd.reducescatter(torch.ones(size), op=hvd.Adasum)


def test_what_one_rank_gives_wrongly_fails_on_all(rank, size):
    if size == 1:
        pytest.skip("one rank")
    wrong = 1 if rank == 0 else 0
    for call in [lambda: hvd.alltoall(torch.ones(size + wrong)),
                 lambda: hvd.alltoall(torch.ones(size), [1] * (size + wrong)),
                 lambda: hvd.alltoall(torch.ones(size), [1 + wrong] * size),
                 lambda: hvd.synchronize(hvd.alltoall_async(torch.ones(size + wrong)))]:
        with pytest.raises(ValueError if rank == 0 else RuntimeError, match="alltoall"):
            call()
    assert hvd.alltoall(torch.ones(size), [1] * size)[1].tolist() == [1] * size
    for wrong_call, kind, call in [
            (lambda: hvd.alltoall(torch.ones(size), [1.5] * size, name="own"), ValueError,
             lambda: hvd.alltoall(torch.ones(size), [1] * size, name="own")),
            (lambda: hvd.alltoall(torch.ones(size), [[1] * size]), ValueError,
             lambda: hvd.alltoall(torch.ones(size), [1] * size)),
            (lambda: hvd.alltoall(torch.ones(size), ["a"] * size), ValueError,
             lambda: hvd.alltoall(torch.ones(size), [1] * size)),
            (lambda: hvd.alltoall_async(torch.ones(size), [None] * size, name="own"), ValueError,
             lambda: hvd.alltoall(torch.ones(size), [1] * size, name="own")),
            (lambda: hvd.alltoall(torch.ones(size), [1j] * size), ValueError,
             lambda: hvd.alltoall(torch.ones(size), [1] * size)),
            (lambda: hvd.alltoall([1.0] * size), TypeError, lambda: hvd.alltoall(torch.ones(size))),
            (lambda: hvd.allgather([1.0], name="own"), TypeError,
             lambda: hvd.allgather(torch.ones(1), name="own")),
            (lambda: hvd.broadcast([1.0], 0), TypeError, lambda: hvd.broadcast(torch.ones(1), 0)),
            (lambda: hvd.grouped_allreduce([1.0]), TypeError,
             lambda: hvd.grouped_allreduce([torch.ones(1)])),
            (lambda: hvd.allreduce(torch.ones(1).bool()), ValueError,
             lambda: hvd.allreduce(torch.ones(1)))]:
        with pytest.raises(kind if rank == 0 else RuntimeError, match="splits|torch.Tensor|bool"):
            wrong_call() if rank == 0 else call()
    assert hvd.allreduce(torch.ones(1)).item() == 1
    with pytest.raises(ValueError):  # and is not under way
        hvd.sparse_allreduce_async(torch.ones(2).to_sparse(), "sparse", hvd.Max)


def test_what_all_give_wrongly_leaves_nothing_behind(rank, size):
    for _ in range(3):
        with pytest.raises(ValueError, match="bool has no average"):
            hvd.allreduce(torch.ones(2).bool(), name="of all")
        assert hvd.allreduce(torch.ones(2), name="of all").sum() == 2


def test_objects_of_a_gpu_come_to_ranks_without_one(rank, size, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    if rank == 0:  # it writes as if there were one
        monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    got = hvd.broadcast_object({"best": torch.arange(5.0)} if rank == 0 else None)
    assert torch.equal(got["best"], torch.arange(5.0)) and got["best"].device.type == "cpu"
    state = torch.empty(3)
    stands = _TensorOf(state)
    stands.device = "cuda"
    assert stands.empty().device.type == "cpu" and stands.empty().shape == state.shape


def _raise():
    raise ValueError


def test_a_name_in_flight_is_refused_at_the_call(rank, size):
    if size == 1:
        pytest.skip("one rank")
    if rank == 0:
        first = hvd.allreduce_async(torch.ones(1), name="taken")
        with pytest.raises(ValueError, match="taken"):
            hvd.allreduce_async(torch.ones(1), name="taken")
        gathered = hvd.allgather_async(torch.ones(1), name="taken")  # another kind
    hvd.barrier()
    if rank != 0:
        first = hvd.allreduce_async(torch.ones(1), name="taken")
        gathered = hvd.allgather_async(torch.ones(1), name="taken")
    assert hvd.synchronize(gathered).shape[0] == size
    hvd.synchronize(first)
    hvd.synchronize(hvd.allreduce_async(torch.ones(1), name="taken"))


def test_process_sets(rank, size):
    even = hvd.add_process_set(range(0, size, 2))
    own = hvd.add_process_set(hvd.ProcessSet([size - 1]))
    assert even.included() == (rank % 2 == 0) and even.size() == (size + 1) // 2
    assert hvd.global_process_set.size() == size
    if even.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=even).item() == even.size()
        assert even.ranks[even.rank()] == rank
        root = even.ranks[-1]
        assert hvd.broadcast(torch.tensor([rank]), root, process_set=even).item() == root
        hvd.barrier(even)
    else:
        with pytest.raises(ValueError):
            hvd.allreduce(torch.ones(1), process_set=even)
    assert hvd.remove_process_set(own) and hvd.remove_process_set(even)
    assert not hvd.remove_process_set(even)
    assert even.included() == (rank % 2 == 0) and even.size() is None and even.rank() is None
    with pytest.raises(ValueError):
        hvd.allreduce(torch.ones(1), process_set=even)


def test_join(rank, size):
    for steps in range(rank + 1):
        average = hvd.allreduce(torch.full((2,), 1.0), name=f"join.{steps}")
        # Of all ranks, also of those that have joined; integers alike.
        present = size - steps
        assert average.tolist() == pytest.approx([present / size] * 2)
        strided = torch.ones(2, 3, dtype=torch.bfloat16).t()
        averages = hvd.grouped_allreduce_([strided, torch.ones(2, dtype=torch.bfloat16)],
                                          name=f"join.group.{steps}", postscale_factor=3.0)
        for each in averages:
            assert each.flatten().tolist() == pytest.approx([3 * present / size] * each.numel(),
                                                            rel=1e-2)
        assert averages[0] is strided
    assert hvd.join() in range(size)
    assert len(set(hvd.allgather_object(rank))) == size


def test_objects_of_a_rank_that_has_joined(rank, size):
    if rank < size - 1:
        with pytest.raises(hvd.HorovodInternalError, match=f"rank {size - 1} has called join"):
            hvd.allgather_object({"rank": rank})
    hvd.join()


@pytest.mark.parametrize("call", [
    hvd.allreduce, hvd.allgather, lambda each: hvd.broadcast(each, 0), hvd.alltoall,
    hvd.reducescatter, lambda each: hvd.grouped_allreduce([each])])
def test_what_is_no_tensor_is_refused(call):
    with pytest.raises(TypeError, match="a ndarray is not a torch.Tensor: give torch.as_tensor"):
        call(np.ones(3))


def test_the_function_of_a_sparse_allreduce_is_no_handle():
    sparse = torch.eye(3).to_sparse()
    done = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)
    with pytest.raises(TypeError, match="call it for the result"):
        hvd.synchronize(done)
    assert torch.equal(done().to_dense(), hvd.size() * torch.eye(3))
