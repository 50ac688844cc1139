"""How the ranks of a job have ended, told in few words if it has failed."""

import collections
import itertools
import os
import re
import signal
import threading

# mpirun frames what it says in lines of dashes.
FRAME = re.compile(rb"-{60,}")
NOTICE_LINES_MAX = 40
# The beginnings of the notices that Ends.takes() reads.
BEGIN_OF_NOTICE = re.compile(
    rb"Primary job +terminated normally, but|\S+ (noticed that process rank|"
    rb"detected that one or more processes|has exited due to process rank|"
    rb"has lost communication with a remote daemon)|Sorry! +You were supposed to get help about:")
# On Ubuntu 26.04 mpirun does not find the files of its texts: it says this and the text's name.
NAME_OF_WORDS = rb"You were supposed to get help about:\s+"
# What mpirun says when a rank has failed, with its number; and when it has ended the others.
FAILED_RANK = re.compile(rb"noticed that process rank (\d+) with PID|"
                         rb"The first process to do so was:\s+Process name: \[.*,(\d+)\]")
HAS_ABORTED = re.compile(rb"Primary job +terminated normally, but|" + NAME_OF_WORDS +
                         rb"prun:(non-zero-exit|proc-)")
WITHOUT_FINALIZE = re.compile(
    rb"has exited due to process rank (\d+) with PID \d+ on\s+node (\S+) exiting improperly")
# If a rank has been killed, Open MPI 5 makes others abort, and says this of one of them.
CALLED_ABORT = re.compile(
    rb'has exited due to process rank \d+ with PID \d+ on\s+node \S+ calling\s+"abort"|' +
    NAME_OF_WORDS + rb"prun:proc-")
# After that mpirun ends the job; Open MPI 5 with exit code 0, if no rank has failed before.
HAS_LOST_A_HOST = re.compile(rb"has lost communication with a remote daemon|" + NAME_OF_WORDS +
                             rb"errmgr-base:node-died")
# The signals with which mpirun ends the ranks that are left. If the rank that failed first has died
# of one of them, mpirun names it. A rank that first saves what it has, or is a shell, may exit with
# 128 plus the signal's number instead.
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGKILL)
END = re.compile(rb"([^\x1e]*) (\d{1,5})")  # host and wait status, in a record of horonrun_rank
# Lines that are no last words: what follows them, and what a program says when it begins.
NO_WORDS = re.compile(rb"\s*|frame #\d+: .*|Exception raised from .*\(most recent call first\):|"
                      rb"\[\S+:\d+\] .*|horon \[\d+\] info: .*", re.DOTALL)
BYTES_KEPT = 300  # of last words
KINDS_SHOWN = 4


class Ends:
    def __init__(self, keeps_notices):
        """keeps_notices: what mpirun says is shown, even if it is told here too"""
        self.keeps_notices = keeps_notices
        self.have_begun = threading.Event()  # since a rank has failed
        self.ended = {}  # (host, wait status) by rank, in the order of their ends
        self.last_words = {}  # by (rank as in a record, stream)
        self.notices = []  # that are shown if nothing is told here
        self.first = None  # the rank that has failed first, in mpirun's words
        self.without_finalize = {}  # the host by rank
        self.has_lost_a_host = False
        self.has_named_an_abort = False

    def add(self, rank, text):
        """text: of the record of horonrun_rank. Returns whether it is whole: on the way from
        another host it may be damaged."""
        end = END.fullmatch(text)
        if not end or not has_ended(int(end[2])):
            return False
        self.ended[int(rank)] = (os.fsdecode(end[1]), int(end[2]))
        self.have_begun.set()
        return True

    def add_line(self, rank, stream, text):
        text = text[:BYTES_KEPT]
        if not NO_WORDS.fullmatch(text):
            self.last_words[rank, stream] = text

    def takes(self, notice):
        """Learns how ranks ended. Returns whether the notice need not be shown at once."""
        if failed := FAILED_RANK.search(notice):
            self.first = int(failed[1] or failed[2])
        elif improper := WITHOUT_FINALIZE.search(notice):
            self.first = int(improper[1])
            self.without_finalize[self.first] = os.fsdecode(improper[2])
        elif CALLED_ABORT.search(notice):
            self.has_named_an_abort = True
        elif HAS_LOST_A_HOST.search(notice):
            self.has_lost_a_host = True
            return False
        elif not HAS_ABORTED.search(notice):
            return False
        if not self.keeps_notices:
            self.notices.append(notice)
        return not self.keeps_notices

    def told(self):
        """A line for each kind of end; none if nothing is known that mpirun does not say better."""
        failed = self.failed_ranks()
        if not failed or (self.first is not None and self.first not in failed):
            return []
        kinds = collections.defaultdict(list)
        for rank in failed:
            kinds[self.how(rank), self.words_of(rank)].append(rank)
        lines = [self.names(ranks) + " " + how + (f"; last words: {words}" if words else "")
                 for (how, words), ranks in itertools.islice(kinds.items(), KINDS_SHOWN)]
        more = list(itertools.chain.from_iterable(list(kinds.values())[KINDS_SHOWN:]))
        return lines + ([f"{self.names(more)} failed in other ways"] if more else [])

    def exit_code_of_job(self, code):
        """code: of mpirun"""
        knows_better = (code < 0 or (code == 0 and self.has_lost_a_host) or
                        (self.first is None and self.killed_ranks()))
        return (self.exit_code() or code or 1) if knows_better else code

    def exit_code(self):
        """That of the first rank that has failed; None if none is known."""
        for rank in self.failed_ranks():
            if rank in self.ended:
                code = os.waitstatus_to_exitcode(self.ended[rank][1])
                return code if code >= 0 else 128 - code
        return None

    def failed_ranks(self):
        """The first one first, and without those that mpirun has ended."""
        killed = self.killed_ranks()
        ranks = [rank for rank, (_, status) in list(self.ended.items())
                 if rank == self.first or rank in killed or
                 signal_of(status) not in ENDING_SIGNALS]
        ranks += [rank for rank in self.without_finalize if rank not in ranks]
        return sorted(ranks, key=lambda rank: (rank != self.first, rank not in killed))

    def killed_ranks(self):
        """Killed, but not by mpirun, which leaves no horonrun_rank that could tell of the end."""
        return [rank for rank, (_, status) in list(self.ended.items())
                if self.has_named_an_abort and status == signal.SIGKILL]

    def how(self, rank):
        if rank not in self.ended:
            return "ended with exit code 0, but without MPI_Finalize()"
        status = self.ended[rank][1]
        if not os.WIFSIGNALED(status):
            return f"ended with exit code {os.WEXITSTATUS(status)}"
        number = os.WTERMSIG(status)
        hint = ": by hand, or by the kernel for want of memory" if number == signal.SIGKILL else ""
        return f"died of signal {number} ({signal.strsignal(number)}{hint})"

    def words_of(self, rank):
        words = [self.last_words.get((b"%d" % rank, stream), b"") for stream in (b"e", b"o")]
        return os.fsdecode((words[0] or words[1]).strip())

    def names(self, ranks):
        hosts = collections.defaultdict(list)
        for rank in ranks:
            host = self.ended[rank][0] if rank in self.ended else self.without_finalize[rank]
            hosts[host].append(rank)
        return ", ".join(f"{as_ranges(of_host)} on {host}" for host, of_host in hosts.items())


def has_ended(status):
    return os.WIFEXITED(status) or (os.WIFSIGNALED(status) and os.WTERMSIG(status) < signal.NSIG)


def signal_of(status):
    """The signal that has ended a rank, or that its exit code stands for."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status) - 128


def as_ranges(ranks):
    """Such as "ranks 0-2, 5"."""
    ranges = []
    for rank in sorted(ranks):
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)


class Notices:
    """Finds mpirun's framed notices in the lines of one of its outputs. A line of dashes may stand
    alone, as in what ssh says: it is a frame only if a line with which a notice begins follows."""

    def __init__(self, ends):
        self.ends = ends
        self.begun = []  # lines of a notice that goes on

    def shown(self, line):
        """The lines that are to be shown now."""
        is_frame = FRAME.fullmatch(line)
        if len(self.begun) == 1 and not BEGIN_OF_NOTICE.match(line):
            return self.rest() + self.shown(line)
        if not self.begun and not is_frame:
            return [line]
        self.begun.append(line)
        if len(self.begun) == 1 or (not is_frame and len(self.begun) < NOTICE_LINES_MAX):
            return []
        lines = self.rest()
        return [] if is_frame and self.ends.takes(b"\n".join(lines)) else lines

    def rest(self):
        lines, self.begun = self.begun, []
        return lines
