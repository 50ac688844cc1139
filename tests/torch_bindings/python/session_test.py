"""Ranks, what this build can do, and the timeline."""

import json

import pytest
import torch

import horon.torch as hvd
from horon import native
from horon.torch import basics, process_sets


def test_ranks(rank, size):
    hvd.init()  # a second call does nothing
    assert hvd.is_initialized() and 0 <= rank < size
    assert hvd.local_size() == size and hvd.local_rank() == rank
    assert hvd.cross_size() == 1 and hvd.cross_rank() == 0 and hvd.is_homogeneous()
    assert hvd.allgather_object(rank) == list(range(size))


@pytest.mark.skipif(torch.cuda.is_available(), reason="programs/on_devices.py asks for the GPU")
def test_the_device_without_gpus():
    assert hvd.device() == torch.device("cpu")
    assert hvd.device(process_set=hvd.global_process_set) == torch.device("cpu")
    with pytest.raises(ValueError, match="has not been added"):
        hvd.device(hvd.ProcessSet([0]))


def test_process_sets_of_a_second_call(rank, size):
    """After init_process_group("horon"), say, which makes the first one."""
    own = hvd.ProcessSet([size - 1])
    for _ in range(2):
        hvd.init(process_sets=[own, [0, size - 1], range(size - 1)])
    assert own.included() == (rank == size - 1)
    made = [each for each in process_sets._of_session
            if each.ranks in ([0, size - 1], list(range(size - 1)))]
    assert len(made) == 2
    for each in [own, *made]:
        if each.included():
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=each).item() == each.size()
    for each in [own, *made]:
        assert hvd.remove_process_set(each)


def test_a_list_of_all_ranks_is_no_communicator(monkeypatch):
    """Its number is what the launcher says; mpi4py is not needed then."""
    for name in (*basics._COUNTS, "PMIX_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert basics._communicator([0]) == (0, None) and not basics._are_all([0, 1])
    monkeypatch.setenv("PMIX_RANK", "0")
    assert not basics._are_all([0])  # of a launcher that does not tell
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    assert basics._communicator([0, 1, 2]) == (0, None) and not basics._are_all([0, 1])


def test_a_barrier_with_a_time_limit_goes_on(rank, size):
    """A rank for which the time was over, and that comes again, meets those that come once."""
    if size == 1:
        pytest.skip("alone it waits for nobody")
    for others_come_first in (False, True):
        if rank == 0:
            with pytest.raises(hvd.HorovodInternalError, match="have come to the barrier"):
                native.barrier_within(0.01)
        hvd.barrier()
        if others_come_first and rank == 0:
            hvd.barrier()
        native.barrier_within(60)
        if others_come_first and rank != 0:
            hvd.barrier()
        native.barrier_within(60)


def test_what_this_build_can_do():
    assert hvd.mpi_built() and hvd.mpi_enabled() and hvd.mpi_threads_supported()
    assert not any([hvd.gloo_built(), hvd.gloo_enabled(), hvd.ddl_built(), hvd.ccl_built(),
                    hvd.rocm_built()])
    assert isinstance(hvd.nccl_built(), int) and isinstance(hvd.cuda_built(), bool)


def test_the_timeline_begins_and_ends_while_the_job_runs(rank, tmp_path):
    def reduce(name):
        hvd.allreduce(torch.ones(3), name=name)

    def names(file):
        events = json.loads((tmp_path / f"{file}.rank{rank}.json").read_text())["traceEvents"]
        return {each["name"] for each in events if each["ph"] == "X"}

    model = torch.nn.Linear(2, 2)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def train():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    hvd.stop_timeline()  # there is none
    reduce("before")
    train()
    hvd.start_timeline(tmp_path / "first", mark_cycles=True)
    reduce("in the first")
    train()
    hvd.barrier()
    hvd.start_timeline(str(tmp_path / "second"))
    reduce("in the second")
    hvd.barrier()
    hvd.stop_timeline()
    reduce("after")
    assert names("first") >= {"allreduce.in the first", "backward", "synchronize"}
    assert names("second") >= {"allreduce.in the second"} and "backward" not in names("second")
    assert not any("before" in each or "after" in each or "second" in each
                   for each in names("first"))
    with pytest.raises(ValueError, match="can't write"):
        hvd.start_timeline(tmp_path / "no" / "folder")
