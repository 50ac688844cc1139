"""Hooks of DistributedDataParallel that make gradients travel in fewer bits than float32.

    from horon import comm_hooks
    model = DistributedDataParallel(model)              # of a group of the backend "horon"
    model.register_comm_hook(None, comm_hooks.int8_hook)

The state is the group, or None for the default one, as with torch's own hooks of 16 bits. Unlike
with those, sums are made in float32. Gradients of other types travel as they are.
"""

import torch
import torch.distributed

from horon import native


def _averaged(group, bucket, compression):
    group = torch.distributed.group.WORLD if group is None else group
    backend = group._get_backend(bucket.buffer().device)
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    work = native.compressed_average(backend, bucket.buffer(), compression)
    return work.get_future().then(lambda future: future.value()[0])


def fp16_hook(group, bucket):
    """float16; what exceeds its range becomes infinite."""
    return _averaged(group, bucket, "fp16")


def bf16_hook(group, bucket):
    """bfloat16, which has the range of float32."""
    return _averaged(group, bucket, "bf16")


def int8_hook(group, bucket):
    """Between hosts only: blocks of 64 gradients, each a multiple of 1/127 of the block's largest.
    Within a host nothing is rounded."""
    return _averaged(group, bucket, "int8")
