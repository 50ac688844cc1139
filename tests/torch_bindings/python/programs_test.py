#!/usr/bin/env python3
"""Programs on two ranks, and how they end.

usage: programs_test.py MPIRUN_TEST    the launcher of tests/support
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent / "programs"
LAUNCHER = ""


def run(*arguments):
    done = subprocess.run([LAUNCHER, "2", sys.executable, *map(str, arguments)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)
    return done.returncode, done.stdout


class Programs(unittest.TestCase):
    def test_traps(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output = run(HERE / "traps.py", folder)
        self.assertEqual(code, 0, output)
        for rank in range(2):
            self.assertIn(f"[{rank}] Ctrl-C is answered in backward", output)

    def test_the_end_with_handles_in_flight(self):
        code, output = run(HERE / "in_flight.py")
        self.assertEqual(code, 0, output)

    def test_an_exception_on_one_rank_ends_the_job(self):
        code, output = run(HERE / "in_flight.py", "raise")
        self.assertNotEqual(code, 0)
        self.assertIn("as it should", output)
        self.assertNotIn("terminate called", output)

    def test_a_program_of_horovod(self):
        code, output = run("-m", "horon.as_horovod", HERE / "horovod_script.py", "--steps", "60")
        self.assertEqual(code, 0, output)
        self.assertIn("loss", output)


if __name__ == "__main__":
    LAUNCHER = sys.argv.pop(1)
    unittest.main()
