#include "horon/torch_bindings/modules/contrastive_loss.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/autograd.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon {
namespace {

using core::concat;

void check_rows(const at::Tensor& queries, const at::Tensor& keys, const InfoNceOptions& options) {
  const auto refuse = [&](const std::string& why) {
    torch_detail::refuse_call(options.name, options.process_set,
                              concat("info_nce \"", options.name, "\": ", why));
  };
  if (!queries.defined() || !keys.defined()) refuse("queries or keys are undefined");
  if (queries.dim() != 2 || queries.sizes() != keys.sizes()) {
    refuse(concat("queries of shape ", core::shape_text(queries.sizes()), " and keys of shape ",
                  core::shape_text(keys.sizes()), "; expected is the same shape [samples, d]"));
  }
  if (!queries.is_floating_point() || queries.dtype() != keys.dtype() ||
      queries.device() != keys.device()) {
    refuse(concat("queries (", queries.toString(), ") and keys (", keys.toString(),
                  ") must have the same floating type and device"));
  }
  const bool has_scale = options.scale.defined();
  if (has_scale && options.scale.numel() != 1) refuse("scale must be a scalar");
  if (!has_scale && !(std::isfinite(options.temperature) && options.temperature > 0)) {
    refuse(concat("the temperature is ", options.temperature, "; it must be positive"));
  }
}

at::Tensor unit_rows(const at::Tensor& rows) {
  return rows / rows.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12);
}

// The sum over the rows of cross-entropies against the rows of all ranks.
at::Tensor cross_entropies(const at::Tensor& rows, const at::Tensor& of_all,
                           const at::Tensor& targets, const InfoNceOptions& options) {
  const at::Tensor likeness = rows.mm(of_all.t());
  const auto type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor logits = options.scale.defined()
                                ? likeness.to(type) * options.scale.to(likeness.device(), type)
                                : likeness.to(type) / options.temperature;
  return at::cross_entropy_loss(logits.view({rows.size(0), of_all.size(0)}), targets, {},
                                at::Reduction::Sum);
}

}  // namespace

at::Tensor info_nce(const at::Tensor& queries, const at::Tensor& keys,
                    const InfoNceOptions& given) {
  InfoNceOptions options = given;
  const ProcessSet& set = options.process_set;
  options.name = torch_detail::given_or_counted(given.name, "info_nce", set.id());
  check_rows(queries, keys, options);
  const int64_t samples = queries.size(0), width = queries.size(1);
  const at::Tensor own_queries = options.normalize ? unit_rows(queries) : queries;
  const at::Tensor own_keys = options.normalize ? unit_rows(keys) : keys;

  const Handle counts =
      allgather_async(at::full({1}, samples, at::kLong),
                      {.name = concat(options.name, ".rows"), .process_set = set});
  const at::Tensor own = options.symmetric ? at::cat({own_keys, own_queries}, 1) : own_keys;
  const at::Tensor all = autograd::allgather(own, {.name = options.name, .process_set = set});
  const at::Tensor gathered = counts.wait();
  const std::vector<int64_t> rows(gathered.const_data_ptr<int64_t>(),
                                  gathered.const_data_ptr<int64_t>() + gathered.numel());
  if (gathered.numel() != set.size()) {
    torch_detail::refuse_call(options.name, set,
                              concat("info_nce \"", options.name, "\": a rank has joined; call it ",
                                     "before join(), or on a process set of the ranks that go on"));
  }
  const int64_t before = std::accumulate(rows.begin(), rows.begin() + set.rank(), int64_t{0});
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});

  const at::Tensor targets =
      at::arange(before, before + samples, queries.options().dtype(at::kLong));
  at::Tensor sum = cross_entropies(own_queries, all.narrow(1, 0, width), targets, options);
  if (options.symmetric) {
    sum = sum + cross_entropies(own_keys, all.narrow(1, width, width), targets, options);
  }
  const double directions = options.symmetric ? 2 : 1;
  const auto divisor = directions * static_cast<double>(std::max<int64_t>(total, 1));
  return sum * (static_cast<double>(rows.size()) / divisor);
}

}  // namespace horon
