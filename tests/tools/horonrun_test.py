#!/usr/bin/env python3
"""horonrun: the lines it makes, and what becomes of a job's output, exit code and signals.

usage: horonrun_test.py HORONRUN
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HORONRUN = sys.argv.pop(1) if len(sys.argv) > 1 else "tools/horonrun"
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("HORON_", "OMPI_", "SLURM_", "PBS_", "LSB_", "OMP_", "PE_",
                                 "NCCL_", "UCX_", "FI_"))
         and name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}


def horonrun(*arguments, **variables):
    words = [each if isinstance(each, bytes) else str(each) for each in arguments]
    return subprocess.run([sys.executable, HORONRUN, *words], capture_output=True, text=True,
                          errors="backslashreplace", check=False, env={**CLEAN, **variables})


def dry_run(*arguments, **variables):
    return horonrun("--dry-run", *arguments, **variables).stdout.strip()


class DryRun(unittest.TestCase):
    def test_whole_line(self):
        root = "--allow-run-as-root " if os.geteuid() == 0 else ""
        rank_program = pathlib.Path(HORONRUN).resolve().with_name("horonrun_rank")
        told = horonrun("-np", 3, "--dry-run", "sh", "-c", "echo a b", "-np")
        self.assertEqual(told.returncode, 0)
        self.assertEqual(
            told.stdout,
            f"mpirun -np 3 --host localhost:3 {root}--bind-to none --mca oob_tcp_keepalive_time 1 "
            "--mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3 "
            "--mca odls_base_sigkill_timeout 0 --mca mpi_yield_when_idle 1 "
            f"{sys.executable} -IS {rank_program} sh -c 'echo a b' -np\n")

    def test_hosts(self):
        self.assertIn(" --host h1:2,h2:2 ", dry_run("-np", 4, "-H", "h1:2,h2:2", "sh"))
        line = dry_run("-n", 2, "-H", "h1,h2", "sh")
        self.assertIn(" --host h1,h2 ", line)
        self.assertIn(" python3 -IS ", line)  # the other hosts' own
        for count in ("*", "auto"):  # mpirun counts the cores
            self.assertIn("-np 99 ", dry_run("-np", 99, "-H", f"h1:{count},h2:2", "sh"))
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# all\nh1 slots=2\nh2 slots = 2 # old\n\n")
            file.flush()
            self.assertIn(f" --hostfile {file.name} ",
                          dry_run("-np", 4, "--hostfile", file.name, "sh"))
            self.assertIn("has 4 slots", horonrun("-np", 5, "--hostfile", file.name, "sh").stderr)
            file.write("h3 max-slots=1\n")  # mpirun counts its cores
            file.flush()
            self.assertIn("-np 5 ", dry_run("-np", 5, "--hostfile", file.name, "sh"))

    def test_hosts_that_mpirun_is_told_otherwise(self):
        for arguments, variables in (
                (("--mpi-args", "--hostfile h"), {}), (("--mpi-args", "-machinefile h"), {}),
                ((), {"OMPI_MCA_orte_default_hostfile": "h"}),
                ((), {"PRTE_MCA_prte_default_hostfile": "h"})):
            line = dry_run("-np", 4, *arguments, "sh", **variables)
            self.assertNotIn("localhost", line)
            self.assertIn(" python3 -IS ", line)
        self.assertIn("localhost:4", dry_run("-np", 4, "--mpi-args", "--map-by slot", "sh"))

    def test_names_that_horovodrun_and_mpirun_have(self):
        self.assertIn("-np 3 ", dry_run("--num-proc", 3, "sh"))
        self.assertIn(" --host h1:3 ", dry_run("-np", 3, "-host", "h1:3", "sh"))
        self.assertIn("-hostfile /none: No such file",
                      horonrun("-np", 3, "-hostfile", "/none", "sh").stderr)

    def test_any_bytes(self):
        self.assertTrue(dry_run("-np", 1, "echo", b"\xe9").endswith("echo '\\xe9'"))

    def test_variables(self):
        passed = ("HORON_LOG", "OMP_NUM_THREADS", "NCCL_DEBUG", "UCX_TLS", "FI_PROVIDER",
                  "PYTHONPATH", "LD_LIBRARY_PATH")
        line = dry_run("-np", 2, "-x", "PATH", "-x", "A=b c", "sh", HORONS="no", FIVE="no",
                       OMP_NUM_THREADS_="no", MY_PYTHONPATH="no", **dict.fromkeys(passed, "1"))
        for part in (*(f"-x {name} " for name in passed), "-x PATH ", "-x 'A=b c' "):
            self.assertIn(part, line)
        for other in ("HORONS", "FIVE", "OMP_NUM_THREADS_", "MY_PYTHONPATH"):
            self.assertNotIn(other, line)
        line = dry_run("-np", 2, "--timeline", "t.json", "sh", HORON_TIMELINE="other")
        self.assertEqual(line.count("HORON_TIMELINE"), 1)
        self.assertIn("-x HORON_TIMELINE=t.json ", line)

    def test_path_goes_to_other_hosts(self):
        self.assertNotIn(" PATH", dry_run("-np", 2, "sh"))
        for where, variables in ((("-H", "h1:2"), {}), ((), {"SLURM_JOB_ID": "17"})):
            self.assertIn(" -x PATH ", dry_run("-np", 2, *where, "sh", **variables))
        line = dry_run("-np", 2, "-H", "h1:2", "-x", "PATH=/bin", "sh")
        self.assertRegex(line, "^(?!.*-x PATH ).* -x PATH=/bin ")

    def test_other_arguments(self):
        line = dry_run("-np", 2, "--no-prefix", "--mpi-args", "--map-by 'node x'", "sh")
        self.assertTrue(line.endswith(" --map-by 'node x' sh"), line)
        self.assertTrue(dry_run("-np", 2, "--no-prefix", "--", "sh").endswith(" 1 sh"))

    def test_a_setting_of_the_user_takes_the_place_of_horonruns(self):
        line = dry_run("-np", 2, "--no-prefix", "--mpi-args",
                       "--mca odls_base_sigkill_timeout 30", "sh")
        self.assertEqual(line.count("odls_base_sigkill_timeout"), 1)
        self.assertTrue(line.endswith(" --mca odls_base_sigkill_timeout 30 sh"), line)
        line = dry_run("-np", 2, "sh", OMPI_MCA_odls_base_sigkill_timeout="30")
        self.assertNotIn("odls_base_sigkill_timeout", line)
        self.assertIn("mpi_yield_when_idle", line)

    def test_a_user_who_binds_ranks_is_not_overruled(self):
        self.assertIn(" --bind-to none ", dry_run("-np", 2, "--mpi-args", "--map-by slot", "sh"))
        for words in ("--map-by slot:PE=2", "--mca hwloc_base_binding_policy core", "-rf file"):
            self.assertNotIn("--bind-to", dry_run("-np", 2, "--mpi-args", words, "sh"))
        for name in ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy"):
            self.assertNotIn("--bind-to", dry_run("-np", 2, "sh", **{name: "core"}))

    def test_arguments_for_mpirun_may_be_one_word(self):
        for arguments in (["--mpi-args", "--oversubscribe"], ["--mpi-args=--oversubscribe"]):
            line = dry_run("-x", "PATH", "-np=2", *arguments, "--no-prefix", "sh")
            self.assertTrue(line.endswith(" -x PATH --oversubscribe sh"), line)
        line = dry_run("-np", 2, "--no-prefix", "sh", "--mpi-args", "--of-the-program")
        self.assertTrue(line.endswith(" sh --mpi-args --of-the-program"), line)

    def test_options_for_the_output_go_with_no_prefix(self):
        line = dry_run("-np", 2, "--no-prefix", "--mpi-args", "--tag-output --xml", "sh")
        self.assertTrue(line.endswith(" --tag-output --xml sh"), line)

    def test_more_ranks_than_slots_where_mpirun_is_told_so(self):
        arguments = ("-np", 4, "-H", "h1:2")
        for words in ("--oversubscribe", "-oversubscribe", "--map-by core:oversubscribe",
                      "--map-by core:OVERSUBSCRIBE:nolocal", "--mca rmaps_base_oversubscribe 1"):
            self.assertIn("-np 4 --host h1:2 ", dry_run(*arguments, "--mpi-args", words, "sh"))
        for variables in ({"OMPI_MCA_rmaps_base_oversubscribe": "1"},
                          {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}):
            self.assertIn("-np 4 --host h1:2 ", dry_run(*arguments, "sh", **variables))
        self.assertEqual(dry_run(*arguments, "sh", OMPI_MCA_rmaps_base_oversubscribe="0"), "")
        arguments += ("--mpi-args=--mca rmaps_base_oversubscribe 0", "sh")
        self.assertEqual(dry_run(*arguments), "")
        self.assertIn("--mpi-args --oversubscribe)", horonrun(*arguments).stderr)

    def test_as_many_ranks_as_hosts_take(self):
        self.assertIn("-np 4096 ", dry_run("-np", 4096, "sh"))
        self.assertIn("-np 9000000 ", dry_run("-np", 9000000, "-H", "h1:9000000", "sh"))
        self.assertIn("-np 9000000 ", dry_run("-np", 9000000, "sh", SLURM_JOB_ID="17"))


class Mistakes(unittest.TestCase):
    def check(self, expected, *arguments):
        told = horonrun(*arguments)
        self.assertEqual(told.returncode, 2, told.stderr)
        self.assertEqual(told.stdout, "")
        self.assertIn(expected, told.stderr)
        self.assertEqual(told.stderr.count("\n"), 1, told.stderr)

    def test_one_line_each(self):
        self.check("how many ranks? Give -np N", "sh")
        self.check("-np 0: give a number", "-np", 0, "sh")
        self.check("-np two: give a number", "-np", "two", "sh")
        self.check("which program?", "-np", 2)
        self.check("program no-such-program: not found", "-np", 2, "no-such-program")
        self.check("program ./none: not found", "-np", 2, "./none")
        self.check("-H h1:2,h2 has 3 slots, but -np wants 4", "-np", 4, "-H", "h1:2,h2", "sh")
        self.check("'h1:x' is not HOST", "-np", 1, "-H", "h1:x", "sh")
        self.check("'' is not HOST", "-np", 1, "-H", "h1,", "sh")
        self.check("-H or --hostfile, not both", "-np", 1, "-H", "a", "--hostfile", "b", "sh")
        self.check("--hostfile /none: No such file", "-np", 1, "--hostfile", "/none", "sh")
        self.check("no variable NOT_SET", "-np", 1, "-x", "NOT_SET", "sh")
        self.check("-x 1A=2: give NAME", "-np", 1, "-x", "1A=2", "sh")
        self.check("--mpi-args ': No closing quotation", "-np", 1, "--mpi-args", "'", "sh")
        self.check("an argument ':' can't be passed on", "-np", 1, "sh", "a", ":", "b")
        self.check("program \\xff: not found", "-np", 1, b"\xff")

    def test_empty_variable_in_the_place_of_hosts(self):
        self.check("-H: no hosts", "-np", 2, "-H", "", "sh")
        self.check("--hostfile: no file", "-np", 2, "--hostfile", "", "sh")
        self.check("-H or --hostfile, not both", "-np", 2, "--hostfile", "", "-H", "h1", "sh")

    def test_no_hostfile(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"\x7fELF\xff\n")
            file.flush()
            self.check(f"--hostfile {file.name}: it is not a text file", "-np", 2,
                       "--hostfile", file.name, "sh")
        for line, told in (("h2 slots=x", "'slots=x' is not slots=NUMBER"),
                           ("h2 slots = 2x", "'slots = 2x' is not slots=NUMBER"),
                           ("h2 slots=", "'slots=' is not slots=NUMBER"),
                           ("h2 slots=-1", "'slots=-1' is not slots=NUMBER"),
                           ("h2 slots=1 slots=2", "it gives slots twice"),
                           ("h2:2", "'h2:2' is for -H; in a file write 'h2 slots=2'"),
                           ("h2\r", "it ends as lines do in Windows")):
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(f"# all\nh1\n{line}\n")
                file.flush()
                self.check(f"--hostfile {file.name}, line 3: {told}",
                           "-np", 2, "--hostfile", file.name, "sh")

    def test_a_hostfile_that_can_be_read_only_once(self):
        """As a shell makes of `--hostfile <(...)`."""
        with tempfile.TemporaryDirectory() as folder:
            pipe = f"{folder}/hosts"
            os.mkfifo(pipe)
            self.check(f"--hostfile {pipe}: it is a pipe", "-np", 1, "--hostfile", pipe, "sh")
        self.check("--hostfile /: Is a directory", "-np", 1, "--hostfile", "/", "sh")

    def test_options_of_mpirun_that_would_spoil_the_output(self):
        for option in ("--output-filename", "-output-filename", "--tag-output", "-tag-output",
                       "--timestamp-output", "-timestamp-output", "--xml", "--xml-file",
                       "--merge-stderr-to-stdout", "--xterm"):
            self.check(f"--mpi-args {option}: it needs --no-prefix", "--dry-run", "-np", 2,
                       "--mpi-args", f"--map-by node {option} x", "sh")

    def test_far_too_many_ranks(self):
        self.check("-np 1000000000: ", "--dry-run", "-np", 1000000000, "sh")
        self.check("-H or --hostfile", "--dry-run", "-np", 1000000000, "sh")

    def test_program_is_no_program(self):
        with tempfile.NamedTemporaryFile() as file:
            self.check("it is not executable", "-np", 1, file.name)
        self.check("program /tmp: it is a folder", "-np", 1, "/tmp")
        at_bin = ("-np", 1, "--mpi-args", "--wdir /usr/bin")  # where mpirun looks for it
        self.assertTrue(dry_run(*at_bin, "./env").endswith("horonrun_rank ./env"))
        self.check("program ./none: not found in /usr/bin", *at_bin, "./none")

    def test_no_mpirun(self):
        told = horonrun("-np", 1, sys.executable, PATH="/nowhere")
        self.assertEqual(told.returncode, 2)
        self.assertIn("mpirun was not found", told.stderr)

    def with_mpirun(self, script, *arguments, **variables):
        with tempfile.TemporaryDirectory() as folder:
            (mpirun := pathlib.Path(folder, "mpirun")).write_text(script, encoding="utf-8")
            mpirun.chmod(0o755)
            return horonrun("-np", 1, "--no-prefix", *arguments, "sh", "-x", **variables,
                            PATH=f"{folder}:{CLEAN['PATH']}")

    def test_which_mpirun_it_is(self):
        told = self.with_mpirun("#!/bin/sh\necho HYDRA build details\n")
        self.assertEqual((told.returncode, "not Open MPI's" in told.stderr), (2, True), told.stderr)
        # An Open MPI that does not find its words.
        told = self.with_mpirun("#!/bin/sh\n[ $1 = --version ] || { echo started; exit; }\n"
                                "echo open /usr/lib/prrte3/help-schizo-ompi.txt: No such file\n")
        self.assertEqual((told.returncode, told.stdout), (0, "started\n"), told.stderr)

    def test_a_list_of_variables_that_mpirun_does_not_take_beside_x(self):
        """A site may set it for all users, and horonrun needs -x for its own variables."""
        name = "mca_base_env_list"
        variable, restarts = {f"OMPI_MCA_{name}": "A=1"}, ("--max-restarts", 1)
        words = ("--mpi-args", f"--mca {name} A=1")
        for version, arguments, variables, refused in (
                ("4.1.4", restarts, variable, f"OMPI_MCA_{name}"),
                ("4.1.4", ("-x", "B=1", *words), {}, name),
                ("4.1.4", (), variable, None), ("4.1.4", words, {}, None),
                ("4.1.4", restarts, {}, None), ("5.0.3", restarts, variable, None)):
            told = self.with_mpirun(f"#!/bin/sh\n[ $1 = --version ] || exit 0\n"
                                    f"echo 'mpirun (Open MPI) {version}'\n",
                                    *arguments, **variables)
            self.assertEqual((told.returncode, told.stderr), (0, "") if refused is None else (
                2, f"horonrun: {refused}: Open MPI 4 takes this setting or -x, not both, and "
                   "horonrun passes variables by -x: unset it, and give horonrun -x NAME[=VALUE] "
                   "for each variable\n"))


# A signal that comes while Open MPI's mpirun starts its processes ends mpirun alone. Behind
# MPI_Init() it has started them all.
RANK_IN_MPI = """
import ctypes, ctypes.util, os, pathlib, time
ctypes.CDLL(ctypes.util.find_library("mpi"), ctypes.RTLD_GLOBAL).MPI_Init(None, None)
pathlib.Path("{folder}", os.environ["OMPI_COMM_WORLD_RANK"]).write_text(str(os.getpid()))
time.sleep(60)
"""


class Jobs(unittest.TestCase):
    def test_variables_arrive(self):
        job = horonrun("-np", 2, "--timeline", "t", "-x", "A=b c", "sh", "-c",
                       'echo "$A,$HORON_LOG,$HORON_TIMELINE"', HORON_LOG="debug")
        self.assertEqual(sorted(job.stdout.split("\n")), ["", "[0] b c,debug,t", "[1] b c,debug,t"])

    def test_exit_code_is_that_of_the_first_failed_rank(self):
        # If mpirun waited for the other ranks, it would wait beyond the limit of the test.
        fail = "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then {}; fi; sleep 1000"
        self.assertEqual(horonrun("-np", 3, "sh", "-c", fail.format("exit 7")).returncode, 7)
        self.assertEqual(horonrun("-np", 3, "sh", "-c", fail.format("kill -9 $$")).returncode, 137)

    def stopped_by(self, number):
        """The exit code after a signal to horonrun; the ranks' processes must be gone."""
        with tempfile.TemporaryDirectory() as folder:
            script = RANK_IN_MPI.format(folder=folder)
            with subprocess.Popen([sys.executable, HORONRUN, "-np", "2",
                                   sys.executable, "-c", script],
                                  env=CLEAN, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT) as job:
                files = [pathlib.Path(folder, name) for name in "01"]
                while not all(file.exists() and file.read_text() for file in files):
                    self.assertIsNone(job.poll(), "the ranks did not start")
                    time.sleep(0.05)
                ranks = [int(file.read_text()) for file in files]
                job.send_signal(number)
                job.communicate()
            # A rank that lives on lives beyond the limit of the test.
            while any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks):
                time.sleep(0.05)
            return job.returncode

    def test_signals_end_the_job(self):
        self.assertEqual(self.stopped_by(signal.SIGINT), 130)
        self.assertEqual(self.stopped_by(signal.SIGTERM), 143)

    def test_what_nohup_ignores_ends_nothing(self):
        with subprocess.Popen(
                [sys.executable, HORONRUN, "-np", "2", "sh", "-c",
                 "echo begun; sleep 2; echo ended"],
                env=CLEAN, stdout=subprocess.PIPE, text=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as job:
            self.assertIn("begun", job.stdout.readline())
            job.send_signal(signal.SIGHUP)
            self.assertEqual(job.communicate()[0].count("ended"), 2)
            self.assertEqual(job.returncode, 0)

    def test_a_killed_front_leaves_no_job(self):
        self.assertEqual(self.stopped_by(signal.SIGKILL), -9)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    unittest.main()
