"""A function on several ranks, from a program or a notebook that no launcher has started.

    from horon.launch import run
    losses = run(train, args=(0.01,), np=4)             # what train(0.01) has returned on each rank

run() is horovod.run(): it starts mpirun, whose first rank gets the function by its standard input
and gives the results back by its standard output. So hosts need not share a folder.
"""

import base64
import os
import pickle
import re
import secrets
import shlex
import site
import subprocess
import sys
import sysconfig
import threading
import zlib

_MARK = "\x1ehoron.launch "
_PIECE = 600  # characters of the results in a line
_ELASTIC = ("min_np", "max_np", "min_num_proc", "max_num_proc", "slots", "reset_limit",
            "cooldown_range", "elastic_timeout", "host_discovery_script")
# Of horovod.run(), for its own launcher.
_WITHOUT_EFFECT = ("start_timeout", "ssh_port", "ssh_identity_file", "disable_cache",
                   "output_filename", "network_interface", "network_interfaces", "nics",
                   "prefix_output_with_timestamp")
# In a job of a batch system, mpirun asks that system for the hosts.
_BATCH_SYSTEMS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "PE_HOSTFILE")
_DEFAULT_HOSTFILE = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
_NAMES_HOSTS = re.compile("-H|--?(host|hostfile|machinefile|default-hostfile)")
# The same as in horonrun.
_BINDS = re.compile("--?(bind-to.*|cpu-set|cpu-list|cpus-per-(proc|rank)|rankfile|rf)|"
                    ".*[:,]pe=.*|hwloc_(base|default)_(binding_policy|cpu_list|cpu_set)",
                    re.IGNORECASE)


def run(func, args=(), kwargs=None, np=None, hosts=None, hostfile=None, mpi_args=None, env=None,
        verbose=None, executable=None, num_proc=None, use_mpi=None, use_gloo=None, **others):
    """Calls func(*args, **kwargs) on `np` ranks and returns what it gave on each, in their order.

    func may be one of __main__, or a lambda, if cloudpickle is installed. Ranks look for
    modules where this program does (sys.path). In func, init() and shutdown() do nothing: the
    session is running already, and ends after func. What func prints goes where this program
    prints. If it raises on one rank, mpirun ends all of them, and RuntimeError is raised.

    hosts ("h1:4,h2:4"), hostfile and mpi_args (a string or a list) are given to mpirun. Without
    hosts all ranks are on this one, also more than it has cores. They are bound to no cores if
    neither mpi_args nor a variable of Open MPI's binds them. env: names and values that the ranks
    have beside the environment of this process; executable: a Python of the hosts, if it is not
    this one. Further options of horovod.run() have no counterpart: those of elastic jobs are
    refused, and the others, of Horovod's own launcher, do nothing.
    """
    elastic = [name for name in _ELASTIC if others.get(name) is not None]
    if elastic:
        raise NotImplementedError(f"{elastic[0]}: run() can't start elastic jobs; use horonrun")
    unknown = sorted(set(others) - {*_ELASTIC, *_WITHOUT_EFFECT})
    if unknown:
        raise TypeError(f"run() got an unexpected keyword argument '{unknown[0]}'")
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile are both given; choose one")
    if use_gloo:
        raise ValueError("use_gloo: Horon starts ranks by MPI only; leave it out")
    ranks = next((each for each in (np, num_proc) if each is not None), 1)
    if ranks < 1:
        raise ValueError(f"np is {ranks}; give 1 or more")
    token = secrets.token_hex(8)
    environment = {**os.environ, **(env or {}), "HORON_LAUNCH_TOKEN": token}
    if "SLURM_JOB_ID" in environment:
        # Else mpirun may wait for the CPUs that the step of this program has.
        environment.setdefault("SLURM_OVERLAP", "1")
    command = ["mpirun", "-np", str(ranks)]
    more = shlex.split(mpi_args) if isinstance(mpi_args, str) else list(mpi_args or ())
    if hosts is not None or hostfile is not None:
        command += ["-H", hosts] if hosts is not None else ["--hostfile", hostfile]
    if _names_hosts(command + more, environment):
        names = {*(env or {}), "HORON_LAUNCH_TOKEN"}
        names.update(name for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "OMP_NUM_THREADS")
                     if name in os.environ)
        names.update(name for name in os.environ
                     if name.startswith(("HORON_", "NCCL_", "UCX_", "FI_")))
        for name in sorted(names):
            command += ["-x", name]
    command += _needed(ranks, command + more, environment) + more
    command += [executable or sys.executable, "-m", "horon.launch"]
    if getattr(sys.modules.get("horovod"), "run", None) is run:
        command.append("--as-horovod")
    if verbose:
        print(shlex.join(command), flush=True)
    call = pickle.dumps((_module_folders(executable, env or {}),
                         _written((func, args, kwargs or {}), func)))
    code, found = _started(command, environment, call, token)
    if code != 0 or found.total is None:
        raise RuntimeError(f"the function did not return on all of {ranks} ranks: mpirun ended "
                           f"with code {code}; its output above says why")
    return pickle.loads(found.whole())


def _module_folders(executable, env):
    """Where this program finds modules: those beside it too, wherever it was started. Another
    Python has its own libraries."""
    folders = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
    folders += [os.path.abspath(each) for each in sys.path if isinstance(each, str)]
    if executable is None:
        return folders
    paths = sysconfig.get_paths()
    libraries = {*site.getsitepackages(), site.getusersitepackages(),
                 *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
    return [each for each in folders
            if not any(f"{each}/".startswith(f"{library}/") for library in libraries)]


def _names_hosts(given, environment):
    return (any(map(_NAMES_HOSTS.fullmatch, given)) or
            any(map(environment.get, _BATCH_SYSTEMS + _DEFAULT_HOSTFILE)))


def _binds(given, environment):
    settings = [each for name, value in environment.items()
                if re.match("(OMPI|PRTE)_MCA_", name)
                for each in (name[len("OMPI_MCA_"):], value)]
    return any(map(_BINDS.fullmatch, [*given, *settings]))


def _needed(ranks, given, environment):
    """Options that Open MPI's mpirun needs beside those given, as in horonrun: else it refuses root
    and more ranks than cores, and binds each rank to one core."""
    try:
        told = subprocess.run(["mpirun", "--version"], env=environment, capture_output=True,
                              text=True, errors="replace", check=False)
    except FileNotFoundError:
        return []  # starting it reports that
    # Ubuntu 26.04's mpirun does not find that text, and names files of PRRTE instead.
    if not re.search("Open MPI|OpenRTE|PRRTE|prterun", told.stdout + told.stderr, re.IGNORECASE):
        return []
    # Open MPI 5 takes both.
    if re.search(r"\(Open MPI\) [1-4]\.", told.stdout) and "-x" in given:
        for name, settings in (("OMPI_MCA_mca_base_env_list", environment),
                               ("mca_base_env_list", given)):
            if name in settings:
                raise ValueError(
                    f"{name}: Open MPI 4 takes this setting or -x, not both, and run() passes "
                    "variables by -x: unset it, and give run() the variables in env")
    needed = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if not _binds(given, environment):
        needed += ["--bind-to", "none"]
    if _names_hosts(given, environment):
        return needed
    if "mpi_yield_when_idle" not in given and "OMPI_MCA_mpi_yield_when_idle" not in environment:
        # Else a rank that waits inside MPI keeps its core from another one: with as many slots as
        # ranks, mpirun does not see that there may be fewer cores.
        needed += ["--mca", "mpi_yield_when_idle", "1"]
    return ["--host", f"localhost:{ranks}", *needed]


class _Results:
    """What rank 0 gives back, in numbered lines with checksums, all of them twice: mpirun may put
    the output of other ranks in the middle of a line."""

    def __init__(self):
        self.total = None
        self._pieces = {}

    @staticmethod
    def write(content, token):
        text = base64.b64encode(content).decode()
        pieces = [text[i:i + _PIECE] for i in range(0, len(text), _PIECE)]
        for number, piece in [*enumerate(pieces)] * 2:
            line = f"{number} {len(pieces)} {piece}"
            print(f"{_MARK}{token} {zlib.crc32(line.encode())} {line}")
        sys.stdout.flush()

    def read(self, text):
        """`text`: of a line, after the mark and the token."""
        checksum, _, line = text.rstrip("\n").partition(" ")
        if checksum != str(zlib.crc32(line.encode())):
            return  # torn; it comes twice
        number, total, piece = line.split(" ")
        self.total = int(total)
        self._pieces[int(number)] = piece

    def whole(self):
        if len(self._pieces) < self.total:
            raise RuntimeError("the function returned on all ranks, but its results were torn "
                               "apart by other output: end all threads that print before it "
                               "returns, or write the results to a file")
        return base64.b64decode("".join(self._pieces[i] for i in range(self.total)))


def _written(value, func=None):
    from horon.torch.state import pickler
    if pickler is pickle and getattr(func, "__module__", None) == "__main__":
        raise RuntimeError("a function of __main__ needs cloudpickle to reach other processes: "
                           "pip install cloudpickle, or import the function from a module")
    return pickler.dumps(value)


def _started(command, environment, content, token):
    """(exit code of mpirun, the _Results)"""
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, start_new_session=True)
    except FileNotFoundError:
        raise RuntimeError("mpirun is not in PATH: install an MPI to start ranks") from None
    found = _Results()
    # Ranks may print before rank 0 reads, more than pipes hold.
    threading.Thread(target=_write, args=(process.stdin, content), daemon=True).start()
    is_read = True  # whether somebody reads what this program prints
    try:
        for line in process.stdout:
            text, mark, result = line.decode(errors="replace").partition(_MARK + token + " ")
            if mark:
                found.read(result)
            try:
                if is_read:
                    sys.stdout.write(text)
                    sys.stdout.flush()
            except BrokenPipeError:
                is_read = False  # the job runs on, for what it returns
        return process.wait(), found
    except BaseException:  # Ctrl-C
        _end(process)
        raise


def _write(pipe, content):
    try:
        pipe.write(content)
        pipe.close()
    except BrokenPipeError:
        pass  # mpirun has ended, and says why


def _end(process):
    """mpirun ends the ranks. It does not see the signal while it writes to a full pipe."""
    process.terminate()
    read_on = iter(lambda: process.stdout.read1(1 << 16), b"")
    threading.Thread(target=lambda: all(True for _ in read_on), daemon=True).start()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _rank():
    """What each rank runs."""
    if "--as-horovod" in sys.argv:
        from horon import as_horovod
        as_horovod.install()
    import horon.torch as hvd
    from horon import native
    from horon.torch import basics
    token = os.environ.pop("HORON_LAUNCH_TOKEN")
    hvd.init()
    content = sys.stdin.buffer.read() if hvd.rank() == 0 else b""
    # Of this user's own process: as trusted as the program itself.
    folders, call = pickle.loads(
        native.broadcast_bytes(content, "horon.launch.function", 0, native.ProcessSet()))
    sys.path[:] = folders + [each for each in sys.path if each not in folders]
    func, args, kwargs = pickle.loads(call)
    basics.keep_session(True)
    try:
        result = func(*args, **kwargs)
    finally:
        basics.keep_session(False)
    if hvd.rank() != 0:
        sys.stdout.flush()
        os.dup2(2, 1)  # what threads still print does not meet the results
    results = hvd.allgather_object(result, name="horon.launch.results")
    if hvd.rank() == 0:
        _Results.write(_written(results), token)
    hvd.shutdown()


if __name__ == "__main__":
    _rank()
