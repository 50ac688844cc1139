"""DistributedOptimizer(op=Adasum): each rank makes the optimizer's own step, from its own
gradients; the move of each parameter (its change in the step) is reduced by Adasum, and all ranks
move by the result.

The learning rate is that of one rank. Each rank's state of the optimizer is its own, and so is the
scale of its GradScaler: a rank whose gradients are not finite moves by the moves of the others.
"""

import contextlib

import torch

from horon import native
from horon.torch import collectives
from horon.torch.compression import Compression
from horon.torch.wrapped_optimizer import WrappedOptimizer, divide_gradients, wrap


def make_adasum(optimizer, named, compression, options):
    """Called by DistributedOptimizer, which has looked at the arguments. `named`: (name, parameter)
    of all parameters. `options`: what its attributes show."""
    if compression is Compression.int8:
        raise ValueError("op=Adasum can round steps to 16 bits at most; give Compression.none, "
                         "fp16 or bf16")
    _refuse_complex(named)
    optimizer._parameter_names = {parameter: name for name, parameter in named}
    optimizer._compression = compression
    optimizer._options = options
    wrap(optimizer, _Adasum)
    optimizer._forget_step()
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    return optimizer


class _Adasum(WrappedOptimizer):
    """What DistributedOptimizer(op=Adasum) adds to an optimizer."""

    def _make_step(self, step):
        if not hasattr(self, "found_inf") or self._plain_looks_at_scaling():
            return self._reducing_all_of(step)
        if self.grad_scale is not None:
            _refuse_float16(self)
        if float(self.found_inf) != 0:
            # No step of this rank's own. It moves by those of the others, who wait for it.
            _before_step(self, (), {})
            _after_step(self, (), {})
            return None
        if self.grad_scale is not None:
            divide_gradients(self, self.grad_scale)
        return self._step_of_divided(lambda: self._reducing_all_of(step))

    def _reducing_all_of(self, step):
        self._has_begun = False
        try:
            loss = step()
        except BaseException as error:
            _refuse_moves(self, error)
            raise
        if self._starts is not None:  # it has caught what a step() within it raised
            self._steps_within = 1
            _after_step(self, (), {})
        return loss

    def _forget_step(self):
        self._steps_within = 0  # calls of step() that have begun: one may call that of its base
        self._starts = None
        self._forget_scaling()

    def synchronize(self):
        """Nothing: gradients are not reduced."""
        self._refuse_released()

    def skip_synchronize(self):
        raise AssertionError("op=Adasum has no skip_synchronize(): it reduces in step() only")

    @contextlib.contextmanager
    def no_sync(self):
        """Nothing: several calls of backward() add up on this rank until step()."""
        yield

    def set_backward_passes_per_step(self, passes):
        """Nothing: step() says when."""

    def _take_parameters(self, named):
        _refuse_complex(named)


def _refuse_complex(named):
    names = [name for name, parameter in named if parameter.is_complex()]
    if names:
        raise ValueError(f"op=Adasum is for floating dtypes, and {', '.join(names)} is complex: "
                         "give complex parameters to an optimizer of their own")


def _refuse_float16(optimizer):
    """As GradScaler.unscale_() does."""
    if any(parameter.dtype == torch.float16
           for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError("Attempting to unscale FP16 gradients.")


def _before_step(optimizer, args, kwargs):
    """Remembers where the parameters are."""
    optimizer._steps_within += 1
    if optimizer._steps_within > 1 or not optimizer.process_set.included():
        return
    optimizer._starts = [(parameter, parameter.detach().clone())
                         for parameter in _floating(optimizer)]
    optimizer._has_begun = True


def _floating(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]
            if parameter.is_floating_point()]


def _after_step(optimizer, args, kwargs):
    optimizer._steps_within -= 1
    if optimizer._steps_within > 0 or optimizer._starts is None:
        return
    starts, optimizer._starts = optimizer._starts, None
    moves, errors = [], []

    def note(call, *args):
        try:
            return call(*args)
        except Exception as error:
            errors.append(error)

    with torch.no_grad():
        try:
            # Starts all: the other ranks also wait for those after one that this rank refuses.
            for parameter, start in starts:
                moves.append(note(_start, optimizer, parameter, start))
            # Waits for all: a name is free when its collective has ended.
            moves = [move and note(move) for move in moves]
            if errors:
                raise errors[0]
            for (parameter, start), move in zip(starts, moves):
                parameter.copy_(move.add_(start))
        except BaseException:
            for parameter, start in starts:
                parameter.copy_(start)
            raise


def _refuse_moves(optimizer, error):
    """A step() of this rank has raised: the others, who wait for its moves, raise too, and nobody
    has moved."""
    starts, optimizer._starts = optimizer._starts, None
    if starts is None:  # raised by a hook before, or by the moves (on all ranks), or later
        begun = optimizer._has_begun or not optimizer.process_set.included()
        starts = [] if begun else [(parameter, None) for parameter in _floating(optimizer)]
    for parameter, start in starts:
        if start is not None:
            with torch.no_grad():
                parameter.copy_(start)
        collectives.refuse_allreduce(_name_of_move(optimizer, parameter), optimizer.process_set,
                                     f"step() on rank {native.rank()}: {error}")


def _name_of_move(optimizer, parameter):
    return f"adasum.{optimizer._parameter_names[parameter]}"


def _start(optimizer, parameter, start):
    """A function that waits for the move of all ranks."""
    compression = optimizer._compression
    moved, context = compression.compress(parameter.detach() - start)
    handle = collectives.allreduce_async_(
        moved, name=_name_of_move(optimizer, parameter), op=collectives.Adasum,
        process_set=optimizer.process_set)
    return lambda: compression.decompress(collectives.synchronize(handle), context)
