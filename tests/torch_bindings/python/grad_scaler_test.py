"""DistributedOptimizer under torch's GradScaler."""

import contextlib

import pytest
import torch

import horon.torch as hvd

INF = float("inf")


class Training:
    """Trains three weights of one value; a test says what their gradients are."""

    def __init__(self, scale=4.0, fused=False, **options):
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([self.weight], lr=1.0, fused=fused),
            named_parameters=[("weight", self.weight)], **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.scaler.scale(torch.zeros(()))

    def backward(self, gradient):
        """None: this rank has no batch."""
        if gradient is not None:
            self.scaler.scale((self.weight * gradient).sum()).backward()

    def step(self):
        """What the weights have moved by, and the scale behind it."""
        before = self.weight.detach().clone()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        moved = set((before - self.weight.detach()).tolist())
        self.optimizer.zero_grad(set_to_none=False)
        assert len(moved) == 1
        return moved.pop(), self.scaler.get_scale()


def mean(size):
    return (size + 1) / 2


@pytest.fixture
def training():
    made = Training()
    made.optimizer.zero_grad(set_to_none=False)
    return made


@pytest.mark.parametrize("unscales", [False, True])
def test_a_weight_is_for_one_step_also_if_that_is_left_out(training, unscales, rank, size):
    training.optimizer.set_weight(rank + 1.0)
    weighted = [rank + 1.0, INF if rank == size - 1 else 1.0]
    total = sum(r + 1 for r in range(size))
    expected = [(sum((r + 1) ** 2 for r in range(size)) / total, 4.0), (0.0, 2.0),
                (mean(size), 2.0)]
    for step, want in enumerate(expected):
        if step < 2:
            training.optimizer.set_weight(rank + 1.0)
        training.backward((weighted + [rank + 1.0])[step])
        if unscales:
            training.scaler.unscale_(training.optimizer)
        assert training.step() == pytest.approx(want)


def test_a_rank_without_a_batch_behind_a_step_that_was_left_out(training, rank, size):
    for gradient, want in [(rank + 1.0, (mean(size), 4.0)), (INF, (0.0, 2.0)),
                           (None if rank == size - 1 else rank + 1.0,
                            (sum(range(1, size)) / size, 2.0)),
                           (rank + 1.0, (mean(size), 2.0))]:
        if size == 1 and gradient is None:
            continue
        training.backward(gradient)
        assert training.step() == pytest.approx(want)


@pytest.mark.parametrize("fused", [False, True])
def test_a_rank_without_a_batch_divides_what_it_gets(fused, rank, size):
    if size == 1:
        pytest.skip("nobody to get it from")
    training = Training(fused=fused)
    training.optimizer.zero_grad(set_to_none=False)
    for _ in range(2):
        training.backward(1.0)
        assert training.step() == (1.0, 4.0)
        training.backward(None if rank == 0 else 1.0)
        assert training.step() == pytest.approx(((size - 1) / size, 4.0))


@pytest.mark.parametrize("case", ["unscaled", "none", "infinite", "infinite and fused"])
def test_a_rank_whose_scaler_has_looked_too_early_is_told(case, rank, size):
    if size == 1:
        pytest.skip("nobody to come behind")
    training = Training(fused="fused" in case)
    training.backward(1.0)
    assert training.step() == (1.0, 4.0)
    if case == "none":
        training.optimizer.zero_grad()  # to None, so that a scaler finds nothing to look at
    training.backward(None if rank == 0 else INF if "infinite" in case else 1.0)
    if case == "unscaled":
        training.scaler.unscale_(training.optimizer)
    if rank == 0:
        before = training.weight.tolist()
        with pytest.raises(RuntimeError, match=r"optimizer.synchronize\(\) before scaler.unscale_"):
            training.step()
        assert training.weight.tolist() == before
        assert not hasattr(training.optimizer, "grad_scale")
        if case == "none":  # still scaled, for the next try
            assert training.weight.grad.tolist() == pytest.approx([4.0 * (size - 1) / size] * 3)
    else:
        training.step()


@pytest.mark.parametrize("unscales", [False, True])
def test_an_optimizer_whose_parameters_a_loss_does_not_use(unscales):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0),
                                           named_parameters=[(f"weight{i}", weight)])
                  for i, weight in enumerate(weights)]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        used = weights[:1] if step % 2 else weights
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
        scaler.scale(sum(weight.sum() for weight in used)).backward()
        for optimizer in optimizers:
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
    assert [weight.tolist() for weight in weights] == [[-4.0] * 2, [-2.0] * 2]


@pytest.mark.parametrize("unscales", [False, True])
def test_gradients_that_the_program_has_set(training, unscales, rank, size):
    for value, want in [(rank + 1.0, (mean(size), 4.0)), (INF, (0.0, 2.0)), (2.0, (2.0, 2.0))]:
        loss = training.scaler.scale((training.weight * value).sum())
        training.weight.grad, = torch.autograd.grad(loss, [training.weight])
        if unscales:
            training.scaler.unscale_(training.optimizer)
        assert training.step() == pytest.approx(want)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("without_batch", [False, True])
def test_synchronize_unscale_and_a_step_without_it(without_batch, fused, rank, size):
    training = Training(fused=fused)
    training.optimizer.zero_grad(set_to_none=False)
    absent = without_batch and size > 1
    part = (size - 1) / size if absent else 1.0
    for gradient, want in [(2.0, (1.0 * part, 4.0)), (INF, (0.0, 2.0)), (3.0, (1.5 * part, 2.0))]:
        training.backward(None if absent and rank == 0 else gradient)
        training.optimizer.synchronize()
        training.scaler.unscale_(training.optimizer)
        if gradient < INF:
            assert training.weight.grad.tolist() == pytest.approx([gradient * part] * 3)
            with torch.no_grad():
                training.weight.grad.mul_(0.5)  # as a program clips
        with training.optimizer.skip_synchronize():
            assert training.step() == pytest.approx(want)


def test_a_program_that_unscales_and_clips(training, rank, size):
    largest = 0.5
    for gradient, want in [(rank + 1.0, (largest / 3 ** 0.5, 4.0)),
                           (INF if rank == 0 else 1.0, (0.0, 2.0)),
                           (rank + 1.0, (largest / 3 ** 0.5, 2.0))]:
        training.backward(gradient)
        training.scaler.unscale_(training.optimizer)
        norm = torch.nn.utils.clip_grad_norm_([training.weight], largest)
        if want[0]:
            assert norm.item() == pytest.approx(mean(size) * 3 ** 0.5)
        assert training.step() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("unscales", [False, True])
def test_passes_that_are_missing_are_reduced_in_the_step(unscales, rank, size):
    training = Training(backward_passes_per_step=2)
    for _ in range(2):
        training.backward(rank + 1.0)
        if unscales:
            training.scaler.unscale_(training.optimizer)
        assert training.step() == pytest.approx((mean(size), 4.0))
    for _ in range(2):
        training.backward(rank + 1.0)
    assert training.step() == pytest.approx((2 * mean(size), 4.0))


def test_gradients_are_divided_as_without_horon(rank, size):
    """Also by a scale that is no power of two: the same bits."""
    training = Training(scale=3.0)
    weight = torch.nn.Parameter(torch.zeros(3))
    plain = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=3.0)
    for gradient in (0.1, 0.7, 1.3):
        training.backward(gradient)
        training.scaler.step(training.optimizer)
        training.scaler.update()
        training.optimizer.zero_grad()
        plain.zero_grad()
        weight.grad = torch.full((3,), gradient)
        scaler.scale((weight * gradient).sum())
        weight.grad *= 3.0
        scaler.step(plain)
        scaler.update()
    if size == 1 or size == 2:  # where the average of equal gradients is exact
        assert torch.equal(training.weight, weight)


def test_sparse_gradients_are_divided(rank, size):
    rows = torch.nn.Embedding(4, 2, sparse=True)
    with torch.no_grad():
        rows.weight.zero_()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(rows.parameters(), lr=1.0),
                                         named_parameters=rows.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(rows(torch.tensor([1, 3])).sum() * (rank + 1)).backward()
    scaler.step(optimizer)
    assert rows.weight.tolist() == [[0, 0], [-mean(size)] * 2, [0, 0], [-mean(size)] * 2]


def test_float16_gradients_are_refused(rank):
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="FP16 gradients"):
        scaler.step(optimizer)


def test_a_scaled_step_behind_one_that_raised(training, rank, size):
    raised = []

    def raise_once(*_):
        if not raised:
            raised.append(True)
            raise RuntimeError("as it should")
    training.optimizer.register_step_pre_hook(raise_once)
    training.backward(rank + 1.0)
    with contextlib.suppress(RuntimeError):
        training.step()
    assert training.weight.grad.tolist() == pytest.approx([4 * mean(size)] * 3), "as it was"
    assert training.step() == pytest.approx((mean(size), 4.0))


def test_steps_with_and_without_a_scaler(training, rank, size):
    training.backward(rank + 1.0)
    assert training.step() == pytest.approx((mean(size), 4.0))
    before = training.weight.detach().clone()
    (training.weight * (rank + 1.0)).sum().backward()
    training.optimizer.step()
    assert (before - training.weight.detach()).tolist() == pytest.approx([mean(size)] * 3)
