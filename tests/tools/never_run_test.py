#!/usr/bin/env python3
"""never_run.py sees a test that all runs skip, and only that."""

import pathlib
import re
import unittest

import never_run

TESTS = pathlib.Path(__file__).resolve().parents[1]
SKIP = re.compile(r"GTEST_SKIP\(\) << ([^;]*);")
# These are skipped in some runs of their program only: with too few ranks, or without a device.
OTHER_RUNS = re.compile(r"\b\w*size\b|\bone_host\b|\bhas_several_hosts\b|\blast == 0|\buses_nccl\b"
                        r"|\bdevice_reduces\b|\bfolder == nullptr")

LOG = """\
1/3 Testing: room.np1
/src/room_test.cc:7: Skipped
needs two ranks
\x1b[0;32m[  SKIPPED ] \x1b[mRoom.OfTwo (0 ms)
/src/room_test.cc:9: Skipped
needs three ranks
  that is, one more
[  SKIPPED ] Room.OfThree (0 ms)
[       OK ] Room.OfOne (3 ms)
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Room.OfTwo
2/3 Testing: room.np2
[       OK ] Room.OfTwo (1 ms)
needs three ranks
[  SKIPPED ] Room.OfThree (0 ms)
3/3 Testing: other
[       OK ] Room.OfThree (1 ms)
"""
PYTHON_LOG = """\
1/3 Testing: python_package.np2
[       OK ] python/a_test.py::test_of_two (0 ms)
[  SKIPPED ] python/a_test.py::test_of_four (0 ms): needs four ranks
[  SKIPPED ] python/b_test.py::test_new (0 ms): torch has it since then
2/3 Testing: python_groups.np4
[       OK ] python/a_test.py::test_of_four (0 ms)
3/3 Testing: python_programs
test_one (__main__.Programs.test_one) ... ok
test_two (__main__.Programs.test_two)
What it is about. ... skipped "it's not there"
test_three (__main__.Programs) ... skipped 'nor this'
"""


class NeverRun(unittest.TestCase):
    def test_a_test_that_every_run_of_its_program_skips(self):
        found = never_run.skipped_everywhere(LOG.splitlines(keepends=True))
        self.assertEqual(found, [("room", "Room.OfThree", "needs three ranks")])

    def test_a_test_that_fails_somewhere_has_run(self):
        failed = "1/1 Testing: room.np3\n[  FAILED  ] Room.OfThree (2 ms)\n"
        self.assertEqual(never_run.skipped_everywhere((LOG + failed).splitlines()), [])

    def test_tests_of_python(self):
        self.assertEqual(never_run.skipped_everywhere(PYTHON_LOG.splitlines()), [
            ("python", "python/b_test.py::test_new", "torch has it since then"),
            ("python", "__main__.Programs.test_two", "it's not there"),
            ("python", "__main__.Programs.test_three", "nor this")])

    def test_each_reason_is_one_of_the_conditions_or_another_run_does_without(self):
        unknown = []
        for path in sorted([*TESTS.rglob("*.cc"), *TESTS.rglob("*.h")]):
            text = path.read_text(encoding="utf-8")
            for skip in SKIP.finditer(text):
                reason = "".join(re.findall(r'"(.*?)"', skip[1]))  # without variables
                known = any(condition in reason for condition in never_run.CONDITIONS)
                before = re.split("[;{}]", text[:skip.start()].rstrip(" \n{"))[-1]
                if reason and not known and not OTHER_RUNS.search(before):
                    unknown.append(f"{path.relative_to(TESTS)}: {reason}")
        self.assertEqual(unknown, [])


if __name__ == "__main__":
    unittest.main()
