#!/usr/bin/env python3
"""Finds tests that are skipped wherever they run, so that nobody takes them for passed.

A test may be skipped on too few ranks if a run on more ranks has it. Reads the log of ctest (all
tests, not a selection) and prints each test that every run of its program skipped; exits with 1 if
there is one that CONDITIONS does not name. Tests by pytest say as gtest's what has run (conftest.py
sees to it); those by unittest run once, and print what they skip if they are verbose.

usage: never_run.py BUILD/Testing/Temporary/LastTest.log
"""

import re
import sys

# What a machine may lack, as the skipped tests say it.
CONDITIONS = (
    "no GPU",
    "needs two cores",
    "a yield costs little more than a sleep here",
    "TensorBoard is not installed",
    "this MPI grants more than was asked for",
    "built with libjpeg and libpng",
    "built without libjpeg and libpng",
    "the heap is not glibc's own",
    "is not there",  # the files of Fashion-MNIST
    "there are no pseudo terminals here",
    "processes can't be stepped through here",
    "no user namespaces are allowed here",
    "are left in /dev/shm",
    "only the user root can",  # become another one, give a file away
    "no PID namespaces here",
    "this kernel maps no such page",
    "MPI is another one than Open MPI",
    "LibTorch's threads are not OpenMP's",
    "the background thread always came first",
    "torch has it since", "this torch s",  # another version of it sorts, splits, sets
    "no accelerate", "no mpi4py", "Lightning is not installed",
    "gdb is not installed", "gnuplot is not installed", "no horonrun_rank",
    "this build has no", "this CMake refuses such a project", "there is no CUDA here",
    "there is a GPU", "programs/on_devices.py asks for the GPU",
)

BEGIN = re.compile(r"^\d+/\d+ Testing: (?P<run>\S+)$")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
END_OF_A_TEST = re.compile(
    r"\[ +(?P<end>OK|FAILED|SKIPPED) +\] (?P<test>\S+?)(, where .*)? \(\d+ ms\)(: (?P<why>.*))?")
# Before Python 3.11 the class alone stands in parentheses.
OF_UNITTEST = re.compile(r"^(?P<name>test_\w+|setUpClass) \((?P<of>[\w.]+)\)")
SKIPPED_BY_UNITTEST = re.compile(r"\.\.\. skipped (?P<quote>['\"])(?P<why>.*)(?P=quote)$")


def program_of(run):
    """Runs of one program on other numbers of ranks differ behind the first dot of their names.
    A test of the Python package may be part of several runs, whatever their names."""
    return "python" if run.startswith("python_") else run.split(".")[0]


def skipped_everywhere(lines):
    """[(program, test, reason)], in the order of the log."""
    skipped, run_somewhere = {}, set()
    program, reason, follows = "", "", False  # whether the next line is the reason
    test = ""  # the latest that unittest has begun
    for line in lines:
        line = COLOUR.sub("", line).rstrip("\n")
        if follows:
            reason = line
        follows = line.endswith(": Skipped")
        if begin := BEGIN.match(line):
            program = program_of(begin["run"])
        elif end := END_OF_A_TEST.search(line):
            key = (program, end["test"])
            if end["end"] == "SKIPPED":
                skipped.setdefault(key, end["why"] or reason)
            else:
                run_somewhere.add(key)
            reason = ""
        elif begin := OF_UNITTEST.match(line):
            name, of = begin["name"], begin["of"]
            test = of if of.endswith(f".{name}") else f"{of}.{name}"
        if end := SKIPPED_BY_UNITTEST.search(line):
            skipped[program, test] = end["why"]
    return [(*key, why) for key, why in skipped.items() if key not in run_somewhere]


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        found = skipped_everywhere(log)
    unexplained = 0
    for program, test, why in found:
        known = any(condition in why for condition in CONDITIONS)
        unexplained += not known
        print(f"{'not on this machine' if known else 'NEVER RUN'}: {program} {test}: {why}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
