#include "horon/torch_bindings/gradients/state_shards.h"

#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/tensors/failures.h"
#include "horon/torch_bindings/tensors/parcels.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

using core::concat;
// Parcels are equally long, so that owners that send in turns keep a network busy both ways; and
// they are not too many, since each has a name.
constexpr int64_t kParcelBytesMin = 1 << 20;
constexpr int64_t kParcelsOfAStep = 256;
// Each may take a buffer, and the memory that is saved should stay saved.
constexpr size_t kParcelsInFlight = 8;
// Behind the reducer's name. Each has a name of its own, also beside the reducer's ".step", so that
// a step like the one before freezes.
constexpr const char* kMoves = ".moves";
constexpr const char* kSum = ".sum_of_owners";

// While it lives, the parameters have no gradients.
class HiddenGradients {
 public:
  HiddenGradients() = default;
  ~HiddenGradients() {
    for (auto& [parameter, gradient] : hidden_) parameter.mutable_grad() = std::move(gradient);
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

  void hide(const at::Tensor& parameter) {
    hidden_.emplace_back(parameter, parameter.grad());
    parameter.mutable_grad() = at::Tensor();
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden_;
};

// 64 in each number.
void append_bits(std::vector<int64_t>& numbers, const std::vector<bool>& bits) {
  const size_t first = numbers.size();
  numbers.resize(first + (bits.size() + 63) / 64);
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) numbers[first + i / 64] |= int64_t{1} << (i % 64);
  }
}
void raise_bits(std::vector<bool>& bits, std::span<const int64_t> numbers) {
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = bits[i] || ((numbers[i / 64] >> (i % 64)) & 1) != 0;
  }
}

// From the first byte of a tensor to the one behind its last.
std::pair<const char*, const char*> memory_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

}  // namespace

StateShards::StateShards(std::string name, ProcessSet set,
                         std::shared_ptr<const ShardOwners> owners, bool whole_gradients,
                         const NamedTensors& parameters, const Groups& groups)
    : name_(std::move(name)),
      set_(std::move(set)),
      owners_(std::move(owners)),
      whole_gradients_(whole_gradients) {
  add(parameters, groups);
}

void StateShards::add(const NamedTensors& parameters, const Groups& groups) {
  std::unordered_set<const void*> known;
  for (const Item& item : items_) known.insert(item.parameter.unsafeGetTensorImpl());
  for (const auto& [name, parameter] : parameters) {
    if (!known.insert(parameter.unsafeGetTensorImpl()).second) continue;
    items_.push_back({name, parameter, owners_->member_of(parameter)});
  }
  require_apart();
  require_once(groups);
}

// Two owners would move the same memory, each by its own step.
void StateShards::require_apart() const {
  std::map<const char*, const Item*> by_end;  // of what has elements and is strided
  for (const Item& item : items_) {
    if (item.parameter.layout() != at::kStrided || item.parameter.numel() == 0) continue;
    const auto [begin, end] = memory_of(item.parameter);
    const auto other = by_end.upper_bound(begin);
    if (other != by_end.end() && memory_of(other->second->parameter).first < end) {
      throw Error(
          ErrorCode::InvalidArgument,
          concat("shard_optimizer_state: parameters \"", other->second->name, "\" and \"",
                 item.name, "\" share memory; make them one tensor, or give each its own memory"));
    }
    by_end.emplace(end, &item);
  }
}

// LibTorch's load() gives the state of such a parameter to its last place alone.
void StateShards::require_once(const Groups& groups) const {
  std::unordered_set<const void*> seen;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const auto item = std::find_if(items_.begin(), items_.end(), [&](const Item& each) {
        return each.parameter.is_same(parameter);
      });
      throw Error(ErrorCode::InvalidArgument,
                  concat("shard_optimizer_state: parameter \"",
                         item == items_.end() ? std::string("?") : item->name,
                         "\" is in the optimizer's groups twice; give it once"));
    }
  }
}

size_t StateShards::member_of(int rank) const {
  return static_cast<size_t>(std::find(ranks().begin(), ranks().end(), rank) - ranks().begin());
}

// In the order of the members. Throws Error(RankLeft) if one of them has joined.
std::vector<std::vector<int64_t>> StateShards::of_all_ranks(const std::string& name,
                                                            std::vector<int64_t> own) const {
  const PlainMode plain;
  const auto length = std::ssize(own);
  const at::Tensor rows = allgather(at::from_blob(own.data(), {1, length}, at::kLong),
                                    {.name = name, .process_set = set_});
  if (rows.size(0) < std::ssize(ranks())) {
    throw Error(ErrorCode::RankLeft,
                concat(name, ": a rank called join() and no longer updates its parameters ",
                       "(shard_optimizer_state); run equally many steps on all ranks"));
  }
  std::vector<std::vector<int64_t>> all;
  for (int64_t row = 0; row < rows.size(0); ++row) {
    const auto* const begin = rows.const_data_ptr<int64_t>() + row * length;
    all.emplace_back(begin, begin + length);
  }
  return all;
}

// Those with a gradient here; without whole gradients only the owner has one.
std::vector<bool> StateShards::own_moves() const {
  std::vector<bool> moves;
  for (const Item& item : items_) {
    const bool counts = whole_gradients_ || item.owner == owners_->own_member();
    moves.push_back(counts && item.parameter.grad().defined());
  }
  return moves;
}

// The ranks agree on which parameters move: else one rank would receive what another one does not
// send.
std::vector<bool> StateShards::agree() const {
  std::vector<bool> moves = own_moves();
  Fingerprint all;
  all.add(has_ == Has::Loaded ? 1 : 0);
  for (size_t i = 0; i < items_.size(); ++i) {
    all.add(2 * static_cast<uint64_t>(items_[i].owner) + (whole_gradients_ && moves[i] ? 1 : 0));
  }
  std::vector<int64_t> own{static_cast<int64_t>(all.value())};
  if (!whole_gradients_) append_bits(own, moves);
  const std::vector<std::vector<int64_t>> rows = of_all_ranks(name_ + kMoves, own);
  const bool alike = std::all_of(rows.begin(), rows.end(),
                                 [&](const auto& row) { return row.front() == own.front(); });
  if (!alike) require_alike(moves);
  if (!whole_gradients_) {
    for (const std::vector<int64_t>& row : rows) raise_bits(moves, std::span(row).subspan(1));
  }
  return moves;
}

// Called if the ranks differ: throws an error that says in what.
void StateShards::require_alike(const std::vector<bool>& moves) const {
  std::vector<Fact> facts{{"the optimizer's state", has_ == Has::Loaded
                                                        ? "loaded since the last step"
                                                        : "as the last step left it"}};
  for (size_t i = 0; i < items_.size(); ++i) {
    const int owner = ranks()[items_[i].owner];
    const char* const gradient = !whole_gradients_ ? ""
                                 : moves[i]        ? ", with a gradient"
                                                   : ", without a gradient";
    facts.push_back({concat("parameter \"", items_[i].name, "\""),
                     concat("in the shard of rank ", owner, gradient)});
  }
  require_agreement(concat(name_, ".shard_optimizer_state"), facts, {}, set_);
}

std::vector<StateShards::Parcel> StateShards::parcels(const std::vector<bool>& moves) const {
  std::vector<std::vector<at::Tensor>> moved(ranks().size());  // by the member that owns them
  int64_t bytes = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!moves[i]) continue;
    moved[items_[i].owner].push_back(items_[i].parameter);
    bytes += static_cast<int64_t>(items_[i].parameter.nbytes());
  }
  const int64_t length = std::max(kParcelBytesMin, bytes / kParcelsOfAStep);
  std::vector<std::vector<Parcel>> of_members(ranks().size());
  for (size_t member = 0; member < ranks().size(); ++member) {
    const int owner = ranks()[member];
    for (std::vector<at::Tensor>& parcel : in_parcels_of(length, moved[member])) {
      const size_t number = of_members[member].size();
      of_members[member].push_back(
          {owner, concat(name_, ".parameters.", owner, ".", number), std::move(parcel)});
    }
  }
  // The owners in turns, so that all of them send.
  std::vector<Parcel> all;
  for (size_t turn = 0, before = 0; turn == 0 || all.size() > before; ++turn) {
    before = all.size();
    for (std::vector<Parcel>& parcels : of_members) {
      if (turn < parcels.size()) all.push_back(std::move(parcels[turn]));
    }
  }
  return all;
}

at::Tensor StateShards::step(Optimizer& optimizer, const std::function<at::Tensor()>& own_step) {
  const std::vector<bool> moves = agree();
  keep_own(optimizer);
  const std::vector<Parcel> all = parcels(moves);
  at::Tensor result;
  try {
    HiddenGradients hidden;
    for (const Item& item : items_) {
      const bool is_own = item.owner == owners_->own_member();
      if (!is_own && item.parameter.grad().defined()) hidden.hide(item.parameter);
    }
    result = own_step();
  } catch (...) {
    std::vector<std::string> names;
    for (const Parcel& parcel : all) names.push_back(parcel.name);
    refuse(names, core::current_error().what());
    throw;
  }
  keep_own(optimizer);  // it may make state of parameters without a gradient
  exchange(all);
  return result;
}

void StateShards::refuse_step(const std::string& why, bool after_sum) const {
  refuse({name_ + (after_sum ? kSum : kMoves)}, why);
}

at::Tensor StateShards::sum_of_owners(const at::Tensor& found) const {
  return allreduce(found, {.name = name_ + kSum, .op = ReduceOp::Sum, .process_set = set_});
}

// The other ranks would wait for what this one does not begin.
void StateShards::refuse(const std::vector<std::string>& names, const std::string& why) const {
  try {
    refuse_calls(names, set_, concat("step() of \"", name_, "\": ", why));
  } catch (const Error&) {  // this rank throws what has happened here
  }
}

// Waits for all, also when one fails: none is in flight when the error is thrown.
void StateShards::exchange(const std::vector<Parcel>& parcels) const {
  std::deque<GroupHandle> in_flight;
  Failures failures;
  const auto wait_for_first = [&] {
    failures.run([&] { in_flight.front().wait(); });
    in_flight.pop_front();
  };
  for (const Parcel& parcel : parcels) {
    if (in_flight.size() == kParcelsInFlight) wait_for_first();
    failures.run([&] {
      in_flight.push_back(grouped_broadcast_async_(
          parcel.parameters, {.name = parcel.name, .root = parcel.owner, .process_set = set_}));
    });
  }
  while (!in_flight.empty()) wait_for_first();
  if (failures.first()) throw Error(*failures.first());
}

}  // namespace horon::torch_detail
