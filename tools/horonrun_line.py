"""The command line of horonrun, and the mpirun line that it stands for."""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import sys

EXAMPLES = """examples:
  horonrun -np 2 ./train
  horonrun -np 8 -H host1:4,host2:4 -x LD_LIBRARY_PATH ./train --epochs 3
  horonrun -np 2 --timeline /tmp/trace.json ./train
SIGUSR1 and SIGUSR2 are passed on to all ranks, which can save and end (horon::StopRequest). After
one of them the job is not started again, even if it fails; nor is one started that waits for hosts.
SIGTERM kills the ranks at once. With Open MPI 4, the setting below gives ranks SIGTERM after 30
seconds, and 30 more to save what they have; Open MPI 5 has no such setting:
  horonrun -np 8 --mpi-args '--mca odls_base_sigkill_timeout 30' ./train
a job that is started again, up to 3 times, if a rank or a host fails:
  horonrun -np 8 -H host1:4,host2:4 --max-restarts 3 ./train
the same, on the hosts that are there at each start, with 4 to 8 ranks:
  horonrun -np 8 --min-np 4 --host-discovery-script ./hosts.sh ./train
"""

# A lost connection to a host is noticed after about 5 s instead of 7 minutes. When a rank has died,
# the other ranks are killed at once.
MCA_SETTINGS = {
    "oob_tcp_keepalive_time": "1",
    "oob_tcp_keepalive_intvl": "1",
    "oob_tcp_keepalive_probes": "3",
    "odls_base_sigkill_timeout": "0",
    # A rank that waits inside MPI yields its core, which another rank may need.
    "mpi_yield_when_idle": "1",
}
# With these, a rank that fails does not end the job.
GOES_ON_AFTER_A_FAILURE = re.compile("(OMPI_MCA_|PRTE_MCA_)?(--?enable-recovery|--?continuous|"
                                     "--?with-ft|.*abort_on_non_zero.*|.*recover.*)")
SECONDS_TO_END = 60  # for mpirun to end a job after a rank has failed, on other hosts too
# In a job of a batch system, mpirun asks that system for the hosts.
BATCH_SYSTEMS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "PE_HOSTFILE")
# Ways to name hosts that are mpirun's own: arguments, and variables of its default hostfile, which
# the MPI operator of Kubernetes sets.
NAMES_HOSTS = re.compile("-H|--?(host|hostfile|machinefile|default-hostfile)")
# Where mpirun starts the program, and looks for one with a relative path.
WORKING_FOLDER = re.compile("--?wd(ir)?")
DEFAULT_HOSTFILE = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
RANK_PROGRAM = os.path.join(os.path.dirname(os.path.realpath(__file__)), "horonrun_rank")
# What ranks of this host write does not pass through mpirun, so these options would have no effect
# on it. What mpirun adds to lines of other hosts would hide from horonrun whose lines they are.
OUTPUT_OPTIONS = re.compile("--?(merge-stderr-to-stdout|output-filename|tag-output|"
                            "timestamp-output|xml|xml-file|xterm)")
# Variables without which a program starts differently on other hosts, or finds another network.
PASSED = re.compile("(HORON|NCCL|UCX|FI)_.*|(OMP_NUM_THREADS|PYTHONPATH|LD_LIBRARY_PATH)$")
# What says how ranks are bound to cores: arguments, and settings in variables. horon/launch.py,
# which may be installed elsewhere, has a copy of this and of binds().
BINDS = re.compile("--?(bind-to.*|cpu-set|cpu-list|cpus-per-(proc|rank)|rankfile|rf)|"
                   ".*[:,]pe=.*|hwloc_(base|default)_(binding_policy|cpu_list|cpu_set)",
                   re.IGNORECASE)
WITH_A_VALUE = ("-np", "-n", "--np", "--num-proc", "-H", "-host", "--host", "--hosts", "-hostfile",
                "--hostfile", "-x", "--timeline", "--mpi-args", "--max-restarts", "--reset-limit",
                "--commits",
                "--host-discovery-script", "--min-np", "--min-num-proc", "--max-np",
                "--max-num-proc", "--slots-per-host", "--slots", "--elastic-timeout")
# More ranks on one host are a mistake, with which mpirun would fill the memory.
RANKS_MAX = max(4096, 64 * (os.cpu_count() or 1))


class UsageError(Exception):
    """An error of the user, which is printed in one line."""


def parse_arguments(arguments, description):
    parser = argparse.ArgumentParser(
        prog="horonrun", description=description, epilog=EXAMPLES, allow_abbrev=False,
        usage="horonrun -np N [options] PROGRAM [arguments]",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-np", "-n", "--np", "--num-proc", dest="ranks", metavar="N",
        help="number of ranks (required; in a Slurm job the default is one for each task)")
    add("-H", "-host", "--host", "--hosts", dest="hosts", metavar="HOST:SLOTS,...",
        help="hosts, each with the number of ranks that it takes (default 1; auto: as many as it "
             "has cores)")
    add("--hostfile", "-hostfile", metavar="FILE", help="hosts from a file in mpirun's format")
    add("-x", dest="variables", action="append", default=[], metavar="NAME[=VALUE]",
        help="pass an environment variable to the ranks on other hosts; those of Horon, NCCL and "
             "MPI's transports (HORON_*, NCCL_*, UCX_*, FI_*), OMP_NUM_THREADS, PYTHONPATH, "
             "LD_LIBRARY_PATH and PATH are always passed; -x PATH=VALUE gives the ranks another "
             "PATH")
    add("--timeline", metavar="FILE", help="each rank records a trace of events (HORON_TIMELINE)")
    add("--no-prefix", action="store_true",
        help="leave the output to mpirun: no rank before each line, and lines may mix. Then "
             "horonrun does not see that a host is lost, and Open MPI 5 ends with exit code 0")
    add("--mpi-args", metavar="TEXT", default="",
        help="more arguments for mpirun, quoted as one; options for output need --no-prefix")
    add("--max-restarts", "--reset-limit", metavar="N",
        help="if the job fails, start all its ranks again, up to N times (default 0, and 3 with "
             "--host-discovery-script); not after a signal to horonrun")
    add("--commits", metavar="FOLDER",
        help="where horon.torch.elastic keeps what was committed: a folder that all hosts see "
             "(default: the working folder)")
    add_elastic_options(parser.add_argument_group(
        "elastic jobs, whose hosts are looked for at each start"))
    add("--dry-run", action="store_true",
        help="print the mpirun line and run nothing; with --no-prefix it is one to run by hand")
    add("--verbose", action="store_true",
        help="print the mpirun line, then run it; what mpirun says of a failed job is shown too")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(with_joined_mpi_args(arguments))
    if options.command[:1] == ["--"]:
        del options.command[0]
    return options


def add_elastic_options(group):
    add = group.add_argument
    add("--host-discovery-script", metavar="FILE",
        help="a program that prints a line for each host: HOST or HOST:SLOTS")
    add("--min-np", "--min-num-proc", dest="min_ranks", metavar="N",
        help="wait until there are slots for this many ranks (default: -np)")
    add("--max-np", "--max-num-proc", dest="max_ranks", metavar="N",
        help="start no more ranks than this, however many slots there are (default: -np)")
    add("--slots-per-host", "--slots", metavar="N",
        help="slots of a host whose line gives none (default 1)")
    add("--elastic-timeout", metavar="SECONDS",
        help="how long to wait for hosts (default 600)")


def with_joined_mpi_args(arguments):
    """Makes --mpi-args=TEXT of "--mpi-args TEXT": behind a space, argparse takes a word like
    --oversubscribe as one of its own options. What follows the program is left as it is."""
    result = list(arguments)
    i = 0
    while i < len(result) and result[i].startswith("-") and result[i] != "--":
        if result[i] == "--mpi-args":
            result[i:i + 2] = ["=".join(result[i:i + 2])]
        i += 2 if result[i] in WITH_A_VALUE else 1
    return result


def slots_of_slurm(environment):
    """The tasks of this job of Slurm's, which mpirun takes for slots; None: it is no such job."""
    tasks = environment.get("SLURM_TASKS_PER_NODE", "")  # "2(x3),1": 2 on each of 3 hosts, then 1
    parts = [re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", each) for each in tasks.split(",")]
    if "SLURM_JOB_ID" not in environment or "SLURM_HET_SIZE" in environment or None in parts:
        return None
    return sum(int(part[1]) * int(part[2] or 1) for part in parts)


def take_ranks_of_slurm(options, environment):
    """Takes as many ranks as Slurm has tasks, where neither ranks nor hosts are given."""
    places = (options.ranks, options.hosts, options.hostfile, options.host_discovery_script)
    if any(each is not None for each in places):
        return
    slots = slots_of_slurm(environment)
    if slots and takes_slots_of_slurm(more_arguments(options), environment):
        options.ranks = str(slots)


def variables_for_slurm(environment):
    """For mpirun, which starts a step of Slurm's on the other hosts. Without SLURM_OVERLAP that
    step would wait in silence for CPUs of another step: a shell (srun --pty bash), or an earlier
    start of the job, which has lost a host and for Slurm has not ended there."""
    has_choice = "SLURM_JOB_ID" not in environment or "SLURM_OVERLAP" in environment
    return {} if has_choice else {"SLURM_OVERLAP": "1"}


def rank_count(text):
    if text is None:
        raise UsageError("how many ranks? Give -np N")
    if not re.fullmatch(r"[1-9][0-9]*", text):
        raise UsageError(f"-np {text}: give a number of ranks, 1 or more")
    return int(text)


def host_and_slots(entry):
    """The slots are None where none are given."""
    match = re.fullmatch(r"([^\s:,]+)(?::([1-9][0-9]*))?", entry)
    if not match:
        raise UsageError(f"'{entry}' is not HOST or HOST:SLOTS")
    return match[1], int(match[2]) if match[2] else None


def slots_of_hosts(text):
    """The slots of all hosts; None if mpirun takes as many as one of them has cores."""
    entries = text.split(",")
    counted = [each for each in entries if not re.fullmatch(r"[^\s:,]+:(\*|auto)", each)]
    try:
        slots = sum(host_and_slots(entry)[1] or 1 for entry in counted)
    except UsageError as error:
        raise UsageError(f"-H {text}: {error}") from error
    return slots if counted == entries else None


def slots_of_file(name):
    """The slots of all hosts in the file; None if a line does not give them."""
    if os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name):
        raise UsageError(f"--hostfile {name}: it is a pipe, or another thing that can be read only "
                         "once, and mpirun reads it too; give a file")
    try:
        with open(name, encoding="utf-8", newline="\n") as file:
            lines = [line.rstrip("\n").split("#")[0] for line in file]
    except OSError as error:
        raise UsageError(f"--hostfile {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--hostfile {name}: it is not a text file of hosts") from error
    slots = []
    for number, line in enumerate(lines, start=1):
        def refuse(reason, line_number=number):
            raise UsageError(f"--hostfile {name}, line {line_number}: {reason}")
        # Of such lines, mpirun says that it has an internal error.
        if "\r" in line:
            refuse("it ends as lines do in Windows, which mpirun can't read; use dos2unix")
        if host := re.match(r"\s*([^\s:]+):([0-9]+)\s*$", line):
            refuse(f"'{host[0].strip()}' is for -H; in a file write '{host[1]} slots={host[2]}'")
        counts = re.findall(r"(?<![\w-])(slots\s*=\s*(\S*))", line)
        if len(counts) > 1:
            refuse("it gives slots twice")
        if counts and not re.fullmatch("[0-9]{1,9}", counts[0][1]):
            refuse(f"'{counts[0][0]}' is not slots=NUMBER")
        if line.strip():
            slots.append(int(counts[0][1]) if counts else None)
    return None if None in slots else sum(slots)


def in_batch_system(environment):
    return any(name in environment for name in BATCH_SYSTEMS)


def mpirun_knows_hosts(words, environment):
    """words: what else mpirun is given"""
    return (in_batch_system(environment) or any(map(environment.get, DEFAULT_HOSTFILE)) or
            any(map(NAMES_HOSTS.fullmatch, words)))


def may_have_other_hosts(options, words, environment):
    """words: what else mpirun is given"""
    return options.hosts or options.hostfile or mpirun_knows_hosts(words, environment)


def binds(words, environment):
    """Whether the user says how ranks are bound; words: what else mpirun is given"""
    settings = [each for name, value in environment.items()
                if re.match("(OMPI|PRTE)_MCA_", name)
                for each in (name[len("OMPI_MCA_"):], value)]
    return any(map(BINDS.fullmatch, [*words, *settings]))


def oversubscribes(words, environment):
    """words: what else mpirun is given"""
    in_words = [value for name, value in zip(words, words[1:])
                if name == "rmaps_base_oversubscribe"]
    setting = (in_words or [environment.get("OMPI_MCA_rmaps_base_oversubscribe", "0")])[-1]
    told = re.compile("--?oversubscribe|[^:]*:(.*:)?oversubscribe(:.*)?", re.IGNORECASE)
    policy = environment.get("PRTE_MCA_rmaps_default_mapping_policy", "")  # of Open MPI 5
    return setting not in ("0", "false") or any(map(told.fullmatch, [*words, policy]))


def takes_slots_of_slurm(words, environment):
    """Whether nothing else says where there are slots; words: what else mpirun is given"""
    chooses = re.compile("(OMPI_MCA_|PRTE_MCA_)?ras(_.*)?")
    return not (any(map(environment.get, DEFAULT_HOSTFILE)) or
                any(map(NAMES_HOSTS.fullmatch, words)) or
                any(map(chooses.fullmatch, [*words, *environment])))


def host_arguments(options, ranks, words, environment):
    if options.hosts is not None and options.hostfile is not None:
        raise UsageError("give -H or --hostfile, not both")
    if options.hosts == "":
        raise UsageError("-H: no hosts: the text is empty (a variable that is not set?)")
    if options.hostfile == "":
        raise UsageError("--hostfile: no file: its name is empty (a variable that is not set?)")
    if options.hosts:
        where, slots = f"-H {options.hosts}", slots_of_hosts(options.hosts)
        result = ["--host", options.hosts]
    elif options.hostfile:
        where, slots = f"--hostfile {options.hostfile}", slots_of_file(options.hostfile)
        result = ["--hostfile", options.hostfile]
    elif mpirun_knows_hosts(words, environment):
        where, result, slots = "this Slurm job", [], None
        if takes_slots_of_slurm(words, environment):
            slots = slots_of_slurm(environment)
    else:
        if ranks > RANKS_MAX:
            raise UsageError(f"-np {options.ranks}: more than {RANKS_MAX} ranks on this host are a "
                             "mistake; for other hosts give -H or --hostfile")
        # As many slots as ranks, so that there may be more ranks than cores.
        return ["--host", f"localhost:{ranks}"]
    if slots is not None and slots < ranks and not oversubscribes(words, environment):
        raise UsageError(f"{where} has {slots} slots, but -np wants {ranks} ranks (to allow "
                         "more ranks than slots: --mpi-args --oversubscribe)")
    return result


def variable_arguments(options, words, environment):
    """words: what else mpirun is given"""
    given = {}
    for name in sorted(environment):
        # On another host, where no login shell has set PATH, another program would be found.
        if PASSED.match(name) or (name == "PATH" and
                                  may_have_other_hosts(options, words, environment)):
            given[name] = name
    for variable in options.variables:
        name = variable.split("=")[0]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"-x {variable}: give NAME or NAME=VALUE")
        if "=" not in variable and name not in environment:
            raise UsageError(f"-x {name}: there is no variable {name} in the environment")
        given[name] = variable
    if options.timeline:
        given["HORON_TIMELINE"] = f"HORON_TIMELINE={options.timeline}"
    return [argument for value in given.values() for argument in ("-x", value)]


def more_arguments(options):
    try:
        words = shlex.split(options.mpi_args)
    except ValueError as error:
        raise UsageError(f"--mpi-args {options.mpi_args}: {error}") from error
    for word in [] if options.no_prefix else words:
        if OUTPUT_OPTIONS.fullmatch(word):
            raise UsageError(f"--mpi-args {word}: it needs --no-prefix too, which leaves the "
                             "output to mpirun")
    return words


def seconds_to_end(options, environment):
    """How long mpirun may take after the failure of a rank; None: the job may go on."""
    words = more_arguments(options)
    if any(map(GOES_ON_AFTER_A_FAILURE.fullmatch, [*words, *environment])):
        return None
    to_save = [value for name, value in zip(words, words[1:])
               if name == "odls_base_sigkill_timeout"]
    to_save += [environment.get("OMPI_MCA_odls_base_sigkill_timeout", "0")]
    # mpirun waits so long before it sends SIGTERM, and as long again before it sends SIGKILL.
    return SECONDS_TO_END + 2 * (int(to_save[0]) if to_save[0].isdecimal() else 0)


def find_program(name, words):
    """The path of the program for mpirun; words: what else mpirun is given"""
    folders = [value for option, value in zip(words, words[1:]) if WORKING_FOLDER.fullmatch(option)]
    place = os.path.join(*folders[-1:], name) if "/" in name else name
    if shutil.which(place) is None:
        reason = f"not found in {folders[-1]}" if place != name else "not found"
        if "/" in name and os.path.exists(place):
            reason = "it is a folder" if os.path.isdir(place) else "it is not executable"
        hint = f" (did you mean ./{name}?)" if "/" not in name and os.path.isfile(name) else ""
        raise UsageError(f"program {name}: {reason}{hint}")
    return name


def rank_program(options, words, environment):
    """What starts the program of a rank, and the variables for it."""
    if not may_have_other_hosts(options, words, environment):
        return [sys.executable, "-IS", RANK_PROGRAM]
    folder = []
    if not any(map(WORKING_FOLDER.fullmatch, words)):
        with contextlib.suppress(OSError):  # the folder has been removed
            folder = ["-x", f"HORONRUN_FOLDER={os.getcwd()}"]
    # On another host, this Python may be missing.
    return [*folder, "python3", "-IS", RANK_PROGRAM]


def mpirun_line(options, environment, is_root):
    ranks = rank_count(options.ranks)
    if not options.command:
        raise UsageError("which program? Give it after the options")
    if ":" in options.command:
        raise UsageError("an argument ':' can't be passed on: for mpirun it ends the program "
                         "and begins a second one")
    more = more_arguments(options)
    line = ["mpirun", "-np", str(ranks)]
    line += host_arguments(options, ranks, more, environment)
    line += ["--allow-run-as-root"] if is_root else []
    line += [] if binds(more, environment) else ["--bind-to", "none"]
    for name, value in MCA_SETTINGS.items():
        # mpirun refuses a setting that is given twice, and prefers one here to that of a variable.
        if name not in more and f"OMPI_MCA_{name}" not in environment:
            line += ["--mca", name, value]
    line += variable_arguments(options, more, environment) + more
    if not options.no_prefix:
        # Without the modules of the site, Python starts in half the time.
        line += rank_program(options, more, environment)
    return line + [find_program(options.command[0], more)] + options.command[1:]
