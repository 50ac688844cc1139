"""The calls of a group have names that follow the steps of the program."""

import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd
from horon import native


@pytest.fixture
def group():
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def reduce_as_one(tensors):
    """One call with a collective for each run of tensors of one dtype."""
    dist.group.WORLD.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()


class Program:
    """Steps of so many calls of all_reduce, each of another size."""

    def __init__(self, calls, first_size=1):
        self.tensors = [torch.empty(first_size + i) for i in range(calls)]
        self.expected = sum(range(1, 1 + hvd.size()))

    def step(self, wait_at_once=True):
        works = []
        for tensor in self.tensors:
            tensor.fill_(1 + hvd.rank())
            works.append(dist.all_reduce(tensor, async_op=True))
            if wait_at_once:
                works[-1].wait()
        for work in works:
            work.wait()
        for tensor in self.tensors:
            assert bool((tensor == self.expected).all())

    def share_negotiated(self, calls):
        """The share of negotiated calls in at least so many."""
        before = native.statistics()
        for _ in range(-(-calls // len(self.tensors))):
            self.step()
        after = native.statistics()
        negotiated, frozen = (after[name] - before[name]
                              for name in ("negotiated starts", "frozen starts"))
        assert negotiated + frozen >= calls
        return negotiated / (negotiated + frozen)

    def is_negotiated_no_more(self, within):
        """A rank that is late by more than 10 ms, on a busy machine, thaws what it is late for."""
        return any(self.share_negotiated(100) < 0.5 for _ in range(within // 100))


@pytest.mark.parametrize("calls", [1, 5, 32, 70])
def test_a_step_of_any_number_of_calls_is_negotiated_no_more(group, calls):
    assert Program(calls).is_negotiated_no_more(within=2000)


def test_many_calls_under_way(group):
    program = Program(45)
    for _ in range(20):
        program.step(wait_at_once=False)
    assert program.is_negotiated_no_more(within=2000)


def test_a_program_that_changes(group):
    assert Program(7).is_negotiated_no_more(within=2000)
    assert Program(3, first_size=100).is_negotiated_no_more(within=3000)
    for i in range(100):  # of no cycle
        Program(1, first_size=1000 + i).step()
    assert Program(11).is_negotiated_no_more(within=3000)


@pytest.mark.parametrize("before", [62, 64, 94, 95, 96, 126, 127, 128, 158, 159, 160])
def test_calls_that_are_divided_otherwise(group, rank, before):
    """Two collectives, in one call on rank 0 and in two on the others, wherever that may be."""
    program = Program(1)
    for _ in range(before):
        program.step()
    tensors = [torch.ones(2), torch.ones(2, dtype=torch.float64)]
    if rank == 0:
        with pytest.raises(RuntimeError):
            reduce_as_one(tensors)
    else:
        for tensor in tensors:
            with pytest.raises(RuntimeError):
                dist.all_reduce(tensor)
    for _ in range(200):
        program.step()


def test_one_call_of_many_collectives(group, size):
    """The call is longer than the time from a question to its answer."""
    numbers = [torch.ones(1, dtype=(torch.float32, torch.float64)[i % 2]) for i in range(300)]
    for _ in range(6):
        for tensor in numbers:
            tensor.fill_(1)
        reduce_as_one(numbers)
        assert all(tensor.item() == size for tensor in numbers)


def test_a_join_of_the_ranks(group, rank, size):
    program = Program(3)
    for _ in range(40):
        program.step()
    if rank == size - 1:
        for calls in range(1, 4):  # the others have joined
            x = torch.ones(1)
            dist.all_reduce(x)
            assert x.item() == 1
    assert hvd.join() == size - 1
    assert program.is_negotiated_no_more(within=2000)


def test_calls_that_differ_are_told_at_once_and_the_next_ones_meet(group, rank):
    program = Program(5)
    for calls in range(1, 160, 31):  # before the number of names has changed, meanwhile and after
        for _ in range(calls // 5):
            program.step()
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 0.*\[3\]|\[3\].*rank 0"):
            dist.all_reduce(torch.ones(3 if rank == 0 else 4))
        program.step()
    assert program.is_negotiated_no_more(within=3000)
