"""Batch normalization over the samples of all ranks."""

import torch

from horon import native
from horon.torch.process_sets import global_process_set

_KIND = "sync_batch_norm"


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """As BatchNorm1d, 2d and 3d of one process that has the samples of all ranks.

    On the CPU and on GPUs. A rank may have any number of samples. Every rank must go back through
    each call (`+ 0 * y.sum()` where its loss does not need it), in the same order.
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True,
                 track_running_stats=True, process_set=global_process_set):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._process_set = process_set
        self._forget_calls()

    def __setstate__(self, state):
        super().__setstate__(state)
        self._forget_calls()  # a copy has collectives of its own

    def _forget_calls(self):
        self._name = None  # until the first call that needs it, which the ranks make alike
        self._name_is_until_join = False  # while ranks that have joined may lack it
        self._joins, self._calls = 0, 0

    def _fault_of(self, input):
        if input.dim() < 2 or input.shape[1] != self.num_features:
            return (f"the input has shape {list(input.shape)}; give it "
                    f"[samples, {self.num_features}, ...]")
        if not input.is_floating_point():
            return f"the input is {input.dtype}; give it a floating-point dtype"
        return None

    def _check_input_dim(self, input):
        """The base calls it, where this rank is alone with its batch."""
        fault = self._fault_of(input)
        if fault is not None:
            raise ValueError(f"SyncBatchNorm: {fault}")

    def forward(self, input):
        alone = not self.training or self._process_set.of_call().size() == 1
        if alone:
            return super().forward(input)
        of_call = self._process_set.of_call()
        self._name_collectives(of_call)
        fault = self._fault_of(input)
        if fault is not None:  # the others wait for this rank's statistics, and are told
            native.refuse_call(self._name, of_call, f'SyncBatchNorm "{self._name}": {fault}')
        statistics = native.gather_statistics(input.detach(), self._name, of_call)
        if self._name_is_until_join and statistics.of_all_ranks:
            native.keep_objects(_KIND, of_call)
            self._name_is_until_join = False
        if statistics.small_count == 1:
            raise ValueError("SyncBatchNorm: one value per channel on all ranks together has no "
                             "variance; give more samples")
        if self.track_running_stats and statistics.small_count != 0:
            self._update_running(statistics)
        self._calls += 1
        return native.normalize(input, self.weight, self.bias, statistics, self._name, of_call,
                                self.eps, self._calls)

    def _name_collectives(self, of_call):
        """As the modules of C++ do."""
        joins = native.joins_of(of_call)
        if joins != self._joins:  # ranks that had joined have not made our calls
            self._joins, self._calls = joins, 0
            if self._name_is_until_join:
                self._name = None
        if self._name is None:
            self._name = native.name_called_object(_KIND, of_call)
            self._name_is_until_join = True

    def _update_running(self, statistics):
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            factor = self.momentum
            if factor is None:  # the mean of all batches
                factor = 1.0 / float(self.num_batches_tracked)
            for running, of_batch in ((self.running_mean, statistics.mean),
                                      (self.running_var, statistics.unbiased)):
                running.lerp_(of_batch.to(running.dtype), factor)
