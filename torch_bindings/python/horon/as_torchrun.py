"""Runs a program for torchrun under mpirun or srun, over Horon:

    mpirun -np 4 python -m horon.as_torchrun train.py       in the place of: torchrun train.py

The variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, ...) come from MPI; so do
MASTER_ADDR and MASTER_PORT, if rank 0 has none. "horon" takes the place of "gloo" wherever the
program asks for it or for no backend.
"""

import functools
import os
import sys

from horon.as_horovod import run_program


def install():
    """In this process, from now on. Collective over all ranks: starts Horon."""
    from horon import process_group
    process_group.start_mpi()
    os.environ.update(_variables())
    process_group.name_master()
    from torch.distributed import distributed_c10d
    begin, new_group = distributed_c10d.init_process_group, distributed_c10d.new_group
    _replace(begin, _with_backend(begin, 0, default=_default_backend()))
    _replace(new_group, _with_backend(new_group, 2, default=None))  # that of the default group


def _variables():
    from horon import native
    size, local_size = native.size(), native.local_size()
    variables = {"RANK": native.rank(), "WORLD_SIZE": size, "LOCAL_RANK": native.local_rank(),
                 "LOCAL_WORLD_SIZE": local_size, "GROUP_RANK": native.cross_rank(),
                 "GROUP_WORLD_SIZE": native.cross_size(), "ROLE_RANK": native.rank(),
                 "ROLE_WORLD_SIZE": size, "ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "none",
                 "TORCHELASTIC_RESTART_COUNT": os.environ.get("HORONRUN_RESTART", "0"),
                 "TORCHELASTIC_MAX_RESTARTS": 0}
    return {name: str(value) for name, value in variables.items()}


def _default_backend():
    import torch
    return "cpu:horon,cuda:nccl" if torch.cuda.is_available() else "horon"


def _replace(function, other):
    """Replaces the function wherever torch has it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("torch.") and (
                getattr(module, function.__name__, None) is function):
            setattr(module, function.__name__, other)


def _with_backend(function, place, default):
    """`place` and `default`: of the argument "backend"."""
    def here(backend):
        return default if backend is None else backend_here(backend)

    @functools.wraps(function)
    def over_horon(*arguments, **named):
        if len(arguments) > place:
            arguments = (*arguments[:place], here(arguments[place]), *arguments[place + 1:])
        else:
            named["backend"] = here(named.get("backend"))
        return function(*arguments, **named)
    return over_horon


def backend_here(backend):
    """"gloo", or "cpu:gloo,cuda:nccl", with Horon in the place of Gloo."""
    parts = [each.rpartition(":") for each in str(backend).lower().split(",")]
    return ",".join(device + colon + ("horon" if name == "gloo" else name)
                    for device, colon, name in parts)


if __name__ == "__main__":
    run_program("horon.as_torchrun", install)
