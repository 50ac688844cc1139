"""A signal comes while a call of a group waits to begin, since too many of its calls are under way.

  handler   its handler calls a collective of the group, which is refused, and of another one
  behind    the same while this thread's call stands behind that of another thread
  ctrlc     Ctrl-C ends a call that stands behind such a one of another thread
"""

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import horon.torch as hvd


def many_calls():
    return [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(40)]


def handler():
    other = dist.new_group(range(dist.get_world_size()), backend="horon")
    told = []

    def on_signal(*_):
        try:
            dist.all_reduce(torch.ones(2))
        except Exception as error:
            told.append(str(error))
        dist.all_reduce(torch.ones(2), group=other)

    if dist.get_rank() == 0:
        signal.signal(signal.SIGUSR1, on_signal)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        works = many_calls()
        assert len(told) == 1 and "signal handler" in told[0], told
    else:
        dist.all_reduce(torch.ones(2), group=other)  # when the handler comes
        works = many_calls()
    for work in works:
        work.wait()


def behind():
    told = []

    def on_signal(*_):
        try:
            dist.all_reduce(torch.ones(2), async_op=True)
        except Exception as error:
            told.append(str(error))

    if dist.get_rank() == 0:
        signal.signal(signal.SIGUSR1, on_signal)
        works = []
        thread = threading.Thread(target=lambda: works.extend(many_calls()))
        thread.start()
        time.sleep(0.5)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        dist.all_reduce(torch.ones(3))  # among those of the thread
        thread.join()
        assert len(told) == 1 and "signal handler" in told[0], told
    else:
        time.sleep(2)
        works = many_calls()
        dist.all_reduce(torch.ones(3))
    for work in works:
        work.wait()


def ctrlc():
    if dist.get_rank() != 0:
        time.sleep(3)
        works = many_calls()
    else:
        begun = []
        thread = threading.Thread(target=lambda: begun.extend(many_calls()))
        thread.start()
        time.sleep(0.5)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(2))
            raise AssertionError("the call has begun")
        except KeyboardInterrupt:
            assert thread.is_alive(), f"only after {time.monotonic() - began} s"
        thread.join()
        works = begun
    for work in works:
        work.wait()


hvd.init()
dist.init_process_group("horon")
{"handler": handler, "behind": behind, "ctrlc": ctrlc}[sys.argv[1]]()
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.barrier()
if dist.get_rank() == 0:
    print("as it should be", flush=True)
dist.destroy_process_group()
