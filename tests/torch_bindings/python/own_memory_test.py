"""Tensors without memory of their own (DTensors, as FSDP2 has them, and parameters of lazy modules)
are refused, on all ranks."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import horon.torch as hvd

REFUSED = "wraps other tensors.*to_local"


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


@pytest.fixture
def sharded(size):
    mesh = init_device_mesh("cpu", (size,))
    return distribute_tensor(torch.arange(4.0 * size), mesh, [Shard(0)])


CALLS = {
    "allreduce": lambda x: hvd.allreduce(x, name="x"),
    "grouped": lambda x: hvd.grouped_allreduce([torch.ones(2), x], name="x"),
    "in place": lambda x: hvd.broadcast_(x, 0, name="x"),
    "rows": lambda x: hvd.allgather(x, name="x"),
    "later": lambda x: hvd.synchronize(hvd.allreduce_async(x, name="x")),
    "parameters": lambda x: hvd.broadcast_parameters({"first": torch.ones(2), "x": x}, 0),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", ["everywhere", "on the last rank"])
def test_a_call(call, where, rank, size, sharded):
    plain = where != "everywhere" and rank < size - 1
    with pytest.raises(ValueError, match=f'x".*{REFUSED}'):
        CALLS[call](torch.zeros(4 * size) if plain else sharded)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="x").tolist() == [size] * 2
    assert torch.equal(hvd.allreduce(sharded.to_local(), op=hvd.Sum, name="x"),
                       hvd.allreduce(sharded.to_local(), name="x") * size)


class Opaque(torch.Tensor):
    """Knows no operation at all."""

    @staticmethod
    def __new__(cls, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, (4,), dtype=dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(str(func))

    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("call", [call for call in CALLS if call != "grouped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_class_without_operations(call, dtype, rank, size):
    plain = torch.zeros(4, dtype=dtype)
    with pytest.raises(ValueError, match=f'x".*{REFUSED}'):
        CALLS[call](plain if rank < size - 1 else Opaque(dtype))


@pytest.mark.parametrize("where", ["everywhere", "on the last rank"])
def test_parameters_without_a_shape(where, rank, size):
    model = torch.nn.LazyLinear(2)
    if where != "everywhere" and rank < size - 1:
        model(torch.ones(1, 3))
    with pytest.raises(ValueError, match='"weight" has no shape'):
        hvd.broadcast_parameters(model.state_dict(), 0)
    model(torch.ones(1, 3))
    hvd.broadcast_parameters(model.state_dict(), 0)
    assert torch.equal(hvd.broadcast(model.weight, 0), model.weight)


def test_an_optimizer(sharded):
    plain, parameter = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(sharded)
    with pytest.raises(ValueError, match=f'"x": {REFUSED}'):
        hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), [("x", parameter)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([plain], lr=0.1))
    with pytest.raises(ValueError, match=f'"param_group.1.0": {REFUSED}'):
        optimizer.add_param_group({"params": [parameter]})


def test_a_list_of_outputs(size, sharded):
    with pytest.raises(ValueError, match=REFUSED):
        dist.all_gather([sharded] * size, torch.zeros(4 * size))


def test_a_subclass_with_memory(rank, size):
    class Named(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            with torch._C._DisableTorchDispatch():
                return function(*args, **(kwargs or {}))

    values = torch.full((2,), float(rank))
    hvd.allreduce_(torch.Tensor._make_subclass(Named, values), op=hvd.Sum)
    assert values.tolist() == [sum(range(size))] * 2
