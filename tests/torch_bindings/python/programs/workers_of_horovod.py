"""Workers of a DataLoader that are no forks run this file again, and import horovod there."""

import importlib.util

import horovod.torch as hvd
import torch
from horovod.common.util import gpu_available, num_rank_is_power_2
from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Loader(AsyncDataLoaderMixin, BaseDataLoader):
    def __len__(self):
        return 8

    def _iterate(self):
        return iter(range(8))


if __name__ == "__main__":
    hvd.init()
    assert [number for number in range(9) if num_rank_is_power_2(number)] == [1, 2, 4, 8]
    assert gpu_available("torch") == torch.cuda.is_available() and not gpu_available("mxnet")
    assert list(Loader(async_loader_queue_size=2)) == list(range(8))
    assert importlib.util.find_spec("horovod") is not None
    for context in ("forkserver", "spawn"):
        loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1,
                                             multiprocessing_context=context)
        assert sum(batch.sum().item() for batch in loader) == 28
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()
    print(f"[{hvd.rank()}] all samples came")
