"""Fails while its last commit, with an object of this program, is still to be written. The next
start tells what it has found.

usage: python -m horon.as_horovod fails_behind_commits.py
"""

import os
import time

import horovod.torch as hvd


class Book:
    def __init__(self):
        self.pages = 0

    def __getstate__(self):
        time.sleep(0.2)  # so commits come faster than they are written
        return {"pages": self.pages}


@hvd.elastic.run
def write(state):
    if os.environ["HORONRUN_RESTART"] == "1":
        print(f"found {state.book.pages} pages", flush=True)
        return
    for _ in range(3):
        state.book.pages += 1
        state.commit()
    raise RuntimeError("as it should")


hvd.init()
write(hvd.elastic.ObjectState(book=Book()))
