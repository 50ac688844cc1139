"""Gradients in 16 bits on their way between the ranks, or in 8 between hosts."""

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


class Int8Compressor(Compressor):
    name = "int8"

    @staticmethod
    def compress(tensor):
        raise ValueError("Compression.int8 is for DistributedOptimizer only: its collectives round "
                         "to int8 between hosts, and a tensor can't have that form")


class Compression:
    """none, fp16, bf16, which keeps the range of float32, and for DistributedOptimizer int8: blocks
    of 64 gradients, each block with a factor of its own, between hosts only."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
