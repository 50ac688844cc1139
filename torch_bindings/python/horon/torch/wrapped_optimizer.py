"""What every optimizer of a program has once DistributedOptimizer has wrapped it."""

import functools
import types
import weakref

import torch


class WrappedOptimizer:
    """The base in front of the optimizer's own class, `_plain`."""

    # GradScaler calls step() whether or not this rank's gradients are finite, and sets `grad_scale`
    # (None: they are divided already) and `found_inf` before.
    _step_supports_amp_scaling = True

    def __reduce_ex__(self, protocol):
        """A copy, and what is read from a file, is a plain optimizer."""
        return _empty, (self._plain,), self.__getstate__()

    _is_released = False

    # What DistributedOptimizer was given; Horovod's optimizers have these attributes too.
    op = property(lambda self: self._options["op"])
    process_set = property(lambda self: self._options["process_set"])
    sparse_as_dense = property(lambda self: self._options["sparse_as_dense"])
    backward_passes_per_step = property(lambda self: self._options["backward_passes_per_step"])
    gradient_predivide_factor = property(lambda self: self._options["gradient_predivide_factor"])

    def release(self):
        """Ends it, so that the parameters can get another DistributedOptimizer, whatever still
        refers to this one. Gradients stay as they are. On all ranks, between two steps."""
        self._is_released = True

    def _refuse_released(self):
        if self._is_released:
            raise released()

    def _forget_step(self):
        """The step() that has begun is over."""
        raise NotImplementedError

    def _make_step(self, step):
        """Calls step(), that of the plain class."""
        return step()

    def _plain_looks_at_scaling(self):
        """Whether the plain step() handles `grad_scale` and `found_inf`, as a fused one does."""
        name = "_step_supports_amp_scaling"
        return vars(self).get(name, getattr(self._plain, name, False))

    def _step_of_divided(self, step):
        """Calls a step() that knows nothing of scaling, after divide_gradients()."""
        found_inf, scale = vars(self).pop("found_inf"), vars(self).pop("grad_scale")
        try:
            result = step()
        except BaseException:
            if scale is not None:
                divide_gradients(self, 1 / scale)  # the next try divides
            raise
        self.found_inf, self.grad_scale = found_inf, scale  # GradScaler deletes them
        return result

    def _forget_scaling(self):
        """Drops what GradScaler leaves after a step() that has raised: it would multiply by it."""
        for name in ("found_inf", "grad_scale"):
            vars(self).pop(name, None)

    def add_param_group(self, param_group):
        """A group that can't be reduced is refused, and taken out again."""
        self._refuse_released()
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        added = [(f"param_group.{index}.{i}", parameter)
                 for i, parameter in enumerate(self.param_groups[index]["params"])]
        try:
            self._take_parameters(added)
        except BaseException:
            self.param_groups.pop()
            raise
        self._parameter_names.update({parameter: name for name, parameter in added})

    def _take_parameters(self, named):
        """(name, parameter) of a group that is new. Takes all of them, or raises."""
        raise NotImplementedError


def divide_gradients(optimizer, scale):
    """As GradScaler.unscale_() does. Returns a tensor for each device, above 0 if there was a NaN
    or an infinity among them."""
    found = torch.zeros((), dtype=torch.float32, device=scale.device)
    of_devices = torch.amp.GradScaler(enabled=False)._unscale_grads_(
        optimizer, scale.double().reciprocal().float(), found, False)
    return list(of_devices.values())


def wrap(optimizer, base):
    """Gives the optimizer a class of its own, with what `base`, a WrappedOptimizer, adds."""
    plain = type(optimizer)
    optimizer.__class__ = type(plain.__name__, (base, plain),
                               {"_plain": plain, "step": _within(plain.step)})
    of_scheduler = vars(optimizer).get("step")
    if isinstance(of_scheduler, types.MethodType):
        optimizer.step = types.MethodType(_within(of_scheduler.__func__), optimizer)
    elif of_scheduler is not None:  # it calls the step() of the plain class
        optimizer.step = _within(of_scheduler, weakref.ref(optimizer))


def _within(step, of=None):
    """Wraps a step(). One that raises calls no post-hook; the next one is a new step all the same.
    `of`: a function that gives the optimizer, if the first argument is not the optimizer."""
    @functools.wraps(step)
    def stepped(*args, **kwargs):
        optimizer = args[0] if of is None else of()
        optimizer._refuse_released()
        try:
            return optimizer._make_step(lambda: step(*args, **kwargs))
        except BaseException:
            optimizer._forget_step()
            raise
    return stepped


def released():
    """The error of a call after release()."""
    return RuntimeError("this DistributedOptimizer has been released (release()): make a new one")


def _empty(plain):
    return plain.__new__(plain)
