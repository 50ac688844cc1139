"""DistributedOptimizer: any optimizer of PyTorch, whose gradients are reduced over the ranks."""

import contextlib
import inspect
import warnings
import weakref
from collections import OrderedDict

import torch

from horon import native
from horon.torch.adasum import make_adasum
from horon.torch.collectives import NATIVE_OPS, Adasum, Average, Sum, require_op
from horon.torch.compression import Compression
from horon.torch.process_sets import global_process_set
from horon.torch.wrapped_optimizer import WrappedOptimizer, divide_gradients, released, wrap

_SYNCHRONIZE_FIRST = ("call optimizer.synchronize() before scaler.unscale_(optimizer) and "
                      "scaler.step(optimizer), the latter within optimizer.skip_synchronize()")


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
                         backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
                         num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set):
    """Makes `optimizer` reduce its gradients, and returns it: the same object, of a class that has
    the calls of _Distributed too. State, schedulers and references to it stay as they are.

    When backward() returns, every .grad is reduced over the ranks of the process set (the others
    keep their own): clip it, unscale it, look at it. Options are those of Horovod; Compression has
    bf16 and int8 too. All ranks give the same. With op=Adasum not gradients are reduced, but what
    the steps of the ranks have moved the parameters by (see adasum.py).
    """
    if isinstance(optimizer, WrappedOptimizer):
        raise ValueError("DistributedOptimizer: this optimizer is distributed already")
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"DistributedOptimizer: optimizer is a {type(optimizer).__name__}: give an "
                        "optimizer of torch.optim, such as SGD(model.parameters(), lr=0.1)")
    require_op(op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if compression not in (Compression.none, Compression.fp16, Compression.bf16,
                           Compression.int8):
        raise ValueError("compression: give Compression.none, fp16, bf16 or int8; the hooks of C++ "
                         "round while they pack, and call no compressor of the program")
    named = _names(optimizer, named_parameters)
    options = {"op": op, "process_set": process_set, "sparse_as_dense": sparse_as_dense,
               "backward_passes_per_step": backward_passes_per_step,
               "gradient_predivide_factor": gradient_predivide_factor}
    if op == Adasum:
        return make_adasum(optimizer, named, compression, options)
    lists, number = _groups(groups, num_groups, _first_names(_that_may_have_gradients(named)))
    reduced = _with_gradients(named)
    if isinstance(optimizer, torch.optim.LBFGS) and native.is_mixed(process_set.of_call()):
        raise ValueError("LBFGS decides by numbers that ranks with and without a GPU round "
                         "differently, so ranks would call the closure unequally often: give all "
                         "ranks a GPU, or none")
    # SparseAdam wants sparse gradients in any case. Of sparse ones there are sums alone.
    dense = ((sparse_as_dense or op not in (Average, Sum))
             and not isinstance(optimizer, torch.optim.SparseAdam))
    reducer = native.Reducer(
        reduced, op=NATIVE_OPS[op], process_set=process_set.of_call(),
        compression=compression.name, passes=backward_passes_per_step,
        predivide_factor=gradient_predivide_factor, groups=lists, num_groups=number,
        sparse_as_dense=dense)
    optimizer._parameter_names = _first_names(named)
    optimizer._options = options
    optimizer._reducer = reducer
    optimizer._is_alone = not process_set.included() or process_set.size() == 1
    optimizer._is_of_all = process_set is global_process_set
    optimizer._may_meet_ddp = True
    optimizer._synchronized = False
    optimizer._skips_synchronize = False
    optimizer._in_step = False
    plain = type(optimizer)
    default = inspect.signature(plain.zero_grad).parameters.get("set_to_none")
    optimizer._sets_to_none = default is not None and default.default is True
    wrap(optimizer, _Distributed)
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    return optimizer


class _Distributed(WrappedOptimizer):
    """What DistributedOptimizer adds to an optimizer."""

    def _make_step(self, step):
        if not hasattr(self, "found_inf"):
            return step()
        # Called by a GradScaler. A step that it leaves out is one of the reducer too.
        has_looked = self._reduce_behind_scaler()
        if has_looked and self._plain_looks_at_scaling():
            return step()
        found = bool(self.found_inf)
        if self.grad_scale is not None or not has_looked:
            scale = torch.ones(()) if self.grad_scale is None else self.grad_scale
            infinities = divide_gradients(self, scale)
            if not has_looked:
                found = any(bool(each) for each in infinities)
        if found != bool(self.found_inf):
            if self.grad_scale is not None:
                divide_gradients(self, 1 / self.grad_scale)  # the next try divides
            raise RuntimeError(
                "GradScaler looked at this rank's gradients before step() reduced them, and "
                f"{'missed' if found else 'alone saw'} the NaN or infinity among them, so its "
                "scale would differ from the other ranks': "
                + _SYNCHRONIZE_FIRST)
        if found:
            _after_step(self, (), {})
            return None
        return self._step_of_divided(step)

    def _reduce_behind_scaler(self):
        """Reduces what is left. Returns whether GradScaler has looked at reduced gradients: false
        if this call has reduced some after that."""
        is_done = self.grad_scale is None or not isinstance(self.found_inf, torch.Tensor)
        had_some = (self._synchronized or self._reducer.unsynchronized_parameter() != "" or
                    (is_done and self._has_gradients()))
        rounds = self._reducer.statistics()["steps"]
        _before_step(self, (self,), {})
        has_looked = self._is_alone or self._reducer.statistics()["steps"] == rounds
        if is_done and not had_some and not has_looked and self._has_gradients():
            raise RuntimeError("this rank ran no backward() in this step, so it got the others' "
                               "gradients after GradScaler had looked: " +
                               _SYNCHRONIZE_FIRST)
        return has_looked

    def _has_gradients(self):
        """Whether there are gradients other than zeros."""
        gradients = [parameter.grad for group in self.param_groups
                     for parameter in group["params"] if parameter.grad is not None]
        values = [each._values() if each.is_sparse else each for each in gradients]
        return any(bool((each != 0).any()) for each in values)

    def _is_reduced(self):
        """Whether synchronize() has reduced all there is: no gradient has come since."""
        return (self._synchronized and self._rounds_synchronized == self._reducer.rounds and
                self._reducer.unsynchronized_parameter() == "")

    def _forget_step(self):
        self._in_step = False
        self._forget_scaling()

    def synchronize(self):
        """Reduces what backward() has not; step() does so too. Collective."""
        self._in_step = False
        self._reducer.synchronize()
        self._synchronized = True
        self._rounds_synchronized = self._reducer.rounds

    @contextlib.contextmanager
    def skip_synchronize(self):
        """For a step() after synchronize()."""
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False

    @contextlib.contextmanager
    def no_sync(self):
        """Within it backward() adds up on this rank; the first one after it reduces all."""
        self._reducer.begin_no_sync()
        try:
            yield
        finally:
            self._reducer.end_no_sync()

    def set_weight(self, weight):
        """The weight of this rank's samples in the average of this step; before its backward()."""
        self._reducer.set_weight(weight)

    def set_backward_passes_per_step(self, passes):
        self._reducer.set_backward_passes_per_step(passes)
        self._options["backward_passes_per_step"] = passes

    def reduction_statistics(self):
        """Steps, buckets, those submitted within backward(), seconds waited."""
        return self._reducer.statistics()

    def release(self):
        super().release()
        self._reducer = _Released()  # takes the hooks of C++ off

    def zero_grad(self, *args, **kwargs):
        """The arguments are those of the optimizer's class, which may know none."""
        self._in_step = False
        self._synchronized = False  # what comes now is not reduced
        if not (args[0] if args else kwargs.get("set_to_none", self._sets_to_none)):
            self._reducer.before_zeroing_in_place()
        super().zero_grad(*args, **kwargs)

    def _take_parameters(self, named):
        self._reducer.add_parameters(_with_gradients(named))


class _Released:
    """In the place of a reducer."""

    def __getattr__(self, name):
        raise released()


def _names(optimizer, named_parameters):
    """(name, parameter) of all parameters of the optimizer."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return [(f"allreduce.noname.{i}.{j}", parameter)
                for i, group in enumerate(optimizer.param_groups)
                for j, parameter in enumerate(group["params"])]
    named = list(named_parameters)
    if any(not isinstance(each, tuple) for each in named):
        raise ValueError("named_parameters: give pairs (name, parameter), as "
                         "model.named_parameters() does")
    seen = set()
    twice = {name for name, _ in named if name in seen or seen.add(name)}
    if twice:
        raise ValueError("named_parameters: several parameters have the same name: "
                         f"{', '.join(sorted(twice))}")
    known = {id(parameter) for _, parameter in named}
    missing = sum(id(parameter) not in known for parameter in parameters)
    if missing:
        raise ValueError(f"named_parameters: {missing} parameters of the optimizer have no name")
    mine = {id(parameter) for parameter in parameters}
    return [(name, parameter) for name, parameter in named if id(parameter) in mine]


def _groups(groups, num_groups, names):
    """Groups as (lists of names, number of groups)."""
    if num_groups:
        warnings.warn("num_groups is deprecated: give groups", DeprecationWarning)
        groups = num_groups if groups is None else groups
    if groups is None:
        return [], 0
    if isinstance(groups, int) and groups >= 0:
        return [], groups
    if not isinstance(groups, list):
        raise ValueError("groups: give a number >= 0, or a list of lists of parameters")
    seen = set()
    lists = []
    for group in groups:
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise ValueError("groups: each group must be a list of parameters")
            if id(parameter) in seen:
                raise ValueError("groups: a parameter is named twice; put it in one group")
            seen.add(id(parameter))
        lists.append([names[parameter] for parameter in group if parameter in names])
    return [each for each in lists if each], 0


def _first_names(named):
    """By parameter: a tied one has several names, and the reducer knows it by the first."""
    names = {}
    for name, parameter in named:
        names.setdefault(parameter, name)
    return names


def _that_may_have_gradients(named):
    """Integers can't."""
    return [(name, parameter) for name, parameter in named
            if parameter.is_floating_point() or parameter.is_complex()]


def _with_gradients(named):
    """Those that can have gradients, ready for the hooks of C++."""
    reduced = _that_may_have_gradients(named)
    _refuse_those_of_ddp(reduced)
    for _, parameter in reduced:
        _prepare_hooks(parameter)
    return reduced


def _refuse_those_of_ddp(named):
    for name, parameter in named:
        if native.is_reduced_by_ddp(parameter):
            raise ValueError(
                f"parameter \"{name}\" belongs to a DistributedDataParallel, which would reduce "
                "its gradient a second time: train the module without that wrapper (delete the "
                "wrapper first), or leave DistributedOptimizer out")


class _Hooks(OrderedDict):
    """Python's hooks of a parameter. Autograd learns of them with the first one: from then on each
    gradient costs a microsecond more."""

    def __init__(self, parameter):
        super().__init__()
        self._unknown_to = weakref.ref(parameter)

    def __setitem__(self, number, hook):
        super().__setitem__(number, hook)
        if self._unknown_to is None:
            return
        parameter, self._unknown_to = self._unknown_to(), None
        if parameter is not None and parameter._backward_hooks is self:
            native.know_python_hooks(parameter, self)


def _prepare_hooks(parameter):
    """The first hook that Python registers on a tensor makes the lists of hooks anew, which would
    drop those of C++. So the lists are made before. Hooks that are there stay."""
    requires_grad = parameter.requires_grad
    parameter.requires_grad_(True)
    if parameter._backward_hooks is None:
        parameter._backward_hooks = _Hooks(parameter)
        native.forget_python_hooks(parameter)
    if parameter._post_accumulate_grad_hooks is None:
        parameter._post_accumulate_grad_hooks = OrderedDict()
    parameter.requires_grad_(requires_grad)


def _before_step(optimizer, args, kwargs):
    """A pre-hook, not a step() of the class: schedulers replace step() of the instance."""
    if optimizer._in_step:  # a step() that calls the one of its base class
        return None
    if optimizer._may_meet_ddp:  # one that was made after this optimizer
        _refuse_those_of_ddp((name, parameter) for parameter, name
                             in optimizer._parameter_names.items())
        optimizer._may_meet_ddp = False
    changed = _reduce_for_step(optimizer, args, kwargs)
    optimizer._in_step = True
    return changed


def _reduce_for_step(optimizer, args, kwargs):
    closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
    if closure is not None:
        kwargs = {key: value for key, value in kwargs.items() if key != "closure"}
        return (args[0], _reducing(optimizer, closure), *args[2:]), kwargs
    if optimizer._skips_synchronize:
        return None
    if optimizer._synchronized:
        # There may be other gradients by now: of a backward() in no_sync(), say, where a step was
        # left out.
        warnings.warn("optimizer.step() called without optimizer.skip_synchronize() context after "
                      "optimizer.synchronize(): the gradients are reduced again, as in Horovod. "
                      "That takes time, and op=Sum adds up the sums")
        optimizer._reducer.count_gradients_as_new()
    optimizer._reducer.synchronize()
    return None


def _after_step(optimizer, args, kwargs):
    optimizer._in_step = False
    optimizer._synchronized = False


def _reducing(optimizer, closure):
    """The closure for an optimizer that calls it as often as it likes: gradients are reduced, and
    the loss is that of all ranks, so that they decide alike."""
    def evaluate():
        reducer = optimizer._reducer
        rounds = reducer.begin_evaluation()
        optimizer._synchronized = False
        try:
            loss = closure()
            if not optimizer._is_reduced():
                reducer.synchronize()
        except BaseException as error:
            optimizer._forget_step()  # it ends this step
            if reducer.leave_evaluation(rounds):  # the others wait for this rank's loss
                reducer.refuse_number(f"step(closure) on rank {native.rank()}: {error}")
            raise
        try:
            # Also of a rank without a loss: the others wait for all.
            of_all = reducer.reduce_number_if_any(_number(optimizer, loss))
        except BaseException:
            optimizer._forget_step()
            raise
        if torch.is_tensor(loss):
            return torch.full_like(loss.detach(), of_all)
        if loss is not None or of_all is None:
            return of_all
        # Rounded as the others' is, so that all decide alike.
        dtype = optimizer.param_groups[0]["params"][0].dtype
        return torch.tensor(of_all, dtype=dtype.to_real() if dtype.is_complex else dtype)
    return evaluate


def _number(optimizer, loss):
    try:
        if loss is None:
            return None
        return float(loss.detach() if torch.is_tensor(loss) else loss)
    except (TypeError, ValueError, RuntimeError) as error:
        why = f"the loss of a closure must be one real number: {error}"
        optimizer._reducer.refuse_number(why)
        raise ValueError(why) from error
