"""DistributedOptimizer(op=Adasum): what the steps of the ranks move is combined."""

import copy

import pytest
import torch

import horon.torch as hvd


def model_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2))


def adasum(a, b):
    ab, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return ((1 - ab / (2 * aa) if aa else 1) * a) + ((1 - ab / (2 * bb) if bb else 1) * b)


def adasum_of(moves):
    """Neighbours first, and before them what is beyond a power of two."""
    paired = 1 << (len(moves).bit_length() - 1)
    for extra in range(paired, len(moves)):
        moves[extra - paired] = adasum(moves[extra - paired], moves[extra])
    while paired > 1:
        moves = [adasum(moves[2 * i], moves[2 * i + 1]) for i in range(paired // 2)]
        paired //= 2
    return moves[0]


def step_of_each(model, make, batches):
    """What the plain step of each rank moves each parameter by."""
    moves = []
    for inputs, answers in batches:
        own = copy.deepcopy(model)
        optimizer = make(own.parameters())
        torch.nn.functional.cross_entropy(own(inputs), answers).backward()
        optimizer.step()
        moves.append([after.detach() - before.detach()
                      for after, before in zip(own.parameters(), model.parameters())])
    return moves


@pytest.mark.parametrize("make", [lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                                  lambda parameters: torch.optim.Adam(parameters, lr=0.01)],
                         ids=["SGD", "Adam"])
@pytest.mark.parametrize("named", [True, False])
def test_a_step_is_the_adasum_of_those_of_the_ranks(make, named, rank, size):
    model = model_of()
    torch.manual_seed(5)
    batches = [(torch.randn(4, 6), torch.randint(2, (4,))) for _ in range(size)]
    moves = step_of_each(model, make, batches)
    want = [before.detach() + adasum_of([moves[r][i] for r in range(size)])
            for i, before in enumerate(model.parameters())]
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), named_parameters=model.named_parameters() if named else None,
        op=hvd.Adasum)
    inputs, answers = batches[rank]
    torch.nn.functional.cross_entropy(model(inputs), answers).backward()
    optimizer.step()
    for got, parameter in zip(model.parameters(), want):
        torch.testing.assert_close(got.detach(), parameter)


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_ranks_stay_equal_and_the_loss_falls(compression, rank, size):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        named_parameters=model.named_parameters(), compression=compression, op=hvd.Adasum)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    torch.manual_seed(rank)
    inputs = torch.randn(16, 6)
    answers = (inputs.sum(1) > 0).long()
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), answers)
        loss.backward()
        return loss

    for _ in range(20):
        losses.append(optimizer.step(closure).item())
        schedule.step()
    assert losses[-1] < losses[0] / 2
    for parameter in model.parameters():
        rows = hvd.allgather(parameter.detach().reshape(1, -1))
        assert all(torch.equal(row, rows[0]) for row in rows)


def test_several_backward_passes_are_one_step(rank, size):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum,
                                         backward_passes_per_step=2)
    for _ in range(2):
        weight.sum().backward()
    optimizer.synchronize()
    optimizer.step()
    assert torch.equal(weight.detach(), torch.full((3,), -1.0))
    with pytest.raises(AssertionError):
        optimizer.skip_synchronize()


def test_it_is_a_plain_optimizer_in_a_file(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0, momentum=0.9),
                                         op=hvd.Adasum)
    weight.sum().backward()
    optimizer.step()
    again = copy.deepcopy(optimizer)
    assert type(again) is torch.optim.SGD
    assert len(again.state_dict()["state"]) == 1
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)


def test_a_step_that_fails_leaves_the_parameters(rank, size):
    if size == 1:
        pytest.skip("nobody to differ from")
    weight = torch.nn.Parameter(torch.ones(3 + (rank == 0)))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0),
                                         named_parameters=[("weight", weight)], op=hvd.Adasum)
    weight.sum().backward()
    with pytest.raises((ValueError, hvd.HorovodInternalError), match="adasum.weight"):
        optimizer.step()
    assert torch.equal(weight.detach(), torch.ones_like(weight))


def test_of_some_ranks(rank, size):
    first = hvd.add_process_set([0])
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum,
                                         process_set=first)
    (weight.sum() * (rank + 1)).backward()
    optimizer.step()
    assert torch.equal(weight.detach(), torch.full((2,), -float(rank)))
    hvd.remove_process_set(first)
