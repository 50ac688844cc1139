"""Parameters, optimizer state and objects of one rank for all."""

import contextlib
import io
import pickle

import torch

from horon import errors, native
from horon.torch.collectives import broadcast_async_, synchronize
from horon.torch.process_sets import global_process_set, root_of

try:
    import cloudpickle as pickler  # writes functions and classes of __main__ too
except ImportError:
    pickler = pickle


def broadcast_parameters(params, root_rank):
    """Gives all ranks the root's values, in place. params: a state_dict, named_parameters() or
    parameters().

    Names, dtypes and shapes are compared first; where they differ all ranks raise
    HorovodInternalError that names the first one, and nothing is written.
    """
    if isinstance(params, dict):
        params = params.items()
    try:
        named = [_named(each, i) for i, each in enumerate(params)]
    except (TypeError, ValueError):
        raise ValueError("broadcast_parameters: give a state_dict, named_parameters() or "
                         "parameters()") from None
    for name, tensor in named:
        if torch.nn.parameter.is_lazy(tensor):  # told to the others where they compare theirs
            why = (f'tensor "{name}" has no shape and no values yet: call the model once first, '
                   "on any input")
            native.require_agreement("broadcast_parameters", [], why,
                                     global_process_set.of_call())
    try:
        root = root_of("broadcast_parameters", root_rank)
    except TypeError as error:  # told to them too
        native.require_agreement("broadcast_parameters", [], str(error),
                                 global_process_set.of_call())
    native.broadcast_tensors([(name, tensor) for name, tensor in named
                              if isinstance(tensor, torch.Tensor)],
                             root, global_process_set.of_call())


def _named(parameter, i):
    """(name, tensor) of a pair, or of a tensor that has no name."""
    if isinstance(parameter, torch.Tensor):
        return f"parameter {i}", parameter
    name, tensor = parameter
    return name, tensor


class _TensorOf:
    """Stands for a tensor in an optimizer's state that travels without its tensors."""

    def __init__(self, tensor):
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)
        self.device = tensor.device.type

    def empty(self):
        # A rank without a GPU, beside others that have one, takes it on the CPU.
        device = self.device if self.device != "cuda" or torch.cuda.is_available() else "cpu"
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _replace(value, of_type, made):
    """The value with made(x) for each x of a type in it."""
    if isinstance(value, of_type):
        return made(value)
    if isinstance(value, dict):
        return {key: _replace(each, of_type, made) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace(each, of_type, made) for each in value)
    return value


def _facts_of(optimizer, root_rank):
    """What ranks must have alike before one takes the state of another."""
    # DistributedOptimizer knows names. One of a process set is wrapped on the ranks of that alone.
    names = optimizer._parameter_names if getattr(optimizer, "_is_of_all", False) else {}
    root = root_of("broadcast_optimizer_state", root_rank)
    facts = [("root", str(root)), ("the class", type(optimizer).__name__)]
    for i, group in enumerate(optimizer.param_groups):
        facts.append((f"parameter group {i}", f"{len(group['params'])} parameters"))
        for j, parameter in enumerate(group["params"]):
            of_type = f"{parameter.dtype} {list(parameter.shape)}"
            name = f'"{names[parameter]}" ' if parameter in names else ""
            facts.append((f"parameter {j} of group {i}", name + of_type))
    return facts


def _compare(optimizer, root_rank):
    """Raises on all ranks if their optimizers differ. Collective."""
    facts, failure = [], None
    try:
        facts = _facts_of(optimizer, root_rank)
    except Exception as error:  # the other ranks are told
        failure = error
    why = f"the optimizer can't be compared: {failure}" if failure is not None else ""
    native.require_agreement("broadcast_optimizer_state", facts, why,
                             global_process_set.of_call())


def _broadcast_all(tensors, root_rank):
    """Broadcasts all, also after one that is refused: the other ranks wait for all of them, and a
    name is free when its collective has ended."""
    faults = []

    def note(call, *args):
        try:
            return call(*args)
        except Exception as error:
            faults.append(error)

    handles = [note(broadcast_async_, each, root_rank, f"optimizer_state.{i}")
               for i, each in enumerate(tensors)]
    for handle in handles:
        if handle is not None:
            note(synchronize, handle)
    if faults:
        raise faults[0]


def broadcast_optimizer_state(optimizer, root_rank, model=None):
    """Gives all ranks the root's options and state, whatever they had. No step is taken.

    The class, the groups, and dtypes and shapes of the parameters are compared first (and the names
    that DistributedOptimizer knows); where they differ all ranks raise HorovodInternalError that
    names the first one, and nothing is written. `model` is not needed. Call it after
    broadcast_parameters().
    """
    _compare(optimizer, root_rank)
    tensors = []
    is_root = native.rank() == root_rank

    def take(tensor):
        tensors.append(tensor.detach().clone())
        return _TensorOf(tensor)

    def make(stand_in):
        tensors.append(stand_in.empty())
        return tensors[-1]

    state, failure = None, None
    if is_root:
        try:
            state = _replace(optimizer.state_dict(), torch.Tensor, take)
        except Exception as error:  # the other ranks wait for it
            failure = error
    state, why = broadcast_object((state, failure and f"{type(failure).__name__}: {failure}"),
                                  root_rank)
    if failure is not None:
        raise failure
    if why is not None:
        raise errors.make("failed", f"rank {root_rank}'s optimizer has no state_dict(): {why}")
    if not is_root:
        state = _replace(state, _TensorOf, make)
    _broadcast_all(tensors, root_rank)
    try:
        if not is_root:
            optimizer.load_state_dict(state)
    except Exception as error:  # the others would train on
        failure = error
    why = f"load_state_dict(): {type(failure).__name__}: {failure}" if failure is not None else ""
    try:
        native.raise_together("broadcast_optimizer_state", why, global_process_set.of_call())
    except errors.Error as of_all:
        raise of_all from failure


_CAN_T_BE_WRITTEN = b"!"  # instead of a pickle, which begins otherwise; the reason follows


def _written(obj):
    """(bytes of the object, None), or (why there are none, what was raised)."""
    try:
        return pickler.dumps(obj), None
    except Exception as error:  # the ranks that wait for the bytes are told
        return _CAN_T_BE_WRITTEN + f"{type(error).__name__}: {error}".encode(), error


def _read(written, rank):
    if not written:
        raise errors.make("failed", f"rank {rank} has called join() and gives no more objects; "
                                    "call this before join()")
    if written[:1] != _CAN_T_BE_WRITTEN:
        reader = pickle.Unpickler if torch.cuda.is_available() else _OnCpu
        return reader(io.BytesIO(written)).load()
    raise errors.make("failed", f"the object of rank {rank} can't be pickled: "
                                f"{written[1:].decode(errors='replace')}")


class _OnCpu(pickle.Unpickler):
    """Tensors that were on a GPU come to the CPU, on a rank that has none beside others."""

    def find_class(self, module, name):
        if (module, name) != ("torch.storage", "_load_from_bytes"):
            return super().find_class(module, name)
        return lambda of_storage: torch.load(io.BytesIO(of_storage), map_location="cpu",
                                             weights_only=False)


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """The root's object, by pickle: only from ranks of this job, which are trusted.

    If it can't be pickled, the root raises what pickle does, and the others HorovodInternalError.
    """
    name = f"broadcast_object.{name}" if name else ""
    try:
        root_of("broadcast_object", root_rank)
    except TypeError:
        with contextlib.suppress(Exception):  # no rank: the ranks that wait for this one are told
            native.broadcast_bytes(b"", name, -1, process_set.of_call())
        raise
    is_root = native.rank() == root_rank
    written, error = _written(obj) if is_root else (b"", None)
    received = native.broadcast_bytes(written, name, root_rank, process_set.of_call())
    if error is not None:
        raise error
    return obj if is_root else _read(received, root_rank)


def allgather_object(obj, name=None, process_set=global_process_set):
    """A list of the objects of all ranks of the set, in the order of ranks. If one can't be
    pickled: as broadcast_object()."""
    name = f"allgather_object.{name}" if name else ""
    written, error = _written(obj)
    of_call = process_set.of_call()
    received = native.allgather_bytes(written, name, of_call)
    if error is not None:
        raise error
    return [_read(each, rank) for each, rank in zip(received, of_call.ranks())]
