#!/usr/bin/env python3
"""Finds tests that are skipped wherever they run, so that nobody takes them for passed.

A test may be skipped on too few ranks if a run on more ranks has it. Reads the log of ctest (all
tests, not a selection) and prints each test that every run of its program skipped; exits with 1 if
there is one that CONDITIONS does not name.

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
    "only the user root can become another one",
)

BEGIN = re.compile(r"^\d+/\d+ Testing: (?P<run>\S+)$")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
END_OF_A_TEST = re.compile(
    r"\[ +(?P<end>OK|FAILED|SKIPPED) +\] (?P<test>\S+?)(, where .*)? \(\d+ ms\)")


def program_of(run):
    """Runs of one program on other numbers of ranks differ behind the first dot of their names."""
    return run.split(".")[0]


def skipped_everywhere(lines):
    """[(program, test, reason)], in the order of the log."""
    skipped, run_somewhere = {}, set()
    program, reason, follows = "", "", False  # whether the next line is the reason
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
                skipped.setdefault(key, reason)
            else:
                run_somewhere.add(key)
            reason = ""
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
