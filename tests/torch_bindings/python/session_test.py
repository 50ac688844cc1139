"""Ranks, and what this build can do."""

import horon.torch as hvd


def test_ranks(rank, size):
    hvd.init()  # a second call does nothing
    assert hvd.is_initialized() and 0 <= rank < size
    assert hvd.local_size() == size and hvd.local_rank() == rank
    assert hvd.cross_size() == 1 and hvd.cross_rank() == 0 and hvd.is_homogeneous()
    assert hvd.allgather_object(rank) == list(range(size))


def test_what_this_build_can_do():
    assert hvd.mpi_built() and hvd.mpi_enabled() and hvd.mpi_threads_supported()
    assert not any([hvd.gloo_built(), hvd.gloo_enabled(), hvd.ddl_built(), hvd.ccl_built(),
                    hvd.rocm_built()])
    assert isinstance(hvd.nccl_built(), int) and isinstance(hvd.cuda_built(), bool)
