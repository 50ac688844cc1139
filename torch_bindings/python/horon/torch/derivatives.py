"""Collectives that wait and have derivatives.

Derivatives are those of Horovod: of the mean loss of the ranks for allgather and broadcast (the
gradients are averaged), and of the sum for the others.
"""

import torch

from horon import native
from horon.torch import collectives as calls
from horon.torch.collectives import Average, Sum
from horon.torch.compression import Compression
from horon.torch.process_sets import global_process_set


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, grouped, *tensors):
        ctx.call = (op, prescale, postscale, process_set, grouped)
        reduced = calls.start_reduction("allreduce", tensors, name, op, prescale, postscale,
                                        process_set, grouped=grouped, wait=True)
        return tuple(reduced) if grouped else reduced

    @staticmethod
    def backward(ctx, *grads):
        op, prescale, postscale, process_set, grouped = ctx.call
        reduced = _Allreduce.apply(None, op, prescale, postscale, process_set, grouped, *grads)
        return (None,) * 6 + (reduced if grouped else (reduced,))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, process_set, grouped, *tensors):
        gathered, rows = calls.start_rows("allgather", tensors, name, process_set, grouped,
                                          wait=True, result=calls.with_rows)
        ctx.process_set = process_set
        me = process_set.of_call().rank()
        ctx.mine = [(sum(of_ranks[:me]), of_ranks[me]) for of_ranks in rows]  # begin and number
        return tuple(gathered) if grouped else gathered[0]

    @staticmethod
    def backward(ctx, *grads):
        reduced = _Allreduce.apply(None, Average, 1.0, 1.0, ctx.process_set, True, *grads)
        return (None,) * 3 + tuple(grad.narrow(0, *mine) for grad, mine in zip(reduced, ctx.mine))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.call = (root_rank, process_set)
        return calls.start_broadcast(tensor, root_rank, name, process_set, wait=True)

    @staticmethod
    def backward(ctx, grad):
        root_rank, process_set = ctx.call
        reduced = _Allreduce.apply(None, Average, 1.0, 1.0, process_set, False, grad)
        if native.rank() != root_rank:
            # Zeros with a history: whoever differentiates them too meets the other ranks.
            everywhere = torch.ones((), dtype=torch.bool, device=reduced.device)
            reduced = reduced.masked_fill(everywhere, 0)
        return reduced, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, grouped, *tensors):
        ctx.call = (op, prescale, postscale, process_set, grouped)
        reduced = calls.start_reduction("reducescatter", tensors, name, op, prescale, postscale,
                                        process_set, grouped=grouped, wait=True)
        return tuple(reduced) if grouped else reduced

    @staticmethod
    def backward(ctx, *grads):
        op, prescale, postscale, process_set, _ = ctx.call
        factor = prescale * postscale * (process_set.of_call().size() if op == Sum else 1)
        gathered = _Allgather.apply(None, process_set, True, *(grad * factor for grad in grads))
        return (None,) * 6 + gathered


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        result, received = calls.start_alltoall(tensor, splits, name, process_set, wait=True)
        ctx.received, ctx.process_set = received, process_set
        ctx.rows = tensor.shape[0]
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx, grad, _):
        sent, __ = _Alltoall.apply(grad, ctx.received, None, ctx.process_set)
        if sent.shape[0] < ctx.rows:  # rows that stayed
            sent = torch.cat([sent, sent.new_zeros(ctx.rows - sent.shape[0], *sent.shape[1:])])
        return sent, None, None, None


def _compressed(compression, tensors):
    """The tensors that travel, and a function that decompresses the results. What is no tensor is
    passed on: the call refuses it, and tells the ranks that wait for this one."""
    pairs = [compression.compress(each) if isinstance(each, torch.Tensor) else (each, None)
             for each in tensors]
    return ([tensor for tensor, _ in pairs],
            lambda results: [compression.decompress(each, ctx)
                             for each, (_, ctx) in zip(results, pairs)])


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """A new tensor; op: Average (the default), Sum, Min, Max, Product or Adasum."""
    (sent,), decompress = _compressed(compression, [tensor])
    return decompress([_Allreduce.apply(name, calls.reduction(op, average), prescale_factor,
                                        postscale_factor, process_set, False, sent)])[0]


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None,
                      prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    sent, decompress = _compressed(compression, tensors)
    return decompress(_Allreduce.apply(name, calls.reduction(op, average), prescale_factor,
                                       postscale_factor, process_set, True, *sent))


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0,
               postscale_factor=1.0, process_set=global_process_set):
    """In place; no derivative."""
    return calls.start_reduction("allreduce", [tensor], name, calls.reduction(op, average),
                                 prescale_factor, postscale_factor, process_set, in_place=True,
                                 wait=True)


def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                       postscale_factor=1.0, process_set=global_process_set):
    return calls.start_reduction("allreduce", tensors, name, calls.reduction(op, average),
                                 prescale_factor, postscale_factor, process_set, grouped=True,
                                 in_place=True, wait=True)


def allgather(tensor, name=None, process_set=global_process_set):
    """The rows of all ranks, in the order of ranks; the first dimension may differ."""
    return _Allgather.apply(name, process_set, False, tensor)


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    return list(_Allgather.apply(name, process_set, True, *tensors))


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """root_rank: of the world, also with a process set."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """In place; no derivative."""
    return calls.start_broadcast(tensor, root_rank, name, process_set, in_place=True, wait=True)


def reducescatter(tensor, name=None, compression=Compression.none, op=Average,
                  process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    """This rank's rows of the reduced tensor; the first ranks get one more if need be."""
    (sent,), decompress = _compressed(compression, [tensor])
    return decompress([_Reducescatter.apply(name, calls.reduction(op), prescale_factor,
                                            postscale_factor, process_set, False, sent)])[0]


def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    sent, decompress = _compressed(compression, tensors)
    return decompress(_Reducescatter.apply(name, calls.reduction(op), prescale_factor,
                                           postscale_factor, process_set, True, *sent))


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Rows for each rank, in the order of ranks; (tensor, rows from each) if splits are given."""
    result, received = _Alltoall.apply(tensor, splits, name, process_set)
    return result if splits is None else (result, received)
