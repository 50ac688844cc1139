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
if hvd.rank() == 0:
    time.sleep(2.5)
    pathlib.Path(sys.argv[1], "saved").touch()
