"""A program of Lightning for torchrun and Gloo, that knows nothing of MPI. Lightning waits by
monitored_barrier() of the group while one rank prepares data."""

import torch
from torch.utils.data import DataLoader

import lightning

prepared = []


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(lightning.LightningDataModule):
    def prepare_data(self):
        prepared.append(True)

    def train_dataloader(self):
        return DataLoader(torch.ones(16, 4), batch_size=4)


fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
with fabric.rank_zero_first():
    pass
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1,
                            logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False)
trainer.fit(Model(), datamodule=Data())
assert len(prepared) == (trainer.global_rank == 0)
assert trainer.world_size == 2 and trainer.global_step == 2
print(f"[{trainer.global_rank}] trained over {torch.distributed.get_backend()}", flush=True)
