"""Every test runs on all ranks; a rank that fails tells the others at the end of the test."""

import faulthandler
import os
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd

collect_ignore = ["programs", "programs_test.py", "process_group_programs_test.py",
                  "installed_module_test.py", "wheel_test.py"]


def pytest_configure(config):
    # Before ctest, which can only kill; on the real standard error, which pytest takes away later.
    faulthandler.dump_traceback_later(800, exit=True, file=os.dup(2))
    hvd.init()


@pytest.fixture(autouse=True)
def in_step():
    """Ranks leave a test together, so that one that has failed does not meet the next one's."""
    torch.manual_seed(1 + hvd.rank())
    np.random.seed(1 + hvd.rank())
    yield
    hvd.barrier()


@pytest.fixture
def rank():
    return hvd.rank()


@pytest.fixture
def size():
    return hvd.size()


@pytest.fixture
def set_timeout():
    """set_timeout(group, timeout)"""
    if not hasattr(dist.ProcessGroup, "set_timeout"):
        pytest.skip("this torch sets no timeout of a group")
    return dist.ProcessGroup.set_timeout


def pytest_terminal_summary(terminalreporter):
    """Says as gtest's main which functions have run and which not, for tests/tools/never_run.py."""
    if hvd.rank() != 0:
        return
    stats = terminalreporter.stats
    run = {report.nodeid.split("[")[0] for report in stats.get("passed", [])}
    reasons = {report.nodeid.split("[")[0]: report.longrepr[2].removeprefix("Skipped: ")
               for report in stats.get("skipped", [])}
    for function, reason in reasons.items():
        if function not in run:
            print(f"[  SKIPPED ] {function} (0 ms): {reason}")
    print("".join(f"[       OK ] {function} (0 ms)\n" for function in sorted(run)), end="")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    # The first failure ends the job, before the others wait for this rank.
    if report.failed:
        print(f"[rank {hvd.rank()}] {report.nodeid}\n{report.longreprtext}", file=sys.stderr,
              flush=True)
        os._exit(1)
