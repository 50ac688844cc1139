"""What the ranks of a job write, on its way to horonrun's own output, and what is typed for rank 0.
"""

import contextlib
import itertools
import operator
import os
import re
import select
import signal
import threading
import time

from horonrun_ends import Notices

# A record of horonrun_rank, whose docstring explains it.
RECORD = re.compile(rb"\x1e([oeOEpfqgx])(\d{1,9}) (.*)", re.DOTALL)
END_OF_RANK = b"x"
# Open MPI 5 writes it behind the newline of what it says, so that the next line begins with it.
END_OF_NOTICE = b"\0"
STREAM_OF_RETURN = {b"p": b"o", b"f": b"e"}  # of a text that a carriage return ends
STREAM_OF_PROMPT = {b"q": b"o", b"g": b"e"}  # of one that is to be seen before it ends


class Screen:
    """Where one or both of the outputs are shown."""

    def __init__(self):
        self.lock = threading.RLock()  # a signal, or a loss, may have to be told while it is held
        self.unended = None  # (output, rank) of the prompt that was written last, with no line end


class Output:
    """Where lines go. What can't be written is lost, which is said once: the ranks go on."""

    def __init__(self, descriptor, name, screen=None):
        self.descriptor = descriptor
        self.name = name
        self.screen = screen or Screen()
        self.has_lost = False

    def write_lines(self, lines):
        """lines: (rank, text, its end); None as rank: write it without one; the end may be empty"""
        with self.screen.lock:
            self.write_all(b"".join(itertools.starmap(self.formatted, lines)))

    def formatted(self, rank, text, end):
        line = (self.name, rank)
        goes_on = rank is not None and line == self.screen.unended
        begin = b"" if goes_on or self.screen.unended is None else b"\n"
        self.screen.unended = None if end or rank is None else line
        return begin + (text if goes_on or rank is None else b"[%s] %s" % (rank, text)) + end

    def write_all(self, data):
        try:
            while data:
                try:
                    data = data[os.write(self.descriptor, data):]
                except BlockingIOError:  # another process has made it non-blocking
                    select.select([], [self.descriptor], [])
        except BrokenPipeError:
            pass  # the reader wants no more
        except OSError as error:
            if not self.has_lost:
                self.has_lost = True
                tell(f"output is being lost: can't write to {self.name}: {error.strerror}")


ERRORS = Output(2, "stderr")


def tell(text):
    ERRORS.write_lines([(None, os.fsencode(f"horonrun: {text}"), b"\n")])


def is_one_terminal(*descriptors):
    return (all(map(os.isatty, descriptors)) and
            len({os.fstat(each).st_rdev for each in descriptors}) == 1)


class LineCopy(threading.Thread):
    """Copies lines to an output. A record of horonrun_rank names its output itself."""

    def __init__(self, source, output, outputs, ends):
        super().__init__(daemon=True)
        self.source = source
        self.output = output
        self.outputs = outputs  # by the letter of a record
        self.ends = ends
        self.notices = Notices(ends)
        self.begun = {}  # the records of a line that goes on, by (stream, rank)
        self.reads = 0
        self.waits_for_the_reader = False

    def run(self):
        unfinished = b""
        while data := os.read(self.source, 1 << 16):
            *lines, unfinished = (unfinished + data).split(b"\n")
            unfinished = unfinished.lstrip(END_OF_NOTICE)
            self.write(itertools.chain.from_iterable(map(self.addressed, lines)))
            self.reads += 1
        self.write(self.of_mpirun(self.notices.rest()))
        if unfinished:
            self.write([(self.output, (None, unfinished, b""))])
        self.write([self.joined(stream, rank) for stream, rank in list(self.begun)])

    def addressed(self, line):
        """(output, the line for it) of all that can be shown now."""
        line = line.lstrip(END_OF_NOTICE)
        record = RECORD.fullmatch(line)
        if not record:
            return self.of_mpirun(self.notices.shown(line))
        letter, rank, text = record.groups()
        if letter == END_OF_RANK:
            return [] if self.ends.add(rank, text) else self.of_mpirun(
                self.notices.shown(line))
        stream = STREAM_OF_PROMPT.get(letter) or STREAM_OF_RETURN.get(letter, letter.lower())
        self.begun.setdefault((stream, rank), []).append(text)
        if letter.isupper():
            return []
        if letter in STREAM_OF_PROMPT:
            return [self.joined(stream, rank, b"")]
        return [self.joined(stream, rank, b"\n" if letter == stream else b"\r")]

    def of_mpirun(self, lines):
        return [(self.output, (None, line, b"\n")) for line in lines]

    def joined(self, stream, rank, end=b"\n"):
        text = b"".join(self.begun.pop((stream, rank)))
        self.ends.add_line(rank, stream, text)
        return self.outputs[stream], (rank, text, end)

    def write(self, addressed_lines):
        self.waits_for_the_reader = True
        for output, group in itertools.groupby(addressed_lines, key=operator.itemgetter(0)):
            output.write_lines([line for _, line in group])
        self.waits_for_the_reader = False

    def finish(self):
        """Waits for the end of the source, however slow the reader or this thread is; but not
        longer than 5 s in which the source has nothing: a process that a rank has started and left
        behind may keep the pipe open."""
        reads = -1
        while self.is_alive() and (self.waits_for_the_reader or self.reads > reads or
                                   select.select([self.source], [], [], 0)[0]):
            reads = self.reads
            self.join(timeout=5)


class Copies:
    """Copies what mpirun writes, and what the ranks of this host write into a pipe of their own:
    mpirun would leave behind the last lines of ranks that it kills."""

    def __init__(self, shows_prompts, ends):
        self.ends = ends
        self.pipe, self.ranks_end = os.pipe()
        name = f"/proc/{os.getpid()}/fd/{self.ranks_end}"
        self.environment = {"HORONRUN_PIPE": f"{name} {os.readlink(name)}"}
        if shows_prompts:
            self.environment["HORONRUN_PROMPTS"] = "".join(
                letter for letter, number in (("o", 1), ("e", 2)) if os.isatty(number))
        self.copies = []

    def start(self, job):
        out = Output(1, "stdout", ERRORS.screen if is_one_terminal(1, 2) else None)
        outputs = {b"o": out, b"e": ERRORS}
        for source, output in ((job.stdout.fileno(), out), (job.stderr.fileno(), ERRORS),
                               (self.pipe, ERRORS)):
            self.copies.append(LineCopy(source, output, outputs, self.ends))
            self.copies[-1].start()

    def finish(self, ranks_may_live):
        """Waits for the rest: of each source at most 2 s if ranks live on, which may write for
        ever."""
        os.close(self.ranks_end)
        for copy in self.copies:
            if ranks_may_live:
                copy.join(timeout=2)
            else:
                copy.finish()


class TerminalInput:
    """What is typed at the terminal of horonrun, for the mpirun that runs, and so for rank 0."""

    def __init__(self):
        self.lock = threading.Lock()
        self.receiver = None
        self.has_ended = False
        threading.Thread(target=self.copy, daemon=True).start()

    def go_to(self, receiver):
        """receiver: a pipe, which is closed at the end; None: what is typed goes nowhere"""
        with self.lock:
            self.close_receiver()
            self.receiver = receiver
            if self.has_ended:
                self.close_receiver()

    def close_receiver(self):
        if self.receiver is not None:
            with contextlib.suppress(OSError):
                self.receiver.close()
            self.receiver = None

    def copy(self):
        # While another job of the shell has the terminal, a read then fails instead of stopping
        # horonrun.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
        while True:
            try:
                data = os.read(0, 1 << 12)
            except OSError:
                if not os.isatty(0):
                    return
                time.sleep(0.2)
                continue
            with self.lock:
                if not data:  # Ctrl-D
                    self.has_ended = True
                    self.close_receiver()
                    return
                with contextlib.suppress(OSError, AttributeError):
                    self.receiver.write(data)
                    self.receiver.flush()
