#!/usr/bin/env python3
"""How compare_training_step puts the runs of both libraries together, and the results kept."""
import importlib.machinery
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench")


def load(name):
    loader = importlib.machinery.SourceFileLoader(name.removesuffix(".py"),
                                                  os.path.join(BENCH, name))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def load_ddp_without_torch():
    names = ["torch", "torch.distributed", "torch.nn", "torch.nn.functional"]
    modules = {name: types.ModuleType(name) for name in names}
    torch = modules["torch"]
    torch.nn, torch.distributed = modules["torch.nn"], modules["torch.distributed"]
    torch.nn.functional, torch.nn.Module = modules["torch.nn.functional"], object
    torch.distributed.get_world_size = lambda: 2
    torch.set_num_threads = mock.Mock()
    with mock.patch.dict(sys.modules, modules):
        return load("ddp_training_step.py")


def report(floor, fused, exposed_ms, steps, threads=1, agree=True):
    blocks = {"alone": [1.0, 1.0], "floor": [floor] * 2, "horon": [2.0, 2.0],
              "horon_fused": [fused] * 2}
    return {"ranks": 2, "threads": threads, "blocks": 2, "models": [
        {"model": "cnn", "block_ms": blocks, "steps": steps, "over_floor_fused": fused / floor,
         "exposed_ms": exposed_ms, "ranks_agree": agree}]}


def median_of_ratios(blocks, contender, base):
    return statistics.median(a / b for a, b in zip(blocks[contender], blocks[base]))


class Comparison(unittest.TestCase):
    def test_figures_are_of_all_rounds(self):
        compare = load("compare_training_step")
        merged = compare.merge([report(1.0, 1.0, 4.0, 10), report(1.0, 3.0, 1.0, 30)], "horon")
        row = merged["models"][0]
        self.assertEqual(merged["blocks"], 4)
        self.assertEqual(row["over_floor"], 2)
        self.assertEqual(row["over_floor_fused"], 2)
        self.assertEqual(row["exposed_ms"], (4.0 * 10 + 1.0 * 30) / 40)
        self.assertTrue(row["ranks_agree"])

    def test_so_are_the_times_of_the_processor_and_what_a_step_hides(self):
        compare = load("compare_training_step")
        rounds = [report(1.0, 1.0, 4.0, 10), report(1.5, 3.0, 1.0, 30)]
        for number, one in enumerate(rounds):
            model = one["models"][0]
            model["block_ms"]["gradients"] = [2.0, 4.0]
            model["block_cpu_ms"] = {"alone": [number] * 2}
            model["hidden_quartiles"] = [-1.0] * 3  # of that round
        row = compare.merge(rounds, "horon")["models"][0]
        self.assertEqual(row["block_cpu_ms"], {"alone": [0, 0, 1, 1]})
        self.assertEqual(row["hidden_quartiles"], statistics.quantiles(
            [0.5, 0.75, 0.75, 0.875], n=4, method="inclusive"))

    def test_contenders_without_a_step_alone(self):
        compare = load("compare_training_step")
        blocks = {"floor": [1.0, 2.0], "ddp_gloo": [4.0, 8.0], "ddp_horon": [2.0, 2.0]}
        one = {"ranks": 2, "threads": 1, "blocks": 2, "version": "2", "models": [
            {"model": "cnn", "block_ms": blocks, "steps": 3, "horon_over_gloo_quartiles": [0] * 3}]}
        row = compare.merge([one, one], "ddp")["models"][0]
        self.assertEqual(row["over_floor_quartiles"]["ddp_gloo"], [4, 4, 4])
        self.assertEqual(row["horon_over_gloo_quartiles"], [0.25, 0.375, 0.5])
        self.assertFalse({"ratio", "floor", "ratio_quartiles"} & row.keys())

    def test_one_round_in_which_ranks_differ_shows(self):
        compare = load("compare_training_step")
        merged = compare.merge([report(1, 1, 1, 1), report(1, 1, 1, 1, agree=False)], "horon")
        self.assertFalse(merged["models"][0]["ranks_agree"])

    def test_other_threads_are_refused(self):
        compare = load("compare_training_step")
        compare.require_same_threads([report(1, 1, 1, 1), report(1, 1, 1, 1)])
        with self.assertRaisesRegex(SystemExit, "1 and 2 threads"):
            compare.require_same_threads([report(1, 1, 1, 1), report(1, 1, 1, 1, threads=2)])

    def test_the_threads_that_the_environment_asks_for_are_kept(self):
        ddp = load_ddp_without_torch()
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
            ddp.set_threads()
        ddp.torch.set_num_threads.assert_not_called()
        with mock.patch.dict(os.environ), mock.patch("os.cpu_count", return_value=16):
            os.environ.pop("OMP_NUM_THREADS", None)
            ddp.set_threads()
        ddp.torch.set_num_threads.assert_called_once_with(8)

    def test_where_no_report_can_be_written_is_found_before_the_work(self):
        done = subprocess.run([sys.executable, os.path.join(BENCH, "compare_training_step"),
                               "--python", "/none", "--bench", "/none", "--json", BENCH],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, f"can't write {BENCH}: Is a directory\n"))
        ddp = load_ddp_without_torch()
        with tempfile.TemporaryDirectory() as folder:
            for path, reason in ((folder, "Is a directory"), ("/none/x", "No such file")):
                with self.assertRaisesRegex(SystemExit, f"can't write {path}: {reason}"):
                    ddp.require_json(path)
                with mock.patch.dict(os.environ, OMPI_COMM_WORLD_RANK="1"):
                    ddp.require_json(path)
            for path in ("", "/dev/null", os.path.join(folder, "new.json")):
                ddp.require_json(path)
            self.assertEqual(os.listdir(folder), [])

    def test_results_kept_are_those_of_their_blocks(self):
        with open(os.path.join(BENCH, "results/training_floor_np2.json"), encoding="utf-8") as file:
            results = json.load(file)
        for name, content in results.items():
            library = "horon" if name == "horon" else "ddp"
            figures = {"ratio": (library, "alone"), "floor": ("floor", "alone"),
                       "over_floor": (library, "floor"),
                       "over_floor_fused": ("horon_fused", "floor")}
            for row in content["models"]:
                for key, (contender, base) in figures.items():
                    if key not in row:
                        continue
                    expected = median_of_ratios(row["block_ms"], contender, base)
                    with self.subTest(report=name, model=row["model"], figure=key):
                        self.assertAlmostEqual(row[key], expected, delta=1e-3 * expected)
                for contender, quartiles in row["over_floor_quartiles"].items():
                    expected = median_of_ratios(row["block_ms"], contender, "floor")
                    with self.subTest(report=name, model=row["model"], contender=contender):
                        self.assertAlmostEqual(quartiles[1], expected, delta=1e-3 * expected)


if __name__ == "__main__":
    unittest.main()
