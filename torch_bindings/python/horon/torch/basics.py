"""Start and stop, ranks, and what this build can do."""

import atexit
import os
import sys

from horon import native, process_group
from horon.torch import process_sets as _process_sets

# Where launchers say how many processes they have started.
_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")

# The process that has started MPI: one that it spawns inherits this.
_PROCESS = "PROCESS_OF_HORON"

_uncaught = None  # the exception by which this process ends
_former_hook = None  # sys.excepthook, before this one
_own_communicator = False  # of the program: it may have one rank on purpose
_session_is_kept = False


def init(comm=None, process_sets=None):
    """Starts the session; collective over all ranks. A second call, or one after
    init_process_group("horon"), makes the process sets that are not there yet.

    comm: an mpi4py communicator, or a list of all ranks. process_sets: a list of ProcessSet or of
    lists of ranks, made at once; "dynamic" is accepted, since sets can always be added later.
    """
    if native.is_initialized():
        _process_sets.add_missing(process_sets)
        return
    global _own_communicator
    given = _process_sets.of_init(process_sets)
    _refuse_spawned_process()
    address, own = _communicator(comm)
    if address == 0:
        _refuse_torchrun()
    _watch_exceptions()
    atexit.unregister(_at_exit)  # last in, first out: before torch ends what this uses
    atexit.register(_at_exit)
    first = _process_sets.before_communicators(given)
    native.init(knobs={}, process_sets=[each.ranks for each in first], mpi_comm=address)
    del own  # duplicated by now
    _process_sets.started(given)
    if native.size() > 1 or any(name in os.environ for name in _COUNTS):
        os.environ[_PROCESS] = str(os.getpid())
    _own_communicator = address != 0  # a list of all ranks is the world too


def _refuse_spawned_process():
    """MPI would take it for a rank, and the job would not end."""
    if os.environ.get(_PROCESS) == str(os.getppid()):
        raise RuntimeError(
            "init() was called in a process that a rank has started (by multiprocessing with "
            "\"spawn\", say), which is not a rank. Such a process runs the script again, so put "
            "init() and all that only ranks do below if __name__ == \"__main__\":")


def _refuse_torchrun():
    """Each of its processes would train a model of its own."""
    count = os.environ.get("WORLD_SIZE", "1")
    of_mpi = any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    if "TORCHELASTIC_RUN_ID" in os.environ and count != "1" and not of_mpi:
        raise RuntimeError(f"torchrun has started {count} processes, which are not MPI ranks, so "
                           "each would be a job of one rank: start them by mpirun or horonrun")


def alone_by_mistake():
    """What is wrong if MPI knows of this process alone and its launcher has started several: an
    srun, say, that has no PMI for this MPI. None: nothing. The core logs it too."""
    if native.size() > 1 or _own_communicator:
        return None
    counts = {name: os.environ.get(name, "") for name in _COUNTS}
    name = next((name for name, count in counts.items() if count), None)
    if name is None or not counts[name].isdigit() or int(counts[name]) == 1:
        return None
    return (f"the launcher has started {counts[name]} processes ({name}), but MPI knows only "
            "this one, so each of them would be a job of one rank: start them by the mpirun of "
            "this MPI, or by srun --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH (srun --mpi=list "
            "says what there is)")


def _communicator(comm):
    """(address of the MPI_Comm or 0, what keeps it alive)."""
    if comm is None:
        return 0, None
    if not isinstance(comm, (list, tuple, range)):
        from mpi4py import MPI
        return MPI._addressof(comm), comm
    if not comm or _are_all(comm):
        return 0, None
    try:
        from mpi4py import MPI
    except ImportError:
        raise ValueError("init(comm=[ranks]) needs mpi4py, which is not installed; install it, "
                         "or use a process set") from None
    world = MPI.COMM_WORLD
    if list(comm) == list(range(world.Get_size())):
        return 0, None
    if world.Get_rank() not in comm:
        raise ValueError(f"init(comm={list(comm)}) was called on rank {world.Get_rank()}, which is "
                         "not in it; call it on those ranks only")
    part = world.Create_group(world.Get_group().Incl(list(comm)))
    return MPI._addressof(part), part


def _are_all(ranks):
    """Whether these are all ranks, by what the launcher says of their number."""
    alone = "" if process_group.started_by_mpi() else "1"
    count = next((os.environ[name] for name in _COUNTS if os.environ.get(name)), alone)
    return count.isdigit() and list(ranks) == list(range(int(count)))


def keep_session(kept):
    """Until keep_session(False) shutdown() does nothing: horon.launch has results to bring back,
    and MPI can't be started twice."""
    global _session_is_kept
    _session_is_kept = kept


def _at_exit():
    """An exception that nobody has caught ends this rank. The others get an error that says so;
    ranks that wait for this one elsewhere are ended by mpirun when this process has ended."""
    if _session_is_kept:
        return
    try:
        # At a prompt it is the exception of an earlier line.
        if _uncaught is not None and native.is_initialized() and not hasattr(sys, "ps1"):
            native.end_by_exception(_text_of(_uncaught))
    finally:
        shutdown()


def _text_of(error):
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:1000]
    except Exception:
        return name


def _watch_exceptions():
    global _former_hook
    if _former_hook is None:
        _former_hook = sys.excepthook
        sys.excepthook = _exception_hook


def _exception_hook(kind, value, trace):
    global _uncaught
    outermost = sys._getframe()
    while outermost.f_back is not None:
        outermost = outermost.f_back
    # Called by the interpreter, perhaps by way of a hook of torch's. Else a part of the program
    # shows an exception that it has caught.
    if outermost.f_code is getattr(sys.excepthook, "__code__", None):
        _uncaught = value
    _former_hook(kind, value, trace)


def shutdown():
    """Serves the others until all ranks are done, then ends the session. Also called at exit."""
    if _session_is_kept:
        return
    native.shutdown()
    os.environ.pop(_PROCESS, None)
    _process_sets.ended()


is_initialized = native.is_initialized
rank = native.rank
size = native.size
local_rank = native.local_rank
local_size = native.local_size
cross_rank = native.cross_rank
cross_size = native.cross_size
is_homogeneous = native.is_homogeneous


def device(process_set=_process_sets.global_process_set):
    """The torch.device for the model and the data of this rank, after init(): the only GPU that it
    may use, or the one with its local_rank, which also becomes the current one of this thread; the
    CPU if there is none. Error if the ranks of the set can't use their GPUs together."""
    return native.device(process_set.of_call())


def mpi_built(verbose=False):
    return True


def mpi_enabled():
    return True


def mpi_threads_supported():
    """Horon calls MPI from one thread at a time, and needs nothing else of it."""
    native.rank()  # ValueError before init()
    return True


def gloo_built(verbose=False):
    return False


def gloo_enabled():
    return False


def nccl_built(verbose=False):
    """NCCL's version (21803 for 2.18.3) if the ranks can use it, else 0. After init()."""
    return native.nccl_version()


def cuda_built(verbose=False):
    return not native.build_facts()["cuda"].startswith("built without")


def ddl_built(verbose=False):
    return False


def ccl_built(verbose=False):
    return 0


def rocm_built(verbose=False):
    return False


def start_timeline(file_path, mark_cycles=False):
    """Records what this rank does from now on, in FILE.rankN.json, whether FILE or FILE.json is
    given; a timeline that is under way ends. Sends nothing: every rank that should be seen calls
    it. There are no cycles to mark."""
    native.start_timeline(os.fspath(file_path))


def stop_timeline():
    """Completes the file. Does nothing if there is none."""
    native.stop_timeline()
