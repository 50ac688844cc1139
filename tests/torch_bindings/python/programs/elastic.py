"""Trains elastically; rank 1 of the first start kills itself in the second epoch."""

import os
import signal
import time

import torch

import horon.torch as hvd

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                     named_parameters=model.named_parameters())
first = os.environ.get("HORONRUN_RESTART", "0") == "0"


def wait_for_a_commit():
    """On disk, whatever it has to do."""
    while not os.path.exists(os.environ["HORONRUN_COMMITS"] + ".0"):
        time.sleep(0.01)


@hvd.elastic.run
def train(state):
    begun = (state.epoch, state.batch)
    for state.epoch in range(state.epoch, 3):
        for batch in range(state.batch, 5):
            if first and state.epoch == 1 and batch == 2 and hvd.rank() == 1:
                wait_for_a_commit()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)  # a step, in which commits are written
            optimizer.zero_grad()
            samples = torch.full((3, 4), batch + state.epoch + hvd.rank() + 1.0)
            model(samples).pow(2).mean().backward()
            optimizer.step()
            state.batch = batch + 1
            state.commit()
        state.batch = 0
    return begun


begun = train(hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0))
print("begun at", *begun, "ended with", model.weight.sum().item(), flush=True)
