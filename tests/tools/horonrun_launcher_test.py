#!/usr/bin/env python3
"""horonrun and an mpirun that a script stands in for: signals, and how it waits for mpirun's end.

usage: horonrun_launcher_test.py HORONRUN
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HORONRUN = sys.argv.pop(1) if len(sys.argv) > 1 else "tools/horonrun"
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("HORON_", "OMPI_", "SLURM_", "PBS_", "LSB_", "OMP_", "PE_"))}


class OtherLaunchers(unittest.TestCase):
    """A script in the place of mpirun."""

    def launcher(self, script):
        """The folder of the launcher."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        mpirun = pathlib.Path(folder.name, "mpirun")
        mpirun.write_text(f"#!/bin/bash\n{script}", encoding="utf-8")
        mpirun.chmod(0o755)
        return folder.name

    def start(self, script):
        folder = self.launcher(f"if [ $1 = --version ]; then echo Open MPI; exit; fi\n{script}")
        job = subprocess.Popen([sys.executable, HORONRUN, "-np", "1", "sh"], text=True,
                               env={**CLEAN, "PATH": f"{folder}:{CLEAN['PATH']}"},
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        return job

    def wait_for_line(self, stream, text):
        line = "-"
        while text not in line and line:
            line = stream.readline()
        self.assertIn(text, line)

    def test_a_slow_reader_gets_all_lines(self):
        job = self.start("seq 1 20000")  # more than a pipe holds, less than two
        time.sleep(12)  # beyond the limit for processes that a rank has left behind
        self.assertEqual(job.communicate()[0].split()[-1], "20000")
        self.assertEqual(job.returncode, 0)

    def test_a_process_left_behind_is_not_waited_for(self):
        job = self.start("sleep 1000 & echo $!")
        left = int(job.communicate()[0])
        os.kill(left, signal.SIGKILL)  # an error if it has ended

    def test_ctrl_c_before_the_job(self):
        told = subprocess.run(
            [sys.executable, HORONRUN, "-np", "1", "sh"], check=False, capture_output=True,
            text=True, env={**CLEAN, "PATH": f"{self.launcher('kill -INT $PPID; sleep 1')}:"
                                             f"{CLEAN['PATH']}"})
        self.assertEqual((told.returncode, told.stdout, told.stderr), (-signal.SIGINT, "", ""))

    def test_one_signal_of_several_is_forwarded(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        told = pathlib.Path(folder.name, "told")
        job = self.start("trap 'echo signal' INT; echo begun; "
                         f"until [ -e {told} ]; do sleep 0.1; done")
        self.assertEqual(job.stdout.readline(), "begun\n")
        job.send_signal(signal.SIGINT)
        self.assertEqual(job.stdout.readline(), "signal\n")
        job.send_signal(signal.SIGINT)
        self.wait_for_line(job.stderr, "one more signal kills mpirun")
        time.sleep(0.5)  # for a second one that should not come
        told.touch()
        self.assertEqual(job.communicate()[0], "")
        self.assertEqual(job.returncode, 130)

    def test_an_mpirun_that_is_busy_before_it_starts_ranks_is_killed(self):
        busy = self.start("trap '' TERM; echo begun; while [ $SECONDS -lt 60 ]; do :; done")
        others = [self.start(f"trap '' TERM; {script}") for script in
                  ("sleep 14 & echo begun; while kill -0 $!; do :; done 2> /dev/null",
                   "echo begun; exec sleep 14")]
        for job in (busy, *others):
            self.assertEqual(job.stdout.readline(), "begun\n")
            job.send_signal(signal.SIGTERM)
        errors = busy.communicate()[1]
        self.assertEqual(busy.returncode, 143)
        self.assertIn("mpirun has no ranks, and did not end in 10 s: it is killed", errors)
        for job in others:
            self.assertNotIn("killed", job.communicate()[1])

    def test_a_third_signal_ends_an_mpirun_that_does_not_end(self):
        job = self.start("trap 'echo signal' INT; echo begun; while :; do sleep 0.1; done")
        self.assertEqual(job.stdout.readline(), "begun\n")
        job.send_signal(signal.SIGINT)
        self.assertEqual(job.stdout.readline(), "signal\n")
        job.send_signal(signal.SIGINT)
        self.wait_for_line(job.stderr, "one more signal kills mpirun")
        job.send_signal(signal.SIGINT)
        job.communicate()
        self.assertEqual(job.returncode, 130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    unittest.main()
