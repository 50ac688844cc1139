"""Where the threads of a part's processes are: taken shortly before a part that hangs is ended."""

import os
import pathlib
import subprocess
import time


def members_of_session(session):
    """The processes that a part has started and that have not ended, by number."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
            if state not in b"ZX" and os.getsid(int(folder.name)) == session:
                found.append(int(folder.name))
        except OSError:  # it has ended since
            continue
    return sorted(found)


def is_rank(process):
    try:
        return b"OMPI_COMM_WORLD_RANK=" in pathlib.Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False


def of_session(session, which, limit_s, count=4):
    """Text: the stacks of the first processes of this session, or why there are none."""
    debugger = which("gdb", "/usr/bin") or which("cuda-gdb", "/usr/local/cuda/bin")
    if debugger is None:
        return "no gdb and no cuda-gdb: no stacks"
    started = []
    members = members_of_session(session)
    for process in (list(filter(is_rank, members)) or members)[:count]:
        started.append((process, subprocess.Popen(
            [debugger, "-nx", "-batch", "-p", str(process), "-ex", "set print frame-arguments none",
             "-ex", "thread apply all backtrace 25"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")))
    text = []
    ends = time.monotonic() + limit_s  # of all together
    for process, run in started:
        output = ""
        try:
            output, _ = run.communicate(timeout=max(0.1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            run.kill()
            try:
                output, _ = run.communicate(timeout=1)
            except subprocess.TimeoutExpired:
                pass
        lines = [line for line in output.splitlines()
                 if line.startswith(("#", "Thread", "warning", "ptrace", "Could not"))]
        text += [f"---- stacks of process {process}", *lines]
    return "\n".join(text) if text else "no process was left"
