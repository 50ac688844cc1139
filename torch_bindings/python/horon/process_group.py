"""The backend "horon" of torch.distributed.

    torch.distributed.init_process_group("horon")       under mpirun or srun, with nothing imported

torch calls register() when it is imported, by the entry point "torch.backends". Nothing of Horon is
loaded before a group is made.
"""

import datetime
import functools
import importlib
import os
import sys

# Any of these is in the environment of a process that MPI or Slurm has started.
_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_PROCID")
_own_master = None  # what name_master() has put into the environment
_LONGEST = datetime.timedelta(days=365)  # as good as for ever, and overflows nowhere


def register():
    """Does nothing the second time. An exception in here would make `import torch` fail."""
    import torch.distributed
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d
    if "horon" in distributed_c10d.Backend.backend_list:
        return
    distributed_c10d.Backend.register_backend("horon", _make, extended_api=True, devices=_devices())
    rendezvous = importlib.import_module("torch.distributed.rendezvous")  # also a function's name
    rendezvous.register_rendezvous_handler("horon", _meet)
    handlers = getattr(rendezvous, "_rendezvous_handlers", {})
    for scheme in {"env", "tcp"}.intersection(handlers):
        handlers[scheme] = _when_all_meet(handlers[scheme])
    if "env" in handlers:
        handlers["env"] = _env_or_mpi(handlers["env"])
    if hasattr(distributed_c10d, "_new_process_group_helper"):
        distributed_c10d._new_process_group_helper = _with_default_backend(
            distributed_c10d._new_process_group_helper)
    monitored_barrier = _monitored_too(distributed_c10d.monitored_barrier)
    torch.distributed.monitored_barrier = monitored_barrier
    distributed_c10d.monitored_barrier = monitored_barrier


def _with_default_backend(make):
    """Torch 2.11 chooses no default backend for "cpu:gloo" and the like once any backend is
    registered: then the group has no name and no sequence number. Without Horon it is Gloo."""
    @functools.wraps(make)
    def make_group(*arguments, **options):
        from torch.distributed import ProcessGroup, distributed_c10d
        made = make(*arguments, **options)
        group = made[0]
        if isinstance(group, ProcessGroup) and group.name() == "undefined" and (
                set(distributed_c10d.Backend._plugins) == {"HORON"}
                and "horon" not in distributed_c10d.get_backend_config(group)):
            group._set_default_backend(ProcessGroup.BackendType.GLOO)
        return made
    return make_group


def _monitored_too(monitored_barrier):
    """Torch's monitored_barrier() refuses all backends but Gloo, by name. Each barrier of Horon
    names all ranks that are missing."""
    @functools.wraps(monitored_barrier)
    def of_any_backend(group=None, timeout=None, wait_all_ranks=False):
        import torch.distributed as dist
        is_member = group is not dist.GroupMember.NON_GROUP_MEMBER
        if not is_member or dist.get_backend(group) != "horon":
            monitored_barrier(group, timeout, wait_all_ranks)
            return
        options = dist.BarrierOptions()
        if timeout is not None:  # else that of the group
            in_seconds = not isinstance(timeout, datetime.timedelta)
            options.timeout = limited(datetime.timedelta(seconds=timeout) if in_seconds
                                      else timeout)
        (group or dist.group.WORLD).barrier(options).wait()
    return of_any_backend


def _devices():
    """GPUs only where a driver of NVIDIA's is, or of WSL: some calls of torch warn of groups that
    have several kinds of devices."""
    has_driver = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
    return ["cpu", "cuda"] if has_driver else ["cpu"]


def _make(options, _):
    """What new_group() calls, on the members of the group alone."""
    ranks = list(options.global_ranks_in_group)  # none: of the default group
    call = "new_group()" if ranks else "init_process_group()"
    _require_ascending(ranks, f"new_group({ranks}, sort_ranks=False)")
    return _group(call, ranks or list(range(options.group_size)), options.group_rank,
                  limited(options.timeout).total_seconds())


def make_part(ranks, timeout_s):
    """What split_group() calls, on the members of the part alone. Ranks of the default group."""
    from torch.distributed import get_rank
    _require_ascending(ranks, f"split_group() of ranks {ranks}")
    longest_s = _LONGEST.total_seconds()
    return _group("split_group()", ranks, ranks.index(get_rank()),
                  min(timeout_s, longest_s) if timeout_s >= 0 else longest_s)


def _require_ascending(ranks, what):
    if ranks != sorted(ranks):
        raise RuntimeError(f"{what}: the backend \"horon\" needs the ranks of a group in "
                           "ascending order")


def _group(call, ranks, rank, timeout_s):
    """`rank`: this member's index in `ranks`, which are those of the default group."""
    from torch.distributed import get_rank, get_world_size
    from horon import members, native
    from horon.torch import basics
    is_default = call == "init_process_group()"
    of_some = not is_default and len(ranks) < get_world_size()
    if of_some and not native.is_initialized():
        raise RuntimeError(f"{call} of ranks {ranks} can't start Horon, which needs all "
                           f"{get_world_size()} ranks: call horon.torch.init() on all ranks "
                           "before the first group of the backend \"horon\"")
    basics.init()
    if not of_some:
        _compare(call, rank, len(ranks))
        process_set = native.ProcessSet()
    else:
        if native.size() != get_world_size():  # else the members compare their ranks, as they meet
            _compare(call, get_rank(), get_world_size())
        process_set = members.make_process_set(_store_of_all_groups(), rank, ranks, timeout_s,
                                               call)
    return native.make_process_group(process_set=process_set, timeout_s=timeout_s, ranks=ranks)


def _store_of_all_groups():
    """The store of the default group. Keys in `options.store` begin with torch's name of the group,
    which depends on the number of groups that this rank has made: other members may have made
    fewer or more."""
    from torch.distributed import distributed_c10d
    return distributed_c10d._get_default_store()


def limited(timeout):
    """Torch's C++ counts microseconds in 64 bits: a longer timeout, such as timedelta.max, may have
    overflowed to a negative one."""
    return min(timeout, _LONGEST) if timeout >= datetime.timedelta(0) else _LONGEST


def _compare(what, rank, size):
    """torch and MPI must number the same processes alike."""
    from horon import native
    if (rank, size) == (native.rank(), native.size()):
        return
    text = (f"{what} says that this is rank {rank} of {size}, but MPI has started it as rank "
            f"{native.rank()} of {native.size()}")
    if native.size() == 1:
        text += (f'. The backend "horon" needs a launcher of MPI: mpirun -np {size} python '
                 "train.py, or srun --mpi=pmix")
        if "TORCHELASTIC_RUN_ID" in os.environ:
            text += ", instead of torchrun"
    else:
        text += ". Leave rank and world_size out, or number the processes as MPI does"
    raise RuntimeError(text)


def start_mpi():
    """Starts Horon. Refuses a process that MPI takes for a job of its own by mistake."""
    from horon.torch import basics
    basics.init()
    text = basics.alone_by_mistake()
    if text is not None:
        raise RuntimeError(text)


def _meet(url, timeout=None, **_):
    """The rendezvous horon://, a store whose address the ranks tell each other by MPI."""
    from urllib.parse import parse_qs, urlparse
    from horon import native
    start_mpi()
    given = {name: int(values[0]) for name, values in parse_qs(urlparse(url).query).items()
             if name in ("rank", "world_size")}
    _compare(url.split("?")[0], given.get("rank", native.rank()),
             given.get("world_size", native.size()))
    yield _store(timeout), native.rank(), native.size()
    raise RuntimeError("the ranks of an MPI job can rendezvous only once")


def addresses_of_this_host():
    """(name, address by which other hosts reach it); either is None if there is none."""
    import socket
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
        fault = None
    except OSError as error:
        fault = error
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to_others:
        try:
            to_others.connect(("192.0.2.1", 9))  # chooses a route, and sends nothing
            address = to_others.getsockname()[0]
        except OSError:
            address = None
    if fault is None or address is not None:
        return (name if fault is None else None), address
    raise RuntimeError(f"the ranks can't meet: this host's name, \"{name}\", has no "
                       f"address ({fault}), and there is no route to other hosts. Set "
                       "MASTER_ADDR and MASTER_PORT, or put the name into /etc/hosts")


def host_of_rank_0(name, address):
    """How this rank reaches rank 0: by the name that rank 0 has found, or by the address if the
    name leads nowhere from here or to this very host (127.0.1.1, in /etc/hosts of many systems)."""
    import ipaddress
    import socket
    if address is None or name is None:
        return name or address
    try:
        found = [ipaddress.ip_address(each[4][0].partition("%")[0])
                 for each in socket.getaddrinfo(name, None)]
    except OSError:
        return address
    return name if any(not each.is_loopback for each in found) else address


def told_by_rank_0(find, name):
    """Returns what find() returns on rank 0; if it raises there, all ranks raise. Collective."""
    from horon import native
    from horon.torch import state
    if native.rank() != 0:
        value, error = state.broadcast_object(None, root_rank=0, name=name)
        if error is not None:
            raise RuntimeError(f"rank 0: {error}")
        return value
    try:
        value = find()
    except Exception as error:  # the other ranks wait for an answer
        state.broadcast_object((None, str(error)), root_rank=0, name=name)
        raise
    state.broadcast_object((value, None), root_rank=0, name=name)
    return value


def addresses_of_rank_0():
    """On rank 0, for host_of_rank_0()."""
    from horon import native
    if native.local_size() == native.size():
        return None, "127.0.0.1"
    return addresses_of_this_host()


def address_of_rank_0(given, name):
    """(host, port) of rank 0, where the port is free. What is not empty in rank 0's `given`, as
    (MASTER_ADDR, MASTER_PORT), counts instead. Collective."""
    import socket

    def find():
        address, port = given
        found = (address, None) if address else addresses_of_rank_0()
        if port:
            return found, int(port)
        with socket.socket() as probe:
            probe.bind(("", 0))
            return found, probe.getsockname()[1]
    found, port = told_by_rank_0(find, name)
    return host_of_rank_0(*found), port


def name_master():
    """Sets MASTER_ADDR and MASTER_PORT on all ranks, as rank 0 has them, or to what is free there.
    Collective."""
    global _own_master
    names = ("MASTER_ADDR", "MASTER_PORT")
    given = told_by_rank_0(lambda: [os.environ.get(each) for each in names], "horon.master.given")
    master = [str(each) for each in address_of_rank_0(given, "horon.master")]
    os.environ.update(zip(names, master))
    _own_master = master if not any(given) else None


def _store(timeout):
    from torch.distributed import TCPStore
    from horon import native
    limit = {} if timeout is None else {"timeout": limited(timeout)}
    size = native.size()
    store = None

    def begin():
        nonlocal store
        found = addresses_of_rank_0()
        store = TCPStore(host_of_rank_0(*found), 0, size, is_master=True, wait_for_workers=False,
                         **limit)
        return found, store.port

    found, port = told_by_rank_0(begin, "horon.rendezvous")
    error = None
    if store is None:
        try:
            store = TCPStore(host_of_rank_0(*found), port, size, is_master=False, **limit)
        except Exception as each:  # told to the others, who wait for this rank
            error = each
    _require_all_connected(error)
    return store


def _require_all_connected(error):
    """Collective: rank 0, which holds the store, may leave at once, so all must be connected."""
    from horon.torch import state
    faults = state.allgather_object(None if error is None else str(error),
                                    name="horon.rendezvous.connected")
    if error is not None:
        raise error
    for rank, fault in enumerate(faults):
        if fault is not None:
            raise RuntimeError(f"rank {rank} did not reach the store of rank 0: {fault}")


def started_by_mpi():
    return any(name in os.environ for name in _LAUNCHERS)


def _env_or_mpi(env):
    """env:// for a process of MPI, which need not have the variables that a launcher of torch sets:
    without the job's own MASTER_ADDR, horon:// takes its place, which needs no port that stays
    free; without a rank or a size, MPI's are given."""
    def meet(url, **options):
        if not started_by_mpi():
            return _with_advice(env(url, **options))
        master = [os.environ.get(each) for each in ("MASTER_ADDR", "MASTER_PORT")]
        if not master[0] or master == _own_master:
            return _meet(url, **options)
        return env(_numbered_by_mpi(url), **options)
    return meet


def _when_all_meet(handler):
    """Torch's meeting, which begins when all ranks of a running job have come. A rank that is
    quicker than rank 0 would reach the store of the group that rank 0 is still destroying, at the
    same port, and rank 0 would wait for it at the new one for ever."""
    def meet(url, **options):
        if _ranks_that_meet(url) == _ranks_of_the_job():
            _wait_for_all(options.get("timeout") or _LONGEST)
        yield from handler(url, **options)
    return meet


def _wait_for_all(timeout):
    from horon import native
    from horon.errors import HorovodInternalError
    try:
        native.barrier_within(limited(timeout).total_seconds())
    except HorovodInternalError as error:
        if error.code == "timeout":
            raise
        # The job has failed, which a group without Horon need not mind.


def _ranks_that_meet(url):
    from urllib.parse import parse_qs, urlparse
    size = parse_qs(urlparse(url).query).get("world_size", [os.environ.get("WORLD_SIZE", "")])[0]
    return int(size) if size.isdigit() else None


def _ranks_of_the_job():
    """0 if this process has not started Horon, which is not loaded just to ask."""
    native = sys.modules.get("horon.native")
    return native.size() if native is not None and native.is_initialized() else 0


def _with_advice(meeting):
    """The meeting; for a process without a launcher its error names that of Horon."""
    try:
        yield from meeting
    except ValueError as error:
        if "variable RANK expected" in str(error):
            error.args = (f"{error}. With the backend \"horon\" mpirun sets it: "
                          "mpirun -np 4 python train.py", *error.args[1:])
        raise


def _numbered_by_mpi(url):
    """The URL with the rank and the size that neither it nor the environment gives."""
    from urllib.parse import parse_qs, urlencode, urlparse
    query = parse_qs(urlparse(url).query)
    missing = [name for name in ("rank", "world_size")
               if name not in query and not os.environ.get(name.upper())]
    if not missing:
        return url
    from horon import native
    start_mpi()
    numbers = {"rank": native.rank(), "world_size": native.size()}
    return (f"{url}{'&' if query else '?'}"
            f"{urlencode({name: numbers[name] for name in missing})}")
