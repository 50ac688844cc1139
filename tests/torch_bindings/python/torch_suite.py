#!/usr/bin/env python3
"""Runs PyTorch's own tests of torch.distributed, which lie in its wheel, over the backend "horon":

    tests/support/mpirun_test 3 python tests/torch_bindings/python/torch_suite.py

Arguments are names of tests; without any, all are run. They know the backends by name, so "horon"
poses as "gloo", and then as "mpi" for what they ask of that one alone. The tests that Horon does
not pass on purpose are left out, and the end says why. Most of the others that are left out need
several GPUs. Needs expecttest beside torch.
"""

import collections
import faulthandler
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import unittest

import torch.distributed as dist
from torch.testing._internal import common_distributed
from torch.testing._internal.common_utils import TestCase

import horon.torch as hvd

OTHER_ON_PURPOSE = {
    "test_ddp_logging_data_cpu": "torch logs each backend that it does not know as \"custom\"",
    "test_get_backend": "wants the name of another backend",
    "test_monitored_barrier": "wants the words of Gloo's errors",
}
if sys.version_info >= (3, 14):
    OTHER_ON_PURPOSE["test_gather_object"] = "wants the error of an older Python's pickle"
SECONDS_OF_A_TEST = 120


def tests_for(pose):
    """The tests as that backend has them: their decorators ask for its name once."""
    os.environ["BACKEND"] = pose
    dist.is_mpi_available = lambda: True
    where = importlib.util.find_spec("torch.testing._internal.distributed.distributed_test").origin
    spec = importlib.util.spec_from_file_location("distributed_test_as_" + pose, where)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for known in (module.PROFILING_SUPPORTED_BACKENDS,
                  module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        known.append("horon")

    class Tests(TestCase, module.DistributedTest._DistTestBase):
        rank = hvd.rank()
        world_size = hvd.size()
        init_method = "env://"

        def setUp(self):
            super().setUp()
            # The tests' own barrier, which is in files, begins anew with each test.
            if hvd.rank() == 0:
                module.Barrier.init()
            module.Barrier.barrier_id = 0
            dist.barrier()

    return Tests


def groups_are_of_horon():
    """Where the tests ask for the backend as which it poses."""
    new_group = dist.new_group

    def new_group_of_horon(ranks=None, timeout=None, backend=None, **options):
        return new_group(ranks, timeout, None if backend in ("gloo", "mpi") else backend, **options)

    dist.new_group = new_group_of_horon


def make_environment():
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
    os.environ.update(TEMP_DIR=folder, WORLD_SIZE=str(hvd.size()), RANK=str(hvd.rank()),
                      INIT_METHOD="env://")
    if hvd.rank() == 0:
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(folder, name))
    hvd.barrier()


def outcome_of(test):
    """("passed", ""), ("skipped", why) or ("failed", traceback)."""
    result = unittest.TestResult()
    test.run(result)
    for _, text in result.errors + result.failures:
        # How the tests of PyTorch skip what is not there, in a process of their own.
        skipped = re.search(r"SystemExit: (\d+)\s*$", text)
        if not skipped:
            return "failed", text
        reasons = [each.message for each in common_distributed.TEST_SKIPS.values()
                   if each.exit_code == int(skipped[1])]
        return "skipped", reasons[0] if reasons else skipped[0]
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def reason_of(name):
    return next((why for begin, why in OTHER_ON_PURPOSE.items() if name.startswith(begin)), None)


def run(wanted):
    passed, skipped = set(), {}
    for pose in ("gloo", "mpi"):
        tests = tests_for(pose)
        for name in unittest.TestLoader().getTestCaseNames(tests):
            if name in passed or (wanted and name not in wanted):
                continue
            if reason_of(name):
                skipped[name] = "other on purpose: " + reason_of(name)
                continue
            faulthandler.dump_traceback_later(SECONDS_OF_A_TEST, exit=True)
            kind, text = outcome_of(tests(name))
            if kind == "failed":
                print(f"[rank {hvd.rank()}] {name} as {pose}\n{text}", file=sys.stderr, flush=True)
                os._exit(1)  # the others would wait for this rank
            if kind == "passed":
                passed.add(name)
                skipped.pop(name, None)
            else:
                skipped.setdefault(name, text)
            dist.barrier()
    faulthandler.cancel_dump_traceback_later()
    return passed, skipped


def main():
    dist.init_process_group("horon")
    make_environment()
    groups_are_of_horon()
    passed, skipped = run(sys.argv[1:])
    if hvd.rank() == 0:
        shutil.rmtree(os.environ["TEMP_DIR"])
        for why, count in collections.Counter(skipped.values()).most_common():
            print(f"{count:4} left out: {why}")
        print(f"{len(passed):4} passed on {hvd.size()} ranks")
    dist.destroy_process_group()
    sys.exit(0 if passed else "no test has run")


if __name__ == "__main__":
    main()
