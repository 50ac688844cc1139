"""What horonrun starts, and starts again if it fails: on the hosts that are there then."""

import argparse
import contextlib
import glob
import os
import re
import secrets
import subprocess
import tempfile
import threading
import time

from horonrun_line import UsageError, host_and_slots, rank_count

SECONDS_BEFORE_A_RESTART = 1
SECONDS_BETWEEN_QUESTIONS = 1
SECONDS_BETWEEN_LOOKS = 5  # at the hosts of a job that runs
EXIT_CODE_OF_NEW_HOSTS = 75  # of ranks that have committed, and found sign_of_hosts
SECONDS_OF_A_SCRIPT = 60
SECONDS_UNTIL_A_SIGNAL_COUNTS = 0.2  # while the script runs
RESTARTS_OF_ELASTIC_JOBS = 3
ELASTIC_OPTIONS = {"min_ranks": "--min-np", "max_ranks": "--max-np",
                   "slots_per_host": "--slots-per-host", "elastic_timeout": "--elastic-timeout"}


class Plan:
    """How often a job may be started, with how many ranks, and where."""

    def __init__(self, options):
        self.options = options
        self.script = options.host_discovery_script
        default = 0 if self.script is None else RESTARTS_OF_ELASTIC_JOBS
        self.restarts_max = number("--max-restarts", options.max_restarts, default, least=0)
        self.slots_per_host = number("--slots-per-host", options.slots_per_host, 1)
        self.timeout_s = number("--elastic-timeout", options.elastic_timeout, 600, least=0)
        self.check_commits()
        self.commits = os.path.join(os.path.abspath(options.commits or "."),
                                    f"horonrun-{secrets.token_hex(4)}.pt")
        self.sign_of_hosts = self.commits + ".hosts"  # that other hosts are there
        ranks = rank_count(options.ranks)
        self.ranks_min = number("--min-np", options.min_ranks, ranks)
        self.ranks_max = number("--max-np", options.max_ranks, ranks)
        self.check(ranks)

    def check_commits(self):
        folder = self.options.commits
        if folder is None:
            return
        if self.options.max_restarts is None and self.script is None:
            raise UsageError("--commits needs --max-restarts or --host-discovery-script: nothing "
                             "is kept of a job that is not started again")
        if not os.path.isdir(folder):
            raise UsageError(f"--commits {folder}: there is no such folder")
        try:  # while the job runs, it is too late to give another folder
            tempfile.NamedTemporaryFile(dir=folder, prefix="horonrun-").close()
        except OSError as error:
            raise UsageError(f"--commits {folder}: no file can be made there: "
                             f"{error.strerror}") from error

    def check(self, ranks):
        if self.script is None:
            for name, option in ELASTIC_OPTIONS.items():
                if getattr(self.options, name) is not None:
                    raise UsageError(f"{option} needs --host-discovery-script, which says how "
                                     "many ranks there may be")
            return
        if self.options.hosts is not None or self.options.hostfile is not None:
            raise UsageError("give --host-discovery-script, or -H or --hostfile, not both")
        if not self.ranks_min <= ranks <= self.ranks_max:
            raise UsageError(f"-np {ranks} is not between --min-np {self.ranks_min} and "
                             f"--max-np {self.ranks_max}")
        if os.path.isdir(self.script) or not os.access(self.script, os.X_OK):
            raise UsageError(f"--host-discovery-script {self.script}: not an executable program")

    def of_attempt(self, attempt, hosts):
        """The options of one start. `hosts`: what the script has said, else None."""
        options = argparse.Namespace(**vars(self.options))
        options.variables = list(options.variables)
        if self.restarts_max > 0 or self.script is not None:
            options.variables += [f"HORONRUN_RESTART={attempt}", f"HORONRUN_COMMITS={self.commits}"]
        if hosts is not None:
            options.variables.append("HORONRUN_ELASTIC=1")
            options.hosts = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
            options.ranks = str(self.ranks_on(hosts))
        return options

    def ranks_on(self, hosts):
        return min(self.ranks_max, sum(hosts.values()))

    def ranks_of_hosts(self, hosts):
        """How many ranks each host gets. Hosts are filled one after the other."""
        left = self.ranks_on(hosts)
        result = {}
        for host, slots in hosts.items():
            result[host] = min(slots, left)
            left -= result[host]
        return result

    def ended_for_new_hosts(self, code):
        return code == EXIT_CODE_OF_NEW_HOSTS and os.path.exists(self.sign_of_hosts)

    def clear(self):
        """Removes the files of a start of the job that the next start does not need."""
        unlink([self.sign_of_hosts, *self.files_of_commits("[0-9]*.new")])

    def files_of_commits(self, pattern="*[0-9]"):
        """One file for each state that the job keeps, in the order of numbers, the latest last."""
        names = glob.glob(f"{glob.escape(self.commits)}.{pattern}")
        return sorted(names, key=lambda name: (len(name), name))

    def hosts_of(self, text):
        """The slots by host."""
        hosts = {}
        for line in filter(None, (line.strip() for line in text.splitlines())):
            host, slots = host_and_slots(line)
            hosts[host] = slots or self.slots_per_host
        return hosts


def unlink(paths):
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def number(option, text, default, least=1):
    if text is None:
        return default
    if not re.fullmatch("0|[1-9][0-9]{0,8}", text) or int(text) < least:
        raise UsageError(f"{option} {text}: give a number, {least} or more")
    return int(text)


def outputs_of(script, stopped):
    """(exit code, standard output, standard error). Raises TimeoutExpired also if `stopped()`."""
    deadline = time.monotonic() + SECONDS_OF_A_SCRIPT
    # Standard input belongs to rank 0.
    with subprocess.Popen([script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as asked:
        while True:
            try:
                out, errors = asked.communicate(timeout=SECONDS_UNTIL_A_SIGNAL_COUNTS)
                return asked.returncode, out, errors
            except subprocess.TimeoutExpired as error:
                if stopped() or time.monotonic() > deadline:
                    asked.kill()
                    raise subprocess.TimeoutExpired(script, SECONDS_OF_A_SCRIPT) from error


class HostDiscovery:
    """Asks the script until it gives slots enough. What is wrong is told once."""

    def __init__(self, plan, tell):
        self.plan = plan
        self.tell = tell
        self.told = None

    def hosts(self, stopped):
        """None: `stopped()` has become true, or the time is over."""
        deadline = time.monotonic() + self.plan.timeout_s
        while not stopped():
            hosts, trouble = self.ask(stopped)
            if not trouble:
                return hosts
            if stopped():
                break
            if trouble != self.told:
                self.told = trouble
                self.tell(f"{trouble}; waiting for hosts")
            if time.monotonic() >= deadline:
                self.tell(f"the job is not started: {trouble} after {self.plan.timeout_s} s, "
                          "--elastic-timeout")
                return None
            wait(SECONDS_BETWEEN_QUESTIONS, stopped)
        return None

    def ask_once(self):
        hosts, trouble = self.ask()
        if trouble:
            raise UsageError(trouble)
        return hosts

    def ask(self, stopped=lambda: False):
        """(hosts, what is wrong)"""
        try:
            code, out, errors = outputs_of(os.path.abspath(self.plan.script), stopped)
            if code != 0:
                reason = errors.strip() or f"it ended with code {code}"
                return None, f"{self.plan.script}: {reason}"
            hosts = self.plan.hosts_of(out)
        except (OSError, ValueError, subprocess.SubprocessError, UsageError) as error:
            return None, f"{self.plan.script}: {error}"
        slots = sum(hosts.values())
        if slots < self.plan.ranks_min:
            return None, (f"{self.plan.script} gives {slots} slots, but {self.plan.ranks_min} "
                          "ranks are the minimum (--min-np)")
        return hosts, None


class HostWatch(threading.Thread):
    """While a job runs: leaves a sign if the job could have more ranks, or if a host is no longer
    there. The ranks look for the sign when they commit."""

    def __init__(self, discovery, hosts, stopped):
        super().__init__(daemon=True)
        self.discovery = discovery
        self.hosts = hosts  # of the job
        self.stopped = stopped  # whether the job will not be started again
        self.is_over = threading.Event()

    def run(self):
        sign = self.discovery.plan.sign_of_hosts
        told = None
        while not self.is_over.wait(SECONDS_BETWEEN_LOOKS):
            hosts, trouble = self.discovery.ask()
            if self.stopped():
                return
            if trouble or self.is_over.is_set() or not self.is_better_on(hosts):
                continue
            try:
                open(sign, "w", encoding="utf-8").close()
            except OSError as error:  # the disk may have room later
                if error.strerror != told:
                    told = error.strerror
                    self.discovery.tell(
                        f"the hosts have changed, but {sign} can't be written: {told}")
                continue
            self.discovery.tell(
                "the hosts have changed: a job of horon.torch.elastic is started again on the new "
                "ones when it commits its state; others use them after a failure")
            return

    def is_better_on(self, hosts):
        plan = self.discovery.plan
        loses_ranks = any(hosts.get(host, 0) < ranks
                          for host, ranks in plan.ranks_of_hosts(self.hosts).items())
        return loses_ranks or plan.ranks_on(hosts) > plan.ranks_on(self.hosts)


def wait(seconds, stopped):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped():
        time.sleep(0.05)
