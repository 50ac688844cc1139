"""Ctrl-C while a call waits."""

import os
import signal
import threading


def interrupted(call, errors=(KeyboardInterrupt, RuntimeError)):
    """Whether Ctrl-C ends the call by one of the errors; the signal comes while it waits."""
    # More than one: the first may come before the wait has begun.
    done = threading.Event()

    def press():
        while not done.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        call()
    except errors:
        return True
    finally:
        while True:
            try:
                done.set()
                presser.join()
                break
            except KeyboardInterrupt:
                pass
    return False
