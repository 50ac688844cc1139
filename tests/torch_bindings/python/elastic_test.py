"""States of elastic jobs, as horovod.torch.elastic has them."""

import contextlib
import copy
import os
import pickle
import threading
import time
import warnings

import pytest
import torch

import horon.torch as hvd
from horon.errors import HostsUpdatedInterrupt
from horon.torch.commits import Commits


def weights(module):
    return [each.detach().clone() for each in module.parameters()]


def make_parts(rank):
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.5 + rank, momentum=0.9)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_sync_gives_all_ranks_what_rank_0_has(rank, size):
    model, optimizer = make_parts(rank)
    if rank == 0:
        step(model, optimizer)
    state = hvd.elastic.TorchState(model, optimizer, epoch=rank + 7, best=[rank])
    state.sync()
    assert (state.epoch, state.best) == (7, [0])
    assert state.model is model and optimizer.param_groups[0]["lr"] == 0.5
    for all_ranks in hvd.allgather_object([each.tolist() for each in weights(model)]):
        assert all_ranks == [each.tolist() for each in weights(model)]
    assert len(optimizer.state) == 2, "the momentum of rank 0"


def test_restore_goes_back_to_the_last_commit(rank, size):
    model, optimizer = make_parts(0)
    state = hvd.elastic.TorchState(model, optimizer, epoch=1)
    step(model, optimizer)
    state.epoch = 2
    state.commit()
    committed, momentum = weights(model), copy.deepcopy(optimizer.state_dict())
    for _ in range(2):  # what was restored is not changed by steps behind it
        step(model, optimizer)
        state.epoch = 3
        state.restore()
        assert state.epoch == 2
        for is_now, was in zip(weights(model), committed):
            assert torch.equal(is_now, was)
        for key, value in momentum["state"].items():
            assert torch.equal(optimizer.state_dict()["state"][key]["momentum_buffer"],
                               value["momentum_buffer"])


def test_a_new_value_is_committed_in_the_place_of_the_old_one(rank, size):
    model, optimizer = make_parts(0)
    state = hvd.elastic.TorchState(model, optimizer)
    other, _ = make_parts(5)
    state.model = other
    committed = weights(other)
    with torch.no_grad():
        other.weight.zero_()
    state.restore()
    assert torch.equal(other.weight, committed[0])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sampler_gives_each_sample_that_is_left_once(rank, size, shuffle):
    data = list(range(20 * size + 1))
    sampler = hvd.elastic.ElasticSampler(data, shuffle=shuffle, seed=3)
    first = list(sampler)
    assert len(first) == len(sampler) == 21
    sampler.record_batch(0, 4)
    sampler.record_batch(1, 4)
    other = hvd.elastic.ElasticSampler(data, shuffle=shuffle, seed=3)
    other.load_state_dict(sampler.state_dict())
    rest = list(other)
    assert len(rest) == len(other) == 13
    seen = hvd.allgather_object((first[:8], rest))
    begun = [index for each in seen for index in each[0]]
    left = [index for each in seen for index in each[1]]
    assert set(begun + left) == set(data)
    assert not set(begun) & set(left)
    other.set_epoch(1)
    assert len(other) == 21
    assert (list(other) == first) == (not shuffle)


def test_a_sampler_of_fewer_samples_than_ranks(rank, size):
    sampler = hvd.elastic.ElasticSampler([0], shuffle=False)
    assert list(sampler) == [0]
    sampler.record_batch(0, 1)
    sampler.reset()
    assert list(sampler) == [] and len(sampler) == 0


class Restarted:
    """The commits of a job, as each start of it sees them."""

    def __init__(self, monkeypatch, folder):
        self.monkeypatch = monkeypatch
        # All ranks name the file of rank 0.
        monkeypatch.setenv("HORONRUN_COMMITS", hvd.broadcast_object(str(folder / "job.pt")))

    def start(self, number):
        self.monkeypatch.setattr(Commits, "_calls", 0)
        self.monkeypatch.setenv("HORONRUN_RESTART", str(number))


@pytest.fixture
def job(monkeypatch, tmp_path):
    monkeypatch.delenv("HORONRUN_ELASTIC", raising=False)
    return Restarted(monkeypatch, tmp_path)


def train(state, steps, fails_behind=None):
    """The weights behind so many steps in all."""
    @hvd.elastic.run
    def run(state):
        for state.step in range(state.step, steps):
            if state.step == fails_behind:
                raise RuntimeError("a rank has failed")
            step(state.model, state.optimizer)
            for _ in state.sampler:
                state.sampler.record_batch(0, 1)
                break
            state.step += 1
            state.commit()
        return weights(state.model)
    return run(state)


def make_state():
    model, optimizer = make_parts(0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return hvd.elastic.TorchState(model, optimizer, step=0, notes={"a": [1]},
                                  sampler=hvd.elastic.ElasticSampler(list(range(100))))


def test_a_restart_goes_on_behind_the_last_commit(rank, size, job):
    expected = train(make_state(), 7)
    job.start(0)
    with pytest.raises(RuntimeError, match="a rank has failed"):
        train(make_state(), 7, fails_behind=3)
    hvd.barrier()
    job.start(1)
    state = make_state()
    resets = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])
    with torch.no_grad():
        state.model.weight.zero_()
    found = train(state, 7)
    assert resets == ([3] if rank == 0 else [0]), "before the ranks have met"
    assert all(torch.equal(*pair) for pair in zip(found, expected))
    assert (state.notes, state.sampler.processed_num) == ({"a": [1]}, 7 * size)


def test_a_restart_without_a_commit_says_so(rank, size, job):
    job.start(2)
    if rank == 0:
        with pytest.warns(UserWarning, match="restart 2: .*job.pt.0 does not exist.*--commits"):
            train(make_state(), 1)
    else:
        train(make_state(), 1)


def test_each_call_goes_on_behind_its_own_commits(rank, size, job):
    """Not behind those of another call, whose model may have other shapes."""
    def phase(features, steps, fails_behind=None):
        model = torch.nn.Linear(features, 1)
        with torch.no_grad():
            model.weight.fill_(features)
        state = hvd.elastic.TorchState(model, step=0)
        begun = []

        @hvd.elastic.run
        def count(state):
            begun.extend((state.step, model.weight[0, 0].item()))
            for step in range(state.step, steps):
                if step == fails_behind:
                    raise RuntimeError("a rank has failed")
                with torch.no_grad():
                    model.weight.add_(1)
                state.step = step + 1
                state.commit()
        count(state)
        return begun

    job.start(0)
    assert phase(3, steps=4) == [0, 3]
    with pytest.raises(RuntimeError, match="a rank has failed"):
        phase(5, steps=4, fails_behind=2)
    hvd.barrier()
    job.start(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert phase(3, steps=4) == [4, 7], "has nothing left to do"
        assert phase(5, steps=4) == [2, 7]
        assert phase(7, steps=4) == [0, 7], "had not begun before"


def test_the_last_commit_is_in_its_file_when_the_call_ends(rank, size, job, monkeypatch):
    """Whatever happens then, as an error that ends the process."""
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda *args: (time.sleep(0.1), save(*args)))

    @hvd.elastic.run
    def commit(state, fails):
        for state.step in range(3):
            state.commit()
        if fails:
            raise RuntimeError("a rank has failed")

    for fails in (False, True):
        job.start(0)
        state = make_state()
        with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
            commit(state, fails)
        if rank == 0:
            path = os.environ["HORONRUN_COMMITS"] + ".0"
            assert torch.load(path, weights_only=False)["objects"]["step"] == 2
            os.unlink(path)


def test_a_commit_that_can_t_be_written_is_told_and_costs_nothing_else(rank, size, job, tmp_path):
    job.start(0)
    job.monkeypatch.setenv("HORONRUN_COMMITS", str(tmp_path / "none" / "job.pt"))
    if rank == 0:
        with pytest.warns(UserWarning, match="a commit was not written to .*job.pt.0"):
            train(make_state(), 1)
    else:
        train(make_state(), 1)


@pytest.mark.parametrize("warns", ["default", "error"])
def test_a_value_that_can_t_be_copied_is_told_and_costs_nothing_else(rank, size, job, warns):
    job.start(0)
    state = hvd.elastic.TorchState(torch.nn.Linear(2, 1), loss=0.0, epoch=0)

    @hvd.elastic.run
    def commit(state):
        for state.epoch in range(3):
            loss = state.model(torch.ones(1, 2)).sum()
            state.loss = loss if state.epoch == 1 else loss.item()
            state.commit()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter(warns)
        commit(state)
    texts = [str(each.message) for each in told if "a commit was not" in str(each.message)]
    assert len(texts) == (1 if rank == 0 and warns == "default" else 0)
    assert all("job.pt.0" in text and "deepcopy" in text for text in texts)
    if rank == 0:
        path = os.environ["HORONRUN_COMMITS"] + ".0"
        assert torch.load(path, weights_only=False)["objects"]["epoch"] == 2


def test_all_ranks_end_for_other_hosts_at_one_commit(rank, size, job, monkeypatch, tmp_path):
    monkeypatch.setenv("HORONRUN_ELASTIC", "1")
    job.start(0)
    commits = Commits.of_next_call()
    state = make_state()
    state.begin_again(commits)
    state.commit()
    if rank == 0:
        open(os.environ["HORONRUN_COMMITS"] + ".hosts", "w", encoding="utf-8").close()
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    commits.end_call()
    job.start(0)
    with pytest.raises(SystemExit) as ended:
        train(state, 1)
    assert ended.value.code == 75
    if rank == 0:
        assert commits.read()["objects"]["step"] == 1


def test_the_program_may_have_handlers_of_its_own(rank, size):
    class Tensor(hvd.elastic.StateHandler):
        def __init__(self, value):
            super().__init__(value)
            self.lock = threading.Lock()  # no part of what is kept
            self.alias = value

        def save(self):
            self._saved_mean = self.value.clone()  # as those of Horovod's users name it

        def restore(self):
            self.alias.copy_(self._saved_mean)

        def sync(self):
            hvd.broadcast_(self.value, 0)

    registry = hvd.elastic.get_handler_registry()
    hvd.elastic.set_handler_registry([(torch.Tensor, Tensor), *registry])
    try:
        state = hvd.elastic.TorchState(mean=torch.tensor([1.0 + rank]))
        state.sync()
        assert state.mean.item() == 1
        state.mean.fill_(9)
        state.restore()
        assert state.mean.item() == 1
        content = pickle.loads(pickle.dumps(state.committed()))  # what a restart reads
        again = hvd.elastic.TorchState(mean=torch.tensor([5.0]))
        again.take(content)
        assert again.mean.item() == 1
    finally:
        hvd.elastic.set_handler_registry(registry)


def test_a_commit_that_can_not_be_written_keeps_nobody_waiting(rank, size, job, monkeypatch):
    class Ends:
        def __getstate__(self):
            raise SystemExit(3)

    job.start(0)
    commits = Commits.of_next_call()
    with pytest.warns(UserWarning, match="a commit was not written"):
        commits.write(Ends())
        commits.end_call()
    with monkeypatch.context() as no_threads:
        def refuse(thread):
            raise RuntimeError("can't start new thread")
        no_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            commits.write({})
    commits.end_call()


def test_a_commit_behind_the_call_is_there_at_once(rank, size, job):
    job.start(0)
    state = make_state()
    train(state, 1)
    if rank > 0:
        state.commit()
        return
    state.step = 7
    state.commit()
    with open(os.environ["HORONRUN_COMMITS"] + ".0", "rb") as file:
        assert torch.load(file, weights_only=False)["objects"]["step"] == 7


def test_a_commit_that_can_not_be_read_is_named(rank, size, job):
    job.start(0)
    if rank == 0:
        open(os.environ["HORONRUN_COMMITS"] + ".0", "w", encoding="utf-8").close()
        with pytest.raises(RuntimeError, match="job.pt.0 can't be read"):
            Commits.of_next_call().read()
