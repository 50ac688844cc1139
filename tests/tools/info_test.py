#!/usr/bin/env python3
"""horon-info, alone and as a job.

usage: info_test.py HORON_INFO HORONRUN
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

INFO, HORONRUN = sys.argv[1:3]
del sys.argv[1:]
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("HORON_", "OMPI_", "PMI", "SLURM_"))}


def call(*command, **variables):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250,
                          env={**CLEAN, "HORON_MEASURE": "off", **variables})


def knob(facts, name):
    return next(entry for entry in facts["config"] if entry["name"] == name)


class Info(unittest.TestCase):
    def test_text(self):
        told = call(INFO, HORON_LOG="warn")
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertRegex(told.stdout, r"horon +\d+\.\d+\.\d+")
        self.assertRegex(told.stdout, r"mpi +\S")
        self.assertRegex(told.stdout, r"HORON_LOG +warn +environment")
        self.assertRegex(told.stdout, r"HORON_FUSION_BYTES +67108864 bytes +default")

    def test_json(self):
        facts = json.loads(call(INFO, "--json", HORON_BUCKET_BYTES="2KiB").stdout)
        self.assertEqual(knob(facts, "HORON_BUCKET_BYTES")["value"], "2048")
        self.assertEqual(knob(facts, "HORON_BUCKET_BYTES")["origin"], "environment")
        self.assertIn("libtorch", facts["build"])
        self.assertNotIn("job", facts)

    def test_an_srun_that_mpi_knows_nothing_of(self):
        step = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
        told = call(INFO, **step)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertRegex(told.stdout, r"\nno job: the launcher has started 2 processes \(SLURM_")
        self.assertIn("2 processes", json.loads(call(INFO, "--json", **step).stdout)["no_job"])
        self.assertNotIn("no job", call(INFO).stdout)

    def test_job(self):
        # Without limits of time nothing is asked and nothing thaws because a rank is late.
        quiet = {"HORON_DEAD_AFTER_S": "0", "HORON_STALL_WARN_S": "0"}
        told = call(sys.executable, HORONRUN, "-np", "3", "--no-prefix", INFO, "--json", **quiet)
        self.assertEqual(told.returncode, 0, told.stderr)
        facts = json.loads(told.stdout)  # one object: of rank 0 alone
        self.assertEqual(facts["job"]["size"], 3)
        self.assertEqual(facts["job"]["host_of"], [0, 0, 0])
        self.assertTrue(any("chosen" in line for line in facts["job"]["selection"]))
        self.assertEqual(facts["job"]["protocol"]["frozen starts"], 1000)
        self.assertEqual(facts["job"]["protocol"]["control messages sent"], 0)
        told = call(sys.executable, HORONRUN, "-np", "2", "--no-prefix", INFO, **quiet)
        self.assertRegex(told.stdout, r"control messages sent +0\n")
        self.assertIn("host 0: ranks 0 and 1", told.stdout)
        told = call(sys.executable, HORONRUN, "-np", "2", "--no-prefix", "bash", "-c",
                    f'HORON_HOST_ID=h$OMPI_COMM_WORLD_RANK exec "{INFO}"')
        self.assertIn("host 1: rank 1\n", told.stdout, told.stderr)
        self.assertRegex(told.stdout, r"control messages sent +[1-9]")
        self.assertRegex(told.stdout, r"HORON_HOST_ID +h0 +environment")

    def test_algorithms(self):
        """On two hosts that are one machine: measured, then read from the file."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cache", "constants")

            def algorithms(measure, **variables):
                told = call(sys.executable, HORONRUN, "-np", "3", "--no-prefix", "bash", "-c",
                            f'HORON_HOST_ID=h$((OMPI_COMM_WORLD_RANK / 2)) exec "{INFO}" --json',
                            HORON_MEASURE=measure, HORON_MEASURE_FILE=path, **variables)
                self.assertEqual(told.returncode, 0, told.stderr)
                job = json.loads(told.stdout)["job"]
                chosen = "hier_allreduce: chosen" in job["selection"]
                self.assertEqual(len(job["between_hosts"]), 3 if chosen else 0)
                return job["algorithms"]

            off = algorithms("off")
            self.assertEqual(off["origin"], "defaults: HORON_MEASURE=off")
            self.assertEqual((off["message_us"], off["wire_bytes_per_us"]), (16, 1024))
            self.assertEqual(off["choices"][0], "allreduce: one round")
            self.assertEqual(off["choices"][4], "alltoall: messages between members")
            self.assertEqual(algorithms("off", HORON_ALLREDUCE="mpi")["choices"][0],
                             "allreduce: MPI")
            self.assertFalse(os.path.exists(path))
            # On a busy machine hand-offs may take longer than the time that they have; then nothing
            # is kept.
            end = time.monotonic() + 150
            while not os.path.exists(path) and time.monotonic() < end:
                measured = algorithms("auto")
            self.assertRegex(measured["origin"], r"measured in \d+ ms, kept in .*constants")
            kept = algorithms("auto")
            self.assertEqual(kept["origin"], f"read from {path}")
            names = ("handoff_us", "sum_bytes_per_us", "process_copy_bytes_per_us",
                     "ring_copy_bytes_per_us", "message_us", "wire_bytes_per_us")
            for name in names:
                self.assertEqual(kept[name], measured[name])
            self.assertNotEqual(measured["message_us"], 16)
            self.assertRegex(algorithms("again")["origin"], "measured in")
        told = call(sys.executable, HORONRUN, "-np", "2", "--no-prefix", INFO)
        self.assertIn("algorithms (defaults: HORON_MEASURE=off)", told.stdout)
        self.assertIn("allreduce: cells to 8 KiB, then pieces\n", told.stdout)
        self.assertRegex(told.stdout, r"HORON_MEASURE +off +environment")

    def test_a_value_that_is_not_utf_8(self):
        told = call(INFO, "--json", HORON_HOST_ID=os.fsdecode(b"h\xe9"))
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("h\ufffd", told.stdout)

    def test_mistakes_are_one_line(self):
        for arguments, variables, expected in (
                ((), {"HORON_LOGG": "1"}, "did you mean HORON_LOG?"),
                ((), {"HORON_SPIN_US": "x"}, "HORON_SPIN_US='x'")):
            told = call(INFO, *arguments, **variables)
            self.assertEqual(told.returncode, 1)
            self.assertIn(expected, told.stderr)
            self.assertEqual(told.stderr.count("\n"), 1)
        self.assertNotEqual(call(INFO, "--no-such-flag").returncode, 0)


if __name__ == "__main__":
    unittest.main()
