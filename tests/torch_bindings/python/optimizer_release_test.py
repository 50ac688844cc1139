"""The parameters of an optimizer get another one: the next stage of a training, a notebook."""

import pytest
import torch

import horon.torch as hvd


def wrapped(model, make=torch.optim.SGD, **options):
    return hvd.DistributedOptimizer(make(model.parameters(), lr=0.1), model.named_parameters(),
                                    **options)


def reduced_step(model, optimizer, rank, size):
    optimizer.zero_grad()
    (model(torch.ones(1, 3)) * (rank + 1)).sum().backward()
    optimizer.step()
    gathered = hvd.allgather(torch.cat([each.detach().flatten() for each in model.parameters()])
                             [None])
    assert all(torch.equal(each, gathered[0]) for each in gathered)


def model_of():
    torch.manual_seed(3)
    return torch.nn.Linear(3, 2)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_another_one_after_release(rank, size, op):
    model = model_of()
    first = wrapped(model, op=op)
    scheduler = torch.optim.lr_scheduler.StepLR(first, 1)  # keeps it
    reduced_step(model, first, rank, size)
    scheduler.step()
    if op == hvd.Average:
        with pytest.raises(ValueError, match=r"\"weight\" .*; call release\(\) of that optimizer"):
            wrapped(model)
    gradient = model.weight.grad.clone()
    first.release()
    first.release()  # nothing more
    second = wrapped(model, torch.optim.Adam)
    assert torch.equal(model.weight.grad, gradient)
    for _ in range(2):
        reduced_step(model, second, rank, size)
    before = model.weight.detach().clone()
    for call in [first.step, first.synchronize, lambda: first.step(lambda: None),
                 lambda: first.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})]:
        with pytest.raises(RuntimeError, match=r"has been released \(release\(\)\)"):
            call()
    assert torch.equal(model.weight, before) and len(first.param_groups) == 1


def test_without_hooks_gradients_are_a_rank_s_own(rank):
    model = model_of()
    wrapped(model).release()
    (model(torch.ones(1, 3)) * (rank + 1)).sum().backward()
    assert model.bias.grad.tolist() == [rank + 1] * 2


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_options_are_told(op):
    model = model_of()
    optimizer = wrapped(model, op=op, backward_passes_per_step=2, sparse_as_dense=True)
    told = (optimizer.op, optimizer.backward_passes_per_step, optimizer.sparse_as_dense,
            optimizer.gradient_predivide_factor, optimizer.process_set)
    assert told == (op, 2, True, 1.0, hvd.global_process_set)
    optimizer.set_backward_passes_per_step(3)
    assert optimizer.backward_passes_per_step == (2 if op == hvd.Adasum else 3)
    with pytest.raises(AttributeError):
        optimizer.op = hvd.Sum
