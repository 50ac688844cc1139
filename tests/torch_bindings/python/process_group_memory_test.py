"""Memory for tensors of collectives that a group over "horon" gives out, and FSDP2 that asks for it
by allocate_tensor()."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import horon.torch as hvd

CPU = torch.device("cpu")
NUMBER = 1 << 18  # of elements: a megabyte of float32


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def backend():
    return dist.group.WORLD._get_backend(CPU)


def allocated(number=NUMBER, dtype=torch.float32):
    return backend().allocate_tensor(number, dtype=dtype, device=CPU)


def is_shared(tensor):
    """Whether other processes may see this memory."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, rights = line.split()[:2]
            begin, end = (int(each, 16) for each in addresses.split("-"))
            if begin <= tensor.data_ptr() < end:
                return rights.endswith("s")
    return False


def test_for_the_cpu_alone():
    assert backend().supports_tensor_alloc(CPU)
    assert not backend().supports_tensor_alloc(torch.device("cuda:0"))


def test_a_tensor_as_of_torch(size):
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        tensor = allocated(dtype=dtype)
        assert tensor.shape == (NUMBER,) and tensor.dtype == dtype and tensor.device == CPU
        assert tensor.is_contiguous() and not tensor.requires_grad
        assert size == 1 or is_shared(tensor)
    assert allocated(0).shape == (0,) and allocated(1).fill_(3).item() == 3
    with pytest.raises(ValueError, match="a size of -1"):
        allocated(-1)
    tensor = allocated().fill_(2)
    tensor.resize_(2 * NUMBER)
    assert tensor[:NUMBER].eq(2).all()
    tensor.untyped_storage().resize_(0)
    with torch.inference_mode():
        assert allocated().is_inference()


def test_it_is_used_again():
    address = allocated().data_ptr()
    for _ in range(300):  # more than there are descriptors for
        assert allocated().data_ptr() == address


def test_many_that_are_held(rank, size):
    """Tensors for which there is no shared memory left are plain, and as good."""
    held = [allocated(NUMBER // 16) for _ in range(100)]
    for i, tensor in enumerate(held):
        tensor.fill_(rank + i)
        dist.all_reduce(tensor)
    assert all(tensor.eq(sum(range(size)) + i * size).all() for i, tensor in enumerate(held))


def test_collectives(rank, size):
    whole, part = allocated(size * NUMBER), allocated()
    for step in range(5):
        part.fill_(rank + step)
        dist.all_gather_into_tensor(whole, part)
        assert torch.equal(whole.view(size, NUMBER)[:, 0], torch.arange(0.0 + step, size + step))
        whole.copy_(torch.arange(size).repeat_interleave(NUMBER))
        dist.reduce_scatter_tensor(part, whole)
        assert part.eq(rank * size).all()


@pytest.fixture
def seen(monkeypatch):
    """Whether the larger tensor of each collective of FSDP2 was in shared memory."""
    shared = []

    def watched(call):
        def watch(*given, **named):
            both = [value for value in (*given, *named.values()) if torch.is_tensor(value)]
            shared.append(is_shared(max(both, key=torch.numel)))
            return call(*given, **named)
        return watch
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_single",
                 "reduce_scatter_single"):  # the latter two since torch 2.15
        if hasattr(dist, name):
            monkeypatch.setattr(dist, name, watched(getattr(dist, name)))
    return shared


def trained(asks, precision):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(250, 250) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mp_policy=precision)
        layer.set_allocate_memory_from_process_group_for_comm(asks)
    fully_shard(model, mp_policy=precision)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        rows = torch.randn(3, 250, generator=torch.Generator().manual_seed(
            step * hvd.size() + hvd.rank()))
        model(rows).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.full_tensor() for parameter in model.parameters()]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_fsdp_gets_the_same_bits(size, seen, dtype):
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=None)
    plain = trained(False, precision)
    assert seen and not any(seen)
    seen.clear()
    ours = trained(True, precision)
    assert seen and all(seen) or size == 1
    assert all(torch.equal(one, other) for one, other in zip(ours, plain))
