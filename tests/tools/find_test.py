#!/usr/bin/env python3
"""What files of tools/cmake choose, each in a small project that knows no language, with others in
the place of CUDA and torch.

usage: find_test.py
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

FILES = pathlib.Path(__file__).resolve().parents[2] / "tools/cmake"


class Find(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="horon_find_test_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def program(self, path, prints):
        file = self.folder / path
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\necho '{prints}'\n", encoding="utf-8")
        file.chmod(0o755)
        return file

    def call(self, *command, **variables):
        """What it prints, in one line."""
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, env={"PATH": os.environ["PATH"], **variables})
        self.assertEqual(done.returncode, 0, done.stdout)
        return " ".join(done.stdout.split())

    def find(self, file, *options, **variables):
        """A second call finds the cache of the first."""
        (self.folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(find LANGUAGES NONE)\n"
            f"include({FILES}/{file}.cmake)\n"
            'message(STATUS "commit: ${HORON_GIT_HASH}.")\n', encoding="utf-8")
        return self.call("cmake", "-S", self.folder, "-B", self.folder / "build", "-G", "Ninja",
                         *options, **variables)

    def test_the_chosen_cuda_is_taken(self):
        nvcc = self.program("cuda/bin/nvcc", "Cuda compilation tools, release 11.0, V11.0.1")
        root = nvcc.parents[1]
        for options, variables in (([f"-DCMAKE_CUDA_COMPILER={nvcc}"], {}),
                                   ([f"-DCUDAToolkit_ROOT={root}"], {}),
                                   ([], {"CUDAToolkit_ROOT": str(root)}),
                                   ([], {"CUDA_PATH": str(root)}),
                                   ([], {"CUDA_HOME": str(root)}),
                                   ([], {"CUDACXX": str(nvcc)})):
            with self.subTest(options=options, variables=variables):
                told = self.find("HoronFindCuda", "--fresh", "-DHORON_CUDA=AUTO", *options,
                                 **variables)
                self.assertIn(f"the CUDA toolkit of {nvcc} is older than 12.1", told)

    def test_a_compiler_that_is_not_nvcc_names_no_toolkit(self):
        nvcc = self.program("cuda/bin/nvcc", "Cuda compilation tools, release 11.0, V11.0.1")
        clang = self.program("llvm/bin/clang++", "clang version 14")
        told = self.find("HoronFindCuda", "-DHORON_CUDA=AUTO", f"-DCMAKE_CUDA_COMPILER={clang}",
                         CUDA_HOME=str(nvcc.parents[1]))
        self.assertIn(f"the CUDA toolkit of {nvcc} is older than 12.1", told)

    def test_a_python_is_compared_with_each_libtorch(self):
        torch = self.folder / "torch/__init__.py"
        torch.parent.mkdir()
        torch.write_text('__version__ = "2.11.0"', encoding="utf-8")
        for version in "2.11.0", "2.15.0", "2.11.0":
            told = self.find("HoronFindPython", "-DHORON_PYTHON_PACKAGE=AUTO",
                             f"-DHORON_PYTHON_EXECUTABLE={sys.executable}",
                             f"-DHORON_TORCH_VERSION={version}", PYTHONPATH=str(self.folder))
            self.assertEqual(f"{sys.executable} has torch 2.11.0, not 2.15.0" in told,
                             version == "2.15.0", told)

    def git(self, *words):
        return self.call("git", "-C", str(self.folder), "-c", "user.name=a", "-c", "user.email=a",
                         *words)

    def test_a_build_for_use_follows_the_commit(self):
        self.git("init")
        self.git("commit", "--allow-empty", "-m", "one")
        for tests in "OFF", "ON":
            self.find("HoronDefaults", f"-DHORON_TESTS={tests}")
            self.git("commit", "--allow-empty", "-m", "another")
            told = self.call("cmake", "--build", str(self.folder / "build"))
            commit = self.git("rev-parse", "--short=10", "HEAD")
            self.assertEqual(f"commit: {commit}." in told, tests == "OFF", told)

    def test_sources_of_no_checkout_have_no_commit(self):
        self.assertIn("commit: .", self.find("HoronDefaults", "-DHORON_TESTS=OFF"))


if __name__ == "__main__":
    unittest.main()
