#!/usr/bin/env python3
"""Pictures are made of what Horon writes, and other files are refused in words.

usage: plot_test.py    needs gnuplot
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
LOG = ("reducer,elapsed_s,stage,bucket_bytes,first_bucket_bytes,"
       "buckets,steps,step_ms,quartile_ms,over_start\n") + """\
"a, b",1.5,search,4194304,262144,3,10,12.3,0.4,1
"a, b",2,search,65536,262144,9,10,15.3,0.4,1.24
"c",2,search,65536,16384,9,10,15.3,0.4,1
"a, b",3,comparison,4194304,262144,9,10,12.2,0.4,0.99
"a, b",3.5,comparison,1048576,262144,9,10,11.2,0.4,0.92
"a, b",20,kept,1048576,262144,4,0,11,0,0.9
"""


def plot_bandwidth(report):
    """What plot_bandwidth has done, and its picture."""
    with tempfile.TemporaryDirectory() as folder:
        source, picture = pathlib.Path(folder, "report.json"), pathlib.Path(folder, "report.svg")
        source.write_text(report, encoding="utf-8")
        done = subprocess.run([BENCH / "plot_bandwidth", source, picture], capture_output=True,
                              text=True, check=False)
        return done, picture.read_text(encoding="utf-8") if picture.exists() else ""


def check_unreadable_files(test, program):
    with tempfile.TemporaryDirectory() as folder:
        binary, picture = pathlib.Path(folder, "binary"), pathlib.Path(folder, "x.svg")
        binary.write_bytes(b"\x7fELF\xff\n")
        for file, reason in [(pathlib.Path(folder, "none"), "No such file or directory"),
                             (binary, "it is not a text file")]:
            done = subprocess.run([BENCH / program, file, picture], capture_output=True, text=True,
                                  check=False)
            test.assertEqual(done.returncode, 1)
            test.assertEqual(done.stderr, f"{program}: can't read {file}: {reason}\n")
            test.assertFalse(picture.exists())


def check_odd_pictures(test, program, source):
    """A path with characters that shells and gnuplot interpret; a link, and what is no file."""
    with tempfile.TemporaryDirectory() as folder:
        def plot(picture):
            return subprocess.run([BENCH / program, source, picture], capture_output=True,
                                  text=True, cwd=folder, check=False)
        odd = "it's \"a\" `touch x` \\n $y.svg"
        test.assertEqual(plot(odd).returncode, 0)
        test.assertEqual(os.listdir(folder), [odd])
        link = pathlib.Path(folder, "link")  # as /dev/stdout is one
        link.symlink_to(odd)
        test.assertEqual(plot(link).returncode, 0)
        test.assertTrue(link.is_symlink())
        test.assertIn("<svg", plot("/dev/stdout").stdout)
        for where, reason in (("/none/x.svg", "No such file"), ("/dev/full", "No space left")):
            done = plot(where)
            test.assertNotEqual(done.returncode, 0)
            test.assertIn(reason, done.stderr)
            test.assertLessEqual(done.stderr.count("\n"), 1, done.stderr)
        odd_folder = pathlib.Path(folder, "folder")
        odd_folder.mkdir()
        test.assertIn("Is a directory", plot(odd_folder).stderr)
        test.assertEqual(sorted(os.listdir(folder)), sorted([odd, "link", "folder"]))


class PlotAutotune(unittest.TestCase):
    def plot(self, log, *arguments):
        """What plot_autotune has done, and its picture."""
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "log.csv"
            picture = pathlib.Path(folder) / "log.svg"
            source.write_text(log, encoding="utf-8")
            done = subprocess.run([BENCH / "plot_autotune", source, picture, *arguments],
                                  capture_output=True, text=True, check=False)
            left = {path.name for path in pathlib.Path(folder).iterdir()}
            self.assertLessEqual(left, {"log.csv", "log.svg"})
            return done, picture.read_text(encoding="utf-8") if picture.exists() else ""

    def test_a_run(self):
        done, picture = self.plot(LOG)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("a, b: 4 samples in 20 s, kept 0.900 of the start's time", picture)
        self.assertIn("the first bucket", picture)

    def test_rows_of_another_kind(self):
        head, first, *_ = LOG.splitlines()
        for rows in ("stage\nsearch\n", f"{head}\n{first.replace('262144', 'x')}\n"):
            done, picture = self.plot(rows)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "^plot_autotune: .* has rows that are not of "
                                          "HORON_AUTOTUNE_LOG\n$")
            self.assertEqual(picture, "")

    def test_pieces(self):
        with_pieces = [line.split(",") for line in LOG.splitlines()]
        for line in with_pieces:
            place = line.index("buckets") if "buckets" in line else -5
            line.insert(place, "piece_bytes" if "buckets" in line else "0")
        text = "".join(",".join(line) + "\n" for line in with_pieces)
        done, picture = self.plot(text)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(">pieces<", picture)
        done, picture = self.plot(text.replace("1048576,262144,0,", "1048576,262144,65536,"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(">pieces<", picture)
        self.assertIn("kept 0.900 of the start's time", picture)

    def test_a_run_that_has_not_ended(self):
        done, picture = self.plot(LOG, "c")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("c: 1 sample in 2 s", picture)

    def test_other_files(self):
        for log, arguments, text in [("epoch,loss\n1,2\n", [], "is not a log"),
                                     ("", [], "is empty"), (LOG, ["d"], 'no sample of "d"')]:
            done, picture = self.plot(log, *arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)
            self.assertEqual(picture, "")

    def test_a_row_that_is_being_written(self):
        done, picture = self.plot(LOG + '"a, b",21,search,10')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("a, b: 4 samples in 20 s", picture)

    def test_any_name(self):
        name = "it's `touch x` $y \\n"
        done, picture = self.plot(LOG.replace("a, b", name))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{name}: 4 samples in 20 s", picture.replace("&#39;", "'"))

    def test_odd_pictures(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as log:
            log.write(LOG)
            log.flush()
            check_odd_pictures(self, "plot_autotune", log.name)

    def test_a_file_that_can_not_be_read(self):
        check_unreadable_files(self, "plot_autotune")


class PlotBandwidth(unittest.TestCase):
    def test_odd_pictures(self):
        check_odd_pictures(self, "plot_bandwidth", BENCH / "results/allreduce_np2.json")

    def test_a_file_that_can_not_be_read(self):
        check_unreadable_files(self, "plot_bandwidth")

    def test_a_report(self):
        row = {"size": 1024, "type": "float", "out_of_place": {},
               "in_place": {"bus_bw": 1.5, "peers": {"mpi": {"bus_bw": 1.0}}}}
        report = {"results": [row, {**row, "size": 4096}], "mpi": "Open MPI", "machine":
                  {"cores": 2}, "config": {"collective": "AllReduce", "ranks": 2}}
        done, picture = plot_bandwidth(json.dumps(report))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("allreduce, float, in place, 2 ranks, Open MPI, 2 cores", picture)
        report["config"]["memory"] = "registered"
        self.assertIn("in place, registered memory, 2 ranks",
                      plot_bandwidth(json.dumps(report))[1])

    def test_other_files(self):
        for text in ("", "size,time\n", "[]", "{}", '{"results": [], "config": {}}'):
            done, picture = plot_bandwidth(text)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "^plot_bandwidth: .*report.json is not a report of .*\n$")
            self.assertEqual(picture, "")


class PlotTimeline(unittest.TestCase):
    EVENTS = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "training"}},
              {"ph": "X", "name": "backward", "pid": 1, "tid": 1, "ts": 1000, "dur": 3000},
              {"ph": "X", "name": "synchronize", "pid": 1, "tid": 1, "ts": 4000, "dur": 1000}]

    def plot(self, text, picture):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as trace:
            trace.write(text)
            trace.flush()
            return subprocess.run([BENCH / "plot_timeline", trace.name, "--output", picture],
                                  capture_output=True, text=True, check=False)

    def test_a_step(self):
        done = self.plot(json.dumps({"traceEvents": self.EVENTS}), "/dev/stdout")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 0: 4.00 ms, 1 ranks", done.stderr)
        root = xml.etree.ElementTree.fromstring(done.stdout)
        self.assertIn("rank 1", [element.text for element in root])

    def test_what_is_wrong_is_said(self):
        whole = json.dumps({"traceEvents": self.EVENTS})
        for text, picture, said in (
                (whole[:-9], "x.svg", "is not a trace of HORON_TIMELINE"),
                ("[]", "x.svg", "not a trace"),
                ('{"traceEvents": [{"ph": "X"}]}', "x.svg", "not a trace"),
                (whole, "/none/x.svg", "can't write /none/x.svg: No such file or directory"),
                (whole, "/dev/full", "can't write /dev/full: No space left on device")):
            done = self.plot(text, picture)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "^plot_timeline: .*\n$")
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
