"""Gradients in 16 bits on their way between the ranks."""

import torch


class Compressor:
    """compress() before and decompress() after a collective."""

    name = "none"  # for DistributedOptimizer, whose hooks round while they pack

    @staticmethod
    def compress(tensor):
        """(what travels, what decompress() needs)."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class _Narrow(Compressor):
    dtype = None

    @classmethod
    def compress(cls, tensor):
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.type(cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor if ctx is None else tensor.type(ctx)


class _Float16(_Narrow):
    name = "fp16"
    dtype = torch.float16


class _BFloat16(_Narrow):
    name = "bf16"
    dtype = torch.bfloat16


class Compression:
    """none, fp16, and bf16, which keeps the range of float32."""

    none = Compressor
    fp16 = _Float16
    bf16 = _BFloat16
