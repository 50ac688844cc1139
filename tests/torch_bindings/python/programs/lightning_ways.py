"""Two ranks of Lightning over Horon, in each way that there is: what is logged and gathered, and
that a checkpoint goes on where it was made.

usage: lightning_ways.py strategy|mpi4py|fabric FOLDER    one folder for both ranks
"""

import pathlib
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import lightning
import lightning.pytorch.strategies

way, folder = sys.argv[1], pathlib.Path(sys.argv[2])
samples = TensorDataset(torch.arange(16.0)[:, None] / 16)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, values):
        return self.layer(values)

    def training_step(self, batch, _):
        rank = self.global_rank
        self.log("mean", float(rank), sync_dist=True)
        self.log("sum", float(rank + 1), sync_dist=True, reduce_fx="sum", on_step=True)
        assert self.all_gather(torch.tensor([rank])).tolist() == [[0], [1]]
        return (self(batch[0]) ** 2).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def strategy():
    if way == "strategy":
        import horon.lightning  # noqa: F401
        return {"strategy": "horon"}
    return {"strategy": lightning.pytorch.strategies.DDPStrategy(process_group_backend="horon"),
            "devices": 2}


def trained(epochs, checkpoint=None):
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=epochs, logger=False,
                                enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False, **strategy())
    model = Model()
    trainer.fit(model, DataLoader(samples, batch_size=2), ckpt_path=checkpoint)
    assert torch.distributed.get_backend() == "horon"
    assert trainer.world_size == 2
    assert trainer.callback_metrics["mean"] == 0.5 and trainer.callback_metrics["sum"] == 3
    return trainer, model


def with_trainer():
    _, whole = trained(2)
    trainer, _ = trained(1)
    trainer.save_checkpoint(folder / "one_epoch.ckpt")
    _, resumed = trained(2, folder / "one_epoch.ckpt")
    for one, other in zip(whole.parameters(), resumed.parameters()):
        assert torch.equal(one, other)
    return trainer.global_rank


def with_fabric():
    from horon.lightning import HoronEnvironment
    from lightning.fabric.strategies import DDPStrategy
    fabric = lightning.Fabric(accelerator="cpu", devices=2,
                              strategy=DDPStrategy(process_group_backend="horon"),
                              plugins=[HoronEnvironment()])
    fabric.launch()
    rank = fabric.global_rank
    assert torch.distributed.get_backend() == "horon" and fabric.world_size == 2
    model = Model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = torch.tensor([[float(rank + 1)]])
    fabric.backward(model(batch).sum())
    assert model.module.layer.weight.grad.item() == 1.5  # of both ranks
    optimizer.step()
    assert fabric.all_gather(torch.tensor(rank)).tolist() == [0, 1]
    assert fabric.all_reduce(torch.tensor(float(rank)), reduce_op="sum") == 1
    assert fabric.broadcast(f"from {rank}") == "from 0"
    return rank


rank = with_fabric() if way == "fabric" else with_trainer()
print(f"[{rank}] {way} is right", flush=True)
