#!/usr/bin/env python3
"""horonrun: what it tells of a job that has failed, in the place of mpirun's words.

usage: horonrun_ends_test.py HORONRUN
"""

import contextlib
import os
import pathlib
import pty
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

HORONRUN = sys.argv.pop(1) if len(sys.argv) > 1 else "tools/horonrun"
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("HORON_", "OMPI_", "SLURM_", "PBS_", "LSB_", "OMP_", "PE_"))}
HOST = os.uname().nodename
VERSION = subprocess.run(["mpirun", "--version"], capture_output=True, text=True,
                         check=False).stdout
# How rank 0 ends, what mpirun says of it, and what horonrun says. Open MPI 5 is silent about an
# exit code.
DIES, MPIRUN_SAYS, HORONRUN_SAYS = (
    ("exit 3", "Primary job", "ended with exit code 3\n") if "(Open MPI) 4" in VERSION else
    ("kill -KILL $$", "noticed that process rank 0|prun:proc-aborted", "died of signal 9 "))
# For what rank 1 alone does: the other ranks wait beyond the limit of the test.
RANK_1 = "[ $OMPI_COMM_WORLD_RANK = 1 ] || sleep 1000; "
FRAME = "-" * 74
ABORTED = "Primary job  terminated normally, but 1 process returned\na non-zero exit code."
EXITED = ("mpirun detected that one or more processes exited with non-zero status, thus causing\n"
          "the job to be terminated. The first process to do so was:\n\n"
          "  Process name: [[17588,1],{}]\n  Exit code:    1")
KILLED = "mpirun noticed that process rank {} with PID 0 on node h exited on signal 9 (Killed)."
IMPROPER = ("mpirun has exited due to process rank 1 with PID 0 on\nnode h2 exiting improperly. "
            "There are three reasons this could occur:\n\n1. this process did not call init")
SIGTERM, SIGKILL = 15, 9  # as wait() gives them


def horonrun(*arguments, **variables):
    return subprocess.run([sys.executable, HORONRUN, *arguments], capture_output=True, text=True,
                          check=False, env={**CLEAN, **variables})


def notice(text):
    return f"{FRAME}\n{text}\n{FRAME}\n"


def ended(rank, host, status):
    return f"\x1ex{rank} {host} {status}\n"


class Jobs(unittest.TestCase):
    def check(self, code, script, *told):
        job = horonrun("-np", "3", "sh", "-c", RANK_1 + script)
        lines = [*told, f"the job has failed with exit code {code}"]
        self.assertEqual(job.stderr.split("horonrun: ")[1:], [line + "\n" for line in lines])
        self.assertNotIn("-----", job.stderr)
        self.assertNotIn("mpirun", job.stderr)
        self.assertEqual(job.returncode, code)

    def test_an_exit_code(self):
        self.check(3, "echo 'no data' >&2; exit 3",
                   f"rank 1 on {HOST} ended with exit code 3; last words: no data")
        self.check(3, "echo 'no data'; exit 3",  # on the standard output
                   f"rank 1 on {HOST} ended with exit code 3; last words: no data")
        self.check(3, "exit 3", f"rank 1 on {HOST} ended with exit code 3")

    def test_a_signal(self):
        self.check(139, "kill -SEGV $$", f"rank 1 on {HOST} died of signal 11 (Segmentation fault)")
        self.check(137, "kill -KILL $$", f"rank 1 on {HOST} died of signal 9 (Killed: by hand, or "
                                         "by the kernel for want of memory)")
        if "Open MPI" in VERSION:  # else mpirun does not say which rank was the first
            self.check(143, "kill -TERM $$", f"rank 1 on {HOST} died of signal 15 (Terminated)")

    def test_a_program_that_closes_its_output_first(self):
        self.check(3, "exec >&- 2>&-; sleep 0.5; exit 3",
                   f"rank 1 on {HOST} ended with exit code 3")

    def test_verbose_shows_mpiruns_words_too(self):
        told = horonrun("-np", "1", "--verbose", "sh", "-c", DIES).stderr
        self.assertRegex(told, MPIRUN_SAYS)
        self.assertIn(f"horonrun: rank 0 on {HOST} {HORONRUN_SAYS}", told)

    def test_without_prefix_mpirun_tells_it(self):
        told = horonrun("-np", "1", "--no-prefix", "sh", "-c", DIES).stderr
        self.assertRegex(told, MPIRUN_SAYS)
        self.assertNotIn("horonrun", told)


class WordsOfMpirun(unittest.TestCase):
    """A script in the place of mpirun; ranks of other hosts look to horonrun as it does."""

    def run_with(self, words, *arguments, code=1, last=""):
        """What horonrun tells, and its exit code. words: what mpirun writes"""
        with tempfile.TemporaryDirectory() as folder:
            (mpirun := pathlib.Path(folder, "mpirun")).write_text(
                "#!/bin/bash\nif [ $1 = --version ]; then echo Open MPI; exit; fi\n"
                f"printf %s {shlex.quote(words)} >&2\n{last}\nexit {code}\n", encoding="utf-8")
            mpirun.chmod(0o755)
            job = horonrun("-np", "1", *arguments, "sh", PATH=f"{folder}:{CLEAN['PATH']}")
        return job.stderr, job.returncode

    def check(self, words, *told):
        lines = [*told, "the job has failed with exit code 1"]
        self.assertEqual(self.run_with(words),
                         ("".join(f"horonrun: {line}\n" for line in lines), 1))

    def test_the_rank_that_failed_first_comes_first(self):
        self.check(ended(0, "h1", 1 << 8) + ended(2, "h2", 3 << 8) + notice(ABORTED) +
                   notice(EXITED.format(2)),
                   "rank 2 on h2 ended with exit code 3", "rank 0 on h1 ended with exit code 1")

    def test_the_words_of_other_versions(self):
        self.check(ended(0, "h1", 1 << 8) + ended(2, "h2", 3 << 8) +
                   notice(EXITED.format(2).replace("mpirun", "prterun")
                          .replace("[[17588,1],2]", "[prterun-h1-99@1,2]")),
                   "rank 2 on h2 ended with exit code 3", "rank 0 on h1 ended with exit code 1")

    def test_what_mpirun_ends_has_not_failed(self):
        killed = ended(0, "h1", SIGTERM) + ended(1, "h1", SIGKILL)
        self.check(killed + notice(KILLED.format(1)),
                   "rank 1 on h1 died of signal 9 (Killed: by hand, or by the kernel for want of "
                   "memory)")
        self.check(killed)  # as after MPI_Abort

    def test_ranks_that_save_before_they_end_have_not_failed(self):
        saved = (128 + SIGTERM) << 8
        self.check(ended(0, "h1", saved) + ended(1, "h1", 3 << 8) + ended(2, "h1", saved) +
                   ended(3, "h1", (128 + SIGKILL) << 8) + notice(EXITED.format(1)),
                   "rank 1 on h1 ended with exit code 3")
        self.check(ended(0, "h1", saved) + ended(1, "h1", saved) + notice(EXITED.format(1)),
                   "rank 1 on h1 ended with exit code 143")
        self.check(ended(0, "h1", (128 + 6) << 8), "rank 0 on h1 ended with exit code 134")

    def test_damaged_records_are_shown(self):
        whole = ended(2, "h2", 3 << 8)
        for damaged in ("\x1ex3 h1\x1eo4 hello\n", "\x1ex3 h1\x1eo4 256\n", "\x1ex3 h1\n",
                        "\x1ex3 h1 \n", "\x1ex3 h1 -1\n", "\x1ex3 h1 127\n", "\x1ex3 h1 70\n",
                        f"\x1ex3 h1 {'1' * 5000}\n", f"\x1ex{'1' * 5000} h1 256\n"):
            told, code = self.run_with("\x1ee0 a\n" + damaged + "\x1ee0 b\n" + whole)
            self.assertEqual(told, f"[0] a\n{damaged}[0] b\nhoronrun: rank 2 on h2 ended with exit "
                             "code 3\nhoronrun: the job has failed with exit code 1\n")
            self.assertEqual(code, 1)

    def test_ranks_that_failed_alike_share_a_line(self):
        words = "".join(f"\x1ee{rank} lost\n" for rank in range(5))
        ends = "".join(ended(rank, f"h{rank // 3}", 1 << 8) for rank in (0, 2, 1, 4, 3))
        said = "".join(f"[{rank}] lost\n" for rank in range(5))
        told, _ = self.run_with(words + ends + ended(6, "h2", 1 << 8) + notice(EXITED.format(0)))
        self.assertEqual(told, said + "horonrun: ranks 0-2 on h0, ranks 3-4 on h1 ended with exit "
                         "code 1; last words: lost\nhoronrun: rank 6 on h2 ended with exit code "
                         "1\nhoronrun: the job has failed with exit code 1\n")

    def test_not_more_than_a_few_lines(self):
        self.check("".join(ended(rank, "h", (rank + 1) << 8) for rank in range(7)),
                   *(f"rank {rank} on h ended with exit code {rank + 1}" for rank in range(4)),
                   "ranks 4-6 on h failed in other ways")

    def test_the_last_words(self):
        for stream, expected in (
                (("Traceback (most recent call last):", '  File "a.py"', "ValueError: 17"),
                 "ValueError: 17"),
                (("terminate called after throwing", "  what():  no such file",
                  "Exception raised from open at a.cc:7 (most recent call first):",
                  "frame #0: open + 0x7 (0xf)", ""), "what():  no such file"),
                (("begun", "[h2:123] *** Process received signal ***",
                  "[h2:123] [ 0] /lib/libc.so.6(+0x3c050)[0x7fee6ce5a050]"), "begun")):
            words = "".join(f"\x1ee0 {line}\n" for line in stream)
            told, _ = self.run_with(words + ended(0, "h2", 6))
            self.assertIn("horonrun: rank 0 on h2 died of signal 6 (Aborted); last words: "
                          f"{expected}\n", told)
        told, _ = self.run_with("\x1eo0 no data\n\x1ee0 horon [0] info: 2 ranks\n" +
                                ended(0, "h2", 3 << 8))
        self.assertIn("last words: no data\n", told)
        told, _ = self.run_with("\x1ee0 " + "x" * 3000 + "\n" + ended(0, "h2", 3 << 8))
        self.assertIn("last words: " + "x" * 300 + "\n", told)

    def test_a_rank_that_has_left_without_a_word(self):
        self.check(notice(IMPROPER), "rank 1 on h2 ended with exit code 0, but without "
                                     "MPI_Finalize()")

    def test_a_lost_host_is_no_success(self):
        """Open MPI 5 then ends with exit code 0."""
        lost = notice("PRTE has lost communication with a remote daemon.\n\n"
                      "  Remote daemon: [prterun-h1-608@0,1] on node h2")
        self.assertEqual(self.run_with(lost, code=0),
                         (lost + "horonrun: the job has failed with exit code 1\n", 1))
        told, code = self.run_with(ended(0, "h1", 3 << 8) + lost, code=0)
        self.assertEqual(told, lost + "horonrun: rank 0 on h1 ended with exit code 3\n"
                         "horonrun: the job has failed with exit code 3\n")
        self.assertEqual(code, 3)

    def test_a_rank_whose_death_makes_others_abort(self):
        """Open MPI 5 names one of the others, and ends with their exit code."""
        told, code = self.run_with(
            ended(0, "h1", 14 << 8) + ended(1, "h1", SIGTERM) + ended(2, "h2", SIGKILL) +
            notice("prterun has exited due to process rank 0 with PID 0 on node h1 calling\n"
                   '"abort". This may have caused other processes'), code=14)
        self.assertEqual(told, "horonrun: rank 2 on h2 died of signal 9 (Killed: by hand, or by "
                         "the kernel for want of memory)\nhoronrun: rank 0 on h1 ended with exit "
                         "code 14\nhoronrun: the job has failed with exit code 137\n")
        self.assertEqual(code, 137)

    def test_an_mpirun_that_does_not_find_its_words(self):
        def lost(name):
            return notice(f"Sorry!  You were supposed to get help about:\n    {name}\nBut I "
                          f"couldn't open the help file:\n    /usr/lib/prte/help-prun.txt: No such "
                          f"file or directory.\nSorry!")

        self.check(ended(1, "h1", 3 << 8) + lost("prun:non-zero-exit"),
                   "rank 1 on h1 ended with exit code 3")
        told, code = self.run_with(ended(1, "h1", SIGKILL) + lost("prun:proc-aborted-strsignal"),
                                   code=137)
        self.assertIn("rank 1 on h1 died of signal 9", told)
        self.assertNotIn("Sorry", told)
        self.assertEqual(code, 137)
        self.assertIn("Sorry", self.run_with(lost("prun:non-zero-exit"))[0])
        self.assertEqual(self.run_with(lost("errmgr-base:node-died"), code=0)[1], 1)

    def test_the_zero_behind_words_of_mpirun(self):
        """Open MPI 5 writes a zero there, before what a rank or mpirun says next."""
        told, _ = self.run_with(
            "words\n", last=r"printf '\0\036e2 hello\n\036x2 h2 768\n\0' >&2")
        self.assertEqual(told, "words\n[2] hello\nhoronrun: rank 2 on h2 ended with exit code 3; "
                         "last words: hello\nhoronrun: the job has failed with exit code 1\n")

    def test_what_is_not_understood_is_shown(self):
        for words in (notice("ORTE has lost communication with a remote daemon.") + "more\n",
                      f"{FRAME}\nno end of it\n", f"{FRAME}\n" + "line\n" * 100 + f"{FRAME}\n",
                      notice(ABORTED) + notice(EXITED.format(3)) + ended(2, "h2", 1 << 8),
                      notice(ABORTED)):
            told, _ = self.run_with(words)
            shown = words.replace(ended(2, "h2", 1 << 8), "")
            self.assertEqual(told, shown + "horonrun: the job has failed with exit code 1\n")

    def test_a_line_of_dashes_that_stands_alone(self):
        """As in what ssh says. It holds back nothing, and the frames of mpirun stay pairs."""
        banner = f"{FRAME}\nWelcome\n{FRAME}\n{FRAME}\n"
        lost = notice("A daemon is lost.")
        told, _ = self.run_with(banner + ended(2, "h2", 1 << 8) + notice(ABORTED) + lost +
                                notice(EXITED.format(2)) + FRAME + "\n")
        self.assertEqual(told, f"{banner}{lost}{FRAME}\n"
                         "horonrun: rank 2 on h2 ended with exit code 1\n"
                         "horonrun: the job has failed with exit code 1\n")
        notices = runpy.run_path(HORONRUN + "_ends.py")["Notices"](ends=None)
        frame = FRAME.encode()
        self.assertEqual([notices.shown(line) for line in (frame, b"Welcome", b"to h2")],
                         [[], [frame, b"Welcome"], [b"to h2"]])

    def test_an_mpirun_that_does_not_end(self):
        """As mpirun may hang where ranks fail while others are being started."""
        begin = time.monotonic()
        told, code = self.run_with(ended(2, "h2", 3 << 8), last="exec sleep 1000")
        self.assertEqual(told, "horonrun: mpirun has no ranks, and did not end in 10 s: it is "
                         "killed\nhoronrun: rank 2 on h2 ended with exit code 3\n"
                         "horonrun: the job has failed with exit code 3\n")
        self.assertEqual(code, 3)
        self.assertGreater(time.monotonic() - begin, 10)

    def test_an_mpirun_with_ranks_is_waited_for(self):
        told, code = self.run_with(ended(2, "h2", 3 << 8), last="sleep 14")
        self.assertNotIn("killed", told)
        self.assertEqual(code, 1)


class AnMpirunWithoutRanks(unittest.TestCase):
    """Stand-ins for what horonrun sees of mpirun each second."""

    def times_killed(self, *looks, failed=(), seconds_to_end=60):
        """looks: each says whether there are no ranks, or is an error, or a new place of mpirun"""
        ends = types.SimpleNamespace(have_begun=types.SimpleNamespace(wait=lambda: None),
                                     failed_ranks=lambda: failed)
        watch = runpy.run_path(HORONRUN)["FailureWatch"](types.SimpleNamespace(pid=os.getpid()),
                                                         ends, seconds_to_end)
        left = iter(looks)

        def has_no_ranks():
            look = next(left)
            if isinstance(look, OSError):
                raise look
            if isinstance(look, pathlib.Path):
                watch.folder, look = look, True
            return look

        watch.has_no_ranks = has_no_ranks
        watch.kill = unittest.mock.Mock()
        with unittest.mock.patch("time.sleep"):
            watch.run()
        self.assertEqual(list(left), [])
        return watch.kill.call_count

    def test_it_is_killed(self):
        self.assertEqual(self.times_killed(*[True] * 10), 1)
        self.assertEqual(self.times_killed(True, False, *[True] * 10), 1)

    def test_it_waits_for_a_host_that_stands_still(self):
        over = pathlib.Path("/none")
        self.assertEqual(self.times_killed(*[False] * 60, failed=[2]), 1)
        self.assertEqual(self.times_killed(*[False] * 58, over, failed=[2]), 0)
        self.assertEqual(self.times_killed(*[False] * 90, over, failed=[2], seconds_to_end=None), 0)
        self.assertEqual(self.times_killed(*[False] * 90, over), 0)

    def test_how_long_the_end_may_take(self):
        line = runpy.run_path(HORONRUN + "_line.py")
        variable = "OMPI_MCA_odls_base_sigkill_timeout"
        for text, environment, seconds in (
                ("", {}, 60), ("--mca odls_base_sigkill_timeout 30", {}, 120),
                ("--mca odls_base_sigkill_timeout 120", {variable: "30"}, 300),
                ("", {variable: "30"}, 120), ("--enable-recovery", {}, None),
                ("", {"OMPI_MCA_orte_abort_on_non_zero_status": "0"}, None)):
            options = types.SimpleNamespace(mpi_args=text, no_prefix=False)
            self.assertEqual(line["seconds_to_end"](options, environment), seconds)

    def test_a_thread_of_it_that_ends_just_then(self):
        self.assertEqual(self.times_killed(True, FileNotFoundError(), *[True] * 9), 1)

    def test_it_has_ended(self):
        self.assertEqual(self.times_killed(True, pathlib.Path("/none")), 0)


class AtATerminal(unittest.TestCase):
    def seen(self, script):
        ours, theirs = pty.openpty()
        with subprocess.Popen([sys.executable, HORONRUN, "-np", "2", "sh", "-c", script],
                              stdin=theirs, stdout=theirs, stderr=theirs, env=CLEAN):
            os.close(theirs)
            text = b""
            with contextlib.suppress(OSError):  # when all have closed it
                while data := os.read(ours, 4096):
                    text += data
        os.close(ours)
        return text.decode().replace("\r\n", "\n")

    def test_a_prompt_stands_on_a_line_of_its_own(self):
        ask = "if [ $OMPI_COMM_WORLD_RANK = 0 ]; then printf 'Name: '; read x; fi; "
        self.assertEqual(self.seen(ask + "sleep 1; exit 3"),
                         f"[0] Name: \nhoronrun: rank 1 on {HOST} ended with exit code 3\n"
                         "horonrun: the job has failed with exit code 3\n")
        # With nothing better to tell, mpirun's own words come.
        told = self.seen(ask + "sleep 1; kill -KILL $PPID; exec sleep 1000")
        self.assertEqual(told.split("\n")[:2], ["[0] Name: ", FRAME])


class RanksOfAnotherHost(unittest.TestCase):
    def run_rank(self, *command, **variables):
        """What horonrun_rank writes, as if mpirun had started it there."""
        program = pathlib.Path(HORONRUN).resolve().with_name("horonrun_rank")
        return subprocess.run(
            [sys.executable, "-IS", program, *command], stderr=subprocess.PIPE, text=True,
            check=False, env={**CLEAN, "OMPI_COMM_WORLD_RANK": "3",
                              "OMPI_COMM_WORLD_LOCAL_RANK": "0", **variables}).stderr

    def test_how_a_program_ends(self):
        self.assertEqual(self.run_rank("sh", "-c", "echo no >&2; exit 5"),
                         "\x1ee3 no\n" + ended(3, HOST, 5 << 8))
        self.assertEqual(self.run_rank("sh", "-c", "kill $$"), ended(3, HOST, SIGTERM))
        self.assertEqual(self.run_rank("no-such-program"), "horonrun: no-such-program on "
                         f"{HOST}: No such file or directory\n" + ended(3, HOST, 127 << 8))
        self.assertEqual(self.run_rank("true"), "")

    def test_the_working_folder_is_missing(self):
        """In which case mpirun takes the home folder without a word."""
        line = horonrun("--dry-run", "-np", "1", "-H", "h1", "sh").stdout
        self.assertIn(f" -x HORONRUN_FOLDER={os.getcwd()} python3 ", line)
        for arguments in (("--mpi-args", "--wdir /tmp", "-H", "h1"), ("--no-prefix", "-H", "h1"),
                          ()):
            line = horonrun("--dry-run", "-np", "1", *arguments, "sh").stdout
            self.assertNotIn("HORONRUN_FOLDER", line)
        show = ("sh", "-c", "env | grep HORONRUN >&2; true")
        self.assertEqual(self.run_rank(*show, HORONRUN_FOLDER="/none"),
                         f"horonrun: {HOST} has no folder /none: its ranks start in "
                         f"{os.getcwd()}\n")
        self.assertEqual(self.run_rank(*show, HORONRUN_FOLDER="/none",
                                       OMPI_COMM_WORLD_LOCAL_RANK="1"), "")
        self.assertEqual(self.run_rank(*show, HORONRUN_FOLDER="/tmp"), "")


if __name__ == "__main__":
    unittest.main()
