"""Rank 1 ends. Rank 0 saves for longer than HORON_SHUTDOWN_TIMEOUT_S, with no collective.

usage: busy_at_the_end.py FOLDER
"""

import pathlib
import sys
import time

import torch

import horon.torch as hvd

hvd.init()
hvd.allreduce(torch.ones(3), name="x")
folder = pathlib.Path(sys.argv[1])
if hvd.rank() == 0:
    while not (folder / "ends").exists():
        time.sleep(0.02)
    time.sleep(6)
    (folder / "saved").touch()
else:
    (folder / "ends").touch()
