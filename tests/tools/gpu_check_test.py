#!/usr/bin/env python3
"""tools/gpu_check, as far as it goes without a GPU: how results are read, limits, the pack, and the
environment of ranks that share a GPU.

usage: gpu_check_test.py REPOSITORY
"""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import types
import unittest
import xml.etree.ElementTree

REPOSITORY = pathlib.Path(sys.argv[1]).resolve()
sys.dont_write_bytecode = True
sys.path.insert(0, str(REPOSITORY / "tools"))

from gpu_checks import pack, parts, picture, stacks  # pylint: disable=wrong-import-position

TOOL = runpy.run_path(str(REPOSITORY / "tools/gpu_check"))
PASSED = "\x1b[0;32m[  PASSED  ] \x1b[m3 tests.\n"
SKIPPED = "no GPU: no NVIDIA driver\n[  PASSED  ] 0 tests.\n[  SKIPPED ] 3 tests\n"
FAILED = "[  PASSED  ] 1 test.\n[  FAILED  ] Moves.Copy (1 ms)\n[  FAILED  ] 1 test, listed:\n"
DASHES = "-" * 74
NOTICE = f"{DASHES}\nPrimary job  terminated normally, but 1 process returned\n{DASHES}\n"


class Results(unittest.TestCase):
    def outcome(self, *results):
        found = parts.gtest_outcome(results)
        return found.state, found.detail

    def test_gtest(self):
        self.assertEqual(self.outcome((0, PASSED), (0, PASSED)), ("passed", "6 tests"))
        self.assertEqual(self.outcome((0, PASSED), (0, SKIPPED)), ("passed", "3 tests, 3 skipped"))
        self.assertEqual(self.outcome((0, SKIPPED)), ("skipped", "no GPU: no NVIDIA driver"))
        self.assertEqual(self.outcome((0, PASSED), (1, FAILED)), ("failed", "1: Moves.Copy"))
        self.assertEqual(self.outcome((124, PASSED))[0], "failed")
        self.assertIn("limit", self.outcome((124, PASSED))[1])
        self.assertEqual(self.outcome((0, ""))[0], "skipped")

    def test_tells_what_a_rank_said_before_the_notices_of_mpirun(self):
        said = "Traceback:\n  raise\nRuntimeError: 3, not 4\n"
        self.assertEqual(parts.last_lines(NOTICE + said + NOTICE + NOTICE, 1),
                         "RuntimeError: 3, not 4")
        # The reason of a long line stands at its end.
        self.assertRegex(parts.last_lines("x" * 400 + ": no memory\n"), "^x{289}: no memory$")
        self.assertIn("Primary job", parts.last_lines(NOTICE))  # mpirun alone has said something

    def test_every_part_has_a_name_of_its_own_and_a_limit(self):
        all_parts = parts.all_parts()
        self.assertEqual(len({part.name for part in all_parts}), len(all_parts))
        for part in all_parts:
            self.assertTrue(part.targets, part.name)
            self.assertLessEqual(part.limit_s, 150, part.name)

    def test_reads_the_summary_of_every_ctest(self):
        run = types.SimpleNamespace(build="build", cores=4, limit_s=9)
        for output, code, state, detail in (
                ("100% tests passed, 0 tests failed out of 20", 0, "passed", "20 tests, 0 failed"),
                ("100% tests passed out of 20", 0, "passed", "20 tests, 0 failed"),  # CTest 4
                ("95% tests passed, 1 tests failed out of 20\n\n"
                 "\t 7 - move_test (Failed)  cuda", 8, "failed", "20 tests, 1 failed move_test")):
            run.command = lambda command, ended=(code, output): ended
            outcome = parts.tests_on_threads(run)
            self.assertEqual((outcome.state, outcome.detail), (state, detail))

    def test_overlap_is_judged_where_allreduces_take_long_enough(self):
        def judge(*models):
            with tempfile.TemporaryDirectory() as folder:
                run = types.SimpleNamespace(results=folder, program=str)

                def ranks(_, command, environment):
                    self.assertEqual(environment, {"HORON_GPU_COLLECTIVES": "host"})
                    self.assertIn("--buckets", command)  # else one rank reduces nothing
                    rows = [{"model": f"m{i}", "floor": 1, "ratio": 1.02,
                             "ratio_quartiles": {"gradients": [share] * 3},
                             "hidden_quartiles": [hidden] * 3}
                            for i, (share, hidden) in enumerate(models)]
                    pathlib.Path(command[-1]).write_text(json.dumps({"models": rows}))
                    return 0, ""
                run.ranks = ranks
                return parts.overlap(run)
        self.assertEqual(judge((0.3, 0.9), (0.01, -3)).state, "passed")
        self.assertIn("m0: allreduces take 0.30 of a step, 0.90", judge((0.3, 0.9)).detail)
        self.assertEqual(judge((0.3, 0.9), (0.3, 0.4)).state, "failed")
        self.assertEqual(judge((0.01, 1.0)).state, "failed")  # nothing was measured
        self.assertIn("0.05 of a step", judge((0.01, 1.0)).detail)
        self.assertNotIn("0.05 of a step", judge((0.3, 0.4)).detail)

    def test_the_example_must_have_trained_on_a_gpu(self):
        def outcome(gpus, device):
            run = types.SimpleNamespace(here=types.SimpleNamespace(gpus=gpus), program=str,
                                        build="build", environment={})
            said = "epoch 1/1  2.5 s  accuracy on the test images 85.20 %\n"
            run.ranks = lambda *_: (0, f"device {device}\n{said}")
            return parts.fashion_mnist(run)
        self.assertEqual(outcome(0, "cpu").state, "skipped")
        self.assertEqual(outcome(1, "cuda:0").state, "passed")  # also as the only part of a run
        self.assertEqual(outcome(1, "cpu").state, "failed")
        self.assertIn("device cpu", outcome(1, "cpu").detail)

    def test_builds_all_tests_that_it_runs(self):
        labelled = set()
        for path in sorted((REPOSITORY / "tests").rglob("*.cmake")):
            text = path.read_text()
            labelled.update(re.findall(r"horon_gpu_test\((\w+)", text))
            for names in re.findall(r"horon_label_tests\(cuda\s+([^)]*)\)", text):
                labelled.update(name.split(".")[0] for name in names.split())
        run = {name for name in labelled if re.search(parts.ON_THREADS_NAMED, name)}
        self.assertIn("move_test", run)
        self.assertEqual(run, set(parts.ON_THREADS))


class Picture(unittest.TestCase):
    def test_has_a_bar_for_each_row_and_a_legend(self):
        rows = [{"bytes": size << 20, "tensors": 60, "tensors_aligned_to": 16,
                 "contender": contender, "GB_per_s": speed}
                for size in (1, 25) for contender, speed in (("a copy", 100.0), ("a < b", 50.0))]
        root = xml.etree.ElementTree.fromstring(picture.draw("a GPU", rows))
        tags = [element.tag.rsplit("}", 1)[-1] for element in root]
        self.assertEqual(tags.count("rect"), 1 + 2 + 4)  # the ground, the legend, the bars
        texts = [element.text for element in root if element.text]
        self.assertIn("a < b", texts)
        self.assertIn("25 MiB, 60 tensors", texts)


class Pack(unittest.TestCase):
    def test_leaves_out_what_is_of_no_use_or_does_harm(self):
        for path in ("/usr/share/man/man1/mpirun.1.gz", "/usr/lib/openmpi3/mca_pml_ucx.so",
                     "/usr/lib/x/libmpi.a", "/usr/lib/x/libmpi_cxx.so.40"):
            self.assertRegex(path, pack.LEFT_OUT)
        for path in ("/usr/lib/x/libmpi.so.40.30.4", "/usr/lib/openmpi3/mca_btl_vader.so",
                     "/usr/lib/x/libgmock.a"):
            self.assertNotRegex(path, pack.LEFT_OUT)
        for name in ("libc.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6"):
            self.assertRegex(name, pack.OF_EVERY_SYSTEM)
        self.assertNotRegex("libcrypto.so.3", pack.OF_EVERY_SYSTEM)


class Stacks(unittest.TestCase):
    @unittest.skipUnless(shutil.which("gdb"), "gdb is not installed")
    def test_tell_where_a_process_that_hangs_is(self):
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            text = stacks.of_session(process.pid, lambda name, *_: shutil.which(name), 30)
        finally:
            process.kill()
            process.wait()
        self.assertIn(f"stacks of process {process.pid}", text)
        self.assertRegex(text, "sleep|ptrace")  # or why it may not be looked at

    def test_without_a_debugger_it_says_so(self):
        self.assertIn("no gdb", stacks.of_session(0, lambda *_: None, 1))


class Ranks(unittest.TestCase):
    """one_gpu_rank, with an nvidia-smi of our own."""

    def environment_of(self, gpus, ranks, **more):
        with tempfile.TemporaryDirectory() as folder:
            smi = pathlib.Path(folder) / "nvidia-smi"
            smi.write_text("#!/bin/sh\n" + "".join(f"echo 'GPU {i}: X'\n" for i in range(gpus)))
            smi.chmod(0o755)
            environment = {"PATH": f"{folder}:{os.environ['PATH']}", "OMPI_COMM_WORLD_RANK": "1",
                           "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks), **more}
            output = subprocess.run([REPOSITORY / "tests/support/one_gpu_rank", "env"], text=True,
                                    env=environment, capture_output=True, check=True).stdout
        return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)

    def test_ranks_share_a_gpu_only_where_they_must(self):
        self.assertEqual(self.environment_of(1, 2)["NCCL_HOSTID"], "rank1")
        self.assertEqual(self.environment_of(0, 1)["NCCL_NET"], "Socket")
        self.assertNotIn("NCCL_HOSTID", self.environment_of(2, 2))

    def test_only_the_visible_gpus_count(self):
        for visible in ("5", "GPU-1e5b0c1d", ""):
            environment = self.environment_of(8, 2, CUDA_VISIBLE_DEVICES=visible)
            self.assertEqual(environment["NCCL_HOSTID"], "rank1", visible)
        for gpus, visible in ((8, "5,6"), (2, "0,1,2,3")):
            environment = self.environment_of(gpus, 2, CUDA_VISIBLE_DEVICES=visible)
            self.assertNotIn("NCCL_HOSTID", environment, visible)

    def test_hosts_that_are_played_on_one_machine_share_its_first_gpus(self):
        self.assertEqual(self.environment_of(8, 4, HORON_HOST_ID="host1")["NCCL_HOSTID"], "rank1")


class Program(unittest.TestCase):
    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, REPOSITORY / "tools/gpu_check", *arguments],
                              capture_output=True, text=True, check=False)

    def test_list_and_wrong_use(self):
        listed = self.run_tool("--list")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        for part in parts.all_parts():
            self.assertIn(part.name, listed.stdout)
        self.assertEqual(self.run_tool("--only", "nothing").returncode, 2)

    def at_its_limit(self, shell):
        """(exit code, output) of a part that does not end by itself."""
        here = types.SimpleNamespace(environment={"PATH": "/usr/bin:/bin"})
        with tempfile.TemporaryDirectory() as folder:
            run = TOOL["Run"](here, pathlib.Path("/"), pathlib.Path(folder),
                              time.monotonic() + 60, 1)
            with run.log:
                return run.command(["bash", "-c", shell], None, 3)

    def test_a_command_ends_at_its_limit_with_all_that_it_started(self):
        # Ranks have process groups of their own, as the jobs of an interactive shell.
        for shell in ("echo begun $$; sleep 300 & sleep 300",
                      "set -m; echo begun $$; sleep 300 & sleep 300",
                      "set -m; echo begun $$; sleep 300 > /dev/null 2>&1 & sleep 300"):
            code, output = self.at_its_limit(shell)
            self.assertEqual(code, 124)
            session = re.search(r"begun (\d+)", output)
            self.assertIsNotNone(session, output)
            self.assertEqual(stacks.members_of_session(int(session[1])), [], shell)

    def test_a_command_that_leaves_a_process_behind_keeps_its_output(self):
        code, output = self.at_its_limit("echo begun; setsid sleep 30 & sleep 300")
        self.assertEqual(code, 124)
        self.assertIn("begun", output)

    def test_without_the_libtorch_that_cmake_refuses_the_rest_is_built(self):
        built = []

        def command(arguments):
            if "--build" in arguments:
                built.extend(arguments[arguments.index("--target") + 1:arguments.index("--")])
            elif "-DHORON_TORCH=ON" in arguments:
                return 1, ("CMake Error at a.cmake:7 (message):\n  LibTorch is\n  too old\n\n\n"
                           "-- Configuring incomplete, errors occurred!\n")
            return 0, ""
        run = types.SimpleNamespace(command=command, begin=lambda _: None, build="b", cores=1,
                                    limit_s=9, limit_of_build=9)
        here = types.SimpleNamespace(torch="/torch", torch_has_cuda=True, cuda=True, gpus=1,
                                     settings={}, facts={"cmake": "cmake"})
        outcome = TOOL["build"](run, here, parts.all_parts())
        self.assertEqual(outcome.state, "failed")
        self.assertIn("CMake with LibTorch: CMake Error at a.cmake:7 (message): LibTorch is too "
                      "old", outcome.detail)
        self.assertIn("horon-bench", built)
        self.assertNotIn("fashion_mnist", built)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
