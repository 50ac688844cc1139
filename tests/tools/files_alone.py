#!/usr/bin/env python3
"""Whether each test of core and ops compiles alone. A continuous integration compiles many files of
a folder as one, where a file finds what another one defines or includes; the plain build does not.

usage: files_alone.py BUILD [JOBS [COMMITS]]
  BUILD: of the preset release
  COMMITS: only files that so many last commits have changed, or that include a header changed there
"""

import concurrent.futures
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("tests/core", "tests/ops", "tests/support")
# Of the flags, what decides which headers are found and what they say.
WITH_A_VALUE = ("-isystem", "-I", "-D")


def is_of_folders(path):
    return path.suffix == ".cc" and any(path.is_relative_to(REPOSITORY / each) for each in FOLDERS)


class Precompiled:
    """GoogleTest's headers, read once for all files that include them: half of a file's time is
    theirs."""

    HEADERS = ("gmock/gmock.h", "gtest/gtest.h")  # the first of a file's decides: it has the second

    def __init__(self, command, folder):
        self.files = {}
        if "clang" not in pathlib.Path(command[0]).name:
            return
        flags = [word for word in command[1:] if word != "-fsyntax-only"]
        for header in self.HEADERS:
            source = folder / pathlib.Path(header).name
            source.write_text(f"#include <{header}>\n", encoding="utf-8")
            self.files[header] = source.with_suffix(".pch")
            subprocess.run([command[0], *flags, "-x", "c++-header", source, "-o",
                            self.files[header]], check=True)

    def options(self, file):
        text = file.read_text(encoding="utf-8")
        for header, precompiled in self.files.items():
            if f"#include <{header}>" in text:
                return ["-include-pch", precompiled]
        return []


def command_of(build):
    """A compiler, with the flags of all the build's tests without LibTorch. Clang needs three
    quarters of the time of g++."""
    words = {}  # in their order
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        line = shlex.split(entry["command"])
        if "/tests/" not in shlex.join(line):
            continue
        if any("torch" in word or "Torch" in word for word in line):
            continue
        compiler = line[0]
        flags = iter(line)
        for flag in flags:
            if flag in WITH_A_VALUE:
                words[flag, next(flags)] = None
            elif flag.startswith(("-I", "-D", "-std=")):
                words[(flag,)] = None
    return [shutil.which("clang++") or compiler, "-fsyntax-only",
            *(word for pair in words for word in pair)]


def names(*command):
    told = subprocess.run(["git", *command], cwd=REPOSITORY, check=True, capture_output=True,
                          text=True).stdout
    return {name for name in told.split("\0") if name}


def concerned_by_last(commits, files):
    """Of the files, those that these commits may have broken. All where git knows no more."""
    before = f"HEAD~{commits}"
    if subprocess.run(["git", "rev-parse", "--verify", "--quiet", before], cwd=REPOSITORY,
                      stdout=subprocess.DEVNULL, check=False).returncode != 0:
        return files
    changed = names("diff", "--name-only", "-z", before)
    included = [f'#include "horon/{name}"' for name in changed if name.endswith(".h")]

    def is_concerned(file):
        if str(file.relative_to(REPOSITORY)) in changed:
            return True
        lines = set(file.read_text(encoding="utf-8").splitlines())
        return any(line in lines for line in included)

    return [file for file in files if is_concerned(file)]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else None
    files = [REPOSITORY / name for name in sorted(names("ls-files", "-z", *FOLDERS))]
    files = [file for file in files if is_of_folders(file) and file.exists()]
    of_all = len(files)
    if len(sys.argv) > 3:
        files = concerned_by_last(int(sys.argv[3]), files)
    command = command_of(build)

    failed = 0
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        precompiled = Precompiled(command, pathlib.Path(folder))

        def compile_alone(file):
            return subprocess.run([*command, *precompiled.options(file), file], cwd=build,
                                  capture_output=True, text=True, check=False)

        for file, done in zip(files, pool.map(compile_alone, files)):
            if done.returncode != 0:
                failed += 1
                print(f"{file.relative_to(REPOSITORY)} does not compile alone:\n{done.stderr}")
    print(f"{len(files)} of {of_all} files compiled alone: {failed} failed")
    return 1 if failed or not of_all else 0


if __name__ == "__main__":
    sys.exit(main())
