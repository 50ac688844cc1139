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

    def test_torn_lines(self):
        self.write([{"step": 1, "time": 1.0, "loss": 2.0}], '{"step": 2, "ti\n')
        whole = self.log.read_text(encoding="utf-8")
        self.write([{"step": step, "time": float(step), "loss": 1.0} for step in (2, 3)])
        self.log.write_text(whole + self.log.read_text(encoding="utf-8") + '{"st', encoding="utf-8")
        told = self.plot()
        self.assertEqual(told.returncode, 0, told.stderr)
        self.log.write_text(whole + "step 2\n", encoding="utf-8")
        self.assertIn("line 3: no record", self.plot().stderr)

    def test_steps_where_nothing_is_counted(self):
        self.write([{"step": step, "time": float(step), "loss": 2.0} for step in range(3)])
        self.assertEqual(self.plot().returncode, 0)
        self.assertIn("steps per second", self.picture.read_text(encoding="utf-8"))

    def test_what_is_wrong_is_said(self):
        self.assertIn("can't read", self.plot().stderr)
        self.write([])
        self.assertIn("has no records", self.plot().stderr)
        self.write([{"step": 1, "time": 1.0, "accuracy": 1}])
        self.assertIn('no name contains "loss"', self.plot().stderr)
        self.assertIn("it has accuracy", self.plot("--loss", "x").stderr)
        self.write([{"a": 1}, {"step": 1, "time": 1.0}])
        self.assertIn("line 1: no record", self.plot().stderr)
        self.assertFalse(self.picture.exists())


if __name__ == "__main__":
    unittest.main()
