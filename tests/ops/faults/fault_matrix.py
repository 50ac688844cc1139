#!/usr/bin/env python3
"""Real jobs in which one rank goes wrong: all others must soon get the one error that names it.

usage: fault_matrix.py LINK MPIRUN PROGRAM [SITUATION...]

LINK is how the three ranks talk: shm, containers (shm between ranks that may not look into each
other's processes), mpi, or hosts (ranks 0 and 1 on one host, 2 on another). Each
case is a job of its own; some run at a time, since they mostly wait. A case fails if a rank that
should live gets no error or another one, if two of them get different texts, if a rank does not end
by itself, if it has leaks (where it looks for them), if the job never starts, or if something is
left in /dev/shm. The program is a FaultJob (tests/support/fault_job.h): fault_program.cc, or for
the situation "backward" training_fault_program.cc of the bindings.
"""

import concurrent.futures
import contextlib
import fcntl
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 3
CASES_AT_A_TIME = 3
LIMIT_S = 120  # only what hangs takes so long, on any machine
STATUS_OF_LEAKS = 77
STATUS_OF_SKIP = 78
JOBS = set()  # Open MPI's numbers of the jobs that have ended
# Collectives that differ from "allreduce" and "alltoall" in who copies what. They are not in the
# matrix of all faults.
OTHER_KINDS = ("broadcast", "allgather", "reducescatter", "gather", "scatter")
# In shared memory: ranks can map the memory of some ranks, and not that of others.
MIXED_KINDS = tuple(f"mixed_{kind}" for kind in ("alltoall", *OTHER_KINDS))
SITUATIONS = ("rest", "allreduce", "fresh", "alltoall", *OTHER_KINDS, *MIXED_KINDS, "blocked",
              "join", "set")
NOT_IN_MATRIX = ("fresh", *OTHER_KINDS, *MIXED_KINDS, "blocked")
FAULTS = ("kill", "stop", "exit", "throw")
# Beside the matrix; leaving, stalling and a signal are no deaths.
OTHER_CASES = (("allreduce", "leave"), ("allreduce", "stall"), ("blocked", "signal"),
               *((kind, "kill") for kind in OTHER_KINDS))
# Beside both, by link: with shared memory, memory that is mapped when its owner is gone.
CASES_OF_LINK = {"shm": (("fresh", "kill"), ("fresh", "exit"),
                         *((kind, "kill") for kind in MIXED_KINDS)),
                 "containers": (("fresh", "kill"), ("fresh", "exit")),
                 "hosts": (("broadcast", "stop"),)}
DEAD_AFTER_S = "6"  # beside others like it, a live process may say nothing for seconds
KNOBS = {"HORON_DEAD_AFTER_S": DEAD_AFTER_S, "HORON_STALL_WARN_S": "1",
         "HORON_SHUTDOWN_TIMEOUT_S": "10"}


def expected_error(fault, guilty):
    if fault in ("exit", "leave"):
        return rf"rank {guilty} has shut down"
    if fault == "stall":
        return rf"waiting for rank {guilty}"
    died = rf"rank {guilty} \(pid \d+[^)]*\) has died"
    silent = rf"rank {guilty} has not answered for {DEAD_AFTER_S} s"
    if fault == "stop":
        return silent
    # A thread that the signal finds at work, not asleep, can tell nobody: the process just ends.
    told = rf"rank {guilty}: exit\(\) was called while this thread was in a collective"
    return rf"{told}|{died}|{silent}" if fault == "signal" else rf"{died}|{silent}"


def run_rank(folder, command):
    """A rank, started by mpirun: it stays until all programs have ended, for mpirun ends the others
    as soon as it hears of one that failed."""
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    if os.environ.get("FAULT_LINK") == "hosts":
        os.environ["HORON_HOST_ID"] = "second" if rank == "2" else "first"
    if os.environ.get("FAULT_LINK") == "containers":
        command = ["unshare", "--user", "--map-current-user", *command]
    # The search for leaks takes time at the end of a process: a rank that was stopped in an MPI
    # call and goes on comes back in that call meanwhile, and crashes in libraries that have ended.
    is_stopped = os.environ["FAULT"] == "stop" and rank == os.environ["FAULT_RANK"]
    options = f"exitcode={STATUS_OF_LEAKS}" + (":detect_leaks=0" if is_stopped else "")
    os.environ["ASAN_OPTIONS"] = f"{os.environ.get('ASAN_OPTIONS', '')}:{options}"
    status = subprocess.run(command, check=False).returncode
    if "OMPI_MCA_ess_base_jobid" in os.environ:
        (folder / "job").write_text(os.environ["OMPI_MCA_ess_base_jobid"])
    whole = folder / f"new.{rank}"  # others read it as soon as it is there
    whole.write_text(str(status))
    whole.rename(folder / f"ended.{rank}")
    deadline = time.monotonic() + LIMIT_S
    while len(list(folder.glob("ended.*"))) < RANKS and time.monotonic() < deadline:
        time.sleep(0.02)
    return 1 if status else 0


def read(path):
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def wait_for_end(job, folder, fault, guilty):
    """Waits until the job has ended, or for LIMIT_S. When the other ranks are through, a rank that
    was stopped goes on, and one that sleeps is killed."""
    survivors = [rank for rank in range(RANKS) if rank != guilty]
    deadline = time.monotonic() + LIMIT_S
    woken = False
    while job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        through = all((folder / f"ended.{rank}").exists() for rank in survivors)
        if through and not woken and fault in ("stop", "stall"):
            woken = True
            with contextlib.suppress(ProcessLookupError):  # the job never came to the fault
                os.kill(int(read(folder / f"pid.{guilty}")),
                        signal.SIGCONT if fault == "stop" else signal.SIGKILL)
    ended = job.poll() is not None
    if not ended:
        os.killpg(job.pid, signal.SIGKILL)
        for rank in range(RANKS):
            pid = read(folder / f"pid.{rank}")
            if pid and not (folder / f"ended.{rank}").exists():
                os.kill(int(pid), signal.SIGKILL)
        job.wait()
    return ended


def faults_of_case(folder, fault, guilty, ended):
    """What went wrong, a line each."""
    if not (folder / "fault").exists():
        return ["the job never came to the fault"]
    lines = [] if ended else [f"the job did not end within {LIMIT_S} s"]
    expected = expected_error(fault, guilty)
    survivors = [rank for rank in range(RANKS) if rank != guilty]
    texts = {rank: read(folder / f"outcome.{rank}") for rank in survivors}
    if len(set(texts.values())) > 1:
        lines.append("the survivors' errors differ:" +
                     "".join(f"\n      rank {rank}: {text}" for rank, text in texts.items()))
    for rank in range(RANKS):
        outcome = read(folder / f"outcome.{rank}")
        status = read(folder / f"ended.{rank}")
        if status is None:
            lines.append(f"rank {rank} did not end by itself")
        if status == str(STATUS_OF_LEAKS):
            lines.append(f"rank {rank} has leaks")
        if rank == guilty:
            if fault == "stop" and outcome in (None, "no error"):
                lines.append(f"rank {rank}, which was stopped, ended with {status}, not an error")
        elif outcome is None or not re.search(expected, outcome):
            lines.append(f"rank {rank} got: {outcome}\n      instead of: {expected}")
        elif status not in (None, "1", str(STATUS_OF_LEAKS)):
            lines.append(f"rank {rank} ended with {status}")
    return lines


def run_case(link, mpirun, program, case):
    situation, fault, guilty = case
    folder = pathlib.Path(tempfile.mkdtemp(prefix="horon-fault-"))
    variables = dict(os.environ, FAULT_LINK=link, FAULT=fault, FAULT_RANK=str(guilty),
                     TMPDIR=str(folder), **KNOBS)
    if link == "mpi":
        variables["HORON_SHARED_MEMORY"] = "0"
    if fault == "stall":
        variables["HORON_STALL_ABORT_S"] = "10"  # so that no other rank is still missing
    # Otherwise a rank that copies from the memory of a dead rank dies with it.
    variables["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    began = time.monotonic()
    with open(folder / "output", "wb") as output:
        job = subprocess.Popen(
            [mpirun, str(RANKS), sys.executable, __file__, "--rank", folder,
             program, situation, fault, str(guilty), folder],
            stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True)
        ended = wait_for_end(job, folder, fault, guilty)
    lines = faults_of_case(folder, fault, guilty, ended)
    took = time.monotonic() - began
    text = f"{'FAILED' if lines else 'ok':6} {link} {situation} {fault} rank {guilty}: {took:.1f} s"
    for line in lines:
        text += f"\n    {line}"
    if lines:
        text += "\n" + (folder / "output").read_text(errors="replace")[-4000:]
    print(text, flush=True)
    JOBS.add(int(read(folder / "job") or 0))
    shutil.rmtree(folder, ignore_errors=True)
    return not lines


def is_abandoned(name):
    """Whether this file of Horon's in /dev/shm is there, and no process holds it any more."""
    try:
        with open(f"/dev/shm/{name}", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is gone, locked, or another user's
        return False
    return True


def left_in_shared_memory(before):
    """New names in /dev/shm of Horon's, or of Open MPI's that bear the number of one of the jobs
    here: other programs of the machine may leave what they like."""
    new = set(os.listdir("/dev/shm")) - before
    return sorted(name for name in new if any(f".{job:x}." in name for job in JOBS) or
                  (re.fullmatch("horon-[0-9a-f]{16}", name) and is_abandoned(name)))


def left_for_long(before):
    """Without what a job of another test has left that is ending still."""
    deadline = time.monotonic() + 30
    while (left := left_in_shared_memory(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def lacks_user_namespaces():
    command = ["unshare", "--user", "--map-current-user", "true"]
    return subprocess.run(command, check=False).returncode != 0


def main():
    if sys.argv[1] == "--rank":
        return run_rank(pathlib.Path(sys.argv[2]), sys.argv[3:])
    link, mpirun, program = sys.argv[1:4]
    situations = sys.argv[4:] or SITUATIONS
    if link == "containers" and lacks_user_namespaces():
        print("no user namespaces are allowed here")
        return STATUS_OF_SKIP
    another = 2 if link == "hosts" else 1
    kinds = [kind for kind in itertools.product(situations, FAULTS) if kind[0] not in NOT_IN_MATRIX]
    others = OTHER_CASES + CASES_OF_LINK.get(link, ())
    kinds += [kind for kind in others if kind[0] in situations]
    cases = [(*kind, guilty) for kind in kinds for guilty in (0, another)]
    before = set(os.listdir("/dev/shm"))
    with concurrent.futures.ThreadPoolExecutor(CASES_AT_A_TIME) as pool:
        well = list(pool.map(lambda case: run_case(link, mpirun, program, case), cases))
    if link == "containers":  # the next job removes what ranks that were killed last leave
        well.append(run_case(link, mpirun, program, (situations[0], "exit", 0)))
    left = left_for_long(before)
    if left:
        print(f"FAILED: left in /dev/shm: {', '.join(left)}")
    print(f"{well.count(True)} passed, {well.count(False)} failed")
    return 0 if all(well) and not left else 1


if __name__ == "__main__":
    sys.exit(main())
