"""What programs do to an optimizer that is wrapped: hooks on its parameters, a class of its own."""

import copy
import gc
import threading

import pytest
import torch

import horon.torch as hvd


class OldOptimizer(torch.optim.SGD):
    """Written before torch knew set_to_none."""

    def zero_grad(self):
        super().zero_grad()


def test_an_optimizer_whose_zero_grad_takes_nothing(size):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(OldOptimizer([weight], lr=1.0), [("weight", weight)])
    for _ in range(2):
        optimizer.zero_grad()
        (weight * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
    assert weight.tolist() == [1 - (size + 1)] * 3


@pytest.mark.parametrize("call", [lambda optimizer: optimizer.set_weight(1.0),
                                  lambda optimizer: optimizer.set_backward_passes_per_step(1)],
                         ids=["set_weight", "set_backward_passes_per_step"])
def test_who_waits_for_the_others_behind_an_exception_lets_other_threads_run(rank, size, call):
    if size == 1:
        pytest.skip("one rank")
    torch.manual_seed(1)
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    hvd.DistributedOptimizer(optimizer, groups=[list(first.parameters()),
                                                list(second.parameters())])

    def backward(hook):
        hidden = first(torch.ones(1, 2))
        hidden.register_hook(hook)
        second(hidden).sum().backward()

    def fail(_):
        raise KeyError("once")
    if rank == 0:
        with pytest.raises(KeyError):
            backward(fail)
        meets = threading.Timer(0.2, hvd.barrier)  # behind which the others begin
        meets.start()
        call(optimizer)
        meets.join()
    else:
        hvd.barrier()
        with pytest.raises(RuntimeError, match="rank 0 ended with an exception"):
            backward(torch.clone)
        call(optimizer)
    optimizer.zero_grad()
    backward(torch.clone)
    optimizer.step()


def test_a_step_that_raises_is_over(rank, size):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 0.0), [("weight", weight)])

    def fails(*_):
        raise KeyError("once")
    handle = optimizer.register_step_pre_hook(fails)
    weight.sum().backward()
    with pytest.raises(KeyError):
        optimizer.step()
    handle.remove()
    weight.grad = None
    with optimizer.no_sync():
        (weight * (rank + 1)).sum().backward()
    optimizer.step()
    assert weight.grad.tolist() == [(1 + size) / 2] * 2


def test_hooks_come_and_go_after_wrapping(size):
    """Each changes what is reduced, from the backward() after it on."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("weight", weight)])

    def gradient():
        optimizer.zero_grad()
        (weight * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        return weight.grad[0].item()

    mean = (size + 1) / 2
    assert gradient() == mean
    double = weight.register_hook(lambda grad: grad * 2)
    assert gradient() == 2 * mean
    triple = weight.register_hook(lambda grad: grad * 3)
    assert gradient() == 6 * mean
    double.remove()
    assert gradient() == 3 * mean
    triple.remove()
    assert gradient() == mean
    weight.register_hook(lambda grad: grad * 5)
    assert gradient() == 5 * mean
    copy.deepcopy(weight)
    del optimizer
    gc.collect()
    weight.grad = None
    weight.sum().backward()
    assert weight.grad[0] == 5


def model_and_optimizer(**options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def backward(model, step):
    torch.manual_seed(50 + 10 * step + hvd.rank())
    model(torch.randn(4, 6)).square().sum().backward()


@pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.bf16}])
def test_gradients_that_the_program_keeps_are_its_own(options):
    model, optimizer = model_and_optimizer(**options)
    kept, copies = [], []
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        kept.append([each.grad for each in model.parameters()])
        copies.append([each.grad.clone() for each in model.parameters()])
        optimizer.step()
    for of_step, expected in zip(kept, copies):
        for gradient, copy_of_it in zip(of_step, expected):
            assert torch.equal(gradient, copy_of_it)


def test_gradients_that_nobody_keeps_stay_where_they_are():
    model, optimizer = model_and_optimizer()
    seen = set()
    for step in range(4):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        seen.add(id(model[0].weight.grad))  # of the Python object, which the tensor keeps
    assert len(seen) == 1


@pytest.mark.parametrize("why", ["ComplexHalf", "another distributed optimizer"])
def test_a_group_that_can_not_be_reduced_is_no_group(why, rank, size):
    weight, more, bad = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    if why == "ComplexHalf":
        bad = torch.nn.Parameter(torch.ones(2, dtype=torch.complex32))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    other = hvd.DistributedOptimizer(torch.optim.SGD([bad], lr=1.0)) if bad.dtype == torch.float32 \
        else None
    with pytest.raises(ValueError, match=why):
        optimizer.add_param_group({"params": [more, bad]})
    assert [group["params"] for group in optimizer.param_groups] == [[weight]]
    optimizer.add_param_group({"params": [more]})  # it is free
    ((weight + more) * (rank + 1)).sum().backward()
    optimizer.step()
    assert weight.tolist() == more.tolist() == [1 - (size + 1) / 2] * 2
    del other
