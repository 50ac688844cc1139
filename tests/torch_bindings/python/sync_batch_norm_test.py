"""SyncBatchNorm among several process sets, and where ranks differ."""

import pytest
import torch

import horon.torch as hvd
from horon import native


def normalized(module, rank):
    """Of a batch whose statistics over all ranks are known: -1 and 1 on each."""
    module(torch.tensor([[-1.0, 1.0], [1.0, -1.0]]) * 2)
    return module.running_var.tolist()


def test_modules_of_a_process_set_are_not_counted_elsewhere(rank, size):
    some = hvd.add_process_set(range(max(size - 1, 1)))
    if some.included():
        for _ in range(2):
            normalized(hvd.SyncBatchNorm(2, process_set=some), rank)
    module = hvd.SyncBatchNorm(2)
    values = 2 * size
    expected = 0.9 + 0.1 * 4 * values / (values - 1)
    assert normalized(module, rank) == pytest.approx([expected] * 2)
    names = hvd.allgather_object(module._name)
    assert names == names[:1] * size
    hvd.remove_process_set(some)


def test_modules_are_counted_with_those_of_cpp(rank, size):
    if size == 1:
        pytest.skip("alone it needs no name")
    first, second = hvd.SyncBatchNorm(2), hvd.SyncBatchNorm(2)
    normalized(first, rank)
    between = native.name_called_object("sync_batch_norm", hvd.global_process_set.of_call())
    normalized(second, rank)
    numbers = [int(name.removeprefix("sync_batch_norm.noname."))
               for name in (first._name, between, second._name)]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]


def test_a_first_call_beside_a_rank_that_has_joined_is_named_anew_on_all(rank, size):
    module = hvd.SyncBatchNorm(2)
    if rank > 0:
        normalized(module, rank)
    hvd.join()
    other = hvd.SyncBatchNorm(2)
    for each in (other, module):
        normalized(each, rank)
        names = hvd.allgather_object(each._name)
        assert names == names[:1] * size
    assert size == 1 or other._name != module._name


@pytest.mark.parametrize("wrong, why", [(torch.ones(4, 5), r"shape \[4, 5\].*\[samples, 2, ...\]"),
                                        (torch.ones(4), r"shape \[4\]"),
                                        (torch.ones(4, 2, dtype=torch.long), "int64.*floating")])
def test_a_wrong_input_of_one_rank_is_told_to_all(wrong, why, rank, size):
    module = hvd.SyncBatchNorm(2)
    right = torch.tensor([[rank + 0.0, -1.0], [rank + 1.0, 1.0]])
    for _ in range(2):
        with pytest.raises(ValueError, match=f"SyncBatchNorm.*{why}"):
            module(wrong if rank == size - 1 else right)
    assert module.num_batches_tracked == 0
    expected = torch.nn.BatchNorm1d(2)(torch.cat([right - rank * torch.tensor([1.0, 0.0])
                                                  + r * torch.tensor([1.0, 0.0])
                                                  for r in range(size)]))
    torch.testing.assert_close(module(right), expected[2 * rank:2 * rank + 2])
    with pytest.raises(ValueError, match=f"SyncBatchNorm.*{why}"):
        module.eval()(wrong)
