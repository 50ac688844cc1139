"""Training on shards is training of one process on the whole batch, with every option."""

import copy
import io
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch

import horon.torch as hvd

ROWS = 12  # divisible by 1 to 4 ranks


def model_of(seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def batch(step):
    torch.manual_seed(50 + step)
    return torch.randn(ROWS, 6), torch.randn(ROWS, 2)


def mine(tensor):
    count = ROWS // hvd.size()
    return tensor[hvd.rank() * count:(hvd.rank() + 1) * count]


def loss_of(model, inputs, targets):
    return torch.nn.functional.mse_loss(model(inputs), targets)


def train_alone(make, steps=4, each=None):
    model = model_of()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(step)).backward()
        if each is not None:
            each(model)
        optimizer.step()
    return model


def train(make, steps=4, each=None, **options):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(),
                                         **options)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        loss_of(model, mine(inputs), mine(targets)).backward()
        if each is not None:
            each(model)
        optimizer.step()
    return model


def assert_alike(model, expected, **tolerance):
    for (name, mine_), (_, other) in zip(model.named_parameters(), expected.named_parameters()):
        torch.testing.assert_close(mine_, other, msg=name, **(tolerance or
                                                              {"atol": 1e-5, "rtol": 1e-4}))
    flat = torch.cat([each.detach().flatten() for each in model.parameters()])
    gathered = hvd.allgather(flat[None])
    assert all(torch.equal(each, gathered[0]) for each in gathered), "the ranks have gone apart"


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


MAKERS = [sgd, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_equals_one_process_on_the_whole_batch(make):
    assert_alike(train(make), train_alone(make))


@pytest.mark.parametrize("options", [
    {"compression": hvd.Compression.fp16}, {"compression": hvd.Compression.bf16},
    {"compression": hvd.Compression.int8},
    {"gradient_predivide_factor": 2.0}, {"groups": 2}, {"sparse_as_dense": True}, {"op": hvd.Sum}],
    ids=str)
def test_options(options):
    alone = train_alone(sgd)
    if options.get("op") == hvd.Sum:
        def average(model):
            for parameter in model.parameters():
                parameter.grad /= hvd.size()
        return assert_alike(train(sgd, each=average, **options), alone)
    narrow = "compression" in options
    tolerance = {"atol": 2e-2, "rtol": 2e-2} if narrow else {"atol": 1e-5, "rtol": 1e-4}
    assert_alike(train(sgd, **options), alone, **tolerance)


def test_groups_of_parameters():
    model = model_of()
    parameters = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(sgd(parameters), model.named_parameters(),
                                         groups=[parameters[:2]])
    loss_of(model, *(mine(each) for each in batch(0))).backward()
    optimizer.step()
    assert_alike(model, train_alone(sgd, steps=1))
    with pytest.raises(ValueError, match="one group"):
        hvd.DistributedOptimizer(sgd(parameters), model.named_parameters(),
                                 groups=[parameters[:2], parameters[:1]])


def test_gradients_are_reduced_when_backward_returns():
    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert_alike(train(sgd, each=clip), train_alone(sgd, each=clip))
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, *(mine(each) for each in batch(0))).backward()
    statistics = optimizer.reduction_statistics()
    if hvd.size() > 1:
        assert 0 < statistics["submitted_in_backward"] == statistics["buckets"]


def test_several_passes_make_a_step():
    def train_in(passes):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                             backward_passes_per_step=passes)
        for step in range(2):
            optimizer.zero_grad()
            inputs, targets = (mine(each) for each in batch(step))
            for part in range(passes):
                rows = slice(part, None, passes)  # not as many in each
                share = len(inputs[rows]) / len(inputs)
                loss_of(model, inputs[rows], targets[rows]).mul(share).backward()
            optimizer.step()
        return model
    assert_alike(train_in(3), train_alone(sgd, steps=2))


def test_no_sync_and_weights(rank, size):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    optimizer.set_weight(rank + 1.0)
    with optimizer.no_sync():
        (model(torch.ones(1, 6)).sum() * (rank + 1)).backward()
    model(torch.zeros(1, 6)).sum().mul(0).backward()
    plain = model_of()
    plain(torch.ones(1, 6)).sum().backward()
    factor = sum((each + 1) ** 2 for each in range(size)) / sum(range(1, size + 1))
    torch.testing.assert_close(model[2].bias.grad, plain[2].bias.grad * factor)
    optimizer.step()


def test_synchronize_and_skip():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, *(mine(each) for each in batch(0))).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss_of(model, *(mine(each) for each in batch(0))).backward()
        optimizer.synchronize()
        optimizer.step()
    assert any("skip_synchronize" in str(each.message) for each in caught)
    assert optimizer.reduction_statistics()["steps"] == 4, "one is reduced twice"


def test_the_optimizer_stays_itself():
    model = model_of()
    plain = torch.optim.Adam(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.1)
    model(torch.ones(1, 6)).sum().backward()
    plain.step()
    before = len(plain.state)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert optimizer is plain and isinstance(optimizer, torch.optim.Adam)
    assert len(optimizer.state) == before > 0
    for _ in range(2):  # through the step that the scheduler has put on the instance
        optimizer.zero_grad()
        (model(torch.ones(1, 6)) * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
    assert_alike(model, model)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(copied) is torch.optim.Adam
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    with pytest.raises(ValueError):
        hvd.DistributedOptimizer(optimizer)


def test_lbfgs_decides_alike_on_all_ranks():
    def train_with(wrap, part):
        model = model_of()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
        if wrap:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        inputs, targets = (part(each) for each in batch(0))

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            loss.backward()
            return loss
        for _ in range(2):
            optimizer.step(closure)
        return model
    assert_alike(train_with(True, mine), train_with(False, lambda each: each), atol=1e-2, rtol=1e-2)


def test_a_closure_that_raises_ends_its_step(rank, size):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())

    def broken():
        raise KeyError("data")

    def closure():
        model.zero_grad()
        loss = model(torch.ones(1, 6)).sum() * 0 + rank
        loss.backward()
        return loss

    with pytest.raises(KeyError):
        optimizer.step(broken)
    assert optimizer.step(closure).item() == (size - 1) / 2  # of all ranks


def test_a_rank_without_a_loss_keeps_nobody_waiting(rank, size):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())

    def closure():
        model.zero_grad()
        loss = model(torch.ones(1, 6)).sum() * 0 + rank
        loss.backward()
        return loss if rank < size - 1 else None
    assert float(optimizer.step(closure)) == (size - 2) / 2  # of the others
    assert optimizer.step(lambda: None) is None
    with pytest.raises(ValueError, match="one real"):
        optimizer.step(lambda: torch.ones(1 if rank < size - 1 else 2))


def test_hooks_of_the_program_are_called_and_keep_ours(size):
    model = model_of()
    calls = []
    first = model[0].weight
    first.register_hook(lambda grad: calls.append("before wrapping"))
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    first.register_hook(lambda grad: calls.append("hook"))
    model[2].weight.register_hook(lambda grad: grad * 2)
    first.register_post_accumulate_grad_hook(lambda parameter: calls.append("post"))
    model[2].bias.register_post_accumulate_grad_hook(lambda parameter: calls.append("bias"))
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, *(mine(each) for each in batch(step))).backward()
        optimizer.step()
    assert sorted(set(calls)) == ["before wrapping", "bias", "hook", "post"] and len(calls) == 8
    if size > 1:
        statistics = optimizer.reduction_statistics()
        assert statistics["submitted_in_backward"] == 2 * statistics["buckets"]
    assert_alike(model, model)


def test_frozen_unused_and_added_parameters(rank):
    model = model_of()
    extra = torch.nn.Parameter(torch.ones(2))
    model[0].weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, *(mine(each) for each in batch(0))).backward()
    optimizer.step()
    assert model[0].weight.grad is None
    model[0].weight.requires_grad_(True)
    optimizer.add_param_group({"params": [extra]})
    optimizer.zero_grad()
    (model(torch.ones(1, 6)).sum() + (extra.sum() * 2 if rank == 0 else 0)).backward()
    optimizer.step()
    assert_alike(model, model)
    assert extra.grad.tolist() == pytest.approx([2 / hvd.size()] * 2)


def test_sparse_gradients(rank, size):
    for sparse_as_dense in (False, True):
        torch.manual_seed(1)
        table = torch.nn.Embedding(10, 3, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(list(table.parameters()), lr=0.1),
            sparse_as_dense=sparse_as_dense)
        table(torch.tensor([1, 2 + rank % 4])).sum().backward()
        assert table.weight.grad.is_sparse
        optimizer.step()
        assert_alike(table, table)


def test_process_set(rank, size):
    even = hvd.add_process_set(range(0, size, 2))
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                         process_set=even)
    (model(torch.ones(1, 6)) * (rank + 1)).sum().backward()
    expected = np.mean([each + 1 for each in even.ranks]) if rank % 2 == 0 else rank + 1
    assert model[2].bias.grad.tolist() == pytest.approx([expected] * 2)
    optimizer.step()
    del optimizer
    hvd.remove_process_set(even)


def test_grad_scaler_skips_alike(rank):
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, *(mine(each) for each in batch(step)))
        if step == 1 and rank == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0
    assert_alike(model, model)


class OfTheProgram(hvd.Compression.fp16):
    """A compressor as Horovod's programs derive them."""


def test_wrong_arguments():
    model = model_of()
    named = list(model.named_parameters())
    for arguments in [dict(named_parameters=named[:1]), dict(named_parameters=named + named[:1]),
                      dict(named_parameters=[each for _, each in named]),
                      dict(backward_passes_per_step=0), dict(groups=-1), dict(groups=[[1]]),
                      dict(compression="fp16"), dict(op=17), dict(compression=OfTheProgram),
                      dict(op=hvd.Sum, gradient_predivide_factor=2.0)]:
        with pytest.raises(ValueError):
            hvd.DistributedOptimizer(sgd(model.parameters()), **arguments)
    with pytest.raises(ValueError, match="16 bits"):
        hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Adasum,
                                 compression=hvd.Compression.int8)
    phases = torch.ones(2, dtype=torch.complex32, requires_grad=True)
    with pytest.raises(ValueError, match="ComplexHalf"):
        hvd.DistributedOptimizer(sgd([*model.parameters(), phases]))


@pytest.mark.parametrize("make", MAKERS + [torch.optim.LBFGS], ids=lambda make: make.__name__)
def test_optimizer_state_of_the_root(make, rank, size):
    root = size - 1
    model = model_of(seed=rank)
    optimizer = make(model.parameters())
    if rank == root:
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, *batch(0))
            loss.backward()
            return loss
        optimizer.step(closure)
        optimizer.param_groups[0]["lr"] = 0.25
    hvd.broadcast_parameters(model.state_dict(), root)
    hvd.broadcast_optimizer_state(optimizer, root)
    assert optimizer.param_groups[0]["lr"] == 0.25
    digests = hvd.allgather_object(pickle.dumps(optimizer.state_dict()["param_groups"]))
    assert len(set(digests)) == 1
    sums = [float(value.sum()) for state in optimizer.state.values() for value in state.values()
            if torch.is_tensor(value)]
    assert len(set(map(tuple, hvd.allgather_object(sums)))) == 1 and (sums or make is not sgd)
    assert_alike(model, model)


def test_parameters_with_names_and_without(rank, size):
    for given in (lambda model: model.parameters(), lambda model: list(model.parameters()),
                  lambda model: model.named_parameters(),
                  lambda model: list(model.state_dict().items())):
        model = torch.nn.Linear(3, 2)  # a list of tensors of two rows is none of pairs
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(rank + 1)
        hvd.broadcast_parameters(given(model), size - 1)
        assert all((parameter == size).all() for parameter in model.parameters())


def test_objects(rank, size):
    assert hvd.broadcast_object({"from": rank}, root_rank=size - 1, name="o") == {"from": size - 1}
    assert hvd.allgather_object([rank] * rank) == [[each] * each for each in range(size)]
    for has_it, call in [(rank == size - 1, lambda x: hvd.broadcast_object(x, size - 1)),
                         (rank == 0, hvd.allgather_object)]:
        with pytest.raises(TypeError if has_it else hvd.HorovodInternalError, match="pickle"):
            call(threading.Lock() if has_it else rank)
    with pytest.raises(hvd.HorovodInternalError if size > 1 else Exception):
        hvd.broadcast_parameters({"a": torch.ones(1 + rank)}, 0)
        assert size > 1
