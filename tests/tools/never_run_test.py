#!/usr/bin/env python3
"""never_run.py sees a test that all runs skip, and only that."""

import unittest

import never_run

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


class NeverRun(unittest.TestCase):
    def test_a_test_that_every_run_of_its_program_skips(self):
        found = never_run.skipped_everywhere(LOG.splitlines(keepends=True))
        self.assertEqual(found, [("room", "Room.OfThree", "needs three ranks")])

    def test_a_test_that_fails_somewhere_has_run(self):
        failed = "1/1 Testing: room.np3\n[  FAILED  ] Room.OfThree (2 ms)\n"
        self.assertEqual(never_run.skipped_everywhere((LOG + failed).splitlines()), [])


if __name__ == "__main__":
    unittest.main()
