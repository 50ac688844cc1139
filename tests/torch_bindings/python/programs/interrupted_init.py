"""Ctrl-C while init() waits for a rank that does not come: run on 2 ranks, with a folder."""

import ctypes
import ctypes.util
import os
import pathlib
import sys
import time

import horon.torch as hvd
from interruption import interrupted

told = pathlib.Path(sys.argv[1]) / "interrupted"
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "0":
    assert interrupted(hvd.init, (KeyboardInterrupt,))
    assert not hvd.is_initialized()
    print("[0] Ctrl-C is answered in init()", flush=True)
    told.touch()
else:  # init() meets in MPI, whose own start waits for all ranks
    ctypes.CDLL(ctypes.util.find_library("mpi"), ctypes.RTLD_GLOBAL).MPI_Init(None, None)
while not told.exists():
    time.sleep(0.05)
