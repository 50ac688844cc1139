#include "horon/torch_bindings/lr/scaling.h"

#include <cmath>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon {

double torch_detail::grown_by_sums(const GradientReducerOptions& options, double ranks) {
  return (options.op == ReduceOp::Sum ? ranks : 1) *
         (options.average_aggregated_gradients ? 1 : options.backward_passes_per_step);
}

double scale_lr(double lr, const GradientReducerOptions& options, LrScaling rule) {
  if (!std::isfinite(lr) || lr < 0) {
    throw Error(ErrorCode::InvalidArgument, core::concat("scale_lr: the learning rate is ", lr,
                                                         "; give a finite number of 0 or more"));
  }
  if (options.backward_passes_per_step < 1) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("scale_lr: backward_passes_per_step is ",
                             options.backward_passes_per_step, "; give 1 or more"));
  }
  const bool has_rule = options.op == ReduceOp::Average || options.op == ReduceOp::Sum ||
                        options.op == ReduceOp::Adasum;
  if (!has_rule) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("scale_lr: it needs op Average, Sum or Adasum, but op is ",
                             to_string(options.op)));
  }
  const double set_size = options.process_set.size();
  const double ranks = options.op == ReduceOp::Adasum ? 1 : set_size;
  const double passes = options.backward_passes_per_step;
  const double grown = torch_detail::grown_by_sums(options, ranks);
  switch (rule) {
    case LrScaling::Linear:
      return lr * (ranks * passes / grown);
    case LrScaling::SquareRoot:
      return lr * (std::sqrt(ranks * passes) / grown);
    case LrScaling::None:
      return lr;
  }
  throw Error(ErrorCode::InvalidArgument, "scale_lr: no such rule");
}

double scale_lr(double lr, LrScaling rule) { return scale_lr(lr, {}, rule); }
double scale_lr(double lr, ReduceOp op) { return scale_lr(lr, {.op = op}); }

}  // namespace horon
