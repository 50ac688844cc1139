"""Ctrl-C while a call waits."""

import os
import signal
import threading


def interrupted(call, errors=(KeyboardInterrupt, RuntimeError)):
    """Whether Ctrl-C ends the call by one of the errors; the signal comes while it waits."""
    # Late enough for the call to have begun, of which the other ranks take part; and more than
    # one, since the wait may begin later still.
    done = threading.Event()

    def press():
        pause = 3
        while not done.wait(pause):
            os.kill(os.getpid(), signal.SIGINT)
            pause = 3
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
