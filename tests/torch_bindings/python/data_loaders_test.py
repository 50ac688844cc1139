"""Data loaders with a thread, as horovod.data.data_loader_base has them."""

import subprocess
import sys
import threading

import pytest

from horon.data_loaders import AsyncDataLoaderMixin, BaseDataLoader


class Loader(BaseDataLoader):
    def __init__(self, count, fails_at=None):
        self.count = count
        self.fails_at = fails_at
        self.threads = set()

    def __len__(self):
        return self.count

    def _iterate(self):
        for i in range(self.count):
            self.threads.add(threading.current_thread())
            if i == self.fails_at:
                raise KeyError("as it should")
            yield i

    def _process_batch(self, batch):
        return 10 * batch


class AsyncLoader(AsyncDataLoaderMixin, Loader):
    pass


@pytest.mark.parametrize("ahead", [0, 1, 64])
def test_a_loader_gives_all_batches_each_time(ahead):
    loader = AsyncLoader(ahead, False, 5)
    for _ in range(2):
        assert list(loader) == [0, 10, 20, 30, 40] and len(loader) == 5
    assert (threading.current_thread() in loader.threads) == (ahead == 0)
    assert not any(each.is_alive() for each in loader.threads - {threading.current_thread()})


def test_a_loop_that_is_left_early_leaves_nothing_behind():
    loader = AsyncLoader(2, False, 100)
    for batch in loader:
        if batch == 30:
            break
    assert next(iter(loader)) == 0
    loader.close_async_loader()
    assert not any(each.is_alive() for each in loader.threads)


def test_what_a_loader_raises_comes_behind_the_batches_before_it():
    seen = []
    with pytest.raises(KeyError, match="as it should"):
        for batch in AsyncLoader(8, False, 5, fails_at=2):
            seen.append(batch)
    assert seen == [0, 10]


def test_a_loop_ends_when_its_loader_is_closed():
    loader = AsyncLoader(2, False, 100)
    loop = iter(loader)
    next(loop)
    loader.close_async_loader()
    assert list(loop) == []


def test_a_loop_that_another_one_ends_says_so():
    loader = AsyncLoader(2, False, 100)
    first = iter(loader)
    assert next(first) == 0
    second = iter(loader)
    assert next(second) == 0
    with pytest.raises(RuntimeError, match="another loop over this loader has begun"):
        list(first)
    assert list(second) == [10 * i for i in range(1, 100)]


_LEFT_AT_THE_END = """
import torch
from horon.data_loaders import AsyncDataLoaderMixin, BaseDataLoader

class Loader(AsyncDataLoaderMixin, BaseDataLoader):
    def _iterate(self):
        while True:
            yield torch.randn(400, 400) @ torch.randn(400, 400)

torch.set_num_threads(1)
loop = iter(Loader())
for _ in range(10):
    next(loop)
print("trained")
"""


def test_a_process_may_end_while_a_batch_is_made():
    done = subprocess.run([sys.executable, "-c", _LEFT_AT_THE_END], text=True, timeout=250,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (done.returncode, done.stdout) == (0, "trained\n")
