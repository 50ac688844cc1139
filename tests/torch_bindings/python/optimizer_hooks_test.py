"""Hooks that a program registers on parameters whose gradients are reduced."""

import copy
import gc

import torch

import horon.torch as hvd


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
