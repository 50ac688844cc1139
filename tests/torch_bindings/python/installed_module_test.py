"""What a wheel carries: the module as the rules of installation make it.

usage: installed_module_test.py CMAKE BUILD_FOLDER PACKAGE_FOLDER

It must find torch and MPI in the environment that it is in, and none in the place where it was
built: pip builds for environments that are moved, or are images of containers.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch

CMAKE, BUILD, PACKAGE = sys.argv[1:4]


class InstalledModule(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.environment = tempfile.TemporaryDirectory()
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        cls.packages = pathlib.Path(cls.environment.name, "lib", version, "site-packages")
        cls.packages.mkdir(parents=True)
        shutil.copytree(PACKAGE, cls.packages / "horon")
        (cls.packages / "torch").symlink_to(pathlib.Path(torch.__file__).parent)
        subprocess.run(
            [CMAKE, "--install", BUILD, "--component", "python", "--strip"]
            + ["--prefix", str(cls.packages)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        [cls.module] = (cls.packages / "horon").glob("_native*.so")

    @classmethod
    def tearDownClass(cls):
        cls.environment.cleanup()

    def test_it_looks_in_its_own_environment_alone(self):
        header = subprocess.run(
            ["readelf", "-d", self.module], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        paths = re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", header)
        self.assertEqual(paths, ["$ORIGIN/../torch/lib:$ORIGIN/../../.."])

    def test_it_finds_all_that_it_needs_before_torch_is_imported(self):
        found = subprocess.run(
            ["ldd", self.module], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        self.assertNotIn("not found", found)
        [line] = [line for line in found.splitlines() if "libtorch_cpu.so" in line]
        self.assertIn(f"{self.packages}/", line)

    def test_it_is_imported_before_torch(self):
        program = (
            "import horon._native, horon.torch; print(horon.__file__, horon.torch.mpi_built())"
        )
        printed = subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(self.packages)},
        ).stdout.split()
        self.assertEqual(printed, [str(self.packages / "horon" / "__init__.py"), "True"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
