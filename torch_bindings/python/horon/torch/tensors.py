"""Tensors in memory that collectives use without a copy."""

import torch

from horon import native


def shared_zeros(*sizes, size=None, dtype=None, requires_grad=False):
    """A tensor of zeros on the CPU, in memory that the ranks of this host share.

    A collective of horon.torch, or of torch.distributed on the group "horon", takes a copy less on
    it. It pays for tensors of a megabyte and more that are used again and again. Not collective.
    New memory is slow: keep the tensor. Arguments mean what they do in torch.zeros. A child made
    by fork(), such as a worker of a DataLoader, does not have the memory: reading it there ends
    the child by SIGSEGV.
    """
    given = sizes if size is None else (size,)
    shape = given[0] if len(given) == 1 and hasattr(given[0], "__iter__") else given
    tensor = native.shared_zeros(list(shape), dtype or torch.get_default_dtype())
    return tensor.requires_grad_(requires_grad)
