#!/usr/bin/env python3
"""How long a collective takes that nobody waits for: Horon's background thread moves it alone.

    OMP_NUM_THREADS=1 PYTHONPATH=build/python mpirun -np 2 python bench/background_calls.py

Each rank begins an allreduce, sleeps, and asks now and then whether it has ended. The figure is the
median time on the slowest rank, in microseconds.
"""
import statistics
import time

import torch

import horon.torch as hvd

NAP_S = 30e-6  # the system makes 80 to 90 us of it
CALLS, WARMUP = 200, 40


def time_of_call(tensor, name):
    hvd.barrier()
    begin = time.perf_counter()
    handle = hvd.allreduce_async_(tensor, op=hvd.Max, name=name)
    while not hvd.poll(handle):
        time.sleep(NAP_S)
    passed = time.perf_counter() - begin
    hvd.synchronize(handle)
    return passed


def main():
    hvd.init()
    for size in (1 << 10, 64 << 10, 1 << 20):
        tensor = torch.ones(size // 4)
        seconds = [time_of_call(tensor, f"allreduce of {size} B") for _ in range(CALLS)]
        slowest = hvd.allreduce(torch.tensor(seconds[WARMUP:], dtype=torch.float64), op=hvd.Max)
        if hvd.rank() == 0:
            print(f"{size:9} B {1e6 * statistics.median(slowest.tolist()):10.1f} us")
    hvd.shutdown()


if __name__ == "__main__":
    main()
