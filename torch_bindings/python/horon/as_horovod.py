"""Runs a program that imports horovod.torch, unchanged:

    mpirun -np 4 python -m horon.as_horovod train.py --epochs 3
    mpirun -np 4 python -m horon.as_horovod -m package.train --epochs 3
"""

import importlib.abc
import importlib.machinery
import os
import pathlib
import re
import runpy
import sys
import types

_FOR_CHILDREN = str(pathlib.Path(__file__).parent / "for_children")

# Horon's counterparts of Horovod's variables; other variables have none.
_HERE = {
    "AUTOTUNE": "HORON_AUTOTUNE",
    "AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "HORON_AUTOTUNE_SAMPLES",
    "AUTOTUNE_LOG": "HORON_AUTOTUNE_LOG",
    "AUTOTUNE_STEPS_PER_SAMPLE": "HORON_AUTOTUNE_STEPS",
    "FUSION_THRESHOLD": "HORON_FUSION_BYTES, and for gradients HORON_BUCKET_BYTES",
    "HIERARCHICAL_ALLREDUCE": "HORON_ALLREDUCE",
    "LOG_LEVEL": "HORON_LOG",
    "STALL_CHECK_DISABLE": "HORON_STALL_WARN_S=0",
    "STALL_CHECK_TIME_SECONDS": "HORON_STALL_WARN_S",
    "STALL_SHUTDOWN_TIME_SECONDS": "HORON_STALL_ABORT_S",
    "TIMELINE": "HORON_TIMELINE",
}
# Set by Horovod's launcher, or read when Horovod is built.
_NOT_OF_USERS = re.compile("(RANK|SIZE|HOSTNAME|CONTROLLER|CPU_OPERATIONS)|"
                           "(LOCAL|CROSS|GLOO|GPU|WITH|WITHOUT|BUILD)_.*|(CUDA|NCCL|ROCM)_(HOME|"
                           "INCLUDE|LIB|LINK)")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")  # before init()


def install():
    """From now on `import horovod.torch` gives horon.torch, in this process and in those that it
    starts by multiprocessing."""
    import horon.torch
    from horon import data_loaders, errors, launch
    from horon.torch import (
        basics, collectives, compression, derivatives, elastic, optimizer, process_sets, state,
        sync_batch_norm)

    calls = _joined("horovod.torch.mpi_ops", basics, process_sets, collectives, derivatives,
                    errors)
    util = _module("horovod.common.util")
    for name in ("mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built"):
        setattr(util, name, getattr(basics, name))
    util.gpu_available = _gpu_available
    util.num_rank_is_power_2 = _num_rank_is_power_2
    util.is_iterable = _is_iterable
    util.split_list = _split_list
    top = _module("horovod", is_package=True)
    top.run = launch.run
    top.__version__ = "0.28.1"  # whose calls these are
    runner = _module("horovod.runner", is_package=True)
    runner.run = launch.run
    modules = {
        "horovod": top,
        "horovod.common": _module("horovod.common", is_package=True),
        "horovod.common.elastic": elastic,
        "horovod.common.exceptions": errors,
        "horovod.common.process_sets": process_sets,
        "horovod.common.util": util,
        "horovod.data": _module("horovod.data", is_package=True),
        "horovod.data.data_loader_base": data_loaders,
        "horovod.runner": runner,
        "horovod.torch": horon.torch,
        "horovod.torch.compression": compression,
        "horovod.torch.elastic": elastic,
        "horovod.torch.elastic.sampler": elastic,
        "horovod.torch.elastic.state": elastic,
        "horovod.torch.functions": state,
        "horovod.torch.mpi_ops": calls,
        "horovod.torch.optimizer": optimizer,
        "horovod.torch.sync_batch_norm": sync_batch_norm,
    }
    sys.modules.update(modules)
    if not any(isinstance(each, _NotHere) for each in sys.meta_path):
        sys.meta_path.insert(0, _NotHere())
    if _FOR_CHILDREN not in sys.path:
        sys.path.insert(0, _FOR_CHILDREN)
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent and not hasattr(modules[parent], last):
            setattr(modules[parent], last, module)


class _NotHere(importlib.abc.MetaPathFinder):
    """Fails the import of Horovod's other packages, and says what there is."""

    def find_spec(self, fullname, path, target=None):
        if fullname.startswith("horovod."):
            raise ModuleNotFoundError(f"No module named {fullname!r}: Horon has horovod.torch, but "
                                      "nothing for TensorFlow, Keras, MXNet, Spark or Ray",
                                      name=fullname)


def _gpu_available(ext_base_name, verbose=False):
    """ext_base_name: "torch" is there, other frameworks are not."""
    import torch
    return ext_base_name == "torch" and torch.cuda.is_available()


def _num_rank_is_power_2(num_rank):
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def _is_iterable(x):
    try:
        iter(x)
    except TypeError:
        return False
    return True


def _split_list(l, n):
    """n parts, whose lengths differ by one at most."""
    each, more = divmod(len(l), n)
    ends = [(i + 1) * each + min(i + 1, more) for i in range(n)]
    return [l[begin:end] for begin, end in zip([0, *ends], ends)]


def _module(name, is_package=False):
    """A module without a file, with the spec that importlib.util.find_spec() asks for."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=is_package)
    if is_package:
        module.__path__ = []
    return module


def _joined(name, *parts):
    module = _module(name)
    for part in parts:
        for each, value in vars(part).items():
            if not each.startswith("_"):
                setattr(module, each, value)
    return module


def without_effect(environment):
    """On rank 0, a warning about variables of Horovod's that users have set; else None."""
    if next((environment[name] for name in _RANKS if name in environment), "0") != "0":
        return None
    found = []
    for name in sorted(environment):
        knob = name.removeprefix("HOROVOD_")
        if knob == name or _NOT_OF_USERS.fullmatch(knob):
            continue
        here = _HERE.get(knob, "")
        if not any(each in environment for each in re.findall("HORON_[A-Z_]+", here)):
            found.append(f"{name} (set {here})" if here else f"{name} (no counterpart)")
    if not found:
        return None
    return f"horon.as_horovod: these variables have no effect here: {', '.join(found)}"


def run_program(name, prepare):
    """Calls prepare(), then runs the program that the command line names, as Python does.
    `name`: of the module that was started, for its usage."""
    arguments = sys.argv[1:]
    by_name = arguments[:1] == ["-m"]
    if by_name:
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(f"usage: python -m {name} [-m] PROGRAM [ARGUMENT...]")
    started_in = sys.path[0]  # which [python -m] has put there, but not with -P
    prepare()
    sys.argv = arguments
    if by_name:
        sys.path.insert(0, "")
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        if not getattr(sys.flags, "safe_path", False):
            sys.path.remove(started_in)
            sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


def _prepare():
    if (text := without_effect(os.environ)) is not None:
        print(text, file=sys.stderr, flush=True)
    install()


if __name__ == "__main__":
    run_program("horon.as_horovod", _prepare)
