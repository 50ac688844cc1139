"""Collectives that return a handle at once, and what waits for handles.

The ranks meet by name within a kind: "allreduce.x" and "allgather.x" are two. Unnamed calls are
counted, so their order is the same on all ranks. What is wrong with the tensors or splits of one
rank is told to the ranks that wait for it. A wrong op or compression is not: it stands in the
program, and each rank finds it.
"""

import contextlib
import numbers

import torch

from horon import native
from horon.torch.process_sets import global_process_set, root_of

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_Kind = native.Kind
NATIVE_OPS = {Average: native.ReduceOp.Average, Sum: native.ReduceOp.Sum,
              Min: native.ReduceOp.Min, Max: native.ReduceOp.Max,
              Product: native.ReduceOp.Product, Adasum: native.ReduceOp.Adasum}
_NARROW = {torch.uint8, torch.int8, torch.int16, torch.int32}


class Handle:
    """A collective under way: for poll() and synchronize()."""

    def __init__(self, native_handle, result):
        self._native = native_handle
        self._result = result  # from the tensors of C++ to what synchronize() returns

    def poll(self):
        return self._native.poll()

    def synchronize(self):
        if self._result is not None:
            made = self._result(self._native.wait(), self._native)
            self._native = _Ended()
            self._result = None
            self._value = made
        return self._value


class _Ended:
    """Takes the place of the native handle, which held the tensors."""

    def poll(self):
        return True


def poll(handle):
    """Has it ended? Then synchronize() does not block."""
    _require_handle(handle, "poll")
    return handle.poll()


def synchronize(handle):
    """Waits; the result of the call. Raises HorovodInternalError if it failed."""
    _require_handle(handle, "synchronize")
    return handle.synchronize()


def _require_handle(handle, call):
    if callable(handle):
        raise TypeError("sparse_allreduce_async() returns a function: call it for the result")
    if not isinstance(handle, Handle):
        raise TypeError(f"{call}: {handle!r} is not a handle: give what allreduce_async() or "
                        "another call with _async in its name returned")


def require_op(op):
    """Raises unless it is Horovod's. Ops of torch.distributed equal integers of other ops."""
    if isinstance(op, numbers.Integral) and op in NATIVE_OPS:
        return
    is_of_torch = type(op).__module__.startswith("torch.")
    raise ValueError(f"op {op!r}{' is of torch.distributed' if is_of_torch else ''}: give "
                     "hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum")


def reduction(op, average=None):
    """The op that a call means; `average` is Horovod's old way to say it."""
    if average is not None:
        if op is not None:
            raise ValueError("give op or average, not both")
        return Average if average else Sum
    op = Average if op is None else op
    require_op(op)
    return op


def _tensors(kind, given):
    """The tensors of a call, as a list."""
    tensors = list(given)
    for each in tensors:
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"{kind}: a {type(each).__name__} is not a torch.Tensor: give "
                            "torch.as_tensor() of it")
    return tensors


def _named(kind, name):
    return f"{kind}.{name}" if name else ""


def _refuse(call, why):
    """Tells the ranks that wait for this one."""
    try:
        native.refuse(call, why)
    except Exception:  # the same error, as C++ raises it; or there is no session to tell it in
        pass


def _refused(error, call):
    """Tells them what Python has found wrong; returns the error to raise."""
    _refuse(call, str(error))
    return error


def refuse_allreduce(name, process_set, why):
    """Instead of allreduce_async(name=name) on a rank that can't take part: it fails on the
    others, with this text."""
    _refuse(native.Call(_Kind.allreduce, "allreduce", _named("allreduce", name),
                        process_set.of_call()), why)


def _tensors_of(call, kind, given):
    try:
        return _tensors(kind, given)
    except TypeError as error:
        raise _refused(error, call)


def _first(tensors, _):
    return tensors[0]


def _all(tensors, _):
    return tensors


def _start(call, tensors, result, wait):
    if wait:
        ended = native.run(call, tensors)
        return result(ended.wait(), ended)
    return Handle(native.submit(call, tensors), result)


class _Scaling:
    """Factors before and after a reduction.

    An average is the sum divided by the number of all ranks, also of those that have joined, which
    C++ does not count. Integers are scaled in float64 and rounded toward zero; for an
    average they are added in 64 bits, since the mean of values fits where their sum does not.
    """

    def __init__(self, op, tensors, prescale, postscale, process_set):
        self.integer = bool(tensors) and not (
            tensors[0].dtype.is_floating_point or tensors[0].dtype.is_complex)
        self.prescale, self.postscale = prescale, postscale
        self.divisor = 1
        self.narrow = None  # the dtype of integers that are added in 64 bits
        self.op = op
        self.remark = ""  # compared by the ranks
        if op == Average:
            if tensors and tensors[0].dtype == torch.bool:
                raise ValueError("bool has no average; use Min (all) or Max (any)")
            self.divisor = process_set.of_call().size()
        if not self.integer:
            return
        self.remark = f"op {NATIVE_OPS[op].name}"
        if op == Average:
            self.op = Sum
        if op == Average and tensors[0].dtype in _NARROW and all(
                each.dtype == tensors[0].dtype for each in tensors):
            self.narrow = tensors[0].dtype

    def factors(self):
        """Those that C++ applies."""
        return (1.0, 1.0) if self.integer else (float(self.prescale), float(self.postscale))

    def is_here(self):
        """Whether Python scales instead of C++, and there is something to scale."""
        return self.integer and (self.narrow is not None or (
            self.prescale, self.postscale, self.divisor) != (1, 1, 1))

    def before(self, tensors):
        if not self.integer:
            return tensors
        if self.prescale != 1:
            tensors = [(each.double() * self.prescale).to(each.dtype) for each in tensors]
        if self.narrow is not None:
            tensors = [each.to(torch.int64) for each in tensors]
        return tensors

    def after(self, tensor, contributors):
        """`contributors`: the ranks that have not joined."""
        if not self.integer:
            if self.op == Average and contributors != self.divisor:
                with torch.no_grad():
                    tensor.mul_(contributors / self.divisor)
            return tensor
        if self.divisor != 1:
            tensor = torch.div(tensor, self.divisor, rounding_mode="trunc")
        if self.postscale != 1:
            tensor = (tensor.double() * self.postscale).to(tensor.dtype)
        return tensor if self.narrow is None else tensor.to(self.narrow)


def start_reduction(kind, tensors, name, op, prescale, postscale, process_set, grouped=False,
                    in_place=False, wait=False):
    """An allreduce or reducescatter of one tensor or of a group."""
    kind_name = f"grouped_{kind}" if grouped else kind
    of_call = process_set.of_call()
    try:
        tensors = _tensors(kind, tensors)
        scaling = _Scaling(op, tensors, prescale, postscale, process_set)
    except (TypeError, ValueError) as error:
        raise _refused(error, native.Call(getattr(_Kind, kind), kind_name, _named(kind_name, name),
                                          of_call))
    sent = scaling.before(tensors)
    apart = in_place and scaling.is_here()  # the caller's tensor takes the result at the end
    factors = scaling.factors()
    call = native.Call(getattr(_Kind, kind), kind_name, _named(kind_name, name),
                       of_call, grouped, in_place and not apart,
                       NATIVE_OPS[scaling.op], 0, *factors, remark=scaling.remark)

    def result(reduced, ended):
        contributors = ended.contributors()
        values = [scaling.after(each, contributors) for each in reduced]
        if in_place:
            if apart:
                with torch.no_grad():
                    for tensor, value in zip(tensors, values):
                        tensor.copy_(value)
            values = tensors
        return values if grouped else values[0]

    return _start(call, sent, result, wait)


def with_rows(tensors, ended):
    """Of an allgather: the tensors, and the rows of each that came from each rank."""
    return tensors, ended.received()


def start_rows(kind, tensors, name, process_set, grouped=False, wait=False, result=None):
    """An allgather of one tensor or of a group. `result`: as Handle's."""
    kind_name = f"grouped_{kind}" if grouped else kind
    call = native.Call(getattr(_Kind, kind), kind_name, _named(kind_name, name),
                       process_set.of_call(), grouped)
    return _start(call, _tensors_of(call, kind, tensors),
                  result or (_all if grouped else _first), wait)


def start_broadcast(tensor, root_rank, name, process_set, in_place=False, wait=False):
    def call_with(root):
        return native.Call(_Kind.broadcast, "broadcast", _named("broadcast", name),
                           process_set.of_call(), in_place=in_place, root=root)

    try:
        call = call_with(root_of("broadcast", root_rank))
    except TypeError as error:
        raise _refused(error, call_with(0))
    result = (lambda _, __: tensor) if in_place else _first
    return _start(call, _tensors_of(call, "broadcast", [tensor]), result, wait)


def _rows_of(splits):
    given = splits
    try:
        splits = torch.as_tensor(splits)
        fits = not (splits.dtype.is_floating_point or splits.is_complex()
                    or splits.dim() != 1 or splits.numel() == 0)
    except Exception:  # what torch raises for this differs
        fits = False
    if not fits:
        raise ValueError(f"alltoall: splits must be integers, one for each rank, not {given!r}")
    return splits.tolist()


def received_splits(rows):
    """Horovod's are int32. Longer ones are right too."""
    fit = max(rows, default=0) <= torch.iinfo(torch.int32).max
    return torch.tensor(rows, dtype=torch.int32 if fit else torch.int64)


def start_alltoall(tensor, splits, name, process_set, wait=False):
    """The result is (tensor, rows from each rank)."""
    of_call = process_set.of_call()

    def call_with(rows):
        return native.Call(_Kind.alltoall, "alltoall", _named("alltoall", name), of_call,
                           splits=rows)

    try:
        _tensors("alltoall", [tensor])
        rows = [] if splits is None else _rows_of(splits)  # none: as many for each
    except (TypeError, ValueError) as error:
        raise _refused(error, call_with([]))
    if splits is not None and tensor.dim() > 0 and 0 <= sum(rows) < tensor.shape[0]:
        tensor = tensor[:sum(rows)]  # the rest stays here
    call = call_with(rows)

    def result(tensors, ended):
        return tensors[0], received_splits(ended.received()[0])

    return _start(call, [tensor], result, wait)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                    postscale_factor=1.0, process_set=global_process_set):
    return start_reduction("allreduce", [tensor], name, reduction(op, average), prescale_factor,
                           postscale_factor, process_set)


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                     postscale_factor=1.0, process_set=global_process_set):
    return start_reduction("allreduce", [tensor], name, reduction(op, average), prescale_factor,
                           postscale_factor, process_set, in_place=True)


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                            postscale_factor=1.0, process_set=global_process_set):
    return start_reduction("allreduce", tensors, name, reduction(op, average), prescale_factor,
                           postscale_factor, process_set, grouped=True)


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                             postscale_factor=1.0, process_set=global_process_set):
    return start_reduction("allreduce", tensors, name, reduction(op, average), prescale_factor,
                           postscale_factor, process_set, grouped=True, in_place=True)


def reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set,
                        prescale_factor=1.0, postscale_factor=1.0):
    return start_reduction("reducescatter", [tensor], name, reduction(op), prescale_factor,
                           postscale_factor, process_set)


def grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set,
                                prescale_factor=1.0, postscale_factor=1.0):
    return start_reduction("reducescatter", tensors, name, reduction(op), prescale_factor,
                           postscale_factor, process_set, grouped=True)


def allgather_async(tensor, name=None, process_set=global_process_set):
    return start_rows("allgather", [tensor], name, process_set)


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    return start_rows("allgather", tensors, name, process_set, grouped=True)


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """root_rank: of the world, also with a process set."""
    return start_broadcast(tensor, root_rank, name, process_set)


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    return start_broadcast(tensor, root_rank, name, process_set, in_place=True)


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    """The result is (tensor, rows from each rank), also where no splits are given."""
    return start_alltoall(tensor, splits, name, process_set)


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Of a sparse COO tensor; returns a function that waits and gives the result, coalesced."""
    op = reduction(op)
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async: op must be Sum or Average")
    of_call = process_set.of_call()
    divisor = of_call.size() if op == Average else 1
    name = _named("sparse_allreduce", name)
    try:
        _tensors("sparse_allreduce_async", [tensor])
    except TypeError:
        with contextlib.suppress(ValueError):  # which the ranks that wait for this one are told
            native.submit_sparse(None, name, native.ReduceOp.Sum, of_call)
        raise
    handle = native.submit_sparse(tensor, name, native.ReduceOp.Sum, of_call)
    return lambda: handle.wait() if divisor == 1 else handle.wait() / divisor


def join(device=-1):
    """This rank has no more data: serves the others' allreduces with zeros until all ranks have
    joined. Returns the rank that came last. `device` is not needed."""
    return native.join(global_process_set.of_call())


def barrier(process_set=global_process_set):
    """Returns when every rank of the set has called it."""
    native.barrier(process_set.of_call())
