"""Elastic jobs: what was committed outlives a rank or a host that fails.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            for state.batch in range(state.batch, batches):
                ...
                state.commit()
            state.batch = 0

    train(hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0))

These are Horovod's calls. The whole job is started again, as torchrun does, so start it with
`horonrun --max-restarts N`, and with --host-discovery-script if hosts come and go. The ranks that
start then begin with what rank 0 has committed. Started in another way, the program runs as it
would without elastic.run.
"""

import copy
import functools
import random
import warnings

import torch

from horon import native
from horon.errors import HostsUpdatedInterrupt
from horon.torch.commits import Commits
from horon.torch.state import broadcast_object, broadcast_optimizer_state, broadcast_parameters

_EXIT_CODE_OF_NEW_HOSTS = 75  # EX_TEMPFAIL of sysexits.h, which horonrun knows


def run(func):
    """Decorates func(state, ...): it is called with rank 0's state on all ranks. After a restart
    that is what this call has committed last: the calls of a program are told apart by their
    number. A call that had returned before the restart is made again all the same, with its last
    commit, so that what it did after that is done again."""
    @functools.wraps(func)
    def wrapper(state, *args, **kwargs):
        commits = Commits.of_next_call()
        if commits is not None:
            state.begin_again(commits)
        state.sync()
        try:
            return func(state, *args, **kwargs)
        except HostsUpdatedInterrupt as interrupt:
            if commits is None:
                raise
            raise SystemExit(_EXIT_CODE_OF_NEW_HOSTS) from interrupt
        finally:
            if commits is not None:
                commits.end_call()  # what comes after may fail
    return wrapper


class State:
    """What a training needs to go on. Subclasses give save(), restore() and sync(); and committed()
    and take(), without which nothing is left after a restart."""

    def __init__(self, bcast_object=broadcast_object, get_rank=native.rank):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks = []
        self._commits = None

    def register_reset_callbacks(self, callbacks):
        """Functions that are called after a restart, which may have another number of ranks: they
        set the learning rate, say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def begin_again(self, commits):
        """For a job that may be started again: takes what its last start has committed."""
        self._commits = commits
        if commits.restart == 0:
            return
        content = commits.read() if self._rank() == 0 else None
        if content is not None:
            self.take(content)
        elif self._rank() == 0 and commits.call == 0:  # later ones may not have begun
            warnings.warn(f"restart {commits.restart}: {commits.path} does not exist, so training "
                          "begins anew: nothing was committed, or it is on another host (set "
                          "horonrun --commits to a folder that all hosts see)")
        self.on_reset()

    def commit(self):
        """Keeps the state as it is now, on all ranks in memory. Rank 0 also writes it to a file, in
        the background: of commits that come faster than that, the last one. If horonrun has found
        other hosts, all ranks end here, to be started again on those."""
        self.save()
        if self._commits is not None and self._rank() == 0:
            self._write_committed()
        self.check_host_updates()

    def _write_committed(self):
        try:
            content = self.committed()
        except Exception as error:  # what can't be copied: the training goes on
            self._commits.tell_unwritten(error)
            return
        if content is not None:
            self._commits.write(content)

    def check_host_updates(self):
        """Raises HostsUpdatedInterrupt on all ranks if there are other hosts."""
        if self._commits is None or not self._commits.hosts_may_change:
            return
        if self._bcast_object(self._rank() == 0 and self._commits.hosts_have_changed()):
            raise HostsUpdatedInterrupt("horonrun has found that the job's hosts changed")

    def save(self):
        raise NotImplementedError

    def restore(self):
        """Back to the last commit."""
        raise NotImplementedError

    def sync(self):
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self):
        pass

    def committed(self):
        """What save() has kept, to be pickled."""
        return None

    def take(self, content):
        """Takes what committed() gave, and makes it the state."""


class ObjectState(State):
    """Each keyword is an attribute, whose value is pickled."""

    def __init__(self, bcast_object=broadcast_object, get_rank=native.rank, **kwargs):
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._set_attributes()

    def save(self):
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self):
        self._set_attributes()

    def sync(self):
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attributes()

    def committed(self):
        return {"objects": copy.deepcopy(self._saved_state)}

    def take(self, content):
        known = {name: value for name, value in content["objects"].items()
                 if name in self._saved_state}
        self._saved_state = {**self._saved_state, **known}
        self._set_attributes()

    def _set_attributes(self):
        for name, value in self._saved_state.items():
            setattr(self, name, value)


class TorchState(ObjectState):
    """Of modules, optimizers and samplers the state is kept; of other keywords the value."""

    def __init__(self, model=None, optimizer=None, **kwargs):
        kwargs.update(model=model, optimizer=optimizer)
        self._handlers = {}
        self._saved_names = {}  # by handler: the attributes that its save() has made
        for name, value in kwargs.items():
            for of_type, handler in _handler_registry:
                if isinstance(value, of_type):
                    self._handlers[name] = handler(value)
                    break
        super().__init__(**{name: value for name, value in kwargs.items()
                            if name not in self._handlers})
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)

    def save(self):
        for name, handler in self._handlers.items():
            before = dict(vars(handler))
            handler.save()
            made = {key for key, kept in vars(handler).items() if kept is not before.get(key)}
            self._saved_names.setdefault(name, {"saved"}).update(made - {"value"})
        super().save()

    def restore(self):
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self):
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        self.save()

    def committed(self):
        handlers = {name: {key: kept for key, kept in vars(handler).items()
                           if key in self._saved_names.get(name, {"saved"})}
                    for name, handler in self._handlers.items()}
        return {**super().committed(), "handlers": handlers}

    def take(self, content):
        super().take(content)
        for name, saved in content["handlers"].items():
            if name in self._handlers:
                vars(self._handlers[name]).update(saved)
                self._handlers[name].restore()

    def __setattr__(self, name, value):
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)


class StateHandler:
    """Handles one value. What save() keeps in attributes, of any name, outlives a restart; save()
    makes these anew each time. Other attributes stay those of the handler."""

    def __init__(self, value):
        self.value = value

    def save(self):
        raise NotImplementedError

    def restore(self):
        raise NotImplementedError

    def sync(self):
        raise NotImplementedError

    def set_value(self, value):
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    def __init__(self, value):
        super().__init__(value)
        self.save()

    def save(self):
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self):
        # A copy, since optimizers go on with the tensors that they load.
        self.value.load_state_dict(copy.deepcopy(self.saved))


class ModelStateHandler(_StateDictHandler):
    def sync(self):
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_StateDictHandler):
    def sync(self):
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_StateDictHandler):
    def sync(self):
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


class ElasticSampler(torch.utils.data.Sampler):
    """Divides a dataset among the ranks, as DistributedSampler does, without the samples that were
    processed in this epoch. Give it to TorchState, call record_batch() after each batch, and
    set_epoch() at the end of an epoch."""

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch):
        """The next epoch begins: no sample of it is processed yet."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """All ranks have processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self):
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict):
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self):
        """Divides what is left among the ranks that there are."""
        self.num_replicas = native.size()
        self.rank = native.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num:]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self):
        """Equally many for each rank: the first ones come again at the end if need be."""
        indices = list(self.remaining_indices)
        while len(indices) < self.total_size:
            indices += self.remaining_indices[:self.total_size - len(indices)]
        return iter(indices[self.rank:self.total_size:self.num_replicas])

    def __len__(self):
        return self.num_samples


_handler_registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry():
    """Pairs of a type and of the StateHandler for it; the first that fits counts."""
    return _handler_registry


def set_handler_registry(registry):
    global _handler_registry
    _handler_registry = registry
