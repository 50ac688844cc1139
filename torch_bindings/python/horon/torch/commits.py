"""The files in which the states of an elastic job outlive it."""

import contextlib
import os
import threading
import warnings

import torch


class Commits:
    """The commits of one call of a function that elastic.run decorates, in a job that horonrun
    starts again if it fails. Any thread.

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
        self._call_has_ended = False

    def hosts_have_changed(self):
        """horonrun leaves this file."""
        return os.path.exists(self._sign_of_hosts)

    def read(self):
        """None: there is none."""
        try:
            # From an earlier start of this job: as trusted as the job itself.
            return torch.load(self.path, map_location="cpu", weights_only=False)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise RuntimeError(f"the commit in {self.path} can't be read ({error}); delete that "
                               "file to begin training anew") from error

    def write(self, content):
        """In the background, unless a later one comes first. The content must not change."""
        with self._changed:
            self._next = content
            if self._thread is None:
                # Not a daemon: the process does not end before the last one is written.
                thread = threading.Thread(target=self._serve)
                thread.start()
                self._thread = thread
        if self._call_has_ended:
            self._wait()

    def end_call(self):
        """Waits until the last one is written. From now on write() waits too: at the end of the
        process, pickle no longer finds the classes of a program under as_horovod."""
        self._call_has_ended = True
        self._wait()

    def _wait(self):
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)

    def _serve(self):
        try:
            while True:
                with self._changed:
                    if self._next is None:
                        self._end_thread()
                        return
                    content, self._next = self._next, None
                self._replace_file(content)
        except BaseException:  # raised by what shows warnings
            with self._changed:
                self._end_thread()
            raise

    def _end_thread(self):
        self._thread = None
        self._changed.notify_all()

    def _replace_file(self, content):
        unfinished = self.path + ".new"
        try:
            with open(unfinished, "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())  # else the new name may come to the disk before its bytes
            os.replace(unfinished, self.path)
        except BaseException as error:  # what can't be pickled, a full disk: the training goes on
            self.tell_unwritten(error)

    def tell_unwritten(self, error):
        with contextlib.suppress(Warning):  # where the program makes errors of warnings
            warnings.warn(f"a commit was not written to {self.path}: {error}; a restart would "
                          "begin with an earlier one")
