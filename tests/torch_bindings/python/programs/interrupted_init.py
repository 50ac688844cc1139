"""Ctrl-C while init() waits for a rank that does not come: run on 2 ranks, with a folder."""

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
while not told.exists():
    time.sleep(0.05)
