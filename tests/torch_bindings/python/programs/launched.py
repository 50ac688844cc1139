"""A program without a launcher, which runs functions on ranks by horovod.run().

usage: python -m horon.as_horovod launched.py
"""

import atexit
import os
import threading

import horovod

base = 100  # goes with the function


def sum_of_ranks(factor, offset=0):
    import horovod.torch as hvd
    import torch
    print("printed by a rank", end="", flush=True)  # no whole line
    total = hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum, name="total")
    return base + factor * int(total) + offset + hvd.rank(), os.environ.get("GIVEN")


def fails_on_the_last_rank():
    import horovod.torch as hvd
    import torch
    if hvd.rank() == hvd.size() - 1:
        raise KeyError("as it should")
    hvd.allreduce(torch.zeros(3))  # the last one does not come


def shuts_down():
    import horovod.torch as hvd
    rank = hvd.rank()
    hvd.shutdown()
    return "x" * (rank * 1_000_000)


def prints_meanwhile():
    import horovod.torch as hvd
    import time

    over = threading.Event()

    def chatter():
        while not over.is_set():
            print("chatter of a rank", flush=True)
            time.sleep(0.001)
    if hvd.rank() > 0:
        thread = threading.Thread(target=chatter, daemon=True)
        thread.start()
        # Python ends by abort() where a thread that it ends holds the lock of stdout.
        atexit.register(lambda: (over.set(), thread.join()))
    return os.urandom(2_000_000)


def cores_of_a_rank():
    return sorted(os.sched_getaffinity(0))


def error_of(*args, **options):
    try:
        horovod.run(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


if __name__ == "__main__":
    assert horovod.runner.run is horovod.run
    # One more than there are cores, if there are few.
    assert horovod.run(cores_of_a_rank, np=min(os.cpu_count(), 4) + 1) == (
        [cores_of_a_rank()] * (min(os.cpu_count(), 4) + 1))
    found = horovod.run(sum_of_ranks, args=(10,), kwargs={"offset": 1}, np=3,
                        mpi_args="--oversubscribe --bind-to none", env={"GIVEN": "value"})
    assert found == [(131, "value"), (132, "value"), (133, "value")], found
    lengths = [len(each) for each in horovod.run(shuts_down, np=2, mpi_args=["--nooversubscribe"])]
    assert lengths == [0, 1_000_000], lengths
    found = horovod.run(prints_meanwhile, np=2, hosts="localhost:2")
    assert [len(each) for each in found] == [2_000_000] * 2
    error = error_of(fails_on_the_last_rank, np=2)
    assert error.startswith("RuntimeError: the function did not return on all of 2 ranks"), error
    assert error_of(shuts_down, np=0).startswith("ValueError: np is 0")
    assert "min_np" in error_of(shuts_down, min_np=1)
    assert "use_gloo" in error_of(shuts_down, use_gloo=True)
    unpicklable = error_of(lambda: threading.Lock(), np=1)
    assert unpicklable.startswith("RuntimeError"), unpicklable
    print("all as it should be", horovod.__version__)
