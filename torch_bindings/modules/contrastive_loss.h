// A contrastive loss over the samples of all ranks.
//
//   at::Tensor loss = horon::info_nce(image_embeddings, text_embeddings);
//   loss.backward();
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "horon/ops/session/process_set.h"

namespace horon {

struct InfoNceOptions {
  std::string name = {};  // empty: "info_nce.noname.N"
  ProcessSet process_set = {};
  double temperature = 0.07;
  // A scalar tensor that similarities are multiplied with, instead of 1 / temperature; it may
  // require grad (CLIP learns the exp() of a parameter).
  at::Tensor scale = {};
  // The mean of both directions, queries among keys and keys among queries. False: the first.
  bool symmetric = true;
  // Rows are divided by their L2 norms first. False: they are taken as they are.
  bool normalize = true;
};

// InfoNCE (van den Oord et al. 2018), symmetric as in CLIP (Radford et al. 2021): row i of
// `queries` belongs to row i of `keys`, and to no row of any other sample on any rank.
// Cross-entropy of each row's similarities to all rows of the other kind, the right one being the
// target.
//
// `queries`, `keys`: [n, d], floating, of the same dtype and device; n may differ from rank to
// rank, and may be 0; d is the same on all.
//
// Returns a scalar (float32, or float64 for float64): this rank's part of the loss, scaled so that
// the mean over the ranks is the loss of one process with all samples. So its gradient is right
// where gradients are averaged, as DistributedOptimizer does by default, without set_weight().
// Other losses that are added to it must be means over this rank's samples. For a report:
// horon::allreduce(loss.detach()).
//
// Collective: one allgather of the rows forward (and one of their numbers, beside it), one
// reducescatter backward, which every rank must go through (a rank without samples too). Wrong
// arguments: Error(InvalidArgument), also on the other ranks. All ranks must have the same options,
// but for the value of `scale`; else all throw Error(Mismatch).
at::Tensor info_nce(const at::Tensor& queries, const at::Tensor& keys,
                    const InfoNceOptions& options = {});

}  // namespace horon
