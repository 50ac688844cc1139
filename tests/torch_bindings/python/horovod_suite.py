#!/usr/bin/env python3
"""Runs Horovod's own tests of PyTorch over Horon. They are not part of this repository:

    git clone https://github.com/horovod/horovod
    tests/support/mpirun_test 2 python tests/torch_bindings/python/horovod_suite.py \\
        horovod/test/parallel/test_torch.py

Further arguments go to pytest. Needs pytest, cloudpickle and numpy beside torch. The tests that
Horon does not pass on purpose are left out, and the end says why.
"""

import os
import sys
import threading
import types
import unittest.mock

import pytest
import torch

import horon.torch as hvd
from horon import as_horovod

OTHER_ON_PURPOSE = {
    "test_horovod_join_allgather": "wants an error of allgather after join(); here it goes on",
    "test_horovod_join_broadcast": "wants an error of broadcast after join(); here it goes on",
    "test_broadcast_state_no_grad": "wants the zero gradients that Horovod's false step leaves "
                                    "behind; here broadcast_optimizer_state() takes no step",
}


def in_thread(target, args=()):
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


def prepare():
    """What the tests import of Horovod beside horovod.torch."""
    os.environ.setdefault("HORON_CHECK_REPLICAS", "0")  # some train models that ranks begin apart
    as_horovod.install()
    for name in ("horovod.runner", "horovod.runner.util", "horovod.runner.util.threads"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["horovod.runner.util.threads"].in_thread = in_thread
    sys.modules.setdefault("mock", unittest.mock)
    # The tests make each optimizer of torch.optim for a model with biases; Muon takes none.
    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "newer than the tests"


class OnAllRanks:
    """Leaves out the tests that Horon does not pass on purpose; keeps the ranks in step, so that a
    failure on one of them does not become one of the next test on the others."""

    def pytest_collection_modifyitems(self, items):
        for item in items:
            name = item.originalname or item.name
            if name in OTHER_ON_PURPOSE:
                item.add_marker(pytest.mark.skip(reason="other on purpose: "
                                                 + OTHER_ON_PURPOSE[name]))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(f"[rank {hvd.rank()}] {report.nodeid}\n{report.longreprtext}", file=sys.stderr,
                  flush=True)
            os._exit(1)  # the others would wait for this rank


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    prepare()
    hvd.init()
    verbose = ["-q", "-rs"] if hvd.rank() == 0 else ["-q", "--no-summary", "--no-header"]
    if hvd.rank() != 0:
        sys.stdout = open(os.devnull, "w")
    code = pytest.main(["-p", "no:cacheprovider", *verbose, *sys.argv[1:]], [OnAllRanks()])
    sys.exit(max(hvd.allgather_object(int(code))))


if __name__ == "__main__":
    main()
