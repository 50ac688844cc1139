#!/usr/bin/env python3
"""How much time it saves that autograd knows of no Python hooks on a parameter that has none.

    OMP_NUM_THREADS=1 PYTHONPATH=build/python mpirun -np 2 python bench/python_hooks.py

Two lots of 400 small parameters, each with an optimizer of horon.torch. Autograd knows the empty
dictionaries of hooks of the second lot, as it did of any parameter that has once had a hook. Blocks
of steps alternate; "ratio" is the first lot's time over the second's, by medians and quartiles.
"""
import statistics
import time

import torch

import horon.torch as hvd
from horon import native

PARAMETERS, STEPS, BLOCKS = 400, 10, 60


def make(known):
    parameters = [torch.nn.Parameter(torch.randn(64)) for _ in range(PARAMETERS)]
    named = [(f"{known}.{i}", parameter) for i, parameter in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.0), named)
    if known:
        for parameter in parameters:
            native.know_python_hooks(parameter, parameter._backward_hooks)
    return parameters, optimizer


def seconds_of_block(parameters, optimizer):
    hvd.barrier()
    begin = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.stack(parameters).sum().backward()
        optimizer.step()
    return time.perf_counter() - begin


def main():
    hvd.init()
    torch.manual_seed(1)  # replicas begin alike
    unknown, known = make(False), make(True)
    pairs = [(seconds_of_block(*unknown), seconds_of_block(*known)) for _ in range(BLOCKS)][1:]
    low, ratio, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    saved = statistics.median(b - a for a, b in pairs) / STEPS / PARAMETERS
    if hvd.rank() == 0:
        print(f"ratio {ratio:.2f} ({low:.2f} to {high:.2f}), "
              f"{saved * 1e6:.1f} us saved for each gradient")


if __name__ == "__main__":
    main()
