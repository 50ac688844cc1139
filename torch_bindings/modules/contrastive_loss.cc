#include "horon/torch_bindings/modules/contrastive_loss.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/autograd.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon {
namespace {

using core::concat;

std::string rows_name(const InfoNceOptions& options) { return concat(options.name, ".rows"); }

void check_rows(const at::Tensor& queries, const at::Tensor& keys, const InfoNceOptions& options) {
  const auto refuse = [&](const std::string& why) {
    torch_detail::refuse_calls({options.name, rows_name(options)}, options.process_set,
                               concat("info_nce \"", options.name, "\": ", why));
  };
  if (!queries.defined() || !keys.defined()) refuse("queries or keys are undefined");
  if (queries.dim() != 2 || queries.sizes() != keys.sizes()) {
    refuse(concat("queries of shape ", core::shape_text(queries.sizes()), " and keys of shape ",
                  core::shape_text(keys.sizes()), "; give both the same shape [samples, d]"));
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

// A row of zeros stays one. In float16 that needs norms in float32, and a larger least one: 1e-12
// would be 0, and the gradient of such a row infinite.
at::Tensor unit_rows(const at::Tensor& rows) {
  const bool is_half = rows.scalar_type() == at::kHalf;
  const at::Tensor wide = is_half ? rows.to(at::kFloat) : rows;
  const double least_norm = is_half ? 0x1p-14 : 1e-12;
  return (wide / wide.norm(2, 1, /*keepdim=*/true).clamp_min(least_norm)).to(rows.scalar_type());
}

// What the ranks tell each other beside their rows: how many there are, and the options. (The shape
// of the rows does not show them: two directions of width d look like one of 2 d.)
struct Told {
  int64_t samples;
  int64_t temperature;  // its bits; 0 if there is a scale instead
  int64_t normalize;
  int64_t symmetric;
};
constexpr int64_t kToldNumbers = 4;
static_assert(sizeof(Told) == kToldNumbers * sizeof(int64_t));

at::Tensor told_tensor(int64_t samples, const InfoNceOptions& options) {
  const double temperature = options.scale.defined() ? 0 : options.temperature;
  const at::Tensor told = at::empty({1, kToldNumbers}, at::kLong);
  const Told own{samples, std::bit_cast<int64_t>(temperature), options.normalize ? 1 : 0,
                 options.symmetric ? 1 : 0};
  std::memcpy(told.mutable_data_ptr<int64_t>(), &own, sizeof(own));
  return told;
}

std::vector<Told> told_by_all(const at::Tensor& gathered) {
  std::vector<Told> all(static_cast<size_t>(gathered.size(0)));
  std::memcpy(all.data(), gathered.const_data_ptr<int64_t>(), all.size() * sizeof(Told));
  return all;
}

// Throws Error(Mismatch), on all ranks alike.
void require_same_options(const std::vector<Told>& all, const InfoNceOptions& options) {
  std::map<std::string, std::vector<int>> given;
  const std::vector<int> ranks = options.process_set.ranks();
  for (size_t i = 0; i < all.size(); ++i) {
    const auto temperature = std::bit_cast<double>(all[i].temperature);
    given[concat(
              all[i].symmetric != 0 ? "symmetric, " : "not symmetric, ",
              temperature == 0 ? "a scale" : concat("temperature ", core::real_text(temperature)),
              all[i].normalize != 0 ? ", normalize" : ", no normalize")]
        .push_back(ranks[i]);
  }
  if (given.size() <= 1) return;
  std::string text;
  for (const auto& [what, of] : given) {
    text += concat(text.empty() ? "" : "; ", what, " on ", core::name_ranks(of));
  }
  throw Error(ErrorCode::Mismatch, concat("info_nce \"", options.name,
                                          "\": the ranks disagree about the options: ", text,
                                          ". Every rank must give the same"));
}

at::Tensor gather_rows(const at::Tensor& own, const Handle& told, const InfoNceOptions& options) {
  try {
    return autograd::allgather(own, {.name = options.name, .process_set = options.process_set});
  } catch (...) {
    // Whoever catches this may call again, and then the name of the other call must be free.
    try {
      (void)told.wait();
    } catch (const Error&) {  // the same cause, told below
    }
    throw;
  }
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

  const Handle told = allgather_async(told_tensor(samples, options),
                                      {.name = rows_name(options), .process_set = set});
  const at::Tensor own = options.symmetric ? at::cat({own_keys, own_queries}, 1) : own_keys;
  const at::Tensor all = gather_rows(own, told, options);
  const std::vector<Told> ranks = told_by_all(told.wait());
  if (static_cast<int>(ranks.size()) != set.size()) {
    torch_detail::refuse_call(options.name, set,
                              concat("info_nce \"", options.name, "\": a rank has joined; call it ",
                                     "before join(), or on a process set of the ranks that go on"));
  }
  require_same_options(ranks, options);
  const auto add = [](int64_t sum, const Told& of_rank) { return sum + of_rank.samples; };
  const int64_t before =
      std::accumulate(ranks.begin(), ranks.begin() + set.rank(), int64_t{0}, add);
  const int64_t total = std::accumulate(ranks.begin(), ranks.end(), int64_t{0}, add);

  const at::Tensor targets =
      at::arange(before, before + samples, queries.options().dtype(at::kLong));
  at::Tensor sum = cross_entropies(own_queries, all.narrow(1, 0, width), targets, options);
  if (options.symmetric) {
    sum = sum + cross_entropies(own_keys, all.narrow(1, width, width), targets, options);
  }
  const double directions = options.symmetric ? 2 : 1;
  const auto divisor = directions * static_cast<double>(std::max<int64_t>(total, 1));
  return sum * (static_cast<double>(ranks.size()) / divisor);
}

}  // namespace horon
