"""Workers of a DataLoader that are no forks run this file again, and import horovod there."""

import importlib.util

import horovod.torch as hvd
import torch


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index))


if __name__ == "__main__":
    hvd.init()
    assert importlib.util.find_spec("horovod") is not None
    for context in ("forkserver", "spawn"):
        loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1,
                                             multiprocessing_context=context)
        assert sum(batch.sum().item() for batch in loader) == 28
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()
    print(f"[{hvd.rank()}] all samples came")
