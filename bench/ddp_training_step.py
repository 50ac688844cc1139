#!/usr/bin/env python3
"""What Python's DistributedDataParallel over Gloo adds to a training step.

The models are those of models.cc, the method is that of training_step_bench.cc: the same processes
train each model with DDP, without any communication ("alone"), and with nothing but a barrier at
the end of each step ("floor": the same MPI_Barrier as there, called through ctypes). Blocks of
steps of all of them alternate, and the figures are medians over blocks of ratios. The JSON has the
same fields. It needs Open MPI, and the whole torch wheel with its dependencies (several GB), as
tools/setup --python installs it:

    OMP_NUM_THREADS=1 mpirun -np 2 .venv/bin/python bench/ddp_training_step.py --json ddp.json

DDP runs with its fast options: gradient_as_bucket_view, and no broadcast of buffers (Horon does not
send them in a step either). With --device cuda it runs over NCCL, a GPU for each rank.
"""
import argparse
import ctypes
import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../tools"))
from replace_file import replace_file, require_replaceable  # noqa: E402


class GptShape:
    def __init__(self, letters=256, width=256, heads=4, context=128, layers=4):
        self.letters, self.width, self.heads = letters, width, heads
        self.context, self.layers = context, layers


GPT, GPT2 = GptShape(), GptShape(50257, 768, 12, 1024, 12)


def make_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def make_deep():
    layers = []
    for _ in range(200):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


class Block(nn.Module):
    """The basic block of He et al. 2016, "Deep Residual Learning for Image Recognition"."""

    def __init__(self, from_, to, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(from_, to, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(to)
        self.conv2 = nn.Conv2d(to, to, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(to)
        self.shortcut = None
        if stride != 1 or from_ != to:
            self.shortcut = nn.Sequential(nn.Conv2d(from_, to, 1, stride, bias=False),
                                          nn.BatchNorm2d(to))

    def forward(self, x):
        kept = x if self.shortcut is None else self.shortcut(x)
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + kept)


def make_resnet18():
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    from_ = 64
    for to in (64, 128, 256, 512):
        layers += [Block(from_, to, 1 if to == 64 else 2), Block(to, to, 1)]
        from_ = to
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Bottleneck(nn.Module):
    """Three convolutions, as in ResNet-50."""

    def __init__(self, from_, inner, stride):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(from_, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner))
        self.shortcut = None
        if stride != 1 or from_ != 4 * inner:
            self.shortcut = nn.Sequential(nn.Conv2d(from_, 4 * inner, 1, stride, bias=False),
                                          nn.BatchNorm2d(4 * inner))

    def forward(self, x):
        kept = x if self.shortcut is None else self.shortcut(x)
        return torch.relu(self.layers(x) + kept)


def make_resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    from_ = 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(from_, inner, 2 if i == 0 and inner != 64 else 1))
            from_ = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(from_, 1000))


class TransformerLayer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, context, width = x.shape
        parts = self.attend(self.norm1(x)).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        y = x + self.project(mixed.transpose(1, 2).reshape(batch, context, width))
        return y + self.shrink(F.gelu(self.grow(self.norm2(y))))


class Gpt(nn.Module):
    def __init__(self, shape=GPT):
        super().__init__()
        self.letters = nn.Embedding(shape.letters, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        with torch.no_grad():
            self.letters.weight.mul_(0.02)
            self.places.weight.mul_(0.02)
        self.layers = nn.Sequential(*(TransformerLayer(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, text):
        x = self.letters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return F.linear(self.norm(self.layers(x)), self.letters.weight).flatten(0, 1)


def make_tiny():
    return nn.Sequential(*(nn.LayerNorm(64) for _ in range(1000)))


def make_model(name, batch_seed, device):
    """The model (the same on all ranks), its batch and its answers (different on each rank)."""
    torch.manual_seed(batch_seed + 1000)
    if name in ("gpt", "gpt2"):
        gpt = GPT if name == "gpt" else GPT2
        text = torch.randint(gpt.letters, (4, gpt.context + 1))
        batch, answers = text[:, :-1], text[:, 1:].reshape(-1)
    else:
        shape = {"cnn": (64, 1, 28, 28), "resnet18": (8, 3, 32, 32), "deep": (64, 64),
                 "tiny": (8, 64), "resnet50": (64, 3, 224, 224)}[name]
        batch, answers = torch.randn(shape), torch.randint(10, shape[:1])
    make = {"cnn": make_cnn, "resnet18": make_resnet18, "deep": make_deep, "gpt": Gpt,
            "tiny": make_tiny, "resnet50": make_resnet50, "gpt2": lambda: Gpt(GPT2)}[name]
    torch.manual_seed(1)
    return make().to(device), batch.to(device), answers.to(device)


class Mpi:
    """Open MPI's barrier over all ranks."""

    def __init__(self):
        self.library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
        self.world = ctypes.byref(ctypes.c_char.in_dll(self.library, "ompi_mpi_comm_world"))
        self.library.MPI_Init(None, None)

    def barrier(self):
        self.library.MPI_Barrier(self.world)

    def finalize(self):
        self.library.MPI_Finalize()


def wait_for(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(step, steps, mpi, device):
    """Returns the seconds per step on this rank. All ranks begin together."""
    wait_for(device)
    mpi.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait_for(device)
    return (time.perf_counter() - begin) / steps


def average(values, device):
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    return (tensor / dist.get_world_size()).tolist()


def choose_steps(options, step_s):
    if options.steps > 0:
        return options.steps
    slowest = torch.tensor(step_s, dtype=torch.float64, device=options.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return min(max(int(0.5 / slowest.item()), 3), 200)


def ratios(seconds, contender, base):
    return [above / below for above, below in zip(seconds[contender], seconds[base])]


def quartiles(samples):
    if len(samples) == 1:
        return samples * 3
    return statistics.quantiles(samples, n=4, method="inclusive")


def contenders_of(name, mpi, device):
    """A function for each contender that makes one step, and the number of elements of each
    parameter."""
    def make_sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    alone, batch, answers = make_model(name, dist.get_rank(), device)
    shared, _, _ = make_model(name, dist.get_rank(), device)
    shared = nn.parallel.DistributedDataParallel(
        shared, gradient_as_bucket_view=True, broadcast_buffers=False)
    plain, distributed = make_sgd(alone), make_sgd(shared)

    def train(model, optimizer):
        optimizer.zero_grad()
        F.cross_entropy(model(batch), answers).backward()
        optimizer.step()

    def train_and_meet():
        train(alone, plain)
        wait_for(device)
        mpi.barrier()

    steps = {"alone": lambda: train(alone, plain), "floor": train_and_meet,
             "ddp": lambda: train(shared, distributed)}
    return steps, [parameter.numel() for parameter in alone.parameters()]


def measure(name, options, mpi):
    device = options.device
    contenders, sizes = contenders_of(name, mpi, device)
    warm_s = {key: time_steps(step, options.warmup_steps, mpi, device)
              for key, step in contenders.items()}
    steps = choose_steps(options, warm_s["alone"])
    seconds = {key: [] for key in contenders}
    for block in range(options.blocks):
        keys = list(contenders)
        for i in range(len(keys)):  # each block begins with another contender
            key = keys[(i + block) % len(keys)]
            seconds[key].append(time_steps(contenders[key], steps, mpi, device))
    seconds = {key: average(values, device) for key, values in seconds.items()}
    return {
        "model": name,
        "parameters": sum(sizes),
        "tensors": len(sizes),
        "steps": steps,
        "block_ms": {key: [1e3 * value for value in values] for key, values in seconds.items()},
        "ratio": statistics.median(ratios(seconds, "ddp", "alone")),
        "floor": statistics.median(ratios(seconds, "floor", "alone")),
        "over_floor": statistics.median(ratios(seconds, "ddp", "floor")),
        "ratio_quartiles": {key: quartiles(ratios(seconds, key, "alone")) for key in seconds},
        "over_floor_quartiles": {key: quartiles(ratios(seconds, key, "floor")) for key in seconds},
    }


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(": ", 1)[1].strip()
    return "unknown"


def require_json(path):
    """Ends the job if rank 0 can't write the report there, which would be found after the work."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0"))
    if not path or rank != "0":
        return
    try:
        require_replaceable(path)
    except OSError as error:
        sys.exit(f"can't write {path}: {error.strerror}")


def write_json(path, content):
    replace_file(path, (json.dumps(content, indent=2) + "\n").encode())


def start(kind):
    """Starts Gloo, or NCCL for GPUs, on the ranks of mpirun (Open MPI); returns the device."""
    for ours, theirs in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
        os.environ.setdefault(ours, os.environ.get(theirs, ""))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    if not os.environ["RANK"]:
        raise SystemExit("run it under mpirun")
    if kind == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def set_threads():
    """As horon::init() does: OMP_NUM_THREADS, or an equal share of the cores."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cnn,resnet18,deep,gpt,tiny")
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--steps", type=int, default=0,
                        help="steps in a block; 0: about half a second")
    parser.add_argument("--warmup-steps", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    require_json(options.json)
    options.device = start(options.device)
    mpi = Mpi()
    set_threads()
    results = []
    for name in options.models.split(","):
        results.append(measure(name, options, mpi))
        if dist.get_rank() == 0:
            row = results[-1]
            print(f"{name:10} {row['steps']:4} steps, over a step alone {row['ratio']:.3f}, "
                  f"over the floor {row['over_floor']:.3f}", flush=True)
    if dist.get_rank() == 0 and options.json:
        write_json(options.json, {
            "library": "ddp-gloo" if options.device.type == "cpu" else "ddp-nccl",
            "version": torch.__version__,
            "machine": {"cpu": cpu_name(), "cores": os.cpu_count(),
                        "date": datetime.date.today().isoformat()},
            "ranks": dist.get_world_size(),
            "threads": torch.get_num_threads(),
            "blocks": options.blocks,
            "models": results,
        })
    dist.barrier()
    mpi.finalize()
    # Destroying torch's process group and its Gloo threads sometimes hangs or aborts here.
    sys.stdout.flush()
    time.sleep(0.5)  # other ranks may still be in the barrier
    os._exit(0)


if __name__ == "__main__":
    main()
