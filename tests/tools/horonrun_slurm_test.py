#!/usr/bin/env python3
"""horonrun in a job of Slurm's, as its variables tell of one. It needs no Slurm.

usage: horonrun_slurm_test.py HORONRUN
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HORONRUN = sys.argv.pop(1) if len(sys.argv) > 1 else "tools/horonrun"
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("HORON_", "OMPI_", "PRTE_", "SLURM_", "PBS_", "LSB_", "PE_"))}
JOB = {"SLURM_JOB_ID": "17", "SLURM_TASKS_PER_NODE": "2(x2),1"}


def horonrun(*arguments, **variables):
    words = [sys.executable, HORONRUN, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False,
                          env={**CLEAN, **variables})


def dry_run(*arguments, **variables):
    return horonrun("--dry-run", *arguments, "sh", **variables).stdout


class Ranks(unittest.TestCase):
    def test_one_for_each_task(self):
        for tasks, ranks in (("2(x2),1", 5), ("4", 4), ("1(x3)", 3), ("1,2(x10),3", 24)):
            line = dry_run(**{**JOB, "SLURM_TASKS_PER_NODE": tasks})
            self.assertIn(f"mpirun -np {ranks} ", line)
            self.assertNotIn("--host", line)

    def test_fewer_than_tasks(self):
        self.assertIn("mpirun -np 3 ", dry_run("-np", 3, **JOB))

    def test_more_than_tasks(self):
        told = horonrun("-np", 6, "sh", **JOB)
        self.assertEqual((told.returncode, told.stderr),
                         (2, "horonrun: this Slurm job has 5 slots, but -np wants 6 ranks (to "
                             "allow more ranks than slots: --mpi-args --oversubscribe)\n"))
        self.assertIn("-np 6 ", dry_run("-np", 6, "--mpi-args", "--oversubscribe", **JOB))
        self.assertIn("-np 6 ", dry_run("-np", 6, "--mpi-args", "--hostfile h", **JOB))
        self.assertIn("-np 6 ", dry_run("-np", 6, "--mpi-args", "--mca ras ^slurm", **JOB))
        self.assertIn("-np 6 ", dry_run("-np", 6, OMPI_MCA_ras="^slurm", **JOB))

    def test_where_slurm_does_not_say_how_many(self):
        for variables in ({"SLURM_JOB_ID": "17"}, {**JOB, "SLURM_TASKS_PER_NODE": "?"},
                          {**JOB, "SLURM_HET_SIZE": "2"}, {"SLURM_TASKS_PER_NODE": "4"}):
            told = horonrun("sh", **variables)
            self.assertEqual((told.returncode, told.stderr),
                             (2, "horonrun: how many ranks? Give -np N\n"))
        line = dry_run("-np", 6, SLURM_JOB_ID="17")
        self.assertIn("-np 6 ", line)
        self.assertNotIn("--host", line)

    def test_hosts_of_the_user(self):
        self.assertIn("how many ranks?", horonrun("-H", "h1:2", "sh", **JOB).stderr)
        for hosts in ("-H h1:2", "--hostfile h"):
            told = horonrun("--dry-run", "--mpi-args", hosts, "sh", **JOB)
            self.assertIn("how many ranks?", told.stderr)
        told = horonrun("--dry-run", "sh", OMPI_MCA_orte_default_hostfile="h", **JOB)
        self.assertIn("how many ranks?", told.stderr)
        self.assertIn("-np 2 --host h1:2 ", dry_run("-np", 2, "-H", "h1:2", **JOB))


class StepsOfMpirun(unittest.TestCase):
    """The steps by which mpirun starts ranks on other hosts, though another step has the CPUs."""

    def overlap(self, *options, **variables):
        with tempfile.TemporaryDirectory() as folder:
            mpirun = pathlib.Path(folder, "mpirun")
            mpirun.write_text("#!/bin/sh\n"
                              "[ $1 = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; exit; }\n"
                              f"echo overlap=$SLURM_OVERLAP > {folder}/told\n")
            mpirun.chmod(0o755)
            path = folder + os.pathsep + CLEAN["PATH"]
            told = horonrun("-np", 1, *options, "sh", PATH=path, **variables)
            self.assertEqual(told.returncode, 0, told.stderr)
            return pathlib.Path(folder, "told").read_text().strip()

    def test_they_wait_for_no_other_step(self):
        for options in ([], ["--no-prefix"]):
            self.assertEqual(self.overlap(*options, **JOB), "overlap=1")
            self.assertEqual(self.overlap(*options), "overlap=")

    def test_the_user_may_choose(self):
        self.assertEqual(self.overlap(SLURM_OVERLAP="", **JOB), "overlap=")


if __name__ == "__main__":
    unittest.main()
