"""Batch normalization over the samples of all ranks."""

import itertools

import torch

from horon import native
from horon.torch.process_sets import global_process_set

_numbers = itertools.count()


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """As BatchNorm1d, 2d and 3d of one process that has the samples of all ranks.

    On the CPU and on GPUs. A rank may have any number of samples. Every rank must go back through
    each call (`+ 0 * y.sum()` where its loss does not need it), in the same order.
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True,
                 track_running_stats=True, process_set=global_process_set):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._process_set = process_set
        self._name = None  # until the first call that needs it, which the ranks make alike
        self._joins, self._calls = 0, 0

    def __setstate__(self, state):
        super().__setstate__(state)
        self._name, self._joins, self._calls = None, 0, 0  # a copy has collectives of its own

    def _check_input_dim(self, input):
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm: expected is [samples, {self.num_features}, ...], "
                             f"the input has shape {list(input.shape)}")

    def forward(self, input):
        alone = not self.training or self._process_set.of_call().size() == 1
        if alone:
            return super().forward(input)
        self._check_input_dim(input)
        if self._name is None:
            self._name = f"sync_batch_norm.{next(_numbers)}"
        of_call = self._process_set.of_call()
        self._count_call(of_call)
        statistics = native.gather_statistics(input.detach(), self._name, of_call)
        if statistics.small_count == 1:
            raise ValueError("SyncBatchNorm: all ranks together have one value for each channel")
        if self.track_running_stats and statistics.small_count != 0:
            self._update_running(statistics)
        return native.normalize(input, self.weight, self.bias, statistics, self._name, of_call,
                                self.eps, self._calls)

    def _count_call(self, of_call):
        """Since the last join(): ranks that had joined have not made the others' calls."""
        joins = native.joins_of(of_call)
        if joins != self._joins:
            self._joins, self._calls = joins, 0
        self._calls += 1

    def _update_running(self, statistics):
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            factor = self.momentum
            if factor is None:  # the mean of all batches
                factor = 1.0 / float(self.num_batches_tracked)
            for running, of_batch in ((self.running_mean, statistics.mean),
                                      (self.running_var, statistics.unbiased)):
                running.lerp_(of_batch.to(running.dtype), factor)
