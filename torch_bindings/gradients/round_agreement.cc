#include "horon/torch_bindings/gradients/round_agreement.h"

#include <limits>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::torch_detail {
namespace {

// The order of the numbers that are summed. Behind a number that is compared comes its square: the
// number is the same on all ranks if (sum)^2 = ranks * sum of squares.
enum Index : size_t {
  kParticipants,
  kNumber,
  kNumberSquare,
  kLate,
  kFailed,
  kEarly,
  kRoundedOtherwise,
  kWeighted,
  kWeight,
  kReplica,
  kReplicaSquare,
  kLooks,
  kHasGradients,
  kGradients,
  kGradientsSquare,
  kTotal,
  kTotalCut,  // its last 16 bits, whose square is exact
  kTotalCutSquare,
  kFirstBucketBytes,
  kBucketBytes,
  kPieceBytes,
  kReorders,
  kCount
};

// Every step begins with round 1, so two ranks that are not in the same step are in different
// rounds when that happens for the first time; the step need not be compared. (Ranks that have
// joined for a while count fewer steps.) 16 bits, so that sums of squares over 2^20 ranks are
// exact.
double compared_number(const RoundNumber& number) {
  return static_cast<double>(number.round & 0xffff);
}

void compare(std::vector<double>& numbers, Index index, double number) {
  numbers[index] = number;
  numbers[index + 1] = number * number;
}

// Sums and squares are whole numbers below 2^53; their products are compared modulo 2^64.
bool all_equal(const std::vector<double>& sums, Index index) {
  const auto whole = [&](size_t i) { return static_cast<uint64_t>(sums[i]); };
  return whole(index) * whole(index) == whole(kParticipants) * whole(index + 1);
}

}  // namespace

std::shared_ptr<const core::EntrySpec> flat_spec(core::EntrySpec spec, std::string part,
                                                 std::vector<int64_t> shape) {
  spec.parts.push_back({std::move(part), std::move(shape)});
  return std::make_shared<core::EntrySpec>(std::move(spec));
}

std::shared_ptr<const core::EntrySpec> captured(core::EntrySpec spec) {
  spec.captured = true;
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
                                                   std::shared_ptr<void> keep_alive,
                                                   c10::Device device) {
  core::Submission submission;
  submission.set = set;
  submission.name = std::move(name);
  submission.spec = current_stream_is_captured(device) ? captured(*spec) : std::move(spec);
  submission.memory = {
      {static_cast<const std::byte*>(memory), static_cast<std::byte*>(memory), count}};
  submission.keep_alive = std::move(keep_alive);
  note_device(submission, device);
  submission.ready = record_current_stream(device);
  return ops::runtime().submit(std::move(submission));
}

RoundAgreement::RoundAgreement(const std::string& reducer_name, const std::string& plan,
                               const GradientSettings& settings)
    : name_(reducer_name + ".step"),
      set_(settings.set),
      ranks_(settings.ranks),
      set_rank_(settings.set_rank),
      spec_(flat_spec(number_spec(DataType::Float64, ReduceOp::Sum), plan, {kCount})) {}

void RoundAgreement::announce(const RoundFacts& facts) {
  numbers_ = std::make_shared<std::vector<double>>(kCount);
  std::vector<double>& numbers = *numbers_;
  const auto last_16_bits = [](uint64_t value) { return static_cast<double>(value & 0xffff); };
  numbers[kParticipants] = 1;
  compare(numbers, kNumber, compared_number(facts.number));
  numbers[kLate] = static_cast<double>(facts.late);
  numbers[kFailed] = facts.failed ? 1 : 0;
  numbers[kEarly] = facts.early ? 1 : 0;
  numbers[kRoundedOtherwise] = facts.rounded_otherwise ? 1 : 0;
  numbers[kWeighted] = facts.weight ? 1 : 0;
  numbers[kWeight] = facts.weight.value_or(0);
  compare(numbers, kReplica, last_16_bits(facts.replica.value_or(0)));
  numbers[kLooks] = facts.wants_look ? 1 : 0;
  numbers[kHasGradients] = facts.gradients ? 1 : 0;
  compare(numbers, kGradients, last_16_bits(facts.gradients.value_or(0)));
  numbers[kTotal] = static_cast<double>(facts.number.total);
  compare(numbers, kTotalCut, last_16_bits(static_cast<uint64_t>(facts.number.total)));
  numbers[kFirstBucketBytes] = facts.bytes ? static_cast<double>(facts.bytes->first) : 0;
  numbers[kBucketBytes] = facts.bytes ? static_cast<double>(facts.bytes->others) : 0;
  numbers[kPieceBytes] = facts.bytes ? static_cast<double>(facts.bytes->piece) : 0;
  numbers[kReorders] = facts.reorders ? 1 : 0;
  handle_ = submit_in_place(set_, name_, spec_, numbers.data(), kCount, numbers_);
}

void RoundAgreement::refuse(const Error& error) const {
  ops::runtime().refuse(name_, error.what(), set_);
}

RoundTotals RoundAgreement::agree() {
  (void)handle_->get();
  const std::vector<double>& numbers = *numbers_;
  RoundTotals totals;
  totals.participants = static_cast<int>(numbers[kParticipants]);
  totals.same_number = all_equal(numbers, kNumber);
  totals.late = static_cast<int64_t>(numbers[kLate]);
  totals.failed = static_cast<int>(numbers[kFailed]);
  totals.early = static_cast<int>(numbers[kEarly]);
  totals.weighted = static_cast<int>(numbers[kWeighted]);
  totals.weight = numbers[kWeight];
  totals.same_total = all_equal(numbers, kTotalCut);
  // A common number, also where ranks that had joined have missed some rounds.
  totals.next_total = 1 + static_cast<int64_t>(numbers[kTotal]) / totals.participants;
  const double otherwise = numbers[kRoundedOtherwise];
  // A rank that has joined for a while has missed steps.
  totals.unlike_steps = totals.same_total && otherwise != 0 && otherwise != numbers[kParticipants];
  totals.replicas_alike = !totals.same_total || all_equal(numbers, kReplica);
  totals.look = numbers[kLooks] > 0;
  totals.same_gradients = totals.participants > 1 &&
                          numbers[kHasGradients] == numbers[kParticipants] &&
                          all_equal(numbers, kGradients);
  totals.bytes = {static_cast<int64_t>(numbers[kFirstBucketBytes]),
                  static_cast<int64_t>(numbers[kBucketBytes]),
                  static_cast<int64_t>(numbers[kPieceBytes])};
  totals.reorders = numbers[kReorders] > 0;
  return totals;
}

std::string RoundAgreement::ranks_that(bool say_so) const {
  const std::vector<double> answers =
      gather_number(set_, name_ + ".ranks", say_so ? 1 : 0, set_rank_, ranks_.size());
  std::vector<int> ranks;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i] > 0) ranks.push_back(ranks_[i]);
  }
  return core::name_ranks(ranks);
}

std::vector<RoundNumber> RoundAgreement::numbers_of_ranks(const RoundNumber& mine) const {
  const auto gather = [&](const char* what, int64_t number) {
    return gather_number(set_, core::concat(name_, ".", what), static_cast<double>(number),
                         set_rank_, ranks_.size());
  };
  const std::vector<double> steps = gather("step", mine.step);
  const std::vector<double> rounds = gather("round", mine.round);
  std::vector<RoundNumber> numbers;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const bool has_joined = steps[i] <= 0;
    numbers.push_back({.step = has_joined ? 0 : static_cast<int64_t>(steps[i]),
                       .round = has_joined ? 0 : static_cast<int64_t>(rounds[i])});
  }
  return numbers;
}

std::vector<double> largest_of_ranks(uint32_t set, const std::string& name,
                                     std::vector<double> values) {
  const auto memory = std::make_shared<std::vector<double>>(std::move(values));
  const auto count = static_cast<int64_t>(memory->size());
  (void)submit_in_place(set, name,
                        flat_spec(number_spec(DataType::Float64, ReduceOp::Max), name, {count}),
                        memory->data(), count, memory)
      ->get();
  return std::move(*memory);
}

std::vector<double> gather_number(uint32_t set, const std::string& name, double mine, int set_rank,
                                  size_t ranks) {
  std::vector<double> numbers(ranks, -std::numeric_limits<double>::infinity());
  numbers[static_cast<size_t>(set_rank)] = mine;
  return largest_of_ranks(set, name, std::move(numbers));
}

}  // namespace horon::torch_detail
