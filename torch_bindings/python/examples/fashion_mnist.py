#!/usr/bin/env python3
"""Trains a small convolutional network on Fashion-MNIST: a program for Horovod, as its users write
it. Nothing in it knows of Horon, which runs it unchanged:

    mpirun -np 2 python -m horon.as_horovod fashion_mnist.py --epochs 2

The images: apt-get install dataset-fashion-mnist, or --data FOLDER with the four files of MNIST.
"""

import argparse
import gzip
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
import horovod.torch as hvd
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="Fashion-MNIST with horovod.torch")
parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", type=pathlib.Path)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--batch-size", default=64, type=int, help="images per rank and step")
parser.add_argument("--lr", default=0.025, type=float, help="of one rank; multiplied by the ranks")
parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in 16 bits")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * 7 * 7, 128)
        self.fc2 = torch.nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def read(folder, part):
    """The images and labels of a part, "train" or "t10k"."""
    def content(kind, header):
        with gzip.open(folder / f"{part}-{kind}-ubyte.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)
    images = torch.from_numpy(content("images-idx3", 16).reshape(-1, 1, 28, 28).copy())
    labels = torch.from_numpy(content("labels-idx1", 8).astype(np.int64))
    return TensorDataset((images.float() / 255 - 0.286) / 0.353, labels)


def train(model, optimizer, loader, epoch):
    model.train()
    loader.sampler.set_epoch(epoch)
    for step, (data, target) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        if hvd.rank() == 0 and step % 100 == 0:
            print(f"epoch {epoch}, step {step} of {len(loader)}: loss {loss.item():.4f}",
                  flush=True)


def evaluate(model, loader):
    """Percent of the images that the model gets right, over all ranks."""
    model.eval()
    right = torch.zeros(())
    with torch.no_grad():
        for data, target in loader:
            right += (model(data).argmax(1) == target).sum()
    seen = torch.tensor(float(len(loader.sampler)))
    return 100 * (hvd.allreduce(right, name="right") / hvd.allreduce(seen, name="seen")).item()


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(hvd.rank())

    images = read(args.data, "train")
    sampler = DistributedSampler(images, num_replicas=hvd.size(), rank=hvd.rank())
    training = DataLoader(images, batch_size=args.batch_size, sampler=sampler)
    images = read(args.data, "t10k")
    # Each image once: the sampler of training repeats some, to give all ranks equally many.
    test = DataLoader(images, batch_size=args.batch_size,
                      sampler=range(hvd.rank(), len(images), hvd.size()))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         compression=compression, op=hvd.Average)
    for epoch in range(1, args.epochs + 1):
        train(model, optimizer, training, epoch)
        accuracy = evaluate(model, test)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: test accuracy {accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    main()
