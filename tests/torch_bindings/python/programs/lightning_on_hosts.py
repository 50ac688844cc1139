"""Three ranks, of which the last two stand for those of another host: which samples Lightning gives
to each, and Fabric. With "slurm" as if in a job of Slurm by --ntasks alone."""

import os
import sys

in_slurm = sys.argv[1:] == ["slurm"]
if in_slurm:
    os.environ["SLURM_NTASKS"] = "3"
    os.environ["SLURM_JOB_NAME"] = "train"
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
os.environ["HORON_HOST_ID"] = f"host{(rank + 1) // 2}"

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import horon.lightning  # noqa: E402
import horon.torch as hvd  # noqa: E402

try:
    import lightning.pytorch as lightning
    from lightning.fabric import Fabric
except ModuleNotFoundError:
    import pytorch_lightning as lightning
    from lightning_fabric import Fabric

seen = []


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, _):
        seen.extend(batch[0][:, 0].int().tolist())
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


samples = DataLoader(TensorDataset(torch.arange(12.0)[:, None]), batch_size=2)
strategies = horon.lightning.HoronStrategy, horon.lightning.HoronFabricStrategy
strategy, of_fabric = [one() if in_slurm else "horon" for one in strategies]
trainer = lightning.Trainer(accelerator="cpu", strategy=strategy, max_epochs=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Model(), samples)
assert trainer.world_size == 3


def each_is_seen_once(seen):
    every = hvd.allgather_object(seen)
    assert sorted(sum(every, [])) == list(range(12)), every


each_is_seen_once(seen)
fabric = Fabric(accelerator="cpu", strategy=of_fabric)
fabric.launch()
assert fabric.world_size == 3 and fabric.strategy.strategy_name == "horon"
each_is_seen_once([int(sample) for batch in fabric.setup_dataloaders(samples)
                   for sample in batch[0]])
print(f"[{rank}] each sample is seen once", flush=True)
