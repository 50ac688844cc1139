#!/usr/bin/env python3
"""Programs of torch.distributed and Lightning on a few ranks, and how they end.

usage: process_group_programs_test.py MPIRUN_TEST    the launcher of tests/support
"""

import contextlib
import importlib.util
import os
import pathlib
import random
import re
import socket
import sys
import tempfile
import unittest

import programs_test
from programs_test import EXAMPLES, HERE, run, run_command


def free_ports(number):
    """Of this host, as texts. The system gives none of these to sockets that ask for any, unless it
    has been told to."""
    given = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = []
    while len(ports) < number:
        port = random.randrange(10000, max(int(given[0]), 20000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if str(port) not in ports:
                ports.append(str(port))
    return ports


class Programs(unittest.TestCase):
    def test_a_program_for_torchrun_and_gloo(self):
        [port] = free_ports(1)
        for given in ({}, {"MASTER_ADDR": "localhost", "MASTER_PORT": port}):
            with self.subTest(**given):
                code, output = run("-m", "horon.as_torchrun", HERE / "of_torchrun.py", "--steps", 2,
                                   **given)
                self.assertEqual(code, 0, output)
                for rank in range(2):
                    self.assertIn(f"rank {rank} of 2 over horon", output)
                # Lines of two ranks may stand on one.
                met = re.findall(r"rank \d has met at (\S+:\d+)", output)
                self.assertEqual(met, [f"localhost:{port}" if given else met[0]] * 2, output)

    def test_traps(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output = run(HERE / "process_group_traps.py", folder)
        self.assertEqual(code, 0, output)
        for rank in range(2):
            self.assertIn(f"[{rank}] ends with works in flight", output)

    @unittest.skipIf(importlib.util.find_spec("accelerate") is None, "no accelerate")
    def test_accelerate_takes_the_group(self):
        code, output = run(HERE / "with_accelerate.py")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("trained by Accelerate"), 2, output)

    def test_the_benchmark_times_no_call_that_does_nothing(self):
        bench = HERE.parents[3] / "bench"
        arguments = ["--sizes", "4,4096", "--models", "", "--warmup", "16", "--repetitions", "1"]
        code, output = run(bench / "process_groups.py", *arguments)
        self.assertEqual(code, 0, output)
        for name in ("broadcast", "all_gather", "reduce"):
            program = ("import runpy, sys, torch.distributed as dist\n"
                       f"dist.{name} = lambda *_, **options: None\n"
                       f"sys.path.insert(0, {str(bench)!r})\n"
                       f"sys.argv[1:] = {arguments + ['--collectives', name]}\n"
                       f"runpy.run_path({str(bench / 'process_groups.py')!r}, run_name='__main__')")
            code, output = run("-c", program)
            self.assertNotEqual(code, 0, output)
            self.assertIn(f"a {name} over horon has given a wrong result", output)

    def test_signals_while_a_call_waits_to_begin(self):
        for what in ("handler", "behind", "ctrlc"):
            with self.subTest(what):
                code, output = run(HERE / "handler_in_call.py", what)
                self.assertEqual(code, 0, output)
                self.assertIn("as it should be", output)

    def test_a_process_that_mpi_has_not_started(self):
        environment = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
        for ranks, size in (("all", 2), ("some", 3)):
            with self.subTest(ranks):
                code, output = run_command([sys.executable, HERE / "not_by_mpi.py", ranks],
                                           env=environment)
                self.assertNotEqual(code, 0)
                self.assertIn(f"this is rank 1 of {size}, but MPI has started it as rank 0 of 1",
                              output)
                self.assertIn(f"mpirun -np {size} python train.py", output)

    def test_no_launcher_at_all(self):
        none = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(none)}
        code, output = run_command([sys.executable, HERE / "not_by_mpi.py", "launched"], env=clean)
        self.assertNotEqual(code, 0, output)
        self.assertRegex(output, "RANK expected, but not set.*mpirun -np 4 python train.py")

    def test_a_group_without_horon_is_as_torch_makes_it(self):
        program = ("import sys\nimport torch.distributed as dist\n"
                   "dist.init_process_group('cpu:gloo', init_method=sys.argv[1], rank=0, "
                   "world_size=1)\n"
                   "for group in dist.group.WORLD, dist.new_group(backend='cpu:gloo'):\n"
                   "    print(group.name(), group._get_sequence_number_for_group())\n"
                   "dist.destroy_process_group()\n")
        printed = []
        for registers, port in zip("01", free_ports(2)):
            environment = {**programs_test.NOT_LAUNCHED, "TORCH_DEVICE_BACKEND_AUTOLOAD": registers}
            code, output = run_command(
                [sys.executable, "-c", program, f"tcp://127.0.0.1:{port}"], env=environment)
            self.assertEqual(code, 0, output)
            printed.append([line for line in output.splitlines() if line.startswith("gloo ")])
        self.assertEqual(len(printed[0]), 2)
        self.assertEqual(*printed)

    def test_a_launcher_that_mpi_does_not_know(self):
        """As srun without a PMI for this MPI: four jobs of one rank each would train apart."""
        environment = {**os.environ, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}
        code, output = run_command([sys.executable, HERE / "not_by_mpi.py", "launched"],
                                   env=environment)
        self.assertNotEqual(code, 0, output)
        self.assertIn("has started 4 processes", output)
        self.assertIn("so each of them is a job of one rank", output)  # what hvd.init() says

    def test_the_address_of_a_master_needs_no_rank(self):
        code, output = run(HERE / "met_at_master.py", *free_ports(3))
        self.assertEqual(code, 0, output)
        for rank in range(2):
            self.assertIn(f"has met as rank {rank}", output)

    def test_a_group_of_some_ranks_does_not_start_horon(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output = run(HERE / "part_before_init.py", folder, ranks=3)
        self.assertEqual(code, 0, output)
        for rank in range(3):
            self.assertIn(f"[{rank}] was told so, and has its group", output)

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning is not installed")
    def test_lightning(self):
        code, output = run(EXAMPLES / "lightning_digits.py", "--precision", "bf16-mixed",
                           "--epochs", "2")
        self.assertEqual(code, 0, output)
        accuracy = re.search(r"2 ranks, \d epochs: accuracy (\d\.\d+)", output)
        self.assertIsNotNone(accuracy, output)
        self.assertGreater(float(accuracy[1]), 0.9, output)

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning is not installed")
    def test_lightning_by_each_way(self):
        mpi4py = ["mpi4py"] if importlib.util.find_spec("mpi4py") else []
        for way in ["strategy", *mpi4py, "fabric"]:
            with self.subTest(way), tempfile.TemporaryDirectory() as folder:
                code, output = run(HERE / "lightning_ways.py", way, folder)
                self.assertEqual(code, 0, output)
                for rank in range(2):
                    self.assertIn(f"[{rank}] {way} is right", output)

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning is not installed")
    def test_lightning_for_torchrun(self):
        code, output = run("-m", "horon.as_torchrun", HERE / "lightning_of_torchrun.py")
        self.assertEqual(code, 0, output)
        for rank in range(2):
            self.assertIn(f"[{rank}] trained over horon", output)

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning is not installed")
    def test_lightning_on_hosts_with_unlike_numbers_of_ranks(self):
        for arguments in [], ["slurm"]:
            with self.subTest(arguments):
                code, output = run(HERE / "lightning_on_hosts.py", *arguments, ranks=3)
                self.assertEqual(code, 0, output)
                for rank in range(3):
                    self.assertIn(f"[{rank}] each sample is seen once", output)


if __name__ == "__main__":
    programs_test.LAUNCHER = sys.argv.pop(1)
    unittest.main(verbosity=2)
