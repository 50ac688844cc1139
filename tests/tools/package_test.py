#!/usr/bin/env python3
"""Horon as outer projects see it: installed, or as a part of their own build.

usage: package_test.py BUILD_FOLDER TORCH_ROOT [Package.test_...]

TORCH_ROOT is empty in a build without LibTorch.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCES = pathlib.Path(__file__).resolve().parents[2]
OUTER = SOURCES / "tests/tools/outer"
BUILD, TORCH_ROOT = (sys.argv + ["build", ""])[1:3]
del sys.argv[1:3]  # the rest is for unittest: names of tests
# The machine's own choice of a LibTorch must not decide these tests.
CLEAN = {name: value for name, value in os.environ.items()
         if name not in ("Torch_DIR", "Torch_ROOT", "CMAKE_PREFIX_PATH", "CUDAToolkit_ROOT",
                         "CUDA_PATH")}


def call(*command, **variables):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False,
                          env={**CLEAN, **variables})
    return done.returncode, done.stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="horon_package_test_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        code, told = call("cmake", "--install", BUILD, "--prefix", cls.prefix)
        assert code == 0, told

    def succeed(self, *command):
        code, told = call(*command)
        self.assertEqual(code, 0, told)
        return told

    def configure(self, name, *options, **variables):
        """Configures the outer project; (exit code, output)."""
        return call("cmake", "-S", OUTER, "-B", self.folder / name, "-G", "Ninja",
                    f"-DCMAKE_PREFIX_PATH={self.prefix}", *options, **variables)

    def build(self, name, *options):
        code, told = self.configure(name, *options)
        self.assertEqual(code, 0, told)
        self.succeed("cmake", "--build", self.folder / name, "--", "-j2")
        return told

    def run_on_two(self, name, program):
        return self.succeed(SOURCES / "tests/support/mpirun_test", 2, self.folder / name / program)

    def test_layout(self):
        include = self.prefix / "include/horon"
        self.assertTrue((include / "ops/session/session.h").is_file())
        self.assertTrue((include / "core/base/version.h").is_file())
        self.assertEqual((include / "horon.h").is_file(), bool(TORCH_ROOT))
        self.assertTrue((self.prefix / "share/doc/horon/LICENSE").is_file())
        for program in ("horonrun", "horonrun_rank", "horon-info", "horon-bench"):
            self.assertTrue(os.access(self.prefix / "bin" / program, os.X_OK), program)
        self.succeed(self.prefix / "bin/horonrun", "--dry-run", "-np", "1", "sh")
        self.succeed(self.prefix / "bin/horon-info")
        self.succeed(self.prefix / "bin/horon-bench", "-b", "8", "-e", "8", "-n", "1")
        for folder in ("examples", "tests", "bench"):
            self.assertEqual(list(include.rglob(folder)), [])

    def test_only_what_programs_include_is_installed(self):
        include = self.prefix / "include"
        todo = ["horon/ops/session/session.h", "horon/core/base/version.h"]
        if TORCH_ROOT:
            # The other headers need LibTorch's modules, so programs include them themselves.
            todo += ["horon/horon.h", "horon/torch_bindings/modules/convert_sync_batchnorm.h",
                     "horon/torch_bindings/modules/sync_batch_norm.h"]
        reached = set()
        while todo:
            header = todo.pop()
            if header not in reached and (include / header).is_file():
                todo += re.findall(r'^ *# *include *[<"](horon/[^>"]+)',
                                   (include / header).read_text(), re.MULTILINE)
            reached.add(header)
        installed = {str(file.relative_to(include)) for file in include.rglob("*")
                     if file.is_file()}
        self.assertEqual(reached - installed, set(), "included, but not installed")
        self.assertEqual(installed - reached, set(), "installed, but never included")

    def test_nothing_installed_points_into_the_build(self):
        for file in self.prefix.rglob("*.cmake"):
            self.assertNotIn(str(pathlib.Path(BUILD).resolve()), file.read_text(), file)

    def test_outer_project(self):
        told = self.build("installed")
        self.assertIn("core_user: 2 ranks", self.run_on_two("installed", "core_user"))
        self.assertEqual("has horon::torch" in told, bool(TORCH_ROOT), told)
        if TORCH_ROOT:
            self.assertIn("torch_user: 3", self.run_on_two("installed", "torch_user"))

    @unittest.skipUnless(TORCH_ROOT, "this build has no LibTorch")
    def test_two_folders_of_a_project_find_it(self):
        code, told = self.configure("twice", "-DOUTER_LOOKS_TWICE=ON")
        self.assertEqual(code, 0, told)
        for folder in ("first", "second"):
            self.assertIn(f"has horon::torch in {self.folder}/twice/{folder}\n", told)

    def test_core_alone_needs_no_libtorch(self):
        code, told = self.configure("core", "-DHORON_COMPONENTS=COMPONENTS;core")
        self.assertEqual(code, 0, told)
        self.assertNotIn("LibTorch", told)
        self.assertNotIn("has horon::torch", told)

    def test_an_unknown_component_is_named(self):
        code, told = self.configure("component", "-DHORON_COMPONENTS=COMPONENTS;core;gpu")
        self.assertNotEqual(code, 0, told)
        self.assertIn("horon has no component gpu; it has core and torch", " ".join(told.split()))

    def test_a_project_of_an_old_cmake(self):
        """As LibTorch's own examples begin. What such a project leaves unset is set here."""
        sources = self.folder / "old_cmake"
        sources.mkdir()
        (sources / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.0)\nproject(old_cmake CXX)\n"
            "find_package(horon REQUIRED COMPONENTS core)\n")
        code, told = call("cmake", "-S", sources, "-B", sources / "build", "-G", "Ninja",
                          f"-DCMAKE_PREFIX_PATH={self.prefix}")
        if "Compatibility with CMake < 3.5 has been removed" in told:
            self.skipTest("this CMake refuses such a project")
        self.assertEqual(code, 0, told)

    def test_cuda_13_with_the_cmake_of_debian_12(self):
        """Its module fails where the project asks for CMake 3.25 and there is no nvToolsExt."""
        (self.folder / "modules").mkdir()
        (self.folder / "modules/FindCUDAToolkit.cmake").write_text(
            "if(CMAKE_MINIMUM_REQUIRED_VERSION VERSION_GREATER_EQUAL 3.25)\n"
            "  set_property(TARGET CUDA::nvToolsExt PROPERTY DEPRECATION \"\")\nendif()\n"
            "message(STATUS \"looks for CUDA in '${CUDAToolkit_ROOT}'\")\n"
            "include(${CMAKE_ROOT}/Modules/FindCUDAToolkit.cmake)\n")
        told = self.build("debian", f"-DCMAKE_MODULE_PATH={self.folder}/modules",
                          "-DHORON_COMPONENTS=COMPONENTS;core")
        if "looks for CUDA" not in told:
            self.skipTest("this build has no CUDA")
        self.assertNotIn("looks for CUDA in ''", told)  # but where Horon's build has found it

    def test_as_a_part_of_another_build(self):
        """Also with shared libraries: as a part, then as installed from there, where MPI is not
        looked for. What makes the build take long and shows nothing here is left out."""
        self.build("part", f"-DHORON_SOURCES={SOURCES}", "-DHORON_TORCH=OFF", "-DHORON_CUDA=OFF",
                   "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
                   "-DBUILD_SHARED_LIBS=ON", "-DCMAKE_UNITY_BUILD=ON",
                   "-DCMAKE_UNITY_BUILD_BATCH_SIZE=24")
        self.assertIn("core_user: 2 ranks", self.run_on_two("part", "core_user"))
        prefix = self.folder / "shared_prefix"
        self.succeed("cmake", "--install", self.folder / "part", "--prefix", prefix)
        self.build("shared", f"-DCMAKE_PREFIX_PATH={prefix}", "-DHORON_COMPONENTS=COMPONENTS;core",
                   "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON")
        for build in ("part", "shared"):
            self.assertIn("two_libraries: one session, error caught",
                          self.run_on_two(build, "two_libraries"))
        library, = prefix.glob("lib*/libhoron_core.so")
        for line in self.succeed("nm", "-D", "--defined-only", library).splitlines():
            name = line.split()[2]
            self.assertRegex(name, r"^(_Z\w*5horon|HORON_)", "exported")

    @unittest.skipUnless(TORCH_ROOT, "this build has no LibTorch")
    def test_shared_with_libtorch(self):
        """The objects of both kinds of library are the same, so the shared ones are linked from
        the static ones: nothing that includes LibTorch is compiled again."""
        self.build("installed")
        build = self.folder / "installed"
        link = self.succeed("ninja", "-C", build, "-t", "commands", "torch_user").splitlines()[-1]
        prefix, shared = str(self.prefix), self.folder / "shared_torch"
        shared.mkdir()
        libraries = re.findall(rf"{re.escape(prefix)}\S*/libhoron_\w+\.a", link)
        # With CUDA also its runtime, which is linked statically, and what that needs.
        wanted = r"\S+\.so(?:\.\d+)*|\S+/lib(?:cudart_static|rt)\.a|-ldl"
        others = re.findall(rf"(?<= )(?:{wanted})(?= |$)", link)
        made = []
        for archive in reversed(libraries):  # core first
            made.insert(0, shared / pathlib.Path(archive).with_suffix(".so").name)
            self.succeed("c++", "-shared", "-o", made[0], "-Wl,--no-undefined",
                         f"-Wl,--version-script={BUILD}/exports.map", "-Wl,--whole-archive",
                         archive, "-Wl,--no-whole-archive", *made[1:], *others)
        self.assertEqual([file.name for file in made], ["libhoron_torch.so", "libhoron_core.so"])
        for archive, library in zip(libraries, made):
            link = link.replace(archive, str(library))
        link = link.replace("-o torch_user", f"-o torch_user_of_shared -Wl,-rpath,{shared}")
        self.succeed("sh", "-c", f"cd {build} && {link}")
        self.assertIn("torch_user: 3", self.run_on_two("installed", "torch_user_of_shared"))

    def test_an_older_nccl_is_named(self):
        header = self.folder / "nccl/include/nccl.h"
        header.parent.mkdir(parents=True)
        header.write_text("".join(f"#define NCCL_{name} {value}\n" for name, value in
                                  (("MAJOR", 2), ("MINOR", 18), ("PATCH", 3), ("SUFFIX", '""'))))
        code, told = call("cmake", "-S", SOURCES, "-B", self.folder / "older_nccl", "-G", "Ninja",
                          "-DHORON_CUDA=ON", f"-DHORON_NCCL_INCLUDE_DIR={header.parent}",
                          "-DHORON_TESTS=OFF", "-DHORON_TORCH=OFF")
        told = " ".join(told.split())
        self.assertNotEqual(code, 0, told)
        if "no nvcc was found" in told or "older than 12.1" in told:
            self.skipTest("there is no CUDA here")
        self.assertIn("NCCL 2.19 or later is needed", told)
        self.assertIn("is of 2.18.3", told)

    def configure_horon(self, name, *options):
        """Configures Horon itself; (exit code, output in one line)."""
        code, told = call("cmake", "-S", SOURCES, "-B", self.folder / name, "-G", "Ninja",
                          "-DHORON_TESTS=OFF", "-DHORON_BENCH=OFF", "-DHORON_TOOLS=OFF", *options)
        return code, " ".join(told.split())

    def test_a_misspelt_value_is_refused(self):
        for name, value, expected in (
                ("CUDA", "MAYBE", "ON, OFF or AUTO"), ("TORCH_CUDA", "12", "ON, OFF or AUTO"),
                ("IMAGES", "jpeg", "ON, OFF or AUTO"), ("PYTHON_PACKAGE", "3", "ON, OFF or AUTO"),
                ("SANITIZE", "adress", "address,undefined or thread, or nothing"),
                ("SANITIZE", "thread,address", "address,undefined or thread, or nothing")):
            code, told = self.configure_horon(f"misspelt_{name}", f"-DHORON_{name}={value}")
            self.assertNotEqual(code, 0, told)
            self.assertIn(f"HORON_{name}={value}: give {expected}", told)
        for sanitizers in ("undefined,thread", "thread,undefined", "undefined,address,leak", "off"):
            code, told = self.configure_horon("lower_case", "-DHORON_CUDA=auto",
                                              "-DHORON_TORCH=OFF", f"-DHORON_SANITIZE={sanitizers}")
            self.assertEqual(code, 0, told)

    @unittest.skipUnless(TORCH_ROOT, "this build has no LibTorch")
    def test_a_python_without_torch_is_named(self):
        code, told = self.configure_horon(
            "python", "-DHORON_CUDA=OFF", f"-DCMAKE_PREFIX_PATH={TORCH_ROOT}",
            "-DHORON_PYTHON_PACKAGE=ON", "-DHORON_PYTHON_EXECUTABLE=/bin/false")
        self.assertNotEqual(code, 0, told)
        self.assertIn("HORON_PYTHON_PACKAGE=ON: /bin/false can't import torch", told)

    def configure_wheel(self, name, python):
        """As pip does."""
        return self.configure_horon(name, "-DSKBUILD=2", "-DSKBUILD_SCRIPTS_DIR=bin",
                                    f"-DPython_EXECUTABLE={python}", "-DHORON_CUDA=OFF",
                                    "-DHORON_INSTALL=OFF")

    def python_of_the_package(self):
        cache = (pathlib.Path(BUILD) / "CMakeCache.txt").read_text()
        python = re.search("^HORON_PYTHON_EXECUTABLE:FILEPATH=(.+)$", cache, re.MULTILINE)
        if python is None:
            self.skipTest("this build has no Python package")
        return python[1]

    def test_a_wheel_takes_the_torch_of_its_own_python_alone(self):
        lonely = self.folder / "lonely_python"
        self.succeed(self.python_of_the_package(), "-m", "venv", "--without-pip", lonely)
        code, told = self.configure_wheel("lonely_wheel", lonely / "bin/python")
        self.assertNotEqual(code, 0, told)
        self.assertIn("torch was not found where this wheel is built", told)

    def test_all_of_horonrun_is_installed(self):
        modules = {file.name for file in (SOURCES / "tools").glob("horonrun_*")}
        self.assertEqual({file.name for file in (self.prefix / "bin").glob("horonrun_*")}, modules)
        code, told = self.configure_wheel("wheel", self.python_of_the_package())
        self.assertEqual(code, 0, told)
        rules = self.folder / "wheel/torch_bindings/python/cmake_install.cmake"
        self.assertEqual(set(re.findall(r"tools/(horonrun_[^\"]+)", rules.read_text())), modules)

    def test_without_tools_horonrun_is_installed(self):
        """Also: a folder that the compiler searches anyway is not put in front of the others."""
        eigen = self.folder / "eigen"
        eigen.mkdir()
        (eigen / "Eigen3Config.cmake").write_text(
            "add_library(Eigen3::Eigen INTERFACE IMPORTED)\n"
            "target_include_directories(Eigen3::Eigen INTERFACE /usr/include)\n")
        code, told = self.configure_horon(
            "no_tools", "-DHORON_CUDA=OFF", "-DHORON_TORCH=OFF", f"-DEigen3_DIR={eigen}",
            "-DHORON_NVTX_INCLUDE_DIR=/usr/include")
        self.assertEqual(code, 0, told)
        rules = (self.folder / "no_tools/cmake_install.cmake").read_text()
        programs = {file.name for file in (SOURCES / "tools").glob("horonrun*")}
        self.assertEqual(set(re.findall(r"tools/(horonrun[^\"]*)", rules)), programs)
        self.assertNotRegex((self.folder / "no_tools/build.ninja").read_text(),
                            r"-isystem /usr/include\s")

    def test_rpaths_of_an_installer_are_kept(self):
        code, told = self.configure_horon(
            "rpath", "-DHORON_CUDA=OFF", "-DHORON_TORCH=OFF", "-DBUILD_SHARED_LIBS=ON",
            "-DHORON_TOOLS=ON", "-DHORON_BENCH=ON", "-DCMAKE_INSTALL_RPATH=/of/spack;/of/mpi")
        self.assertEqual(code, 0, told)
        for folder, own in ((".", ""), ("tools", "/../lib"), ("bench", "/../lib")):
            rules = (self.folder / "rpath" / folder / "cmake_install.cmake").read_text()
            self.assertRegex(rules, rf'"\\\$ORIGIN{own}\w*:/of/spack:/of/mpi"', folder)

    def test_python_of_a_build_of_many_kinds(self):
        code, told = call("cmake", "-S", SOURCES, "-B", self.folder / "many", "-G",
                          "Ninja Multi-Config", "-DHORON_CUDA=OFF", "-DHORON_TESTS=OFF",
                          "-DHORON_BENCH=OFF", "-DHORON_TOOLS=OFF", "-DHORON_PYTHON_PACKAGE=ON",
                          f"-DHORON_PYTHON_EXECUTABLE={self.python_of_the_package()}",
                          f"-DCMAKE_PREFIX_PATH={TORCH_ROOT}")
        self.assertEqual(code, 0, told)
        rules = (self.folder / "many/CMakeFiles/impl-Release.ninja").read_text()
        self.assertRegex(rules, r"(?m)^build python/horon/_native")

    def test_tests_need_static_libraries(self):
        code, told = call("cmake", "-S", SOURCES, "-B", self.folder / "tests", "-G", "Ninja",
                          "-DBUILD_SHARED_LIBS=ON", "-DHORON_TESTS=ON", "-DHORON_TORCH=OFF")
        self.assertNotEqual(code, 0, told)
        self.assertIn("give -DHORON_TESTS=OFF", " ".join(told.split()))

    @unittest.skipUnless(TORCH_ROOT, "this build has no LibTorch")
    def test_the_outer_projects_libtorch_is_taken(self):
        # The same LibTorch by another path, so that the choice shows.
        link = self.folder / "outer_torch"
        link.mkdir()
        for name in ("include", "lib"):
            (link / name).symlink_to(pathlib.Path(TORCH_ROOT) / name)
        for name, option in (("target", f"-DOUTER_TORCH_ROOT={link}"),
                             ("torch_dir", f"-DTorch_DIR={link}/share/cmake/Torch"),
                             ("prefix_path", f"-DCMAKE_PREFIX_PATH={self.prefix};{link}"),
                             ("root", f"-DTorch_ROOT={link}"),
                             # torch.utils.cmake_prefix_path
                             ("torch_path", f"-DCMAKE_PREFIX_PATH={self.prefix};{link}/share/cmake")
                             ):
            (link / "share/cmake/Torch").mkdir(parents=True, exist_ok=True)
            code, told = self.configure("with_" + name, option)
            self.assertEqual(code, 0, told)
            self.assertIn(f"in {link}\n", told, name)

    @unittest.skipUnless(TORCH_ROOT, "this build has no LibTorch")
    def test_a_part_of_another_build_leaves_its_python_alone(self):
        code, told = self.configure("part_with_torch", f"-DHORON_SOURCES={SOURCES}",
                                    f"-DCMAKE_PREFIX_PATH={TORCH_ROOT}", "-DHORON_CUDA=OFF")
        self.assertEqual(code, 0, told)
        self.assertIn("has horon::torch", told)
        self.assertNotIn("Python", told)

    @unittest.skipUnless(TORCH_ROOT, "this build has no LibTorch")
    def test_cuda_of_libtorch_that_was_insisted_on_is_linked_without_a_driver(self):
        torch = self.folder / "torch_with_cuda"
        self.make_torch(torch, ("2", "99", "0"), b"_ZNSt7__cxx1112basic_stringIc\n")
        (torch / "lib/libtorch_cuda.so").touch()
        code, told = self.configure_horon("insists", "-DHORON_TORCH_CUDA=ON",
                                          "-DHORON_PYTHON_PACKAGE=OFF",
                                          f"-DCMAKE_PREFIX_PATH={torch}")
        self.assertEqual(code, 0, told)
        prefix = self.folder / "insists_prefix"
        shutil.copytree(self.prefix, prefix)
        config, = prefix.glob("lib*/cmake/horon/horonConfig.cmake")
        shutil.copy(self.folder / "insists/horonConfig.cmake", config)
        for name, options in ("linked", []), ("left_out", ["-DHORON_TORCH_CUDA=OFF"]):
            code, told = self.configure(name, f"-DCMAKE_PREFIX_PATH={prefix};{torch}", *options)
            self.assertEqual(code, 0, told)
            self.assertEqual("LibTorch: with CUDA" in told, not options, told)

    @unittest.skipUnless(TORCH_ROOT, "this build has no LibTorch")
    def test_unfit_libtorch_is_named(self):
        for version, library, expected in (
                ("2 11 0", b"_ZNSt7__cxx1112basic_stringIc\n", "keeps no ABI between versions"),
                ("2 7 1", b"_ZNSt7__cxx1112basic_stringIc\n", "LibTorch 2.8 or later is needed"),
                ("2 11 0", b"_ZN3c105ErrorC1ESs\n", "old C\\+\\+ ABI")):
            with self.subTest(expected):
                self.check_refused(version.split(), library, expected)

    def make_torch(self, root, version, library):
        """Files as LibTorch has them; library: what is in libc10.so"""
        header = root / "include/torch/csrc/api/include/torch/torch.h"
        header.parent.mkdir(parents=True)
        header.touch()
        (root / "include/torch/headeronly").mkdir()
        names = ("MAJOR", "MINOR", "PATCH")
        (root / "include/torch/headeronly/version.h").write_text("".join(
            f"#define TORCH_VERSION_{name} {value}\n" for name, value in zip(names, version)))
        (root / "lib").mkdir()
        (root / "lib/libtorch_cpu.so").touch()
        (root / "lib/libc10.so").write_bytes(library)

    def test_an_unfit_torch_of_the_active_python_is_passed_over(self):
        for version, library in (("2 5 1", b"_ZN3c105ErrorC1ESs\n"),
                                 ("2 99 0", b"_ZNSt7__cxx1112basic_stringIc\n")):
            site = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
            self.make_torch(site / "torch", version.split(), library)
            (site / "torch/__init__.py").touch()
            code, told = self.configure(site.name, PYTHONPATH=str(site))
            self.assertEqual(code, 0, told)
            self.assertEqual("has horon::torch" in told, bool(TORCH_ROOT), told)

    def check_refused(self, version, library, expected):
        if "keeps" in expected:
            version[1] = "99"
        root = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        self.make_torch(root, version, library)
        code, told = self.configure(root.name, f"-DTorch_DIR={root}/share/cmake/Torch",
                                    "-DHORON_COMPONENTS=COMPONENTS;torch")
        self.assertNotEqual(code, 0, told)
        self.assertRegex(" ".join(told.split()), expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
