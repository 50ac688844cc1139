"""DistributedOptimizer(op=Adasum): each rank makes the optimizer's own step, from its own
gradients; what it has moved each parameter by is reduced by Adasum, and all ranks move by the
result.

The learning rate is that of one rank. Each rank's state of the optimizer is its own.
"""

import contextlib

import torch

from horon.torch import collectives
from horon.torch.compression import Compression
from horon.torch.wrapped_optimizer import WrappedOptimizer


def make_adasum(optimizer, named, compression, process_set):
    """Called by DistributedOptimizer, which has looked at the arguments. `named`: (name, parameter)
    of all parameters."""
    if compression is Compression.int8:
        raise ValueError("op=Adasum: the steps are rounded to 16 bits at most; give "
                         "Compression.none, fp16 or bf16")
    optimizer._parameter_names = {parameter: name for name, parameter in named}
    optimizer._compression = compression
    optimizer._process_set = process_set
    optimizer._starts = None
    plain = type(optimizer)
    optimizer.__class__ = type(plain.__name__, (_Adasum, plain), {"_plain": plain})
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    return optimizer


class _Adasum(WrappedOptimizer):
    """What DistributedOptimizer(op=Adasum) adds to an optimizer."""

    def synchronize(self):
        """Nothing: gradients are not reduced."""

    def skip_synchronize(self):
        raise AssertionError("op=Adasum has no skip_synchronize(): step() reduces what it does")

    @contextlib.contextmanager
    def no_sync(self):
        """Nothing: several calls of backward() add up on this rank until step()."""
        yield

    def set_backward_passes_per_step(self, passes):
        """Nothing: step() says when."""

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        self._name_last_group()


def _before_step(optimizer, args, kwargs):
    """Remembers where the parameters are. A step() that calls the one of its base class is one
    step."""
    if optimizer._starts is not None or not optimizer._process_set.included():
        return
    optimizer._starts = [(parameter, parameter.detach().clone())
                         for group in optimizer.param_groups for parameter in group["params"]
                         if parameter.is_floating_point()]


def _after_step(optimizer, args, kwargs):
    starts, optimizer._starts = optimizer._starts, None
    if starts is None:
        return
    with torch.no_grad():
        try:
            moves = [_start(optimizer, parameter, start) for parameter, start in starts]
            for (parameter, start), move in zip(starts, moves):
                parameter.copy_(move().add_(start))
        except BaseException:
            for parameter, start in starts:
                parameter.copy_(start)
            raise


def _start(optimizer, parameter, start):
    """A function that waits for the move of all ranks."""
    compression = optimizer._compression
    moved, context = compression.compress(parameter.detach() - start)
    handle = collectives.allreduce_async_(
        moved, name=f"adasum.{optimizer._parameter_names[parameter]}", op=collectives.Adasum,
        process_set=optimizer._process_set)
    return lambda: compression.decompress(collectives.synchronize(handle), context)
