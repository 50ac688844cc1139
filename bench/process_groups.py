#!/usr/bin/env python3
"""PyTorch's process group "horon" beside Gloo, in one run of the same processes.

    export OMP_NUM_THREADS=1 PYTHONPATH=build/python
    mpirun -np 2 --bind-to none python bench/process_groups.py

It needs a Python with torch and the package horon. On a rank that is bound to one core Gloo is slow
(see plan() of curves). Two tables:

- Collectives: the same call of torch.distributed on a group of each backend. Calls alternate, all
  ranks begin together, and a figure is the median time on the slowest rank. "ratio" is Horon's
  time over Gloo's; "shared" that of Horon on tensors of hvd.shared_zeros().
- Training: the models of models.cc by DDP over each group, and by the optimizer of horon.torch,
  each over a step with nothing but a barrier at its end ("floor"). Blocks of steps alternate, and
  the figures are medians over blocks of ratios. DDP runs with its fast options, as in
  ddp_training_step.py.
"""
import argparse
import datetime
import functools
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import horon.torch as hvd
from ddp_training_step import (
    cpu_name, make_model, quartiles, ratios, require_json, write_json)

CPU = torch.device("cpu")


def slowest(values):
    """Of all ranks, element by element."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def mean(values):
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    return tensor.tolist()


def collectives(size, new):
    """name -> one call on a group, which returns the tensors of its result, if this rank has any;
    new: makes results"""
    is_root = dist.get_rank() == 0

    def all_reduce(tensor, group):
        dist.all_reduce(tensor, group=group)
        return [tensor]

    def broadcast(tensor, group):
        dist.broadcast(tensor, 0, group=group)
        return [tensor]

    # The same output for each call of a size.
    @functools.cache
    def list_of(count):
        return [new(count) for _ in range(size)]

    @functools.cache
    def one_of(count):
        return new(count)

    def all_gather(tensor, group):
        outputs = list_of(tensor.numel())
        dist.all_gather(outputs, tensor, group=group)
        return outputs

    def all_gather_into_tensor(tensor, group):  # as FSDP does, and the next one
        output = one_of(size * tensor.numel())
        dist.all_gather_into_tensor(output, tensor, group=group)
        return [output]

    def reduce_scatter_tensor(tensor, group):
        output = one_of(tensor.numel() // size)
        dist.reduce_scatter_tensor(output, tensor, group=group)
        return [output]

    def reduce(tensor, group):
        dist.reduce(tensor, 0, group=group)
        return [tensor] if is_root else None

    def gather(tensor, group):
        outputs = list_of(tensor.numel()) if is_root else None
        dist.gather(tensor, outputs, 0, group=group)
        return outputs

    def all_to_all_single(tensor, group):
        output = one_of(tensor.numel())
        dist.all_to_all_single(output, tensor, group=group)
        return [output]

    def barrier(_, group):
        dist.barrier(group)
    return {"all_reduce": all_reduce, "broadcast": broadcast, "reduce": reduce,
            "all_gather": all_gather, "all_gather_into_tensor": all_gather_into_tensor,
            "gather": gather, "reduce_scatter_tensor": reduce_scatter_tensor,
            "all_to_all_single": all_to_all_single, "barrier": barrier}


PARTS_ARE_EQUAL = ("reduce_scatter_tensor", "all_to_all_single")


def require_right(contenders, tensors, name):
    """A call that does only a part of its work would look fast."""
    size = dist.get_world_size()
    if name in ("all_reduce", "reduce", "reduce_scatter_tensor"):
        values = [size * (size + 1) // 2]
    else:
        values = [1] if name == "broadcast" else list(range(1, size + 1))
    for key, (_, call_of, group) in contenders.items():
        outputs = call_of[name](tensors[key].fill_(1 + dist.get_rank()), group) or []
        parts = [part for output in outputs for part in output.chunk(len(values) // len(outputs))]
        if not all((part == value).all() for part, value in zip(parts, values)):
            raise RuntimeError(f"a {name} over {key} has given a wrong result")


def in_turns(keys, round_number):
    """All of them; each round begins with another one."""
    return [keys[(i + round_number) % len(keys)] for i in range(len(keys))]


def time_calls(contenders, name, count, options):
    """contender -> seconds of each repetition, on the slowest rank"""
    calls = 16 if count * 4 <= 65536 else 1  # one is too short for the clock
    warmup = -(-options.warmup // calls)
    seconds = {key: [] for key in contenders}
    tensors = {key: new(count) for key, (new, _, _) in contenders.items()}
    for repetition in range(warmup + options.repetitions):
        for key in in_turns(list(contenders), repetition):
            _, call_of, group = contenders[key]
            call, tensor = call_of[name], tensors[key]
            # Each call adds to what the one before has left: without this the values would grow to
            # infinity, or be zeros, which may take another time than numbers.
            tensor.fill_(1 + dist.get_rank())
            hvd.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                call(tensor, group)
            passed = time.perf_counter() - begin
            # Where ranks share a core, what this rank does next would take CPU time from ranks that
            # are still in the collective. This barrier sleeps.
            hvd.barrier()
            if repetition >= warmup:
                seconds[key].append(passed / calls)
    require_right(contenders, tensors, name)
    return {key: slowest(values) for key, values in seconds.items()}


def measure_collectives(groups, options):
    size = dist.get_world_size()
    contenders = {  # where tensors come from, the calls, the group
        key: (new, collectives(size, new), groups[group])
        for key, new, group in (("horon", torch.zeros, "horon"), ("gloo", torch.zeros, "gloo"),
                                ("shared", hvd.shared_zeros, "horon"))}
    rows = []
    for name in options.collectives.split(",") if options.collectives else contenders["gloo"][1]:
        for bytes_each in [4] if name == "barrier" else options.sizes:
            if name in PARTS_ARE_EQUAL and bytes_each // 4 % size != 0:
                continue
            seconds = time_calls(contenders, name, max(1, bytes_each // 4), options)
            row = {"collective": name, "bytes": bytes_each,
                   "us": {key: 1e6 * statistics.median(values) for key, values in seconds.items()},
                   "ratio": statistics.median(ratios(seconds, "horon", "gloo")),
                   "ratio_quartiles": quartiles(ratios(seconds, "horon", "gloo")),
                   "shared_ratio": statistics.median(ratios(seconds, "shared", "gloo"))}
            rows.append(row)
            if dist.get_rank() == 0:
                times = "  ".join(f"{key} {us:10.1f} us" for key, us in row["us"].items())
                print(f"{name:22} {bytes_each:9} B  {times}  ratio {row['ratio']:.3f}  "
                      f"shared {row['shared_ratio']:.3f}", flush=True)
    return rows


def contenders_of(name, groups):
    """A function for each contender that makes one step."""
    def train(model, optimizer, batch, answers):
        optimizer.zero_grad()
        F.cross_entropy(model(batch), answers).backward()
        optimizer.step()

    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def model_of_rank():
        return make_model(name, dist.get_rank(), CPU)

    def step_of(model, optimizer, batch, answers):
        return lambda: train(model, optimizer, batch, answers)

    def floor():
        alone()
        hvd.barrier()
    steps = {"floor": floor}
    model, batch, answers = model_of_rank()
    alone = step_of(model, sgd(model), batch, answers)
    for key, group in groups.items():
        model, batch, answers = model_of_rank()
        model = nn.parallel.DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True, broadcast_buffers=False)
        steps[f"ddp_{key}"] = step_of(model, sgd(model), batch, answers)
    model, batch, answers = model_of_rank()
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    steps["optimizer"] = step_of(model, optimizer, batch, answers)
    return steps


def time_steps(step, steps):
    hvd.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begin) / steps


def measure_training(name, groups, options):
    contenders = contenders_of(name, groups)
    warm_s = {key: time_steps(step, 3) for key, step in contenders.items()}
    steps = min(max(int(options.block_s / slowest([warm_s["floor"]])[0]), 3), 200)
    seconds = {key: [] for key in contenders}
    keys = list(contenders)
    for block in range(options.blocks):
        for key in in_turns(keys, block):
            seconds[key].append(time_steps(contenders[key], steps))
    seconds = {key: mean(values) for key, values in seconds.items()}
    over = {key: quartiles(ratios(seconds, key, "floor")) for key in keys[1:]}
    if dist.get_rank() == 0:
        text = "  ".join(f"{key} {middle:.3f} ({low:.3f} to {high:.3f})"
                         for key, (low, middle, high) in over.items())
        print(f"{name:10} {steps:4} steps, over the floor: {text}", flush=True)
    return {"model": name, "steps": steps, "over_floor_quartiles": over,
            "horon_over_gloo_quartiles": quartiles(ratios(seconds, "ddp_horon", "ddp_gloo")),
            "block_ms": {key: [1e3 * value for value in values]
                         for key, values in seconds.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cnn,resnet18,deep,gpt", help="empty: no model")
    parser.add_argument("--collectives", default="", help="only these, separated by commas")
    parser.add_argument("--sizes", default="4,4096,65536,1048576,16777216",
                        help="sizes of collectives in bytes; empty: no collectives")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=128,
                        help="untimed calls of each kind and size at first; Horon negotiates about "
                        "a hundred of them")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--block-s", type=float, default=0.5)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",") if size]
    require_json(options.json)
    dist.init_process_group("horon")
    groups = {"horon": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    report = {
        "version": torch.__version__,
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "load": os.getloadavg(),
                    "date": datetime.date.today().isoformat()},
        "ranks": dist.get_world_size(), "threads": torch.get_num_threads(),
        "blocks": options.blocks,
        "collectives": measure_collectives(groups, options) if options.sizes else [],
        "models": [measure_training(name, groups, options)
                   for name in options.models.split(",") if name],
    }
    if dist.get_rank() == 0 and options.json:
        write_json(options.json, report)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
