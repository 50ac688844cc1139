"""Complex parameters, as operators that learn in the frequency domain have them."""

import pytest
import torch

import horon.torch as hvd


class Spectral(torch.nn.Module):
    """Weights of the lowest frequencies of a signal, and a layer of real numbers."""

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(
            torch.randn(6, 4, dtype=torch.complex64, generator=generator))
        self.out = torch.nn.Parameter(torch.randn(16, 3, generator=generator))

    def forward(self, signal):
        spectrum = torch.fft.rfft(signal)
        low = torch.einsum("bif,if->bif", spectrum[..., :4], self.weight)
        return torch.fft.irfft(low, n=16).mean(1) @ self.out


def batch_of(step, size):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4 * size, 6, 16, generator=generator)


def loss_of(model, batch):
    return model(batch).square().mean()


@pytest.mark.parametrize("make", [
    lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)], ids=["adam", "sgd"])
def test_ranks_train_as_one_process_does(make, rank, size):
    expected = Spectral(seed=1)
    plain = make(expected.parameters())
    model = Spectral(seed=1 + rank)
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(5):
        batch = batch_of(step, size)
        plain.zero_grad()
        loss_of(expected, batch).backward()
        plain.step()
        optimizer.zero_grad()
        loss_of(model, batch[4 * rank:4 * rank + 4]).backward()
        optimizer.step()
        if step == 2:
            hvd.broadcast_optimizer_state(optimizer, root_rank=size - 1)
    for got, want in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
