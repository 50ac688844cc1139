#!/usr/bin/env python3
"""tools/setup where packages are missing: a copy of it, with programs in the place of dpkg-query
and apt, so that nothing of this system is read or changed.

usage: setup_test.py SETUP
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SETUP = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "tools/setup").resolve()
OPTIONAL = "dataset-fashion-mnist"
# What setup calls beside apt. There is no sudo, and no path of this system.
PROGRAMS = ("bash", "dirname", "mkdir", "mktemp", "readlink", "rm", "tail", "touch")
STUBS = {
    "id": 'echo "$USER_ID"',
    "dpkg-query": 'for name in "$@"; do case " $MISSING -W " in *" $name "*) ;; '
                  '*) echo "$name installed" ;; esac; done',
    "apt-cache": "exit 0",
    "python3": "exit 0",
    "apt-get": 'echo "$*" >> "$CALLS"; case " $* " in *" $FAILS "*) exit 100 ;; esac',
}


class Setup(unittest.TestCase):
    def setUp(self):
        # pylint: disable=consider-using-with
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = pathlib.Path(folder.name)
        self.programs = self.at / "bin"
        self.programs.mkdir()
        for name in PROGRAMS:
            (self.programs / name).symlink_to(shutil.which(name))
        for name, body in STUBS.items():
            path = self.programs / name
            path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
            path.chmod(0o755)
        (self.at / "tools").mkdir()
        shutil.copy(SETUP, self.at / "tools/setup")

    def setup_with(self, missing, root=True, fails="nothing", options=("--no-torch",), **variables):
        return subprocess.run(
            ["bash", self.at / "tools/setup", "--no-cuda", *options], capture_output=True,
            text=True, check=False, timeout=60,
            env={"PATH": str(self.programs), "TMPDIR": str(self.at), "MISSING": missing,
                 "USER_ID": "0" if root else "1000", "FAILS": fails,
                 "CALLS": str(self.at / "calls"), **variables})

    def calls(self):
        path = self.at / "calls"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def test_nothing_is_missing(self):
        done = self.setup_with("", root=False)
        self.assertEqual((done.returncode, self.calls()), (0, ""), done.stderr)
        self.assertIn("everything is there", done.stdout)

    def test_without_an_optional_package_it_goes_on(self):
        for root, fails in (False, "nothing"), (True, "update"), (True, "install"):
            done = self.setup_with(OPTIONAL, root, fails)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"going on without {OPTIONAL}", done.stdout)

    def test_without_a_package_that_is_needed_it_ends(self):
        for root, fails in (False, "nothing"), (True, "update"), (True, "install"):
            done = self.setup_with("cmake", root, fails)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertNotIn("everything is there", done.stdout)

    def test_what_is_missing_is_installed(self):
        done = self.setup_with(f"{OPTIONAL} cmake")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"install -y --no-install-recommends cmake {OPTIONAL}\n", self.calls())

    def test_a_libtorch_that_is_there_is_named(self):
        root = self.at / "torch"
        (root / "lib").mkdir(parents=True)
        (root / "lib/libtorch_cpu.so").touch()
        cmake = root / "share/cmake"
        (cmake / "Torch").mkdir(parents=True)
        for name, value in (("Torch_DIR", cmake / "Torch"), ("Torch_ROOT", root),
                            ("Torch_ROOT", cmake / "Torch"), ("CMAKE_PREFIX_PATH", root),
                            ("CMAKE_PREFIX_PATH", f"/nowhere:{cmake}"),
                            ("CMAKE_PREFIX_PATH", f"{cmake}/")):
            with self.subTest(name=name, value=value):
                done = self.setup_with("", options=(), **{name: str(value)})
                self.assertEqual(done.returncode, 0, done.stderr)
                named = pathlib.Path(done.stdout.split("LibTorch: ")[1].strip())
                self.assertEqual(named.resolve(), root.resolve())


if __name__ == "__main__":
    unittest.main()
