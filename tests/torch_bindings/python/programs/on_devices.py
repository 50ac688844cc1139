"""Collectives and training from Python on the CPU, then on the GPU of each rank where there is one:
so that what is expected of the GPU has been seen to be right.

Prints "on DEVICE: all as it should be" on rank 0 for each, and "no GPU: why" where there is none.
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import horon.torch as hvd

STEPS, ROWS = 4, 6


def near(got, want, tolerance=1e-5):
    torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=tolerance, atol=tolerance)


def of_rank(rank, *shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float).view(shape) * 0.5 + rank


def of_all(*shape):
    return torch.stack([of_rank(rank, *shape) for rank in range(hvd.size())])


def horovod_calls(device):
    name = f"{device.type}."
    mine = of_rank(hvd.rank(), 7, 3).to(device)
    near(hvd.allreduce(mine, name=name + "mean"), of_all(7, 3).mean(0))
    near(hvd.allgather(mine, name=name + "rows"), of_all(7, 3).flatten(0, 1))
    near(hvd.broadcast(mine, hvd.size() - 1, name=name + "root"), of_rank(hvd.size() - 1, 7, 3))
    handles = [hvd.allreduce_async_(of_rank(hvd.rank(), 50).to(device), op=hvd.Sum,
                                    name=f"{name}{i}") for i in range(5)]
    for handle in handles:
        near(hvd.synchronize(handle), of_all(50).sum(0))
    x = mine.clone().requires_grad_()
    hvd.allreduce(x, op=hvd.Sum, name=name + "autograd").sum().backward()
    near(x.grad, torch.full((7, 3), float(hvd.size())))


def calls_of_a_group(device):
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = of_rank(rank, 33).to(device)
    dist.all_reduce(tensor)
    near(tensor, of_all(33).sum(0))
    whole = torch.empty(size, 4, device=device)
    dist.all_gather_into_tensor(whole, of_rank(rank, 4).to(device))
    near(whole, of_all(4))
    part = torch.empty(5, device=device)
    dist.reduce_scatter_tensor(part, of_rank(rank, size * 5).to(device), op=dist.ReduceOp.AVG)
    near(part, of_all(size * 5).mean(0)[5 * rank:5 * rank + 5])
    rows = [torch.empty(3, device=device) for _ in range(size)]
    work = dist.all_gather(rows, of_rank(rank, 3).to(device), async_op=True)
    work.wait()
    near(torch.stack(rows), of_all(3))
    tensor = of_rank(rank, 9).to(device)
    [doubled] = dist.all_reduce(tensor, async_op=True).get_future().then(
        lambda sum: [sum.value()[0] * 2]).wait()
    near(doubled, of_all(9).sum(0) * 2)
    if size > 1:
        received = torch.empty(6, device=device)
        peers = [dist.P2POp(dist.isend, of_rank(rank, 6).to(device), (rank + 1) % size),
                 dist.P2POp(dist.irecv, received, (rank - 1) % size)]
        for request in dist.batch_isend_irecv(peers):
            request.wait()
        near(received, of_rank((rank - 1) % size, 6))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [each["rank"] for each in objects] == list(range(size))
    dist.barrier()


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))


def batch(step, rank=None):
    rows = torch.randn(ROWS * hvd.size(), 8, generator=torch.Generator().manual_seed(step))
    return rows if rank is None else rows[rank * ROWS:(rank + 1) * ROWS]


def train(parts, optimizer, device, rank=None):
    for step in range(STEPS):
        optimizer.zero_grad()
        parts(batch(step, rank).to(device)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()


def sgd(parts):
    return torch.optim.SGD(parts.parameters(), lr=0.1, momentum=0.9)


def training(device):
    whole = model()  # one process, all rows, on the CPU
    train(whole, sgd(whole), torch.device("cpu"))

    ours = model().to(device)
    hvd.broadcast_parameters(ours.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(ours), named_parameters=ours.named_parameters())
    train(ours, optimizer, device, hvd.rank())
    for got, want in zip(ours.parameters(), whole.parameters()):
        near(got, want)

    for hook in (None, default_hooks.allreduce_hook, default_hooks.bf16_compress_hook):
        ours = DistributedDataParallel(model().to(device), bucket_cap_mb=0.0005)
        if hook is not None:
            ours.register_comm_hook(None, hook)
        train(ours, sgd(ours), device, hvd.rank())
        narrow = hook is default_hooks.bf16_compress_hook
        for got, want in zip(ours.parameters(), whole.parameters()):
            near(got, want, 2e-2 if narrow else 1e-5)

    ours = model().to(device)
    fully_shard(ours, mesh=dist.device_mesh.init_device_mesh(device.type, (hvd.size(),)))
    train(ours, sgd(ours), device, hvd.rank())
    for got, want in zip(ours.parameters(), whole.parameters()):
        near(got.full_tensor(), want)


def captured(device, step, warm_ups):
    """The graph of one step, after eager ones in a stream of its own, as torch.cuda asks for."""
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        for _ in range(warm_ups):
            step()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def calls_in_a_graph(device):
    sums, rows = torch.zeros(33, device=device), torch.zeros(4, device=device)
    whole = torch.zeros(hvd.size(), 4, device=device)
    mine = torch.zeros(33, device=device)

    def step():
        sums.copy_(mine)
        rows.copy_(mine[:4])
        hvd.allreduce_(sums, op=hvd.Sum, name="graph.sum")
        work = dist.all_gather_into_tensor(whole, rows, async_op=True)
        future = dist.all_reduce(rows, async_op=True).get_future()
        work.wait()
        future.wait()

    graph = captured(device, step, 1)
    for launch in range(3):
        mine.copy_(of_rank(hvd.rank() + launch, 33))
        graph.replay()
        near(sums, of_all(33).sum(0) + hvd.size() * launch)
        near(whole, of_all(4) + launch)
        near(rows, of_all(4).sum(0) + hvd.size() * launch)


def training_in_a_graph(device):
    """Whole steps of Horovod's optimizer, and of DDP."""
    warm_ups = 11  # DDP looks at the time of its first steps, which can't be captured

    def whole_run():
        whole = model()
        optimizer = sgd(whole)
        for step in [0] * warm_ups + list(range(1, STEPS)):
            optimizer.zero_grad()
            whole(batch(step)).pow(2).mean().backward()
            optimizer.step()
        return whole

    whole = whole_run()
    rows = torch.zeros(ROWS, 8, device=device)
    for kind in ("optimizer", "ddp"):
        rows.copy_(batch(0, hvd.rank()))
        aside = torch.cuda.Stream(device)
        with torch.cuda.stream(aside):  # where DDP's hooks will run
            ours = model().to(device)
            parts = DistributedDataParallel(ours) if kind == "ddp" else ours
            optimizer = sgd(ours)
            if kind == "optimizer":
                optimizer = hvd.DistributedOptimizer(optimizer,
                                                     named_parameters=ours.named_parameters())

        def step():
            optimizer.zero_grad()
            parts(rows).pow(2).mean().backward()
            optimizer.step()

        torch.cuda.current_stream(device).wait_stream(aside)
        graph = captured(device, step, warm_ups)
        for number in range(1, STEPS):
            rows.copy_(batch(number, hvd.rank()))
            graph.replay()
        for got, want in zip(ours.parameters(), whole.parameters()):
            near(got, want)
        del graph


def main():
    hvd.init()
    devices = [torch.device("cpu")]
    if hvd.cuda_built() and torch.cuda.is_available():
        torch.cuda.set_device(hvd.device())
        devices.append(hvd.device())
    dist.init_process_group("horon")
    for device in devices:
        horovod_calls(device)
        calls_of_a_group(device)
        training(device)
        if device.type == "cuda":
            calls_in_a_graph(device)
            training_in_a_graph(device)
        if hvd.rank() == 0:
            print(f"on {device}: all as it should be", flush=True)
    if len(devices) == 1 and hvd.rank() == 0:
        why = "torch.cuda finds none" if hvd.cuda_built() else "Horon was built without CUDA"
        print(f"no GPU: {why}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
