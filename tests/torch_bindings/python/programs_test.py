#!/usr/bin/env python3
"""Programs on two ranks, and how they end.

usage: programs_test.py MPIRUN_TEST    the launcher of tests/support
"""

import gzip
import importlib.util
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent / "programs"
EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "torch_bindings/python/examples"
HORONRUN = pathlib.Path(__file__).resolve().parents[3] / "tools/horonrun"
LAUNCHER = ""
LIMIT_S = 300
NOT_LAUNCHED = {name: value for name, value in os.environ.items()
                if not name.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_"))}


def run(*arguments, ranks=2, **environment):
    command = [LAUNCHER, str(ranks), sys.executable, *map(str, arguments)]
    return run_command(command, env={**os.environ, **environment})


def run_command(command, starts=1, **options):
    """Exit status and output. The limit is for what hangs: then the output says where. `starts`:
    so many jobs, one after the other."""
    limit_s = starts * LIMIT_S
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit_s, **options)
    except subprocess.TimeoutExpired as late:
        output = (late.output or b"").decode(errors="replace")
        raise AssertionError(f"after {limit_s} s still runs {command}:\n{output}") from late
    return done.returncode, done.stdout


def write_images(folder):
    """Files as those of MNIST: 200 images of noise in which a bright row tells the label."""
    noise = random.Random(1)
    for part in ("train", "t10k"):
        labels = bytes(i % 10 for i in range(200))
        images = bytearray(noise.randrange(100) for _ in range(200 * 28 * 28))
        for i, label in enumerate(labels):
            row = (i * 28 + 2 * label + 3) * 28
            images[row:row + 28] = bytes([255] * 28)
        for kind, head, content in [("images-idx3", struct.pack(">4i", 2051, 200, 28, 28), images),
                                    ("labels-idx1", struct.pack(">2i", 2049, 200), labels)]:
            with gzip.open(folder / f"{part}-{kind}-ubyte.gz", "wb", compresslevel=1) as file:
                file.write(head + bytes(content))


def knows_the_share():
    """Whether a rank's share is that of the cores: no quota of CPU time, no hardware threads."""
    groups = pathlib.Path("/proc/self/cgroup").read_text()
    siblings = pathlib.Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    alone = not siblings.exists() or siblings.read_text().strip() == "0"
    quotas = [*pathlib.Path("/sys/fs/cgroup").glob("cpu.max"),
              *pathlib.Path("/sys/fs/cgroup").glob("cpu/cpu.cfs_quota_us")]
    limited = any(not file.read_text().startswith(("max", "-1")) for file in quotas)
    in_group = any(line.split(":", 2)[2] != "/" for line in groups.splitlines()
                   if "cpu" in line.split(":")[1].split(",") or line.startswith("0::"))
    return alone and not limited and not in_group


class Programs(unittest.TestCase):
    def test_traps(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output = run(HERE / "traps.py", folder)
        self.assertEqual(code, 0, output)
        for rank in range(2):
            self.assertIn(f"[{rank}] Ctrl-C is answered in backward", output)

    def test_ctrl_c_while_init_waits(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output = run(HERE / "interrupted_init.py", folder)
        self.assertEqual(code, 0, output)
        self.assertIn("[0] Ctrl-C is answered in init()", output)

    def test_a_rank_has_its_share_of_the_cores(self):
        """MKL gives a process of Open MPI one thread of its own accord."""
        program = ("import sys, torch, horon.torch as hvd\n"
                   "if len(sys.argv) > 1: torch.set_num_threads(int(sys.argv[1]))\n"
                   "hvd.init()\n"
                   "print(f'has {torch.get_num_threads()} threads', flush=True)\n")
        cores = len(os.sched_getaffinity(0))
        for ranks, chosen in [(1, []), (2, []), (1, ["1"]), (2, [str(cores + 1)])]:
            with self.subTest(ranks=ranks, chosen=chosen):
                code, output = run_command(
                    [LAUNCHER, str(ranks), "env", "-u", "OMP_NUM_THREADS", "-u", "MKL_NUM_THREADS",
                     sys.executable, "-c", program, *chosen])
                self.assertEqual(code, 0, output)
                share = max(1, cores // ranks)
                if not chosen and not knows_the_share():
                    continue
                self.assertEqual(output.count(f"has {chosen[0] if chosen else share} threads"),
                                 ranks, output)

    def test_calls_and_training_on_the_devices_that_there_are(self):
        code, output = run(HERE / "on_devices.py")
        self.assertEqual(code, 0, output)
        self.assertIn("on cpu: all as it should be", output)

    def test_a_function_finds_the_modules_of_its_program(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
            program = pathlib.Path(folder) / "main.py"
            program.write_text("import beside\nfrom horon.launch import run\n"
                               "print(run(beside.twice, args=(21,), np=2))\n")
            code, output = run_command([sys.executable, program], env=NOT_LAUNCHED, cwd="/")
        self.assertEqual(code, 0, output)
        self.assertIn("[42, 42]", output)

    def test_a_job_of_functions_ends_with_its_program(self):
        """Also while the ranks print, more than the pipe holds."""
        program = ("import signal, sys, time\nfrom horon.launch import run\n"
                   "class Slow:\n    lines = 0\n    def flush(self): pass\n"
                   "    def write(self, text):\n"
                   "        self.lines += text.startswith('x')\n"
                   "        if self.lines == 1: signal.alarm(1)\n"
                   "        time.sleep(0.01)\n"
                   "signal.signal(signal.SIGALRM, lambda *_: sys.exit(7))\n"
                   "sys.stdout = Slow()\n"
                   "run(exec, args=('while True: print(\"x\" * 4000)',), np=2)\n")
        for _ in range(2):
            done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL,
                                  env=NOT_LAUNCHED, timeout=60, check=False)
            self.assertEqual(done.returncode, 7)

    def test_a_job_of_functions_goes_on_though_nobody_reads_it(self):
        program = ("import sys\nfrom horon.launch import run\n"
                   "found = run(eval, args=('[print(\"x\" * 4000) for _ in range(2000)]',), np=2)\n"
                   "print(len(found[1]), file=sys.stderr)\n")
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=NOT_LAUNCHED)
        process.stdout.readline()
        process.stdout.close()
        with process.stderr:
            self.assertIn("2000", process.stderr.read())
        process.wait(timeout=60)

    def test_programs_find_what_they_find_without_horon(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program.py"
            program.write_text("import sys\nprint(sys.path)\n")
            plain = subprocess.check_output([sys.executable, program], text=True, cwd=HERE)
            for name in ("as_torchrun", "as_horovod"):
                found = subprocess.check_output([sys.executable, "-m", f"horon.{name}", program],
                                                text=True, cwd=HERE)
                found = [each for each in eval(found) if not each.endswith("for_children")]
                self.assertEqual(found, eval(plain))

    def test_functions_on_ranks(self):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_")}
        code, output = run_command([sys.executable, "-m", "horon.as_horovod", HERE / "launched.py"],
                                   starts=3, env=clean)
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("printed by a rank"), 3)
        self.assertIn("KeyError: 'as it should'", output)
        self.assertIn("all as it should be", output)

    def test_the_end_with_handles_in_flight(self):
        code, output = run(HERE / "in_flight.py")
        self.assertEqual(code, 0, output)

    def test_an_exception_on_one_rank_ends_the_job(self):
        code, output = run(HERE / "in_flight.py", "raise")
        self.assertNotEqual(code, 0)
        self.assertIn("as it should", output)
        self.assertNotIn("terminate called", output)

    def test_an_exception_ends_those_who_wait_elsewhere(self):
        code, output = run(HERE / "waits_elsewhere.py", HORON_SHUTDOWN_TIMEOUT_S="2")
        self.assertNotEqual(code, 0, output)
        self.assertIn("rank 0 ended with an exception: ValueError: as it should", output)

    def test_a_process_that_a_rank_spawns_is_no_rank(self):
        code, output = run(HERE / "spawns_itself.py")
        self.assertEqual(code, 0, output)
        self.assertIn('all that only ranks do below if __name__ == "__main__"', output)
        for rank in range(2):
            self.assertIn(f"[{rank}] the process has ended with 1", output)

    def test_an_exception_that_is_only_shown_ends_nobody(self):
        code, output = run(HERE / "shows_an_exception.py")
        self.assertEqual(code, 0, output)
        self.assertIn("ZeroDivisionError", output)

    def test_a_program_alone_may_start_another(self):
        code, output = run_command([sys.executable, HERE / "starts_another.py"], env=NOT_LAUNCHED)
        self.assertEqual(code, 0, output)

    def test_processes_of_torchrun_are_no_ranks(self):
        for more in ({}, {"SLURM_STEP_NUM_TASKS": "1"}):  # srun torchrun
            environment = {**NOT_LAUNCHED, "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", **more}
            code, output = run_command(
                [sys.executable, "-c", "import horon.torch as hvd; hvd.init()"], env=environment)
            self.assertNotEqual(code, 0, output)
            self.assertIn("torchrun has started 2 processes, which are not MPI ranks", output)

    def test_nobody_is_ended_while_it_saves(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output = run(HERE / "busy_at_the_end.py", folder, HORON_SHUTDOWN_TIMEOUT_S="0.5")
            self.assertEqual((code, sorted(os.listdir(folder))), (0, ["ends", "saved"]), output)
            self.assertIn("waits for the others", output)
        with tempfile.TemporaryDirectory() as folder:
            _, output = run(HERE / "saves_after_an_error.py", folder, HORON_STALL_ABORT_S="10")
            self.assertEqual(os.listdir(folder), ["saved"], output)

    def test_a_killed_peer_is_named_and_the_others_end(self):
        for api in ("horovod", "process_group"):
            with self.subTest(api), tempfile.TemporaryDirectory() as folder:
                _, output = run(HERE / "killed_peer.py", api, folder)  # mpirun dislikes the death
                ends = [int(pathlib.Path(folder, f"ended.{rank}").read_text()) for rank in (0, 1)]
                self.assertEqual(ends, [0, -signal.SIGKILL], output)
                self.assertIn("the error names the rank", output)

    def test_an_elastic_job_goes_on_behind_its_last_commit(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output = run_command([HORONRUN, "-np", "2", "--max-restarts", "1", "--commits",
                                        folder, sys.executable, HERE / "elastic.py"],
                                       starts=2)
            self.assertEqual((code, os.listdir(folder)), (0, []), output)
        self.assertIn("the job has failed with exit code 137: restart 1 of 1", output)
        [first, second] = re.findall(r"begun at (\d) (\d) ended with (-?[0-9.]+(?:e-\d+)?)", output)
        self.assertEqual(first, second)
        self.assertTrue(("0", "0") < first[:2] <= ("1", "2"), first)

    def test_a_commit_of_an_object_of_the_program_is_written_when_it_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            for restart, told in enumerate(["RuntimeError: as it should", "found 3 pages"]):
                _, output = run("-m", "horon.as_horovod", HERE / "fails_behind_commits.py", ranks=1,
                                HORONRUN_COMMITS=os.path.join(folder, "job.pt"),
                                HORONRUN_RESTART=str(restart))
                self.assertIn(told, output)

    @unittest.skipIf(importlib.util.find_spec("mpi4py") is None, "no mpi4py")
    def test_beside_mpi4py(self):
        for mode in ("before", "after", "communicator", "process_group"):
            with self.subTest(mode):
                code, output = run(HERE / "with_mpi4py.py", mode)
                self.assertEqual(code, 0, output)
                self.assertEqual(output.count("beside mpi4py"), 2, output)

    def test_horovod_in_workers_that_are_started_anew(self):
        code, output = run("-m", "horon.as_horovod", HERE / "workers_of_horovod.py")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("all samples came"), 2, output)

    def test_variables_of_horovod_without_effect_are_named_once(self):
        code, output = run("-m", "horon.as_horovod", "-m", "this", HOROVOD_TIMELINE="t.json",
                           HOROVOD_CYCLE_TIME="1")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("HOROVOD_CYCLE_TIME (no counterpart), HOROVOD_TIMELINE "
                                      "(set HORON_TIMELINE)"), 1, output)

    def test_the_example_for_horovod_learns(self):
        with tempfile.TemporaryDirectory() as folder:
            write_images(pathlib.Path(folder))
            code, output = run("-m", "horon.as_horovod", EXAMPLES / "fashion_mnist.py", "--data",
                               folder, "--epochs", "4", "--batch-size", "10", "--fp16-allreduce")
        self.assertEqual(code, 0, output)
        accuracy = re.findall(r"epoch 4: test accuracy ([0-9.]+) %", output)
        self.assertEqual(len(accuracy), 1, output)
        self.assertGreater(float(accuracy[0]), 90, output)


if __name__ == "__main__":
    LAUNCHER = sys.argv.pop(1)
    unittest.main(verbosity=2)
