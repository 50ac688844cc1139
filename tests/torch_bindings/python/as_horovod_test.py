"""What is said of Horovod's variables; as_horovod itself is run by programs_test.py."""

import pathlib
import re
import subprocess
import sys

import pytest

from horon import as_horovod, errors

CONFIG = pathlib.Path(__file__).resolve().parents[3] / "core/base/config.cc"


def test_variables_that_have_no_effect_are_named():
    text = as_horovod.without_effect({
        "PATH": "/bin", "HOROVOD_TIMELINE": "t.json", "HOROVOD_FUSION_THRESHOLD": "1024",
        "HOROVOD_CYCLE_TIME": "1"})
    assert text == (
        "horon.as_horovod: these variables have no effect here: HOROVOD_CYCLE_TIME (no "
        "counterpart), HOROVOD_FUSION_THRESHOLD (set HORON_FUSION_BYTES, and for gradients "
        "HORON_BUCKET_BYTES), HOROVOD_TIMELINE (set HORON_TIMELINE)")


def test_nothing_is_said_without_need():
    assert as_horovod.without_effect({"PATH": "/bin", "HORON_TIMELINE": "t.json"}) is None
    # Set here too; and set by Horovod's launcher, or for its build.
    assert as_horovod.without_effect({
        "HOROVOD_TIMELINE": "t.json", "HORON_TIMELINE": "t.json", "HOROVOD_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_GLOO_IFACE": "lo", "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_NCCL_HOME": "/usr"}) is None


def test_rank_0_alone_speaks():
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        assert as_horovod.without_effect({name: "1", "HOROVOD_TIMELINE": "t"}) is None
        assert as_horovod.without_effect({name: "0", "HOROVOD_TIMELINE": "t"}) is not None
    # mpirun in a job of Slurm's; there may be a number of the batch script's own.
    assert as_horovod.without_effect({"OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0",
                                      "HOROVOD_TIMELINE": "t"}) is None


def test_what_takes_their_place_exists():
    knobs = set(re.findall("\"(HORON_[A-Z_]+)\"", CONFIG.read_text()))
    for here in as_horovod._HERE.values():
        assert set(re.findall("HORON_[A-Z_]+", here)) <= knobs


IMPORTS = """
import importlib.util
from horon import as_horovod
as_horovod.install()
as_horovod.install()
import horovod.torch
from horovod.common.exceptions import HorovodVersionMismatchError
from horovod.common.util import is_iterable, split_list
for name in ("tensorflow", "keras", "tensorflow.keras", "spark", "spark.run", "ray", "mxnet"):
    try:
        __import__("horovod." + name)
    except ModuleNotFoundError as error:
        assert "Horon has horovod.torch, but nothing for TensorFlow" in str(error), error
        assert error.name.startswith("horovod.")
    else:
        raise AssertionError(name)
assert importlib.util.find_spec("horovod.torch") is not None
"""


def test_packages_that_are_not_there(rank):
    if rank == 0:
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)


def test_common_util():
    assert as_horovod._split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert as_horovod._split_list([1], 2) == [[1], []]
    assert as_horovod._is_iterable("a") and not as_horovod._is_iterable(3)
    with pytest.raises(ImportError):
        raise errors.HorovodVersionMismatchError("torch")
