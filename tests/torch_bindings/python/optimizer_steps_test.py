"""step() behind synchronize(), and behind a step that was left out."""

import contextlib
import math

import pytest
import torch

import horon.torch as hvd


@pytest.mark.parametrize("zeroed_by", ["optimizer", "model", "nobody"])
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_behind_a_step_that_was_left_out_are_reduced(rank, size, passes, zeroed_by):
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                         model.named_parameters(),
                                         backward_passes_per_step=passes)
    for _ in range(passes):
        model(torch.full((1, 1), rank + 1.0)).sum().backward()
    optimizer.synchronize()
    reduced = model.weight.grad.item()
    if zeroed_by != "nobody":
        {"optimizer": optimizer, "model": model}[zeroed_by].zero_grad()
    with optimizer.no_sync() if passes == 1 else contextlib.nullcontext():
        model(torch.full((1, 1), rank + 1.0)).sum().backward()
    with pytest.warns(UserWarning, match="are reduced again") if zeroed_by != "optimizer" else (
            contextlib.nullcontext()):
        optimizer.step()
    mean = (size + 1) / 2  # of the one backward()
    expected = mean if zeroed_by != "nobody" else mean + reduced
    assert model.weight.grad.item() == pytest.approx(expected)


@pytest.mark.parametrize("changed", ["nothing", "in place", "assigned"])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_a_step_behind_synchronize_reduces_what_is_there(rank, size, op, changed):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0), op=op)
    (weight.sum() * (rank + 1)).backward()
    optimizer.synchronize()
    own = weight.grad[0].item()
    with torch.no_grad():
        if changed == "in place":
            weight.grad.fill_(rank + 10.0)
        if changed == "assigned":
            weight.grad = torch.full((2,), rank + 10.0)
    of_all = [own] * size if changed == "nothing" else [r + 10.0 for r in range(size)]
    with pytest.warns(UserWarning, match="are reduced again"):
        optimizer.step()
    expected = sum(of_all) / (1 if op == hvd.Sum else size)
    assert weight.grad.tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_what_one_rank_has_added_behind_synchronize_leaves_the_ranks_equal(rank, size, op):
    weight = torch.nn.Parameter(torch.ones(2))
    other = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, other], lr=0.0), op=op)
    (weight.sum() + other.sum()).backward()
    optimizer.synchronize()
    own = weight.grad[0].item()  # 1, or the sum
    with optimizer.no_sync():
        (weight.sum() * 3 + other.sum() if rank == 0 else other.sum()).backward()
    with pytest.warns(UserWarning, match="are reduced again"):
        optimizer.step()
    of_all = [own + 3] + [own] * (size - 1)
    expected = sum(of_all) / (1 if op == hvd.Sum else size)
    assert weight.grad.tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_a_step_behind_synchronize_reduces_sparse_gradients_too(rank, size, op):
    torch.manual_seed(1)
    rows = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(rows.parameters(), lr=0.0), op=op)
    rows(torch.tensor([1, 3])).sum().backward()
    optimizer.synchronize()
    with torch.no_grad():
        rows.weight.grad._values().fill_(rank + 10.0)
    with pytest.warns(UserWarning, match="are reduced again"):
        optimizer.step()
    expected = sum(r + 10.0 for r in range(size)) / (1 if op == hvd.Sum else size)
    got = rows.weight.grad.to_dense()
    assert got[1].tolist() == got[3].tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize("number", [0, 2])
def test_groups_of_what_has_two_names_or_no_gradient(number, rank, size):
    tied, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    frozen = [torch.nn.Parameter(torch.ones(2).to(dtype), requires_grad=False)
              for dtype in (torch.int8, torch.float8_e4m3fn)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([tied, other, *frozen], lr=1.0),
        [("a", tied), ("b", tied), ("c", other), *zip("de", frozen)],
        groups=number or [[tied, other, *frozen]])
    ((tied + other).sum() * rank).backward()
    optimizer.step()
    assert tied.tolist() == other.tolist() == [1 - (size - 1) / 2] * 2
    assert size == 1 or optimizer.reduction_statistics()["buckets"] == (number or 1)


@pytest.mark.parametrize("op, of_all", [(hvd.Max, max), (hvd.Min, min),
                                        (hvd.Product, math.prod)])
def test_gradients_are_reduced_by_each_op(rank, size, op, of_all):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=op)
    (weight * (rank + 1)).sum().backward()
    optimizer.step()
    assert weight.item() == 1 - of_all(range(1, size + 1))
    with pytest.raises(ValueError, match="needs op Average or Sum"):  # its gradients stay sparse
        hvd.DistributedOptimizer(torch.optim.SparseAdam([torch.nn.Parameter(torch.ones(1))]), op=op)


def test_a_parameter_that_no_rank_has_used_in_a_step_stays(rank, size):
    weight, extra = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight, extra], lr=0.1, momentum=0.9, weight_decay=0.1),
        [("weight", weight), ("extra", extra)])
    (weight + extra).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    before = [weight.tolist(), extra.tolist()]
    (weight.sum() * (rank + 1)).backward()
    optimizer.step()
    assert extra.tolist() == before[1] and extra.grad is None
    assert weight.tolist() != before[0] != [1, 1]


def test_a_root_without_a_state_is_the_error_of_all(rank):
    class Broken(torch.optim.SGD):
        def state_dict(self):
            raise KeyError("lost")
    with pytest.raises(KeyError if rank == 0 else hvd.HorovodInternalError, match="lost"):
        hvd.broadcast_optimizer_state(Broken(torch.nn.Linear(2, 1).parameters(), 0.1), 0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def test_lbfgs_in_a_process_set_leaves_the_other_ranks_alone(rank, size):
    some = hvd.add_process_set([0])
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS([weight], max_iter=3), process_set=some)

    def closure():
        optimizer.zero_grad()
        loss = (weight - rank).square().sum()
        loss.backward()
        return loss
    optimizer.step(closure)
    assert torch.allclose(weight.detach(), torch.full((2,), float(rank)), atol=1e-4)
    hvd.remove_process_set(some)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_closure_that_raises_on_one_rank_raises_on_all(kind, rank, size):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(kind([weight], lr=0.5), [("weight", weight)])
    fails = rank == size - 1

    def closure():
        optimizer.zero_grad()
        loss = ((weight - 1) * torch.arange(1., 3.)).square().sum()
        loss.backward()
        if fails:
            raise KeyError("no ink left")
        return loss
    with pytest.raises(KeyError if fails else ValueError, match="no ink left"):
        optimizer.step(closure)
    fails = False
    assert float(optimizer.step(closure)) == 5.
    assert hvd.allreduce(weight.detach(), op=hvd.Max).equal(weight.detach())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_closure_that_raises_on_one_rank_before_backward_keeps_nobody_waiting(kind, rank, size):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(kind([weight], lr=0.5), [("weight", weight)])
    fails = rank == size - 1

    def closure():
        optimizer.zero_grad()
        if fails:
            raise KeyError("no ink left")
        loss = ((weight - 1) * torch.arange(1., 3.)).square().sum()
        loss.backward()
        return loss
    error = KeyError if fails else (RuntimeError, hvd.HorovodInternalError)
    with pytest.raises(error, match="no ink left" if fails else f"rank {size - 1}"):
        optimizer.step(closure)
    fails = False
    assert float(optimizer.step(closure)) == 5.
    assert hvd.allreduce(weight.detach(), op=hvd.Max).equal(weight.detach())


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_closure_that_synchronizes_makes_one_round(kind, skips, rank, size):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(kind([weight], lr=0.5), [("weight", weight)])
    evaluations = 0
    fails = False

    def closure():
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = ((weight - rank) * torch.arange(1., 3.)).square().sum()
        if evaluations % 2 or rank == 0:  # the others may have no batch
            loss.backward()
        optimizer.synchronize()
        if evaluations == 1:
            assert weight.grad.tolist() == [-(size - 1), -4 * (size - 1)]
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        if fails and rank == size - 1:
            raise KeyError("no ink left")
        return loss

    def step():
        with optimizer.skip_synchronize() if skips else contextlib.nullcontext():
            optimizer.step(closure)
    for _ in range(2):
        step()
    assert optimizer.reduction_statistics()["steps"] == evaluations
    fails = True
    with pytest.raises(KeyError if rank == size - 1 else ValueError, match="no ink left"):
        step()
    fails = False
    step()
    assert optimizer.reduction_statistics()["steps"] == evaluations
    assert hvd.allreduce(weight.detach(), op=hvd.Max).equal(weight.detach())


def test_what_a_closure_adds_behind_synchronize_is_reduced(rank, size):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])

    def closure(adds):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.synchronize()
        with optimizer.no_sync() if adds == "in no_sync" else contextlib.nullcontext():
            (weight.sum() * rank).backward()
        return weight.sum()
    for adds in ["at once", "in no_sync"]:
        before = weight.tolist()
        optimizer.step(lambda: closure(adds))
        assert weight.tolist() == [each - 1 - (size - 1) / 2 for each in before]
    assert optimizer.reduction_statistics()["steps"] == 4
    optimizer.set_weight(rank + 1.0)  # a step begins
