"""broadcast_optimizer_state() where the optimizers of the ranks differ."""

import pytest
import torch

import horon.torch as hvd


def parameters(*shapes):
    return [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]


def state_of(optimizer):
    return [each["momentum_buffer"].tolist() for each in optimizer.state.values()]


def sgd(groups, gradients=()):
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    if gradients:
        optimizer.step()
    return optimizer


def groups_of_one(first, second):
    return [{"params": [first]}, {"params": [second]}]


DIFFERENT = {
    "groups": (lambda: sgd(parameters(2, 2)), lambda: sgd(groups_of_one(*parameters(2, 2))),
               "parameter group 0 of rank 0 differs.*2 parameters.*1 parameters"),
    "order": (lambda: sgd(parameters((3, 2), (2, 3))), lambda: sgd(parameters((2, 3), (3, 2))),
              r"parameter 0 of group 0.*\[3, 2\].*\[2, 3\]"),
    "dtype": (lambda: sgd(parameters(2)),
              lambda: sgd([torch.nn.Parameter(torch.ones(2, dtype=torch.float64))]),
              "parameter 0 of group 0.*float32.*float64"),
    "class": (lambda: sgd(parameters(2)), lambda: torch.optim.Adam(parameters(2)),
              "the class of rank 0 differs.*SGD on rank 0.*Adam on rank"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_optimizers_that_differ_are_the_error_of_all(what, rank, size):
    if size == 1:
        pytest.skip("nobody to differ from")
    of_first, of_others, text = DIFFERENT[what]
    optimizer = of_first() if rank == 0 else of_others()
    if rank == 0:
        optimizer.step()
    for root in (0, size - 1):
        with pytest.raises(hvd.HorovodInternalError, match=text):
            hvd.broadcast_optimizer_state(optimizer, root)
    assert len(optimizer.state) == (sum(len(group["params"]) for group in optimizer.param_groups)
                                    if rank == 0 else 0), "nothing was written"


def test_parameters_of_one_shape_in_another_order_differ_by_name(rank, size):
    if size == 1:
        pytest.skip("nobody to differ from")
    named = list(zip("ab", parameters(2, 2)))
    order = named if rank == 0 else named[::-1]
    optimizer = hvd.DistributedOptimizer(sgd([each for _, each in order]), named)
    with pytest.raises(hvd.HorovodInternalError,
                       match='parameter 0 of group 0.*"a" torch.float32.*"b" torch.float32'):
        hvd.broadcast_optimizer_state(optimizer, 0)


def test_a_wrapped_optimizer_is_of_the_class_that_it_was(rank, size):
    weights = parameters(2)
    optimizer = sgd(weights)
    if rank == 0:
        optimizer.step()
    optimizer = hvd.DistributedOptimizer(optimizer)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert state_of(optimizer) == [[1.0, 1.0]]


def test_a_rank_that_can_not_load_is_the_error_of_all(rank, size):
    class Refuses(torch.optim.SGD):
        def load_state_dict(self, state_dict):
            if rank == size - 1:
                raise KeyError("no place")
            super().load_state_dict(state_dict)
    if size == 1:
        pytest.skip("the root loads nothing")
    with pytest.raises(hvd.HorovodInternalError,
                       match=f"rank {size - 1}.*load_state_dict.*no place") as raised:
        hvd.broadcast_optimizer_state(Refuses(parameters(2), lr=0.1), 0)
    assert isinstance(raised.value.__cause__, KeyError) == (rank == size - 1)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size


def test_an_optimizer_that_is_wrapped_on_the_ranks_of_a_set(rank, size):
    some = hvd.add_process_set([0])
    (weight,) = parameters(2)
    optimizer = sgd([weight])
    if rank == 0:
        optimizer.step()
    if some.included():
        optimizer = hvd.DistributedOptimizer(optimizer, [("weight", weight)], process_set=some)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert state_of(optimizer) == [[1.0, 1.0]]
    del optimizer
    assert hvd.remove_process_set(some)


def test_a_state_that_can_not_travel_leaves_no_name_in_use(rank, size):
    optimizer = sgd(parameters(2, 3, 4), gradients=True)
    first, *_ = optimizer.param_groups[0]["params"]
    if rank == 0:
        optimizer.state[first]["momentum_buffer"] = torch.eye(2).to_sparse()
    for _ in range(2):
        with pytest.raises(ValueError, match="optimizer_state.0.*layout Sparse"):
            hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer.state[first]["momentum_buffer"] = torch.full((2,), float(rank))
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.state[first]["momentum_buffer"].tolist() == [0.0] * 2
