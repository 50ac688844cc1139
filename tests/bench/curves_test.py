#!/usr/bin/env python3
"""How bench/curves measures, keeps, draws and judges, with a program in the place of horon-bench.

usage: curves_test.py    needs gnuplot
"""

import html
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

CURVES = pathlib.Path(__file__).resolve().parents[2] / "bench/curves"
# Twice as fast as MPI; in a scatter a fifth slower than the best algorithm of MPI.
PROGRAM = '''#!/usr/bin/env python3
import json, sys
value = lambda name: sys.argv[sys.argv.index(name) + 1]
kind, size = value("--collective"), int(value("-b"))
sizes = []
while size <= int(value("-e")):
    sizes.append(size)
    size *= int(value("-f"))
tuned = 1.2 if kind == "scatter" else 0.75
peers = {"mpi": {"time": 2, "ratio_quartiles": [0.4, 0.5, 0.6]},
         "tuned": {"time": 1.5, "ratio_quartiles": [tuned / 2, tuned, tuned * 2],
                   "algorithm": "ring"},
         "gloo": {"time": 20, "ratio_quartiles": [0.05, 0.05, 0.05]}}
peers = {name: peers[name] for name in value("--peer").split(",")}
form = {"time": 1, "repetitions": 5, "peers": peers}
print("a line of another program")
print(json.dumps({"mpi": "Open MPI v0", "machine": {"cores": 2}, "config": {"ranks": 2},
                  "op_chosen": ["an op: chosen"], "results": [
    {"size": one, "ping": 0.2, "in_place": None, "out_of_place": form} for one in sizes]},
    indent=2))
'''


class Curves(unittest.TestCase):
    def setUp(self):
        # pylint: disable=consider-using-with
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)

    def curves(self, *arguments, program=PROGRAM, environment=None):
        path = self.at / "program"
        path.write_text(program, encoding="utf-8")
        path.chmod(0o755)
        return subprocess.run(
            [CURVES, "--program", path, "--ranks", "", "--world", "2 hosts=env", "--minutes",
             "0.1", "--output", self.at / "curves", *arguments],
            capture_output=True, text=True, check=False, timeout=100, env=environment)

    def test_what_is_measured_is_kept_and_drawn(self):
        done = self.curves("--kinds", "allreduce,scatter,barrier", "--peers", "mpi,tuned")
        self.assertEqual(done.returncode, 0, done.stderr)
        content = json.loads((self.at / "curves.json").read_text(encoding="utf-8"))
        self.assertEqual([one["kind"] for one in content["runs"]],
                         ["allreduce", "scatter", "barrier"])
        self.assertEqual([row["size"] for row in content["runs"][0]["rows"]],
                         [1 << 16, 1 << 19, 1 << 22])
        self.assertEqual(content["runs"][0]["rows"][0]["peers"]["tuned"],
                         {"time": 1.5, "ratio": [0.375, 0.75, 1.5], "algorithm": "ring"})
        picture = (self.at / "curves.svg").read_text(encoding="utf-8")
        self.assertIn("best algorithm, 2 hosts", picture)
        self.assertNotIn("Gloo", picture)
        self.assertIn("[ 3/3]", done.stdout)
        self.assertIn("2 hosts    scatter          64 KiB: 1.20 (0.60 to 2.40)", done.stdout)
        self.assertIn("Above a target: 3\n", done.stdout)

    def test_gloo_has_runs_of_its_own(self):
        # As horon-bench does, refuse an interface without Gloo.
        program = PROGRAM.replace("sizes = []", """sizes = []
assert ("--gloo-interface" in sys.argv) == (value("--peer") == "gloo")""")
        done = self.curves("--kinds", "gather,reducescatter", "--gloo-interface", "eth0",
                           program=program)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[ 3/3]", done.stdout)
        runs = json.loads((self.at / "curves.json").read_text(encoding="utf-8"))["runs"]
        self.assertEqual([sorted(one["rows"][2]["peers"]) for one in runs],
                         [["gloo", "mpi", "tuned"], ["mpi", "tuned"]])
        self.assertIn("Gloo over TCP, 2 hosts",
                      (self.at / "curves.svg").read_text(encoding="utf-8"))

    def test_no_rank_of_this_machine_is_bound_beside_gloo(self):
        launcher = self.at / "mpirun"
        launcher.write_text("#!/bin/sh\n"
                            f"echo \"$@\" >> {self.at}/started\n"
                            "while [ \"${1##*/}\" != program ]; do shift; done\n"
                            "exec \"$@\"\n", encoding="utf-8")
        launcher.chmod(0o755)
        done = self.curves("--kinds", "gather", "--ranks", "2",
                           environment={**os.environ, "PATH": f"{self.at}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stderr)
        started = (self.at / "started").read_text(encoding="utf-8").splitlines()
        self.assertEqual([("--bind-to none" in line, "--peer gloo" in line) for line in started],
                         [(False, False), (True, True)])

    def test_arguments_are_passed_on(self):
        program = PROGRAM.replace("kind, size =", 'value("-d")\nkind, size =')
        for arguments, code in (["--arguments", "-d float64"], 0), ([], 1):
            done = self.curves("--kinds", "gather", *arguments, program=program)
            self.assertEqual(done.returncode, code, done.stderr)

    def test_a_picture_of_what_was_kept(self):
        self.assertEqual(self.curves("--kinds", "gather").returncode, 0)
        (self.at / "curves.svg").unlink()
        done = self.curves("--draw", self.at / "curves.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.at / "curves.svg").exists())

    def test_a_failure_names_the_command(self):
        done = self.curves(program="#!/bin/sh\nexit 3\n")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("exit code 3 of env", done.stderr)
        self.assertNotEqual(self.curves("--world", "nothing").returncode, 0)
        self.assertIn("no horon-bench", self.curves("--program", "/no/such").stderr)

    def test_wrong_arguments(self):
        for arguments, text in (
                (("--ranks", "x"), "x: give numbers of ranks, such as 2,4,8"),
                (("--sizes", "64K"), "64K is not smallest,largest,factor"),
                (("--sizes", "64K,1M,1"), "64K,1M,1 is not smallest,largest,factor"),
                (("--world-sizes", "1M,64K,4"), "1M,64K,4 is not smallest,largest,factor"),
                (("--kinds", "gather,reduce"), "gather,reduce: give some of allgather, allreduce"),
                (("--peers", "nccl"), "nccl: give some of gloo, mpi, tuned"),
                (("--draw", "/none.json"), "can't read /none.json: No such file"),
                (("--draw", "/dev/null"), "/dev/null is not a file of results of curves")):
            done = self.curves(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_where_nothing_can_be_written_is_found_before_the_work(self):
        done = self.curves("--output", "/none/curves", program="#!/bin/sh\nexit 3\n")
        self.assertEqual(done.stderr,
                         "curves: can't write /none/curves.json: No such file or directory\n")
        (self.at / "curves.svg").mkdir()
        self.assertIn("curves.svg: Is a directory", self.curves("--kinds", "gather").stderr)

    def test_any_name(self):
        done = self.curves("--kinds", "gather", "--world", "`touch x` 'a' \"b\"=env", "--output",
                           self.at / "it's \"\\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        picture = (self.at / "it's \"\\n.svg").read_text(encoding="utf-8")
        self.assertIn("algorithm, `touch x` 'a' \"b\"", html.unescape(picture))


if __name__ == "__main__":
    unittest.main()
