#!/usr/bin/env python3
"""horonrun: all output of the ranks arrives, in whole lines, and programs don't notice the way.

usage: horonrun_output_test.py HORONRUN
"""

import ast
import contextlib
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HORONRUN = sys.argv.pop(1) if len(sys.argv) > 1 else "tools/horonrun"
RANK_PROGRAM = pathlib.Path(HORONRUN).resolve().with_name("horonrun_rank")
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("HORON_", "OMPI_", "SLURM_", "PBS_", "LSB_", "OMP_", "PE_"))}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def horonrun(ranks, *command, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([sys.executable, HORONRUN, "-np", str(ranks), *command], check=False,
                          env=CLEAN, **options)


def python(script):
    return sys.executable, "-c", script


def shell(script):
    return "sh", "-c", script


def parent_of(process):
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for_end(process):
    """The test's own time limit ends it otherwise."""
    stat = pathlib.Path(f"/proc/{process}/stat")
    with contextlib.suppress(OSError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.05)


def lines_of(rank, output):
    prefix = b"[%d] " % rank
    return [line.removeprefix(prefix) for line in output.split(b"\n") if line.startswith(prefix)]


class Lines(unittest.TestCase):
    def test_lines_bear_the_rank(self):
        job = horonrun(4, *shell("echo out $OMPI_COMM_WORLD_RANK; "
                                 "echo err $OMPI_COMM_WORLD_RANK >&2"))
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertEqual(sorted(job.stdout.split(b"\n")),
                         [b"", *(b"[%d] out %d" % (rank, rank) for rank in range(4))])
        for rank in range(4):
            self.assertIn(b"[%d] err %d\n" % (rank, rank), job.stderr)

    def test_no_prefix(self):
        self.assertEqual(horonrun(2, "--no-prefix", *shell("echo out")).stdout, b"out\nout\n")

    def test_many_short_lines_all_arrive(self):
        job = horonrun(1, "seq", "300000")
        self.assertEqual(job.returncode, 0, job.stderr)
        expected = b"".join(b"[0] %d\n" % number for number in range(1, 300001))
        self.assertTrue(job.stdout == expected, f"{job.stdout.count(b'[0] ')} of 300000 lines")

    def check_same_lines(self, ranks, script, expected):
        """Each rank writes these lines to stdout and to stderr."""
        job = horonrun(ranks, *python(f"import os, time\nfor out in 1, 2:\n    {script}"))
        for output in (job.stdout, job.stderr):
            for rank in range(ranks):
                self.assertEqual(lines_of(rank, output), expected)
            self.assertEqual(output.count(b"\n"), ranks * len(expected))

    def test_many_lines_in_one_write(self):
        self.check_same_lines(2, "os.write(out, (b'x' * 42 + b'\\n') * 2000)", [b"x" * 42] * 2000)

    def test_long_lines(self):
        self.check_same_lines(3, "[os.write(out, b'y' * 10000 + b'\\n') for _ in range(20)]",
                              [b"y" * 10000] * 20)

    def test_lines_in_pieces(self):
        self.check_same_lines(
            2, "[(os.write(out, piece), time.sleep(0.005)) for _ in range(20)"
            " for piece in (b'epoch 1 ', b'loss ', b'0.5\\n')]", [b"epoch 1 loss 0.5"] * 20)

    def test_the_last_line_needs_no_end(self):
        self.check_same_lines(2, "os.write(out, b'a\\n\\nb')", [b"a", b"", b"b"])

    def test_any_bytes(self):
        odd = b"\x1eo0 \x00\xff\t\x1b[0m\x04\x03\r"  # as some programs end lines
        self.check_same_lines(2, f"os.write(out, {odd!r} + b'\\n')", [odd])

    def test_a_progress_bar_is_seen_while_it_goes_on(self):
        script = ("import os, sys\n"
                  "for done in range(3): os.write(1, b'\\r%d/3' % done)\n"
                  "sys.stdin.readline()\nos.write(1, b'\\r3/3\\n')")
        with subprocess.Popen([sys.executable, HORONRUN, "-np", "1", *python(script)], env=CLEAN,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
            seen = b""
            while b"1/3\r" not in seen:
                seen += job.stdout.read1()
            self.assertEqual(seen, b"[0] \r[0] 0/3\r[0] 1/3\r")
            self.assertEqual(job.communicate(b"\n")[0], b"[0] 2/3\r[0] 3/3\n")
        self.assertEqual(job.returncode, 0)

    def test_a_line_is_seen_when_it_is_written(self):
        with subprocess.Popen([sys.executable, HORONRUN, "-np", "1", *python(
                "import sys\nprint(sys.stdout.isatty(), sys.stderr.isatty())\ninput()")],
                env=CLEAN, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
            self.assertEqual(job.stdout.readline(), b"[0] True False\n")  # as mpirun alone has it
            job.communicate(b"\n")
            self.assertEqual(job.returncode, 0)

    def test_last_words_before_mpi_abort(self):
        job = horonrun(2, *python("""
import ctypes, ctypes.util, os, time
mpi = ctypes.CDLL(ctypes.util.find_library("mpi"), ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.write(1, b"word\\n" * 5000)
    os.write(2, b"reason\\n" * 5000)
    mpi.MPI_Abort(ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")), 9)
time.sleep(60)
"""))
        self.assertEqual(job.returncode, 9)
        self.assertEqual(lines_of(1, job.stdout).count(b"word"), 5000)
        self.assertEqual(lines_of(1, job.stderr).count(b"reason"), 5000)

    @unittest.skipUnless(RANK_PROGRAM.exists(), "no horonrun_rank")
    def test_the_way_from_other_hosts(self):
        """Without a pipe of this host, records go through mpirun, and none of them is divided."""
        with tempfile.NamedTemporaryFile() as records:
            subprocess.run(
                ["mpirun", "--oversubscribe", "-np", "3", sys.executable, "-IS", RANK_PROGRAM,
                 *shell("seq 20000; head -c 9000 /dev/zero | tr '\\0' z; echo; seq 20000 >&2")],
                env={**CLEAN, **AS_ROOT}, stderr=records, check=True)
            records.seek(0)
            found = [re.fullmatch(rb"\x1e([oOe])([012]) (\d+|z+)\n", line) for line in records]
        self.assertEqual(found.count(None), 0)
        self.assertEqual(sum(record[1] == b"O" for record in found), 3 * 2)
        self.assertEqual(len(found), 3 * (20000 + 3 + 20000))


class LostOutput(unittest.TestCase):
    """Who can't write says so once, and the job goes on to its end."""

    PROGRAM = shell("seq 50000; echo end >&2")

    def check(self, reason, job):
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertEqual(job.stderr.count(b"output is being lost"), 1, job.stderr)
        self.assertIn(b"can't write to stdout: " + reason, job.stderr)
        self.assertEqual(sorted(job.stderr.split(b"\n"))[1:3], [b"[0] end", b"[1] end"])

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            self.check(b"No space left", horonrun(2, *self.PROGRAM, stdout=full))

    def test_closed_stdout(self):
        self.check(b"Bad file descriptor", horonrun(2, *self.PROGRAM, stdout=None,
                                                    preexec_fn=lambda: os.close(1)))

    def test_nothing_is_open(self):
        job = horonrun(1, *shell("seq 50000; seq 50000 >&2; exit 3"), stdout=None, stderr=None,
                       preexec_fn=lambda: os.closerange(0, 3))
        self.assertEqual(job.returncode, 3)


class Programs(unittest.TestCase):
    def test_a_program_begins_as_mpirun_starts_it(self):
        """With the same signals ignored and blocked, the same open files and the same variables."""
        script = python("""
import os, signal
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
ignored = [number for number in signal.Signals if signal.getsignal(number) == signal.SIG_IGN]
print("blocked", blocked, "ignored", ignored, "files", sorted(os.listdir("/proc/self/fd")))
for name, value in sorted(os.environ.items()):
    print(name, "" if name.startswith(("OMPI_", "PMIX_")) else value)  # they name the job
""")
        plain = horonrun(1, "--no-prefix", *script).stdout.rstrip(b"\n").split(b"\n")
        self.assertIn(b"OMPI_COMM_WORLD_RANK ", plain)
        self.assertEqual(lines_of(0, horonrun(1, *script).stdout), plain)

    def test_the_same_program_on_another_host(self):
        """Though what logs in there finds another one of that name."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("here/program", "echo here"), ("there/program", "echo there"),
                               ("agent", "shift; exec env -i HOME=$HOME "
                                         f"PATH={folder}/there:/usr/bin:/bin sh -c \"$*\"")):
                file = pathlib.Path(folder, name)
                file.parent.mkdir(exist_ok=True)
                file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
                file.chmod(0o755)
            environment = {**CLEAN, "PATH": f"{folder}/here:{CLEAN['PATH']}"}
            job = subprocess.run(
                [sys.executable, HORONRUN, "-np", "2", "-H", "localhost:1,another-host:1",
                 "--mpi-args", f"--mca plm_rsh_agent {folder}/agent", "program"],
                env=environment, capture_output=True, check=False)
        self.assertEqual(sorted(job.stdout.splitlines()), [b"[0] here", b"[1] here"], job.stderr)

    def test_exit_codes_and_deaths(self):
        self.assertEqual(horonrun(2, *shell("exit 7")).returncode, 7)
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGINT, signal.SIGTERM):
            job = horonrun(1, *shell(f"kill -{number:d} $$"))
            self.assertEqual(job.returncode, 128 + number)
            # Where mpirun does not find its texts (Ubuntu 26.04), this may be mpirun's own SIGTERM
            # for all that horonrun knows.
            if number != signal.SIGTERM or b"Sorry!" not in job.stderr:
                self.assertIn(b" died of signal %d " % number, job.stderr)

    def test_which_python_it_needs(self):
        for program in (pathlib.Path(HORONRUN), RANK_PROGRAM):
            ast.parse(program.read_text(encoding="utf-8"), feature_version=(3, 6))
        # As in Python 3.6, which other hosts may have.
        old = ("import runpy, signal, sys; del signal.valid_signals; del sys.argv[0]; "
               "runpy.run_path(sys.argv[0], run_name='__main__')")
        told = subprocess.run(
            [*python(old), RANK_PROGRAM, "echo", "done"], check=False, capture_output=True,
            env={**CLEAN, "OMPI_COMM_WORLD_RANK": "0"})
        self.assertEqual((told.returncode, told.stderr), (0, b"\x1eo0 done\n"))
        old = "import runpy, sys; sys.version_info = (3, 8, 18); runpy.run_path(sys.argv[1])"
        told = subprocess.run([*python(old), HORONRUN], check=False, capture_output=True)
        self.assertEqual((told.returncode, told.stderr.count(b"\n")), (1, 1), told.stderr)
        self.assertIn(b"horonrun: needs Python 3.9 or later; this is 3.8.18", told.stderr)

    def test_a_program_that_is_not_there(self):
        told = subprocess.run([sys.executable, RANK_PROGRAM, "no-such-program"], check=False,
                              env={**CLEAN, "OMPI_COMM_WORLD_RANK": "0"}, stderr=subprocess.PIPE)
        self.assertEqual(told.returncode, 127)
        self.assertRegex(told.stderr, b"^horonrun: no-such-program on .*: No such file .*\n"
                                      b"\x1ex0 .* 32512\n$")

    def test_a_signal_reaches_each_rank_once(self):
        with subprocess.Popen([sys.executable, HORONRUN, "-np", "2", *shell(
                "got=; trap 'echo one; got=1$got' USR1; trap 'echo two; got=1$got' USR2;"
                "list=$(seq 200); echo begun;"
                "for i in $list; do [ ${#got} -lt 2 ] || break; sleep 0.1; done;"
                "sleep 0.5; exit 0")],  # such a sleep may be hit too, in the place of the last one
                env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
            for _ in range(2):
                self.assertIn(b"begun", job.stdout.readline())
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                job.send_signal(number)
                time.sleep(0.3)
            out = job.communicate()[0]
        self.assertEqual(sorted(out.split()), sorted([b"[0]", b"[1]", b"one", b"two"] * 2))
        self.assertEqual(job.returncode, 0)

    def test_stdin_is_that_of_rank_0(self):
        job = horonrun(2, "cat", input=b"text\n")
        self.assertEqual(job.stdout, b"[0] text\n")

    def test_a_filter_that_ends_after_the_program(self):
        job = horonrun(1, "bash", "-c", "exec > >(sleep 0.5; cat); echo kept")
        self.assertEqual(job.stdout, b"[0] kept\n")

    def check_that_it_ends(self, killed_of):
        """For programs that have not called MPI_Init(). killed_of: which process is killed, given
        the one that has started the program and its parent"""
        line = [sys.executable, HORONRUN, "-np", "2", *shell("echo $$ $PPID; exec sleep 1000")]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=CLEAN) as job:
            lines = [job.stdout.readline() for _ in range(2)]
            programs, wrappers = zip(*(map(int, line.split()[1:]) for line in lines))
            os.kill(killed_of(wrappers[0], parent_of(wrappers[0])), signal.SIGKILL)
            for program in programs:
                wait_for_end(program)
            self.assertNotEqual(job.wait(), 0)

    def test_no_program_outlives_mpirun(self):
        self.check_that_it_ends(lambda _, mpirun: mpirun)

    def test_no_program_outlives_the_process_that_has_started_it(self):
        self.check_that_it_ends(lambda wrapper, _: wrapper)

    def test_a_process_left_behind_is_not_waited_for(self):
        for left_behind in ("sleep 1000", "yes", "while sleep 0.2; do echo x; done"):
            job = horonrun(1, *shell(f"{left_behind} & echo $!"))
            process = int(next(line for line in lines_of(0, job.stdout) if line.isdigit()))
            if left_behind == "sleep 1000":
                os.kill(process, signal.SIGKILL)  # an error if it has ended
            self.assertEqual(job.returncode, 0)


class TypedAtATerminal(unittest.TestCase):
    def test_lines_stay_whole_where_nobody_looks(self):
        """As with `| tee log` behind a command that was typed."""
        ours, theirs = pty.openpty()
        job = horonrun(1, *shell("printf 'begin '; sleep 0.5; echo end"), stdin=theirs)
        os.close(theirs)
        os.close(ours)
        self.assertEqual((job.stdout, job.returncode), (b"[0] begin end\n", 0))


class AtATerminal(unittest.TestCase):
    """Where horonrun's standard input and outputs are one."""

    def setUp(self):
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.execve(sys.executable, [sys.executable, HORONRUN, *self.arguments()], CLEAN)

    def tearDown(self):
        with contextlib.suppress(OSError):  # when all have closed it
            while os.read(self.terminal, 4096):
                pass
        self.assertEqual(os.waitpid(self.process, 0)[1], 0)
        os.close(self.terminal)

    def arguments(self):
        return ["-np", "2", *shell("""
            [ $OMPI_COMM_WORLD_RANK = 0 ] || exit 0
            printf 'name? '; read name; printf 'age? '; read age; echo $name, $age""")]

    def read_until(self, expected):
        text = b""
        while expected not in text:
            text += os.read(self.terminal, 4096)
        return text

    def test_rank_0_asks_and_reads(self):
        self.read_until(b"[0] name? ")
        os.write(self.terminal, b"Ann\n")
        self.read_until(b"age? ")
        os.write(self.terminal, b"7\n")
        self.read_until(b"Ann, 7\r\n")

    def test_the_end_of_what_is_typed(self):
        self.read_until(b"[0] name? ")
        os.write(self.terminal, b"\x04")
        self.read_until(b",\r\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    unittest.main(verbosity=2)
