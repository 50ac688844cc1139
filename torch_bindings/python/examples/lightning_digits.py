"""Trains a classifier with Lightning over Horon:

    mpirun -np 2 python lightning_digits.py --epochs 4

The digits are drawn by the program: an image of 8 x 8 with noise for each of ten patterns. Prints
the accuracy over the test samples of all ranks. (Lightning repeats some where the ranks can't share
them equally.)
"""

import argparse
import tempfile

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import horon.lightning  # noqa: F401  registers strategy="horon"


def digits(samples, seed):
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (samples,), generator=source)
    return TensorDataset(patterns[labels] + torch.randn(samples, 64, generator=source), labels)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(),
                                          torch.nn.Linear(32, 10))
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def training_step(self, batch, _):
        images, labels = batch
        loss = F.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        self.accuracy(self.layers(images), labels)
        self.log("accuracy", self.accuracy, on_epoch=True)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--precision", default="32-true", help="bf16-mixed, ...")
    parser.add_argument("--folder", help="of checkpoints, the same on all hosts; default: a "
                        "temporary one on this host")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        keep = ModelCheckpoint(args.folder or temporary, monitor="accuracy", mode="max")
        trainer = lightning.Trainer(
            accelerator="cpu", strategy="horon", max_epochs=args.epochs, precision=args.precision,
            callbacks=[keep, EarlyStopping("accuracy", mode="max", stopping_threshold=0.999)],
            logger=False, enable_progress_bar=False, enable_model_summary=False)
        if args.folder is None and trainer.num_nodes > 1:
            parser.error("on several hosts give --folder: a folder of checkpoints that all see")
        lightning.seed_everything(1)
        model = Classifier()
        trainer.fit(model, DataLoader(digits(2000, 1), batch_size=50, shuffle=True),
                    DataLoader(digits(400, 2), batch_size=50))
        [result] = trainer.test(model, DataLoader(digits(400, 3), batch_size=50), verbose=False,
                                ckpt_path=trainer.strategy.broadcast(keep.best_model_path))
        ranks = trainer.strategy.all_gather(torch.tensor(float(trainer.global_rank)))
        if trainer.is_global_zero:
            print(f"{len(ranks)} ranks, {trainer.current_epoch} epochs: accuracy "
                  f"{result['accuracy']:.3f}", flush=True)
        trainer.strategy.barrier()


if __name__ == "__main__":
    main()
