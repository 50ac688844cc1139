#include "horon/torch_bindings/gradients/step_agreement.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::torch_detail {
namespace {

// What stands where among the numbers that are summed.
enum Place : size_t { kParticipants, kLate, kEarly, kWeighted, kWeight, kPlaces };

}  // namespace

std::shared_ptr<const core::EntrySpec> flat_spec(core::EntrySpec spec, std::string part,
                                                 std::vector<int64_t> shape) {
  spec.parts.push_back({std::move(part), std::move(shape)});
  return std::make_shared<core::EntrySpec>(std::move(spec));
}

core::EntrySpec number_spec(DataType dtype, ReduceOp op) {
  core::EntrySpec spec;
  spec.kind = CollectiveKind::Allreduce;
  spec.dtype = dtype;
  spec.reduce_op = op;
  return spec;
}

std::shared_ptr<core::HandleState> submit_in_place(uint32_t set, std::string name,
                                                   std::shared_ptr<const core::EntrySpec> spec,
                                                   void* memory, int64_t count,
                                                   std::shared_ptr<void> keep_alive) {
  core::Submission submission;
  submission.set = set;
  submission.name = std::move(name);
  submission.spec = std::move(spec);
  submission.memory = {
      {static_cast<const std::byte*>(memory), static_cast<std::byte*>(memory), count}};
  submission.keep_alive = std::move(keep_alive);
  return ops::runtime().submit(std::move(submission));
}

StepAgreement::StepAgreement(const std::string& reducer_name, const std::string& plan,
                             const GradientSettings& settings)
    : name_(reducer_name + ".step"),
      set_(settings.set),
      ranks_(settings.ranks),
      set_rank_(settings.set_rank),
      spec_(flat_spec(number_spec(DataType::Float64, ReduceOp::Sum), plan, {kPlaces})) {}

void StepAgreement::announce(const StepFacts& facts) {
  numbers_ = std::make_shared<std::vector<double>>(kPlaces);
  std::vector<double>& numbers = *numbers_;
  numbers[kParticipants] = 1;
  numbers[kLate] = static_cast<double>(facts.late);
  numbers[kEarly] = facts.early ? 1 : 0;
  numbers[kWeighted] = facts.weight ? 1 : 0;
  numbers[kWeight] = facts.weight.value_or(0);
  handle_ = submit_in_place(set_, name_, spec_, numbers.data(), kPlaces, numbers_);
}

StepTotals StepAgreement::agree() {
  (void)handle_->get();
  const std::vector<double>& numbers = *numbers_;
  StepTotals totals;
  totals.participants = static_cast<int>(numbers[kParticipants]);
  totals.late = static_cast<int64_t>(numbers[kLate]);
  totals.early = static_cast<int>(numbers[kEarly]);
  totals.weighted = static_cast<int>(numbers[kWeighted]);
  totals.weight = numbers[kWeight];
  return totals;
}

std::string StepAgreement::ranks_that(bool say_so) const {
  const size_t count = ranks_.size();
  const auto flags = std::make_shared<std::vector<uint8_t>>(count);
  (*flags)[static_cast<size_t>(set_rank_)] = say_so ? 1 : 0;
  const std::string name = name_ + ".ranks";
  (void)submit_in_place(
      set_, name,
      flat_spec(number_spec(DataType::UInt8, ReduceOp::Max), name, {static_cast<int64_t>(count)}),
      flags->data(), static_cast<int64_t>(count), flags)
      ->get();
  std::vector<int> ranks;
  for (size_t i = 0; i < count; ++i) {
    if ((*flags)[i] != 0) ranks.push_back(ranks_[i]);
  }
  return core::concat(ranks.size() == 1 ? "rank " : "ranks ", core::list_ranks(ranks));
}

}  // namespace horon::torch_detail
