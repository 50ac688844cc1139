"""Two ranks, of which one is killed while the other waits for it. The other gets an error that
names the rank, and ends by itself.

usage: killed_peer.py API FOLDER    horovod or process_group; an empty folder that both ranks see,
which gets each rank's exit code
"""

import os
import pathlib
import signal
import subprocess
import sys
import time


def stand_for(rank, api, folder):
    """mpirun ends a job as soon as a process that it has started dies. So it starts these, which
    start the ranks and stay until both have ended."""
    code = subprocess.run([sys.executable, __file__, api, folder, "rank"], check=False).returncode
    written = folder / f"code.{rank}"
    written.write_text(str(code))
    written.rename(folder / f"ended.{rank}")  # whole, for those who wait for it
    while len(list(folder.glob("ended.*"))) < 2:
        time.sleep(0.02)


def die_when(path):
    """A call that begins after the death is refused at once, so rank 0 says when its calls run."""
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def be_rank(folder):
    import torch
    import horon.torch as hvd
    hvd.init()
    hvd.barrier()
    in_flight = folder / "in_flight"
    if hvd.rank() == 1:
        die_when(in_flight)
    kept = hvd.allreduce_async(torch.ones(100), name="in flight")
    in_flight.touch()
    try:
        hvd.allreduce(torch.ones(2), name="waits")
    except hvd.HorovodInternalError as error:
        assert error.code == "peer dead" and "rank 1" in str(error), error
        print("the error names the rank", flush=True)
    del kept  # the end finds it in flight


def be_rank_of_a_process_group(folder):
    import torch
    import torch.distributed as dist
    dist.init_process_group("horon")
    dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    in_flight = folder / "in_flight"
    if dist.get_rank() == 1:
        die_when(in_flight)
    kept = [dist.all_reduce(torch.ones(100), async_op=True), dist.irecv(torch.ones(1), 1)]
    in_flight.touch()
    for call in (lambda: dist.all_reduce(torch.ones(2)), kept[1].wait,
                 lambda: model(torch.ones(1, 2)).sum().backward()):
        try:
            call()
        except RuntimeError as error:
            assert "rank 1" in str(error) and "has died" in str(error), error
        else:
            raise AssertionError("a call without rank 1 is an error")
    print("the error names the rank", flush=True)


if sys.argv[3:] == ["rank"]:
    be = be_rank if sys.argv[1] == "horovod" else be_rank_of_a_process_group
    be(pathlib.Path(sys.argv[2]))
else:
    stand_for(int(os.environ["OMPI_COMM_WORLD_RANK"]), sys.argv[1], pathlib.Path(sys.argv[2]))
