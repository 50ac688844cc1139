"""DistributedOptimizer(op=Adasum): what the steps of the ranks move is combined."""

import copy
import types

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
    """Neighbours are combined first, and before them the ranks beyond a power of two."""
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


@pytest.mark.parametrize("moves_before", [False, True])
@pytest.mark.parametrize("who", ["last", "all"])
def test_a_step_that_raises_on_one_rank_raises_on_all(who, moves_before, rank, size):
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    fails = who == "all" or rank == size - 1

    class Sgd(torch.optim.SGD):
        def step(self, closure=None):
            if moves_before:
                super().step()
            if fails:
                raise KeyError("no ink left")
            return super().step()
    optimizer = hvd.DistributedOptimizer(Sgd(weights, lr=1.0), op=hvd.Adasum)

    def step():
        optimizer.zero_grad()
        sum(each.sum() for each in weights).backward()
        optimizer.step()
    with pytest.raises(KeyError if fails else ValueError, match="no ink left") as raised:
        step()
    assert fails or f"rank {size - 1}" in str(raised.value)
    assert all(torch.equal(each, torch.ones_like(each)) for each in weights)
    fails = False
    step()
    moved = 2.0 if moves_before else 1.0
    assert all(torch.equal(each, torch.full_like(each, 1 - moved)) for each in weights)


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


def orthogonal(rank, size):
    """Each rank moves its own element by -1: all of them count in full."""
    weight = torch.nn.Parameter(torch.ones(size))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
    return weight, optimizer


def set_gradient(weight, rank, value=1.0):
    weight.grad = torch.zeros_like(weight)
    weight.grad[rank] = value


@pytest.mark.parametrize("scheduler_first", [False, True])
def test_a_step_behind_one_that_raised(scheduler_first, rank, size):
    weight = torch.nn.Parameter(torch.ones(size))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    if scheduler_first:
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)

    def closure():
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        optimizer.step(closure)
    with torch.no_grad():
        weight.fill_(5)
    set_gradient(weight, rank)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.full((size,), 4.0))


def test_a_step_that_calls_that_of_its_base(rank, size):
    class AndMore(torch.optim.SGD):
        def step(self, closure=None):
            loss = super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0][rank] -= 1
            return loss

    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)  # has hooks called for its class
    weight = torch.nn.Parameter(torch.ones(size))
    optimizer = hvd.DistributedOptimizer(AndMore([weight], lr=1.0), op=hvd.Adasum)
    set_gradient(weight, rank)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.full((size,), -1.0))


@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_rank_with_infinite_gradients_moves_by_the_others(fused, unscaled, rank, size):
    weight = torch.nn.Parameter(torch.ones(size))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0, fused=fused),
                                         op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    want = torch.ones(size)
    for infinite in (0, size - 1, size):
        scaler.scale(torch.zeros(()))
        set_gradient(weight, rank, float("inf") if rank == infinite else 4.0)
        if unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update(4.0)
        want -= 1
        if infinite < size:
            want[infinite] += 1
        assert torch.equal(weight.detach(), want)


def test_complex_parameters_are_refused(rank, size):
    phases = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="phases"):
        hvd.DistributedOptimizer(torch.optim.SGD([phases], lr=1.0),
                                 named_parameters=[("phases", phases)], op=hvd.Adasum)
    weight, optimizer = orthogonal(rank, size)
    with pytest.raises(ValueError, match="complex"):
        optimizer.add_param_group({"params": [phases]})
    set_gradient(weight, rank)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.zeros(size))


def test_all_ranks_hear_of_a_step_that_one_can_not_reduce(rank, size):
    if size == 1:
        pytest.skip("nobody to differ from")
    weights = [torch.nn.Parameter(torch.ones(2 + (rank == 0 and i == 0))) for i in range(3)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), op=hvd.Adasum)
    sum(weight.sum() for weight in weights).backward()
    for _ in range(2):  # no name is left in use
        with pytest.raises((ValueError, hvd.HorovodInternalError), match="shape"):
            optimizer.step()
        for weight in weights:
            assert torch.equal(weight.detach(), torch.ones_like(weight))


@pytest.mark.parametrize("gradients", ["new", "same"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_step_behind_one_that_raised(fused, gradients, rank, size):
    weight = torch.nn.Parameter(torch.ones(size))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=fused)
    raised = []

    def raise_once(*_):
        if not raised:
            raised.append(True)
            raise RuntimeError("as it should")
    optimizer.register_step_pre_hook(raise_once)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    set_gradient(weight, rank, 4.0)
    with pytest.raises(RuntimeError, match="as it should"):
        scaler.step(optimizer)
    if gradients == "new":
        set_gradient(weight, rank, 4.0)
    scaler.step(optimizer)
    assert torch.equal(weight.detach(), torch.zeros(size))


def test_a_failed_reduction_leaves_scaled_gradients(rank, size):
    if size == 1:
        pytest.skip("nobody to differ from")
    weight = torch.nn.Parameter(torch.ones(2 + (rank == 0)))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    for _ in range(2):
        with pytest.raises((ValueError, hvd.HorovodInternalError), match="shape"):
            scaler.step(optimizer)
        assert weight.grad.tolist() == [4.0] * len(weight)
        assert torch.equal(weight.detach(), torch.ones_like(weight))


def test_scaled_float16_gradients_are_refused(rank, size):
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    weight.grad = torch.full_like(weight, float("inf") if rank == 0 else 1.0)
    scaler.scale(torch.zeros(()))
    with pytest.raises(ValueError, match="FP16 gradients"):
        scaler.step(optimizer)


def test_a_rank_without_gradients_under_a_scaler(rank, size):
    weights = [torch.nn.Parameter(torch.ones(size)) for _ in range(2)]
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0),
                                           named_parameters=[(name, weight)], op=hvd.Adasum)
                  for name, weight in zip("ab", weights)]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    set_gradient(weights[0], rank, 4.0)
    if rank > 0:
        set_gradient(weights[1], rank, 4.0)
    scaler.step(optimizers[0])
    try:
        scaler.step(optimizers[1])
    except AssertionError as error:  # of torch, without a gradient
        assert rank == 0 and "No inf checks" in str(error)
        optimizers[1].step()
    assert torch.equal(weights[0].detach(), torch.zeros(size))
    want = torch.zeros(size)
    want[0] = 1
    assert torch.equal(weights[1].detach(), want)


def test_a_step_that_catches_what_that_of_its_base_raised(rank, size):
    class Tries(torch.optim.SGD):
        def step(self, closure=None):
            try:
                super().step(lambda: 1 / 0)
            except ZeroDivisionError:
                pass
            return super().step(closure)

    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)  # has hooks called for its class
    weight = torch.nn.Parameter(torch.ones(size))
    optimizer = hvd.DistributedOptimizer(Tries([weight], lr=1.0), op=hvd.Adasum)
    for step in range(1, 3):
        set_gradient(weight, rank)
        optimizer.step()
        assert torch.equal(weight.detach(), torch.full((size,), 1.0 - step))


def test_a_step_that_the_program_has_bound(rank, size):
    weight = torch.nn.Parameter(torch.ones(size))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    calls = []

    def step(self, closure=None):
        calls.append(self)
        return torch.optim.SGD.step(self, closure)
    optimizer.step = types.MethodType(step, optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    set_gradient(weight, rank)
    optimizer.step()
    assert calls == [optimizer] and torch.equal(weight.detach(), torch.zeros(size))


def test_a_hook_before_the_step_that_raises_on_one_rank(rank, size):
    weight = torch.nn.Parameter(torch.ones(3))
    fails = False

    def hook(*_):
        if fails and rank == size - 1:
            raise KeyError("no ink left")
    plain = torch.optim.SGD([weight], lr=1.0)
    plain.register_step_pre_hook(hook)  # before that of Horon
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum)
    for fails in (False, True, True, False):
        optimizer.zero_grad()
        weight.sum().backward()
        if not fails:
            optimizer.step()
            continue
        with pytest.raises(KeyError if rank == size - 1 else ValueError, match="no ink left"):
            optimizer.step()
    assert torch.equal(weight, torch.full_like(weight, -1.0))
