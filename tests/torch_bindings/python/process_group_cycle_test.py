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
        """Of about so many calls."""
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


def test_calls_that_differ_are_told_at_once_and_the_next_ones_meet(group, rank):
    program = Program(5)
    for calls in range(1, 160, 31):  # before the number of names has changed, meanwhile and after
        for _ in range(calls // 5):
            program.step()
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 0.*\[3\]|\[3\].*rank 0"):
            dist.all_reduce(torch.ones(3 if rank == 0 else 4))
        program.step()
    assert program.is_negotiated_no_more(within=3000)
