#!/usr/bin/env python3
"""What pip makes of pyproject.toml, as far as it goes without compiling: the metadata, and a build
tree by its settings, in which the module can be built.

usage: wheel_test.py CMAKE PACKAGE_FOLDER BUILT_PACKAGE

The build tree of this test has made BUILT_PACKAGE, the folder that holds horon-*.dist-info.
"""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import scikit_build_core.build
from packaging.requirements import Requirement
from scikit_build_core.settings.skbuild_read_settings import SettingsReader

CMAKE, PACKAGE, BUILT = sys.argv[1], *map(pathlib.Path, sys.argv[2:4])


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.chdir(PACKAGE)
        cls.folder = tempfile.TemporaryDirectory()
        cls.name = scikit_build_core.build.prepare_metadata_for_build_wheel(cls.folder.name)
        cls.made = pathlib.Path(cls.folder.name, cls.name)

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        cls.folder.cleanup()

    def test_metadata_are_those_of_the_build_tree(self):
        [built] = BUILT.glob("horon-*.dist-info")
        self.assertEqual(self.name, built.name)
        self.assertEqual((self.made / "entry_points.txt").read_text().split(),
                         (built / "entry_points.txt").read_text().split())
        lines = (self.made / "METADATA").read_text().splitlines()
        for line in (built / "METADATA").read_text().splitlines():
            if not line.startswith("Metadata-Version"):
                self.assertIn(line, lines)
        self.assertEqual((self.made / "licenses/LICENSE").read_text(),
                         (PACKAGE / "../../LICENSE").read_text())

    def test_pip_keeps_the_torch_that_is_there(self):
        [needed] = [Requirement(line.partition(":")[2])
                    for line in (self.made / "METADATA").read_text().splitlines()
                    if line.startswith("Requires-Dist: torch")]
        for version in "2.11.0", importlib.metadata.version("torch"), "2.99.1":
            self.assertTrue(needed.specifier.contains(version), (str(needed), version))
        self.assertFalse(needed.specifier.contains("2.7.1"))

    def test_the_module_can_be_built_by_its_settings(self):
        reader = SettingsReader.from_file("pyproject.toml", {})
        reader.validate_may_exit()
        settings = reader.settings
        build = os.path.join(self.folder.name, "build")
        defines = {**settings.cmake.define, "CMAKE_BUILD_TYPE": settings.cmake.build_type,
                   "SKBUILD": "2", "SKBUILD_SCRIPTS_DIR": os.path.join(self.folder.name, "bin"),
                   "Python_EXECUTABLE": sys.executable}
        configured = subprocess.run(
            [CMAKE, "-S", PACKAGE / settings.cmake.source_dir, "-B", build, "-G", "Ninja"]
            + [f"-D{name}={value}" for name, value in defines.items()],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(configured.returncode, 0, configured.stdout)
        steps = subprocess.run(["ninja", "-C", build, "-n", *settings.build.targets], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(steps.returncode, 0, steps.stdout)
        self.assertIn("_native", steps.stdout)
        self.assertEqual(settings.wheel.packages, ["horon"])
        self.assertEqual(settings.install.components, ["python"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
