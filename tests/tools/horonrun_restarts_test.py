#!/usr/bin/env python3
"""horonrun: jobs that it starts again, and where.

usage: horonrun_restarts_test.py HORONRUN
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HORONRUN = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else "tools/horonrun")
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("HORON_", "OMPI_", "SLURM_", "PBS_", "LSB_", "OMP_", "PE_"))}
# In the place of mpirun: keeps its arguments in the file "lines", and does what "mpirun.sh" says.
MPIRUN = """#!/bin/bash
if [ $1 = --version ]; then echo Open MPI; exit; fi
echo "$@" >> lines
commits=$(echo "$@" | grep -o 'HORONRUN_COMMITS=[^ ]*' | cut -d= -f2)
starts=$(wc -l < lines)
. ./mpirun.sh
"""
HOSTS_HAVE_CHANGED = (
    "horonrun: the hosts have changed: a job of horon.torch.elastic is started again on the new "
    "ones when it commits its state; others use them after a failure\n")


class WithMpirun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.write("mpirun", MPIRUN)

    def write(self, name, text):
        file = self.folder / f"{name}.new"  # horonrun may be about to execute the old one
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
        file.replace(self.folder / name)

    def start(self, *arguments):
        job = subprocess.Popen([sys.executable, HORONRUN, *map(str, arguments), "sh"], text=True,
                               cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**CLEAN, "PATH": f"{self.folder}:{CLEAN['PATH']}"})
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        return job

    def run_with(self, mpirun, *arguments):
        """(exit code, standard error)"""
        self.write("mpirun.sh", mpirun)
        job = self.start(*arguments)
        told = job.communicate(timeout=250)[1]
        return job.returncode, told

    def lines(self):
        """What mpirun was started with."""
        file = self.folder / "lines"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def values(self, name):
        return [word.partition("=")[2] for line in self.lines() for word in line.split()
                if word.startswith(name + "=")]


class Restarts(WithMpirun):
    def test_a_job_is_started_again_until_it_succeeds(self):
        code, told = self.run_with("exit $((3 - starts))", "-np", 1, "--max-restarts", 5)
        self.assertEqual(code, 0, told)
        self.assertEqual(self.values("HORONRUN_RESTART"), ["0", "1", "2"])
        self.assertEqual(len(set(self.values("HORONRUN_COMMITS"))), 1)
        self.assertIn("the job has failed with exit code 2: restart 1 of 5\n", told)
        self.assertIn("the job has failed with exit code 1: restart 2 of 5\n", told)

    def test_the_last_failure_is_that_of_the_job(self):
        code, _ = self.run_with("exit $((3 + starts))", "-np", 1, "--reset-limit", 1)
        self.assertEqual(code, 5)
        self.assertEqual(len(self.lines()), 2)

    def test_what_is_wrong_at_a_restart_is_a_failure_too(self):
        (self.folder / "hosts").write_text("h1 slots=2\n", encoding="utf-8")
        shrinks = "touch $commits.1; echo 'h1 slots=1' > hosts; exit 4"
        code, told = self.run_with(shrinks, "-np", 2, "--hostfile", "hosts", "--max-restarts", 2)
        self.assertEqual(code, 4, told)
        self.assertEqual(len(self.lines()), 1)
        self.assertEqual(told.count("--hostfile hosts has 1 slots, but -np wants 2 ranks"), 2)
        self.assertIn("the last state that the job has committed is in ", told)
        # And it may be right again.
        (self.folder / "hosts").write_text("h1 slots=2\n", encoding="utf-8")
        (self.folder / "lines").unlink()
        code, told = self.run_with("[ $starts = 2 ] && exit 0; echo > hosts; (sleep 1.5; echo h1 "
                                   "slots=2 > hosts) > /dev/null 2>&1 & exit 75",
                                   "-np", 2, "--hostfile", "hosts", "--max-restarts", 9)
        self.assertEqual(code, 0, told)
        self.assertEqual(len(self.lines()), 2)

    def test_without_the_option_a_job_is_started_once(self):
        code, told = self.run_with("exit 3", "-np", 1)
        self.assertEqual((code, told), (3, "horonrun: the job has failed with exit code 3\n"))
        self.assertEqual(len(self.lines()), 1)
        self.assertNotIn("HORONRUN", self.lines()[0].replace(HORONRUN, ""))

    def test_a_job_that_a_signal_ends_is_not_started_again(self):
        self.write("mpirun.sh", "trap 'exit 1' INT; echo begun; while :; do sleep 0.1; done")
        job = self.start("-np", 1, "--max-restarts", 3)
        self.assertEqual(job.stdout.readline(), "begun\n")
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=250)
        self.assertEqual(job.returncode, 130)
        self.assertEqual(len(self.lines()), 1)

    def test_a_signal_between_two_starts_ends_it(self):
        self.write("mpirun.sh", "exit 1")
        job = self.start("-np", 1, "--max-restarts", 1000)
        while "restart 1 " not in job.stderr.readline():
            pass
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=250)
        self.assertEqual(job.returncode, 143)
        self.assertLess(len(self.lines()), 1000)

    def test_a_signal_for_ranks_between_two_starts_ends_it(self):
        """Slurm sends it once, shortly before it ends the job."""
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            self.write("mpirun.sh", "exit 3")
            job = self.start("-np", 1, "--max-restarts", 20)
            self.assertIn("restart 1 of 20\n", job.stderr.readline())
            while job.poll() is None:  # on a busy machine one may hit mpirun
                job.send_signal(number)
                time.sleep(0.2)
            self.assertEqual(job.stderr.readlines()[-1],
                             f"horonrun: {number.name} has come: the job is not started again\n")
            self.assertIn(job.returncode, (3, 128 + number))
            self.assertLess(len(self.lines()), 20)
            (self.folder / "lines").unlink()

    def check_one_start_with_a_signal(self, number, code, *arguments):
        """Returns what horonrun tells."""
        job = self.start("-np", 1, *arguments)
        self.assertEqual(job.stdout.readline(), "begun\n")
        job.send_signal(number)
        told = job.communicate(timeout=250)[1]
        self.assertEqual((job.returncode, len(self.lines())), (code, 1), told)
        (self.folder / "lines").unlink()
        return told

    def test_a_job_that_fails_after_a_signal_for_ranks_is_not_started_again(self):
        """As where they had not yet asked for the signal, or could not save."""
        self.write("mpirun.sh", "[ $starts = 1 ] || exit 9; trap 'exit 3' USR1 USR2; echo begun; "
                                "while :; do sleep 0.1; done")
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            told = self.check_one_start_with_a_signal(number, 3, "--max-restarts", 3)
            self.assertEqual(told, "horonrun: the job has failed with exit code 3\n"
                             f"horonrun: {number.name} has come: the job is not started again\n")
        told = self.check_one_start_with_a_signal(signal.SIGUSR1, 3)
        self.assertEqual(told, "horonrun: the job has failed with exit code 3\n")

    def test_a_job_may_succeed_after_a_signal_for_ranks(self):
        self.write("mpirun.sh", "trap 'exit 0' USR1; echo begun; while :; do sleep 0.1; done")
        told = self.check_one_start_with_a_signal(signal.SIGUSR1, 0, "--max-restarts", 3)
        self.assertEqual(told, "")

    def test_what_was_committed_goes_with_a_success_and_stays_with_a_failure(self):
        # One for each call of what elastic.run decorates, and one that was not written to its end.
        commit = "touch $commits.0 $commits.2 $commits.10 $commits.10.new; "
        (self.folder / "[1]").mkdir()
        code, _ = self.run_with(
            commit + "[ $starts = 1 ] && exit 1; rm $commits.0 || exit 2; exit 0", "-np", 1,
            "--max-restarts", 1, "--commits", self.folder / "[1]")
        self.assertEqual((code, list(self.folder.glob("*/horonrun-*"))), (0, []))
        _, told = self.run_with(commit + "exit 1", "-np", 1, "--max-restarts", 1)
        left = [str(each) for each in self.folder.glob("horonrun-*")]
        self.assertEqual(len(left), 3, left)
        first = min(left, key=len)[:-2]
        self.assertIn("the last state that the job has committed is in "
                      f"{first}.0, {first}.2, {first}.10\n", told)


class Elastic(WithMpirun):
    def setUp(self):
        super().setUp()
        self.give("one:2", "two")

    def give(self, *lines):
        self.write("hosts.sh", "#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines))

    def hosts_and_ranks(self):
        found = []
        for words in map(str.split, self.lines()):
            found.append((words[words.index("--host") + 1], words[words.index("-np") + 1]))
        return found

    def test_it_takes_the_ranks_that_there_are_slots_for(self):
        script = ("--host-discovery-script", "./hosts.sh")
        for arguments, expected in [
                (("-np", 3), ("one:2,two:1", "3")),
                (("-np", 2), ("one:2,two:1", "2")),
                (("-np", 2, "--max-np", 8), ("one:2,two:1", "3")),
                (("-np", 4, "--min-np", 2, "--slots-per-host", 5), ("one:2,two:5", "4")),
                (("-np", 8, "--min-np", 2, "--slots", 5), ("one:2,two:5", "7"))]:
            code, told = self.run_with("exit 0", *arguments, *script)
            self.assertEqual(code, 0, told)
            self.assertEqual(self.hosts_and_ranks()[-1], expected, arguments)
        shown = self.start("--dry-run", "-np", 8, "--min-np", 1, *script).communicate()[0]
        self.assertIn("-np 3 --host one:2,two:1", shown)

    def test_a_dry_run_tells_what_is_wrong_with_the_hosts(self):
        script = ("--host-discovery-script", "./hosts.sh")
        job = self.start("--dry-run", "-np", 4, *script)
        self.assertEqual(job.communicate(), ("", "horonrun: ./hosts.sh gives 3 slots, but 4 ranks "
                                             "are the minimum (--min-np)\n"))
        self.assertEqual(job.returncode, 2)

    def test_a_restart_takes_the_hosts_of_then(self):
        code, told = self.run_with(
            "printf '#!/bin/sh\\necho three:4' > hosts.sh; exit $((2 - starts))", "-np", 3,
            "--host-discovery-script", "./hosts.sh")
        self.assertEqual(code, 0, told)
        self.assertEqual(self.hosts_and_ranks(), [("one:2,two:1", "3"), ("three:4", "3")])
        self.assertIn("restart 1 of 3\n", told)

    def test_the_script_does_not_read_what_is_for_rank_0(self):
        self.write("hosts.sh", "#!/bin/sh\ncat > read_by_script; echo one:1")
        code, told = self.run_with("exit 0", "-np", 1, "--host-discovery-script", "./hosts.sh")
        self.assertEqual((code, (self.folder / "read_by_script").read_text()), (0, ""), told)

    def test_it_waits_for_hosts(self):
        self.write("mpirun.sh", "exit 0")
        self.write("hosts.sh", "#!/bin/sh\necho no network >&2; exit 1")
        job = self.start("-np", 4, "--host-discovery-script", "./hosts.sh")
        self.assertEqual(job.stderr.readline(),
                         "horonrun: ./hosts.sh: no network; waiting for hosts\n")
        self.give("one:3")
        self.assertEqual(job.stderr.readline(),
                         "horonrun: ./hosts.sh gives 3 slots, but 4 ranks are the minimum "
                         "(--min-np); waiting for hosts\n")
        self.give("one:4")
        self.assertEqual(job.communicate(timeout=250)[1], "")
        self.assertEqual(job.returncode, 0)

    def test_a_signal_for_ranks_ends_the_wait_for_hosts(self):
        self.give("one:1")
        job = self.start("-np", 4, "--host-discovery-script", "./hosts.sh",
                         "--elastic-timeout", 30)
        self.assertIn("waiting for hosts", job.stderr.readline())
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(job.communicate(timeout=250)[1],
                         "horonrun: SIGUSR1 has come: the job is not started\n")
        self.assertEqual((job.returncode, self.lines()), (1, []))

    def test_a_signal_does_not_wait_for_the_script(self):
        self.write("hosts.sh", "#!/bin/sh\necho $$ > asked.new; mv asked.new asked; exec sleep 99")
        job = self.start("-np", 1, "--host-discovery-script", "./hosts.sh")
        asked = self.folder / "asked"
        while not asked.exists():
            self.assertIsNone(job.poll())
            time.sleep(0.05)
        begin = time.monotonic()
        job.send_signal(signal.SIGTERM)
        self.assertEqual((job.wait(), job.stderr.read()), (143, ""))
        self.assertLess(time.monotonic() - begin, 30)  # half of what a script may take
        self.assertFalse(os.path.exists(f"/proc/{asked.read_text().strip()}"))

    def test_it_does_not_wait_for_ever(self):
        for line in ("bad line", "one:2,two:2", "one,two", "one:auto"):
            self.give(line)
            code, told = self.run_with("exit 0", "-np", 1, "--host-discovery-script", "./hosts.sh",
                                       "--elastic-timeout", 0)
            self.assertEqual((code, self.lines()), (1, []))
            self.assertIn(f"'{line}' is not HOST or HOST:SLOTS", told)
            self.assertIn("after 0 s, --elastic-timeout\n", told)

    def test_a_job_that_commits_goes_on_on_hosts_that_come(self):
        code, told = self.run_with(
            "if [ $starts = 1 ]; then printf '#!/bin/sh\\necho one:9' > hosts.sh\n"
            "  until [ -e $commits.hosts ]; do sleep 0.1; done; exit 75\nfi\n"
            "if [ -e $commits.hosts ]; then exit 9; fi; exit 0",
            "-np", 3, "--max-np", 6, "--max-restarts", 0, "--host-discovery-script", "./hosts.sh")
        self.assertEqual(code, 0, told)
        self.assertEqual(self.hosts_and_ranks(), [("one:2,two:1", "3"), ("one:9", "6")])
        self.assertEqual(told, HOSTS_HAVE_CHANGED)

    def test_a_sign_of_new_hosts_that_cant_be_written(self):
        """As on a full disk. It is told once, and tried again."""
        (commits := self.folder / "commits").mkdir()
        self.write("mpirun.sh", "[ $starts = 1 ] || exit 0; until [ -e $commits.hosts ]; do "
                                "sleep 0.1; done; exit 75")
        job = self.start("-np", 3, "--max-np", 6, "--host-discovery-script", "./hosts.sh",
                         "--commits", commits)
        while not self.lines():
            time.sleep(0.05)
        commits.rmdir()
        self.write("hosts.sh", "#!/bin/sh\necho asked >> asked; echo one:9")
        self.assertRegex(job.stderr.readline(), f"^horonrun: the hosts have changed, but {commits}"
                         "/horonrun-.*.hosts can't be written: No such file or directory\n$")
        looks = (self.folder / "asked").read_text().count("\n")
        while (self.folder / "asked").read_text().count("\n") < looks + 2:
            time.sleep(0.05)
        commits.mkdir()
        self.assertEqual(job.communicate(timeout=250)[1], HOSTS_HAVE_CHANGED)
        self.assertEqual((job.returncode, len(self.lines())), (0, 2))

    def test_a_signal_for_ranks_after_new_hosts(self):
        """The next start would not hear of the signal."""
        self.write("mpirun.sh", "trap 'exit 75' USR1; printf '#!/bin/sh\\necho one:9' > hosts.sh; "
                                "until [ -e $commits.hosts ]; do sleep 0.1; done; "
                                "[ $starts = 1 ] || exit 9; echo begun; "
                                "while :; do sleep 0.1; done")
        job = self.start("-np", 3, "--max-np", 6, "--host-discovery-script", "./hosts.sh")
        self.assertEqual(job.stdout.readline(), "begun\n")
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(job.communicate(timeout=250)[1], HOSTS_HAVE_CHANGED +
                         "horonrun: SIGUSR1 has come: the job is not started again\n")
        self.assertEqual((job.returncode, len(self.lines())), (75, 1))

    def test_new_hosts_after_a_signal_for_ranks(self):
        """The job ends as it likes."""
        self.write("new_hosts.sh", "#!/bin/sh\ntouch asked; echo one:9")
        self.write("mpirun.sh", "trap 'mv new_hosts.sh hosts.sh' USR1; echo begun; "
                                "until [ -e asked ]; do sleep 0.1; done; sleep 2; "
                                "[ ! -e $commits.hosts ] || exit 75; exit 5")
        job = self.start("-np", 3, "--max-np", 6, "--host-discovery-script", "./hosts.sh")
        self.assertEqual(job.stdout.readline(), "begun\n")
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(job.communicate(timeout=250)[1],
                         "horonrun: the job has failed with exit code 5\n"
                         "horonrun: SIGUSR1 has come: the job is not started again\n")
        self.assertEqual((job.returncode, len(self.lines())), (5, 1))

    def test_hosts_that_make_no_difference_change_nothing(self):
        code, told = self.run_with(  # behind a look at these hosts, and before the next one
            "printf '#!/bin/sh\\ntouch asked; echo three:1; echo one:9; echo two:1' > hosts.sh\n"
            "until [ -e asked ]; do sleep 0.1; done; sleep 2; [ ! -e $commits.hosts ]",
            "-np", 3, "--host-discovery-script", "./hosts.sh")
        self.assertEqual((code, told), (0, ""))
        self.assertEqual(self.hosts_and_ranks(), [("one:2,two:1", "3")])

    def test_its_own_exit_code_75_is_a_failure(self):
        code, told = self.run_with("exit 75", "-np", 1, "--max-restarts", 1)
        self.assertEqual(code, 75)
        self.assertIn("the job has failed with exit code 75: restart 1 of 1\n", told)


class WrongUse(WithMpirun):
    def test_one_line_each(self):
        self.write("hosts.sh", "#!/bin/sh\necho one")
        script = ("--host-discovery-script", "./hosts.sh")
        for arguments, text in [
                (("-np", 2, "--max-restarts", "many"), "--max-restarts many: give a number, 0"),
                (("-np", 2, "--min-np", 1), "--min-np needs --host-discovery-script"),
                (("-np", 2, "--slots", 1), "--slots-per-host needs --host-discovery-script"),
                (("-np", 2, "-H", "one", *script), "not both"),
                (("-np", 2, "--min-np", 3, *script), "-np 2 is not between --min-np 3 and"),
                (("-np", 2, "--max-np", 0, *script), "--max-np 0: give a number, 1 or more"),
                (("-np", 2, "--host-discovery-script", "none"), "none: not an executable"),
                (("-np", 2, "--commits", "."), "--commits needs --max-restarts or"),
                (("-np", 2, "--max-restarts", 1, "--commits", "none"), "--commits none: there is"),
                (("-np", 2, "--max-restarts", 1, "--commits", ""), "--commits : there is no such"),
                (("-np", 2, "--max-restarts", 1, "--commits", "/proc"), "/proc: no file can be"),
                (("-np", 2, "--host-discovery-script", "."), "script .: not an executable")]:
            code, told = self.run_with("exit 0", *arguments)
            self.assertEqual(code, 2, told)
            self.assertIn(text, told)
            self.assertEqual(told.count("\n"), 1, told)
        self.assertEqual(self.lines(), [])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    unittest.main()
