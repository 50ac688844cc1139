"""A rank starts a process that runs this file again, and init() in it."""

import multiprocessing

import horon.torch as hvd

hvd.init()
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    print(f"[{hvd.rank()}] the process has ended with {process.exitcode}", flush=True)
