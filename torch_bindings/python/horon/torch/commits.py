"""The files in which the states of an elastic job outlive it."""

import contextlib
import os
import threading
import warnings

import torch


class Commits:
    """Of one call of what elastic.run decorates, in a job that horonrun starts again if it fails.
    Any thread.

    A program may call such functions one after the other, with states that have nothing in common.
    So each call has its own file, by its number in this process: a start of the job makes the same
    calls as the one before.
    """

    _calls = 0  # that have begun

    @classmethod
    def of_next_call(cls):
        """None if horonrun would not start this job again."""
        job = os.environ.get("HORONRUN_COMMITS")
        if not job:
            return None
        call = cls._calls
        cls._calls += 1
        return cls(job, call, int(os.environ.get("HORONRUN_RESTART", "0")))

    def __init__(self, job, call, restart):
        self.path = f"{job}.{call}"  # horonrun knows this pattern
        self.call = call
        self.restart = restart  # how often the job was started before
        self.hosts_may_change = "HORONRUN_ELASTIC" in os.environ
        self._sign_of_hosts = job + ".hosts"
        self._changed = threading.Condition()
        self._next = None  # what is to be written
        self._thread = None  # while there is something to write

    def hosts_have_changed(self):
        """horonrun leaves this file."""
        return os.path.exists(self._sign_of_hosts)

    def read(self):
        """None: there is none."""
        try:
            # Of an earlier start of this job, which is trusted as it is itself.
            return torch.load(self.path, map_location="cpu", weights_only=False)
        except FileNotFoundError:
            return None

    def write(self, content):
        """In the background, if it is not overtaken by a later one. The content must not change."""
        with self._changed:
            self._next = content
            if self._thread is None:
                # Not a daemon: the process does not end before the last one is written.
                self._thread = threading.Thread(target=self._serve)
                self._thread.start()

    def flush(self):
        """Waits until the last one is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)

    def _serve(self):
        while True:
            with self._changed:
                if self._next is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
                content, self._next = self._next, None
            with contextlib.suppress(Warning):  # where the program makes errors of warnings
                self._replace_file(content)

    def _replace_file(self, content):
        unfinished = self.path + ".new"
        try:
            torch.save(content, unfinished)
            os.replace(unfinished, self.path)
        except Exception as error:  # what can't be pickled, a full disk: the training goes on
            warnings.warn(f"a commit was not written to {self.path}: {error}; a restart would "
                          "begin with an earlier one")
