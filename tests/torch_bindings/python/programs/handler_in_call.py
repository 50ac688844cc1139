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


UNDER_WAY = 32  # so many calls of a group begin before the first has ended


def many_calls(works):
    """More than may be under way, if the other rank calls nothing."""
    for _ in range(UNDER_WAY + 8):
        works.append(dist.all_reduce(torch.ones(3), async_op=True))


def wait_until_one_waits_to_begin(works):
    while len(works) < UNDER_WAY:
        time.sleep(0.01)
    time.sleep(2)  # the next one is called, then


def send_when_one_waits_to_begin(signal_number, works):
    def send():
        wait_until_one_waits_to_begin(works)
        os.kill(os.getpid(), signal_number)
    threading.Thread(target=send).start()


def handler():
    other = dist.new_group(range(dist.get_world_size()), backend="horon")
    told = []

    def on_signal(*_):
        try:
            dist.all_reduce(torch.ones(2))
        except Exception as error:
            told.append(str(error))
        dist.all_reduce(torch.ones(2), group=other)

    works = []
    if dist.get_rank() == 0:
        signal.signal(signal.SIGUSR1, on_signal)
        send_when_one_waits_to_begin(signal.SIGUSR1, works)
        many_calls(works)
        assert len(told) == 1 and "signal handler" in told[0], told
    else:
        dist.all_reduce(torch.ones(2), group=other)  # when the handler comes
        many_calls(works)
    for work in works:
        work.wait()


def behind():
    other = dist.new_group(range(dist.get_world_size()), backend="horon")
    told = []

    def on_signal(*_):
        try:
            dist.all_reduce(torch.ones(2), async_op=True)
        except Exception as error:
            told.append(str(error))
        dist.all_reduce(torch.ones(2), group=other)

    works = []
    if dist.get_rank() == 0:
        signal.signal(signal.SIGUSR1, on_signal)
        thread = threading.Thread(target=many_calls, args=(works,))
        thread.start()
        wait_until_one_waits_to_begin(works)
        threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        dist.all_reduce(torch.ones(3))  # among those of the thread
        thread.join()
        assert len(told) == 1 and "signal handler" in told[0], told
    else:
        dist.all_reduce(torch.ones(2), group=other)  # when the handler comes
        many_calls(works)
        dist.all_reduce(torch.ones(3))
    for work in works:
        work.wait()


def ctrlc():
    other = dist.new_group(range(dist.get_world_size()), backend="horon")
    works = []
    if dist.get_rank() != 0:
        dist.all_reduce(torch.ones(2), group=other)  # when Ctrl-C has come
        many_calls(works)
    else:
        thread = threading.Thread(target=many_calls, args=(works,))
        thread.start()
        wait_until_one_waits_to_begin(works)
        began = time.monotonic()
        try:
            threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            dist.all_reduce(torch.ones(2))
            raise AssertionError("the call has begun")
        except KeyboardInterrupt:
            assert thread.is_alive(), f"only after {time.monotonic() - began} s"
        dist.all_reduce(torch.ones(2), group=other)
        thread.join()
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
