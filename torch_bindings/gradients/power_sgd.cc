#include "horon/torch_bindings/gradients/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/average_in_groups.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/gradients/orthonormal_columns.h"
#include "horon/torch_bindings/tensors/failures.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {
namespace {

using core::concat;
using torch_detail::orthonormalize_columns;
using torch_detail::PlainMode;

template <class... Values>
[[noreturn]] void refuse(const std::string& name, const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, concat("PowerSgd \"", name, "\": ", values...));
}

void check(const PowerSgdOptions& options) {
  if (options.matrix_rank < 1) {
    refuse(options.name, "matrix_rank is ", options.matrix_rank, "; give 1 or more");
  }
  if (options.start_step < 0) {
    refuse(options.name, "start_step is ", options.start_step, "; give 0 or more");
  }
  if (!(options.min_compression_rate >= 1)) {
    refuse(options.name, "min_compression_rate is ", options.min_compression_rate,
           "; give 1 or more");
  }
}

int64_t row_count(const at::Tensor& parameter) {
  return parameter.dim() < 2 ? 1 : parameter.size(0);
}

int64_t column_count(const at::Tensor& parameter) {
  return parameter.numel() / std::max<int64_t>(1, row_count(parameter));
}

// Replaces the columns by an orthonormal basis of them. On the CPU by loops of our own, which give
// the same bits on CPUs of any kind.
void orthonormalize(at::Tensor& columns) {
  if (!columns.is_cpu()) {
    columns.copy_(std::get<0>(at::linalg_qr(columns, "reduced")));
  } else if (columns.scalar_type() == at::kDouble) {
    orthonormalize_columns(columns.mutable_data_ptr<double>(), columns.size(0), columns.size(1));
  } else {
    orthonormalize_columns(columns.mutable_data_ptr<float>(), columns.size(0), columns.size(1));
  }
}

}  // namespace

PowerSgd::PowerSgd(const ::torch::nn::Module& module, PowerSgdOptions options)
    : PowerSgd(NamedTensors::parameters_of(module), std::move(options)) {}

PowerSgd::PowerSgd(const NamedTensors& parameters, PowerSgdOptions options)
    : options_(std::move(options)), member_(options_.process_set.includes_me()) {
  check(options_);
  if (!member_) return;
  torch_detail::UniqueNames names;
  std::unordered_set<const void*> seen;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.defined() && !parameter.requires_grad()) continue;
    torch_detail::check_tensor(torch_detail::real_memory(parameter), name);
    if (!names.add({name, parameter}, "parameter")) continue;
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) add(name, parameter);
  }
  take_memory();
  facts_ = facts_of_all();
}

void PowerSgd::add(const std::string& name, const at::Tensor& parameter) {
  const PlainMode plain;
  Part& part = parts_.emplace_back(Part{name, parameter, {}, {}, {}});
  const int64_t rows = row_count(parameter), columns = column_count(parameter);
  const int64_t rank = options_.matrix_rank;
  const double travels = static_cast<double>(rank) * static_cast<double>(rows + columns);
  const bool is_worth_it =
      std::min(rows, columns) > rank &&
      travels * options_.min_compression_rate < static_cast<double>(parameter.numel());
  if (parameter.is_complex() || !is_worth_it) return;
  const bool is_wide = parameter.scalar_type() == at::kDouble;
  part.left_out =
      at::zeros({rows, columns}, parameter.options().dtype(is_wide ? at::kDouble : at::kFloat));
}

void PowerSgd::take_memory() {
  const PlainMode plain;
  int64_t rows = 0, columns = 0;
  std::optional<at::TensorOptions> of_all;
  for (const Part& part : parts_) {
    if (!part.is_compressed()) continue;
    rows += part.left_out.size(0);
    columns += part.left_out.size(1);
    if (of_all && of_all->device() != part.left_out.device()) {
      refuse(options_.name, "\"", part.name, "\" is on ", part.left_out.device(),
             ", but others are on ", of_all->device(), "; make one PowerSgd for each device");
    }
    if (!of_all || part.left_out.scalar_type() == at::kDouble) of_all = part.left_out.options();
  }
  if (!of_all) return;
  const int64_t rank = options_.matrix_rank;
  columns_ = at::zeros({rows * rank}, *of_all);
  rows_ = at::zeros({columns * rank}, *of_all);
  rows = columns = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (!part.is_compressed()) continue;
    part.left_out = part.left_out.to(*of_all);
    const int64_t n = part.left_out.size(0), m = part.left_out.size(1);
    part.columns = columns_.narrow(0, rows * rank, n * rank).view({n, rank});
    part.rows = rows_.narrow(0, columns * rank, m * rank).view({m, rank});
    rows += n;
    columns += m;
    begin_rows_anew(i);
  }
}

double PowerSgd::compression_rate() const {
  double all = 0, travels = 0;
  for (const Part& part : parts_) {
    const auto elements = static_cast<double>(part.parameter.numel());
    all += elements;
    travels += part.is_compressed() ? static_cast<double>(part.columns.numel() + part.rows.numel())
                                    : elements;
  }
  return travels > 0 ? all / travels : 1;
}

// Made once, since each step compares them.
std::vector<torch_detail::Fact> PowerSgd::facts_of_all() const {
  std::vector<torch_detail::Fact> facts{
      {"the options",
       concat("matrix_rank ", options_.matrix_rank, ", start_step ", options_.start_step,
              ", min_compression_rate ", core::real_text(options_.min_compression_rate),
              options_.error_feedback ? "" : ", no error_feedback", ", seed ", options_.seed)}};
  size_t place = 0;
  for (const Part& part : parts_) {
    facts.push_back(torch_detail::fact_in_place("parameter", part.name, part.parameter, place++));
  }
  return facts;
}

void PowerSgd::check_gradients() const {
  for (const Part& part : parts_) {
    at::Tensor& gradient = part.parameter.mutable_grad();
    const int64_t elements = part.is_compressed() ? part.left_out.numel() : part.parameter.numel();
    if (elements != part.parameter.numel()) {
      refuse(options_.name, "\"", part.name, "\" has ", part.parameter.numel(),
             " elements, but had ", elements, " when this PowerSgd was made");
    }
    if (!gradient.defined()) continue;
    if (gradient.sizes() != part.parameter.sizes()) {
      refuse(options_.name, "the gradient of \"", part.name, "\" has shape ",
             core::shape_text(gradient.sizes()), ", but the parameter has ",
             core::shape_text(part.parameter.sizes()));
    }
    if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();
    torch_detail::check_writable(torch_detail::real_memory(gradient),
                                 concat("gradient of ", part.name));
  }
}

// One small allreduce.
PowerSgd::Said PowerSgd::agree() const {
  enum : int64_t { kFault, kNotFinite, kStarted, kFirst };
  const auto count = static_cast<int64_t>(parts_.size());
  const at::Tensor flags = at::zeros({kFirst + count}, at::kByte);
  auto* const flag = flags.mutable_data_ptr<uint8_t>();
  std::optional<Error> fault;
  try {
    check_gradients();
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor& gradient = parts_[static_cast<size_t>(i)].parameter.grad();
      if (!gradient.defined()) continue;
      flag[kFirst + i] = 1;
      if (flag[kNotFinite] == 0) flag[kNotFinite] = !torch_detail::all_finite(gradient);
    }
  } catch (...) {
    fault = core::current_error();
  }
  flag[kFault] = fault.has_value();
  flag[kStarted] = steps_ >= options_.start_step;
  allreduce_(
      flags,
      {.name = options_.name + ".flags", .op = ReduceOp::Max, .process_set = options_.process_set});
  if (flag[kFault] != 0) {
    torch_detail::throw_together(fault,
                                 {.name = options_.name, .process_set = options_.process_set});
  }
  return {.present = std::vector<bool>(flag + kFirst, flag + kFirst + count),
          .compresses = flag[kStarted] != 0 && flag[kNotFinite] == 0 && columns_.defined()};
}

// New random values, the same on all ranks.
void PowerSgd::begin_rows_anew(size_t part) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed + part);
  at::Tensor& rows = parts_[part].rows;
  rows.copy_(at::randn(rows.sizes(), generator, at::kFloat));
}

// This rank's matrices, and their products with the rows of the step before.
void PowerSgd::approximate(const std::vector<bool>& present) {
  columns_.zero_();
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (!present[i] || !part.is_compressed()) continue;
    const at::Tensor& gradient = part.parameter.grad();
    if (!options_.error_feedback) part.left_out.zero_();
    if (gradient.defined()) part.left_out.view(gradient.sizes()).add_(gradient);
    orthonormalize(part.rows);  // else products grow from step to step
    at::mm_out(part.columns, part.left_out, part.rows);
  }
}

void PowerSgd::average(const std::vector<bool>& present, bool compresses) {
  const ProcessSet& set = options_.process_set;
  if (compresses) approximate(present);
  std::vector<at::Tensor> whole;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!present[i]) continue;
    at::Tensor& gradient = parts_[i].parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parts_[i].parameter);
    if (!compresses || !parts_[i].is_compressed()) whole.push_back(gradient.detach());
  }
  using torch_detail::AverageInGroups;
  AverageInGroups of_whole(options_.name + ".gradients", whole, set);
  if (!compresses) return of_whole.wait();
  torch_detail::Failures failures;
  failures.run(
      [&] { allreduce_(columns_, {.name = options_.name + ".columns", .process_set = set}); });
  failures.run([&] { of_whole.wait(); });
  if (failures.first()) throw Error(*failures.first());
  const auto for_each_matrix = [&](auto work) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (present[i] && parts_[i].is_compressed()) work(parts_[i], i);
    }
  };
  for_each_matrix([](Part& part, size_t) {
    orthonormalize(part.columns);
    at::mm_out(part.rows, part.left_out.t(), part.columns);
  });
  allreduce_(rows_, {.name = options_.name + ".rows", .process_set = set});
  for_each_matrix([this](Part& part, size_t i) {
    put_together(part);
    // The same on all ranks. Sums of large numbers may overflow, and zeros lead nowhere.
    const at::Tensor largest = part.rows.abs().amax(0);
    const bool is_finite = std::isfinite(largest.sum().item<double>());
    if (is_finite && largest.min().item<double>() > 0) return;
    if (!is_finite) part.left_out.zero_();
    begin_rows_anew(i);
  });
}

void PowerSgd::put_together(Part& part) {
  const at::Tensor gradient = part.parameter.mutable_grad().detach();
  const bool fits = gradient.is_contiguous() && gradient.scalar_type() == part.rows.scalar_type();
  at::Tensor result = fits ? gradient.view(part.left_out.sizes()) : at::empty_like(part.left_out);
  at::mm_out(result, part.columns, part.rows.t());
  part.left_out.sub_(result);
  if (!fits) gradient.copy_(result.view(gradient.sizes()));
}

void PowerSgd::reduce() {
  if (!member_ || options_.process_set.size() == 1) return;
  const PlainMode plain;
  torch_detail::require_agreement(options_.name, facts_, "", options_.process_set);
  const Said said = agree();
  try {
    average(said.present, said.compresses);
  } catch (...) {
    for (Part& part : parts_) {
      if (part.is_compressed()) part.left_out.zero_();
    }
    throw;
  }
  ++steps_;
}

// What archives hold, by number: names of a module's parameters are no names there.
std::vector<PowerSgd::Kept> PowerSgd::kept() const {
  const at::Tensor rows = rows_.defined() ? rows_ : at::empty({0});
  std::vector<Kept> all{{"rows", "approximation", rows.view({-1, options_.matrix_rank})}};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& of = parts_[i];
    if (!of.is_compressed()) continue;
    all.push_back({concat("left_out", i), concat("left_out of \"", of.name, "\""), of.left_out});
  }
  return all;
}

void PowerSgd::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("steps", c10::IValue(steps_));
  for (const Kept& each : kept()) archive.write(each.key, each.tensor, /*is_buffer=*/true);
}

// No tensors if the archive is of a rank that was not in the process set.
PowerSgd::Saved PowerSgd::read(::torch::serialize::InputArchive& archive) const {
  c10::IValue steps;
  if (!archive.try_read("steps", steps) || !steps.isInt() || steps.toInt() < 0) {
    refuse(options_.name, "the archive holds no state of a PowerSgd");
  }
  Saved saved{steps.toInt(), {}};
  for (const Kept& each : kept()) {
    at::Tensor from;
    if (!archive.try_read(each.key, from, /*is_buffer=*/true)) {
      refuse(options_.name, "the archive has no ", each.what);
    }
    if (saved.tensors.empty() && from.numel() == 0 && rows_.defined()) return saved;
    if (from.sizes() != each.tensor.sizes() || from.scalar_type() != each.tensor.scalar_type()) {
      refuse(options_.name, "the archive has other parameters or another matrix_rank: the ",
             each.what, " is ", torch_detail::type_and_shape(from, each.what), " there and ",
             torch_detail::type_and_shape(each.tensor, each.what), " here");
    }
    saved.tensors.push_back(from);
  }
  return saved;
}

void PowerSgd::go_on_from(std::vector<Saved> ranks) {
  std::erase_if(ranks, [](const Saved& saved) { return saved.tensors.empty(); });
  if (ranks.empty()) refuse(options_.name, "no rank of the process set is in the archive");
  const auto fewer = [](const Saved& a, const Saved& b) { return a.steps < b.steps; };
  // Ranks that had joined are behind: the one with the most steps decides.
  const Saved& ahead = *std::max_element(ranks.begin(), ranks.end(), fewer);
  const std::vector<Kept> all = kept();
  steps_ = ahead.steps;
  all[0].tensor.copy_(ahead.tensors[0]);
  for (size_t i = 1; i < all.size(); ++i) {
    at::Tensor sum = ranks[0].tensors[i];
    for (size_t r = 1; r < ranks.size(); ++r) sum = sum + ranks[r].tensors[i];
    all[i].tensor.copy_(sum / static_cast<double>(ranks.size()));
  }
}

void PowerSgd::load(::torch::serialize::InputArchive& archive) {
  if (!member_) return;
  const PlainMode plain;
  go_on_from({read(archive)});
}

void PowerSgd::load_resharded(std::vector<::torch::serialize::InputArchive>& ranks) {
  if (!member_) return;
  const PlainMode plain;
  std::vector<Saved> all;
  for (::torch::serialize::InputArchive& archive : ranks) all.push_back(read(archive));
  go_on_from(std::move(all));
}

}  // namespace horon
