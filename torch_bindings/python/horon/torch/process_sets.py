"""Process sets: some of the ranks, that do collectives among themselves."""

import itertools
import operator

from horon import native


class ProcessSet:
    """Ranks (of the world) in ascending order. Usable after add_process_set() or init().

    Made of a communicator of mpi4py, which may differ from rank to rank, as Split() makes them,
    each rank has its own set.
    """

    def __init__(self, ranks_or_comm):
        self.of_communicator = hasattr(ranks_or_comm, "Get_group")
        if self.of_communicator:
            ranks_or_comm = _ranks_of(ranks_or_comm)
        self.ranks = sorted(ranks_or_comm)
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"a process set must have each rank only once, not {self.ranks}")
        self._native = None
        self._made = []  # also those of the other ranks, where communicators differ

    @property
    def process_set_id(self):
        return self._native.id if self._native is not None else None

    def size(self):
        """None if it has not been added, or was removed."""
        return self._native.size() if self._native is not None else None

    def rank(self):
        """This rank's place in the set; -1 if it is not in it. None as size()."""
        return self._native.rank() if self._native is not None else None

    def included(self):
        """Also of a set that has not been added, or was removed."""
        return native.rank() in self.ranks

    def of_call(self):
        """What C++ takes."""
        if self._native is None:
            raise ValueError(f"{self} has not been added: call add_process_set() first")
        return self._native

    def __deepcopy__(self, memo):
        """A copy of what uses the set refers to the same set."""
        return self

    def __reduce__(self):
        """What is read from a file is this job's set of the same ranks, if it has one."""
        return _of_ranks, (self.ranks,)

    def __str__(self):
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _AllRanks(ProcessSet):
    def __init__(self):
        super().__init__([])
        self._native = native.ProcessSet()

    def included(self):
        return True

    def __reduce__(self):
        return "global_process_set"


def _of_ranks(ranks):
    return next((each for each in _of_session if each.ranks == ranks), None) or ProcessSet(ranks)


def _ranks_of(comm):
    """The ranks in MPI's world. add_process_set() translates them to those of this job, which
    init(comm) may number in another way."""
    from mpi4py import MPI
    group = comm.Get_group()
    return MPI.Group.Translate_ranks(group, list(range(group.Get_size())),
                                     MPI.COMM_WORLD.Get_group())


def root_of(call, root_rank):
    """The root of a call as an int."""
    try:
        return operator.index(root_rank)
    except TypeError:
        raise TypeError(f"{call}: root_rank {root_rank!r} is not a rank: give an int") from None


global_process_set = _AllRanks()
_of_session = []


def add_process_set(process_set):
    """Takes a ProcessSet or ranks. Collective over all ranks of the job, in the same order."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} has been added already")
    if process_set.of_communicator:
        _add_all_communicators(process_set)
    else:
        process_set._native = native.add_process_set(process_set.ranks)
        process_set._made = [process_set._native]
    _of_session.append(process_set)
    return process_set


def _add_all_communicators(process_set):
    """Adds the sets of all ranks, since all ranks take part in adding each of them."""
    from mpi4py import MPI
    from horon.torch import state
    given = state.allgather_object((MPI.COMM_WORLD.Get_rank(), process_set.ranks),
                                   name="horon.communicators")
    here = {world: rank for rank, (world, _) in enumerate(given)}
    sets = [tuple(sorted(here.get(world, -1) for world in ranks)) for _, ranks in given]
    if any(-1 in each for each in sets):
        raise ValueError("the communicator of a process set has ranks of other jobs")
    made = {each: native.add_process_set(list(each)) for each in dict.fromkeys(sets)}
    process_set.ranks = list(sets[native.rank()])
    process_set.of_communicator = False  # from now on a set of these ranks
    process_set._native = made[sets[native.rank()]]
    process_set._made = list(made.values())


def remove_process_set(process_set):
    """Collective over all ranks of the job. False: there is no such set."""
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    for each in process_set._made:
        native.remove_process_set(each)
    process_set._native = None
    _of_session.remove(process_set)
    return True


def of_init(process_sets):
    """The sets that init() makes."""
    if process_sets is None or process_sets == "dynamic":
        return []
    if not isinstance(process_sets, (list, tuple)):
        raise ValueError('process_sets: give a list of process sets, or "dynamic"')
    return [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in process_sets]


def add_missing(process_sets):
    """Adds the sets of a later init() that are not there yet. Collective, as init()."""
    for given, each in zip(process_sets or (), of_init(process_sets)):
        of_ranks = given is not each
        if of_ranks and any(one.ranks == each.ranks for one in _of_session):
            continue
        if each.process_set_id is None:
            add_process_set(each)


def before_communicators(process_sets):
    """The sets that C++ makes as it starts, alike on all ranks: those before any communicator's."""
    return list(itertools.takewhile(lambda each: not each.of_communicator, process_sets))


def started(process_sets):
    global_process_set.ranks = list(range(native.size()))
    first = before_communicators(process_sets)
    for each, made in zip(first, native.process_sets()[1:]):
        each._native = made
        each._made = [made]
        _of_session.append(each)
    for each in process_sets[len(first):]:
        add_process_set(each)


def ended():
    for each in _of_session:
        each._native = None
    _of_session.clear()
