#!/usr/bin/env python3
"""tools/plot_training, on a log as a JsonlSink writes it.

usage: plot_training_test.py PLOT_TRAINING
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PLOT = sys.argv.pop(1)


@unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
class PlotTraining(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.log = self.folder / "train.jsonl"
        self.picture = self.folder / "training.svg"
        self.addCleanup(shutil.rmtree, self.folder)

    def plot(self, *options):
        return subprocess.run([sys.executable, PLOT, self.log, self.picture, *options],
                              capture_output=True, text=True, check=False)

    def write(self, records, rest=""):
        self.log.write_text("".join(json.dumps(record) + "\n" for record in records) + rest,
                            encoding="utf-8")

    def test_loss_and_samples(self):
        self.write([{"step": step, "time": 1000.0 + step / 10, "lr": 0.1, "train/loss": 1 / step,
                     "samples": 640} for step in range(10, 500, 10)]
                   + [{"step": 500, "time": 1051.0, "train/loss": None}], '{"step": 510, "ti')
        told = self.plot()
        self.assertEqual(told.returncode, 0, told.stderr)
        drawn = self.picture.read_text(encoding="utf-8")
        self.assertIn("<svg", drawn)
        self.assertIn("train/loss", drawn)
        self.assertIn("samples per second", drawn)
        self.assertEqual(self.plot("--loss", "lr").returncode, 0)
        self.assertIn(">lr<", self.picture.read_text(encoding="utf-8"))

    def test_steps_where_nothing_is_counted(self):
        self.write([{"step": step, "time": float(step), "loss": 2.0} for step in range(3)])
        self.assertEqual(self.plot().returncode, 0)
        self.assertIn("steps per second", self.picture.read_text(encoding="utf-8"))

    def curves(self):
        """The labels of the axes in the picture."""
        drawn = self.picture.read_text(encoding="utf-8")
        return [label for label in ("loss", "steps per second") if f">{label}<" in drawn]

    def test_a_curve_without_a_point_is_left_out(self):
        self.write([{"step": 1, "time": 1.0, "loss": 2.0}])  # no time passes
        told = self.plot()
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertEqual(self.curves(), ["loss"])
        self.write([{"step": step, "time": float(step), "loss": None} for step in range(3)])
        self.assertEqual(self.plot().returncode, 0)
        self.assertEqual(self.curves(), ["steps per second"])

    def test_a_torn_line_is_left_out(self):
        """The next job has appended to the line within which the job before was killed."""
        records = [{"step": step, "time": float(step), "loss": 2.0} for step in range(3)]
        lines = [json.dumps(record) for record in records]
        self.log.write_bytes("\n".join([*lines, lines[0][:-5] + lines[1], *lines, ""]).encode()
                             + b'\xc3\n' + lines[2].encode() + b"\n")
        told = self.plot()
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("train.jsonl, line 4 is left out", told.stderr)
        self.assertIn("train.jsonl, line 8 is left out", told.stderr)
        self.assertEqual(told.stderr.count("\n"), 2)
        self.assertEqual(self.curves(), ["loss", "steps per second"])

    def test_a_line_with_other_values_is_left_out(self):
        """Such as numbers that no float holds."""
        self.write([{"step": step, "time": float(step), "loss": 2.0} for step in range(3)],
                   '{"step": 1e400, "time": 3, "loss": 2}\n'
                   f'{{"step": 4, "time": 4, "loss": {"9" * 400}}}\n'
                   f'{{"step": 5, "time": 5, "loss": {"[" * 100000}}}\n')
        told = self.plot()
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertEqual([line.split(" is left out")[0] for line in told.stderr.splitlines()],
                         [f"plot_training: {self.log}, line {number}" for number in (4, 5, 6)])
        self.write([{"step": step, "time": float(step), "loss": True} for step in range(3)])
        self.assertEqual(self.plot().returncode, 0)
        self.assertEqual(self.curves(), ["steps per second"])

    def test_a_name_is_no_command_of_gnuplot(self):
        for name in (f"loss\nsystem 'touch {self.folder}/made'", "loss'\nexit\n", "loss \ud800"):
            self.write([{"step": step, "time": float(step), name: 2.0} for step in range(3)])
            told = self.plot()
            self.assertEqual(told.returncode, 0, told.stderr)
            self.assertIn("loss", self.picture.read_text(encoding="utf-8"))
            self.assertFalse((self.folder / "made").exists())

    def test_where_the_picture_goes(self):
        self.write([{"step": step, "time": float(step), "loss": 2.0} for step in range(3)])
        link = self.picture = self.folder / "link"  # as /dev/stdout is one
        link.symlink_to("training.svg")
        self.assertEqual(self.plot().returncode, 0)
        self.assertTrue(link.is_symlink())
        self.picture = "/dev/stdout"
        self.assertIn("<svg", self.plot().stdout)
        for self.picture, reason in (("/none/x.svg", "No such file or directory"),
                                     ("/dev/full", "No space left on device")):
            told = self.plot()
            self.assertEqual(told.returncode, 1)
            self.assertEqual(told.stderr,
                             f"plot_training: can't write {self.picture}: {reason}\n")

    def test_what_is_wrong_is_said(self):
        self.assertIn("can't read", self.plot().stderr)
        self.write([])
        self.assertIn("has no records", self.plot().stderr)
        self.write([{"step": 1, "time": 1.0, "accuracy": 1}])
        self.assertIn('no name contains "loss"', self.plot().stderr)
        self.assertIn("it has accuracy", self.plot("--loss", "x").stderr)
        self.write([{"a": 1}])
        self.assertIn("has no records", self.plot().stderr)
        self.write([{"step": 1, "time": 1.0, "loss": None}])
        self.assertIn("nothing to draw", self.plot().stderr)
        self.assertFalse(self.picture.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
