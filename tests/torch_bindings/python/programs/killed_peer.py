"""Two ranks, of which one is killed while the other waits for it. The other gets an error that
names the rank, and ends by itself.

usage: killed_peer.py FOLDER    an empty folder that both ranks see; gets each rank's exit code
"""

import os
import pathlib
import signal
import subprocess
import sys
import time


def stand_for(rank, folder):
    """mpirun ends a job as soon as a process that it has started dies. So it starts these, which
    start the ranks and stay until both have ended."""
    code = subprocess.run([sys.executable, __file__, folder, "rank"], check=False).returncode
    (folder / f"ended.{rank}").write_text(str(code))
    while len(list(folder.glob("ended.*"))) < 2:
        time.sleep(0.02)


def be_rank():
    import torch
    import horon.torch as hvd
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    kept = hvd.allreduce_async(torch.ones(100), name="in flight")
    try:
        hvd.allreduce(torch.ones(2), name="waits")
    except hvd.HorovodInternalError as error:
        assert error.code == "peer dead" and "rank 1" in str(error), error
        print("the error names the rank", flush=True)
    del kept  # the end finds it in flight


if sys.argv[2:] == ["rank"]:
    be_rank()
else:
    stand_for(int(os.environ["OMPI_COMM_WORLD_RANK"]), pathlib.Path(sys.argv[1]))
