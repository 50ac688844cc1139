"""Gradients in 16 bits on their way between the ranks."""

import torch


class Compressor:
    """compress() before and decompress() after a collective. Programs may derive their own, for
    collectives."""

    @staticmethod
    def compress(tensor):
        """(what travels, what decompress() needs)."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class NoneCompressor(Compressor):
    """What is given travels as it is."""

    name = "none"  # for DistributedOptimizer, whose hooks round while they pack


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


class FP16Compressor(_Narrow):
    name = "fp16"
    dtype = torch.float16


class BF16Compressor(_Narrow):
    name = "bf16"
    dtype = torch.bfloat16


class Compression:
    """none, fp16, and bf16, which keeps the range of float32."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
