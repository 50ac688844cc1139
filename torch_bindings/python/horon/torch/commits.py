"""The file in which the states of an elastic job outlive it."""

import atexit
import contextlib
import os
import threading
import warnings

import torch


class Commits:
    """Of a job that horonrun starts again if it fails. Any thread."""

    _the_one = None

    @classmethod
    def of_job(cls):
        """None if horonrun would not start this job again."""
        path = os.environ.get("HORONRUN_COMMITS")
        if cls._the_one is None and path:
            cls._the_one = cls(path, int(os.environ.get("HORONRUN_RESTART", "0")))
        return cls._the_one

    def __init__(self, path, restart):
        self.path = path
        self.restart = restart  # how often the job was started before
        self.hosts_may_change = "HORONRUN_ELASTIC" in os.environ
        self._changed = threading.Condition()
        self._next = None  # what is to be written
        self._is_writing = False
        self._thread = None

    def hosts_have_changed(self):
        """horonrun leaves this file."""
        return os.path.exists(self.path + ".hosts")

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
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
                atexit.register(self.flush)

    def flush(self):
        """Waits until the last one is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is None and not self._is_writing)

    def _serve(self):
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._next is not None)
                content, self._next = self._next, None
                self._is_writing = True
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
