"""A program for Horovod, as its users have written it: nothing here knows of Horon."""

import argparse

import torch
import torch.nn.functional as F
import horovod.torch as hvd
from horovod.torch.mpi_ops import Average

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
args = parser.parse_args()

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                     compression=hvd.Compression.fp16, op=Average)

first = None
for step in range(args.steps):
    data = torch.randn(32, 4)
    optimizer.zero_grad()
    loss = F.mse_loss(model(data), data.sum(1, keepdim=True))
    loss.backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss").item()
    first = first or mean
if hvd.rank() == 0:
    print(f"loss {mean:.4f}, at first {first:.4f}", flush=True)
    assert mean < first / 2
