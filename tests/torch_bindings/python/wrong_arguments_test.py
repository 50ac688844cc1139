"""What is given wrongly is told in one sentence that names the argument and the cure."""

import gc
import re
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd
from horon import errors


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


@pytest.mark.parametrize("op", [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT,
                                dist.ReduceOp.MAX], ids=str)
def test_an_op_of_torch_distributed_is_refused(op):
    ones = torch.ones(2)
    for call in [lambda: hvd.allreduce(ones, op=op), lambda: hvd.allreduce_(ones, op=op),
                 lambda: hvd.allreduce_async(ones, op=op),
                 lambda: hvd.allreduce_async_(ones, op=op),
                 lambda: hvd.grouped_allreduce([ones], op=op),
                 lambda: hvd.grouped_allreduce_([ones], op=op),
                 lambda: hvd.grouped_allreduce_async([ones], op=op),
                 lambda: hvd.grouped_allreduce_async_([ones], op=op),
                 lambda: hvd.reducescatter(ones, op=op),
                 lambda: hvd.reducescatter_async(ones, op=op),
                 lambda: hvd.grouped_reducescatter([ones], op=op),
                 lambda: hvd.grouped_reducescatter_async([ones], op=op),
                 lambda: hvd.sparse_allreduce_async(ones.to_sparse(), "sparse", op),
                 lambda: hvd.DistributedOptimizer(optimizer_of(torch.nn.Linear(2, 2)), op=op)]:
        with pytest.raises(ValueError, match="is of torch.distributed: give hvd.Average, hvd.Sum"):
            call()


def test_an_op_is_a_number(size):
    assert hvd.allreduce(torch.ones(1), op=np.int64(hvd.Sum)).item() == size
    for wrong in (17, 1.0, "Sum"):
        with pytest.raises(ValueError, match=f"op {wrong!r}: give hvd.Average"):
            hvd.allreduce(torch.ones(1), op=wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize("reduce", [hvd.allreduce, hvd.reducescatter])
def test_ranks_with_unlike_ops_are_told_the_ops(rank, size, reduce, dtype):
    if size == 1:
        pytest.skip("one rank")
    text = r"\(op Average\) on rank 0, \(op Sum\) on ranks? 1"  # both are sums there
    if dtype.is_floating_point:
        text = "reduce op: Average on rank 0, Sum on ranks? 1"
    with pytest.raises(hvd.HorovodInternalError, match=text):
        reduce(torch.ones(size, dtype=dtype), op=hvd.Sum if rank else hvd.Average)


def test_ranks_with_unlike_ops_of_groups(rank, size):
    if size == 1:
        pytest.skip("one rank")
    for dtype, text in ((torch.float32, "reduce op: Average on rank 0, Sum on rank"),
                        (torch.int64, "(op Average) on rank 0")):
        with pytest.raises(hvd.HorovodInternalError, match=re.escape(text)):
            hvd.grouped_allreduce([torch.ones(1, dtype=dtype)] * 2,
                                  op=hvd.Sum if rank else hvd.Average)


@pytest.mark.parametrize("call", [hvd.synchronize, hvd.poll])
def test_what_is_no_handle_is_refused(call):
    with pytest.raises(TypeError, match=f"^{call.__name__}: 42 is not a handle: give what"):
        call(42)


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match="optimizer is a generator: give an optimizer of torch"):
        hvd.DistributedOptimizer(torch.nn.Linear(2, 2).parameters())


def test_the_other_ranks_are_told_the_name_once(rank, size):
    if size == 1:
        pytest.skip("one rank")
    with pytest.raises((TypeError, ValueError)) as raised:
        hvd.allreduce([1.0] if rank == 0 else torch.ones(1), name="loss")
    text = "allreduce: a list is not a torch.Tensor: give torch.as_tensor() of it"
    told = f'tensor "allreduce.loss" was refused on rank 0: {text}'
    assert str(raised.value) == (text if rank == 0 else told)


def told_by(rank, error, text):
    """What a rank raises whose own call is wrong, or that waits for one of rank 0."""
    return pytest.raises((TypeError, ValueError, hvd.HorovodInternalError) if rank else error,
                         match=text)


@pytest.mark.parametrize("root", [0.0, None])
def test_a_root_that_is_no_rank_is_told_to_the_others(rank, size, root):
    if size == 1:
        pytest.skip("one rank")
    given = root if rank == 0 else 0
    values = torch.ones(2)
    refused = "was refused on rank 0: broadcast: "
    for call in (lambda: hvd.broadcast(values, given), lambda: hvd.broadcast_(values, given),
                 lambda: hvd.broadcast_async(values, given, name="root")):
        with told_by(rank, TypeError, f"{refused if rank else '^broadcast: '}root_rank {root} is"):
            hvd.synchronize(call())
    model = torch.nn.Linear(2, 2)
    for name, call in (("broadcast_parameters",
                        lambda: hvd.broadcast_parameters(model.state_dict(), given)),
                       ("broadcast_optimizer_state",
                        lambda: hvd.broadcast_optimizer_state(optimizer_of(model), given))):
        with told_by(rank, ValueError, f"{name}: root_rank {root} is not a rank"):
            call()
    for options in ({}, {"name": "root"}):
        text = f"broadcast_object: root_rank {root} is not a rank"
        with told_by(rank, TypeError, "root -1 is not in the process set" if rank else text):
            hvd.broadcast_object(rank, given, **options)
    assert hvd.broadcast_object(rank + 7, np.int64(0)) == 7
    assert hvd.broadcast(values * rank, np.int64(0)).sum().item() == 0


def test_errors_name_the_cures_of_python(rank, size):
    assert str(errors.make("invalid argument", "move it to horon::device()")) == (
        "move it to hvd.device()")
    if size == 1:
        return
    model = torch.nn.Linear(2, 2)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters())
    with pytest.raises(RuntimeError, match=r"\(in C\+\+ also {.wait_in = WaitIn::Step}"):
        for _ in range(1 + (rank == 0)):
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()


def reduce_sparse(given):
    return hvd.sparse_allreduce_async(given, "sparse", hvd.Sum)()


@pytest.mark.parametrize("call", [
    lambda given: hvd.allreduce(given, compression=hvd.Compression.fp16, name="narrow"),
    lambda given: hvd.grouped_allreduce([given], compression=hvd.Compression.bf16, name="group"),
    lambda given: hvd.reducescatter(given, compression=hvd.Compression.fp16, name="rows"),
    reduce_sparse], ids=["allreduce", "group", "reducescatter", "sparse"])
def test_a_gradient_that_one_rank_has_not_is_told_to_the_others(rank, size, call):
    if size == 1:
        pytest.skip("one rank")
    gradient = torch.ones(2 * size) if call is not reduce_sparse else torch.ones(2).to_sparse()
    text = "a NoneType is not a torch.Tensor" if rank == 0 else "was refused on rank 0"
    with pytest.raises((TypeError, ValueError), match=text):
        call(None if rank == 0 else gradient)


def test_a_wrong_call_that_waits_for_its_number_lets_other_threads_run(rank, size):
    """A call without a name begins when the oldest of 1,024 has ended, also one that is refused."""
    if size == 1:
        pytest.skip("one rank")
    if rank != 0:
        hvd.barrier()
    handles = [hvd.reducescatter_async(torch.ones(size)) for _ in range(1024)]
    meets = threading.Timer(0.2, hvd.barrier)
    if rank == 0:
        meets.start()
    with pytest.raises((TypeError, ValueError), match="a list is not a torch.Tensor"):
        hvd.reducescatter([1.0] if rank == 0 else torch.ones(size))
    if rank == 0:
        meets.join()
    assert all(hvd.synchronize(handle).item() == 1 for handle in handles)


@pytest.mark.parametrize("ddp_first", [True, False])
@pytest.mark.parametrize("backend", ["horon", "gloo"])
def test_parameters_of_ddp_are_refused(backend, ddp_first):
    """Both would reduce the gradients, which were silently wrong then."""
    dist.init_process_group("horon")
    group = dist.new_group(backend=backend)
    model = torch.nn.Linear(2, 2)
    refused = pytest.raises(ValueError, match="\"weight\" belongs to a DistributedDataParallel")
    optimizer = optimizer_of(model)
    if not ddp_first:
        hvd.DistributedOptimizer(optimizer, model.named_parameters())
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    ddp(torch.ones(1, 2)).sum().backward()
    if ddp_first:
        with refused:
            hvd.DistributedOptimizer(optimizer, model.named_parameters())
    else:
        with refused:
            optimizer.step()
        for name, each in model.state_dict().items():
            assert torch.equal(each, before[name])
        optimizer.release()
    hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters(), op=hvd.Adasum).release()
    del ddp  # its hooks go with it
    gc.collect()
    hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters()).release()
    dist.destroy_process_group()
