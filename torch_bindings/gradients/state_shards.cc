#include "horon/torch_bindings/gradients/state_shards.h"

#include <algorithm>
#include <deque>
#include <map>
#include <sstream>
#include <unordered_set>

#include <torch/serialize/archive.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/tensors/failures.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

using core::concat;

// Small parameters travel together. What does is copied into a buffer first, so the buffers are few
// and short: the memory that is saved should stay saved.
constexpr int64_t kParcelBytes = 1 << 20;
constexpr size_t kParcelsInFlight = 8;

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

int64_t bytes_of(const at::Tensor& parameter) {
  return parameter.numel() * static_cast<int64_t>(parameter.element_size());
}

}  // namespace

StateShards::StateShards(std::string name, ProcessSet set, const Groups& groups)
    : name_(std::move(name)),
      set_(std::move(set)),
      ranks_(set_.ranks()),
      me_(ranks_.at(static_cast<size_t>(set_.rank()))),
      bytes_of_(ranks_.size()) {
  share_out(groups);
}

// The longest first, each to the member that has the fewest bytes so far: all ranks find the same,
// and what was shared out before stays where it is.
void StateShards::share_out(const Groups& groups) {
  std::vector<at::Tensor> added;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const void* const identity = parameter.unsafeGetTensorImpl();
      if (owners_.emplace(identity, ranks_.front()).second) added.push_back(parameter);
    }
  }
  std::stable_sort(added.begin(), added.end(), [](const at::Tensor& a, const at::Tensor& b) {
    return bytes_of(a) > bytes_of(b);
  });
  for (const at::Tensor& parameter : added) {
    const auto least = std::min_element(bytes_of_.begin(), bytes_of_.end());
    *least += bytes_of(parameter);
    owners_[parameter.unsafeGetTensorImpl()] =
        ranks_[static_cast<size_t>(least - bytes_of_.begin())];
  }
}

size_t StateShards::member_of(int rank) const {
  return static_cast<size_t>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
}

int StateShards::owner_of(const at::Tensor& parameter) const {
  return owners_.at(parameter.unsafeGetTensorImpl());
}

bool StateShards::is_own(const void* parameter) const {
  const auto owner = owners_.find(parameter);
  return owner == owners_.end() || owner->second == me_;
}

bool StateShards::has_state_of_others(const Optimizer& optimizer) const {
  return std::any_of(optimizer.state().begin(), optimizer.state().end(),
                     [this](const auto& entry) { return !is_own(entry.first); });
}

void StateShards::keep_own(Optimizer& optimizer) {
  consolidated_ = false;
  auto& state = optimizer.state();
  for (auto entry = state.begin(); entry != state.end();) {
    entry = is_own(entry->first) ? std::next(entry) : state.erase(entry);
  }
}

std::vector<StateShards::Parcel> StateShards::moved_in_step(const Groups& groups) const {
  std::vector<std::vector<Parcel>> of_members(ranks_.size());
  std::map<std::pair<int, at::ScalarType>, size_t> open;  // where the next of that kind goes
  std::unordered_set<const void*> seen;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const int owner = owner_of(parameter);
      std::vector<Parcel>& parcels = of_members[member_of(owner)];
      const int64_t bytes = bytes_of(parameter);
      const auto [found, is_new] =
          open.emplace(std::pair(owner, parameter.scalar_type()), parcels.size());
      if (!is_new && parcels[found->second].bytes + bytes > kParcelBytes) {
        found->second = parcels.size();
      }
      if (found->second == parcels.size()) {
        parcels.push_back(
            {owner, 0, concat(name_, ".parameters.", owner, ".", parcels.size()), {}});
      }
      parcels[found->second].bytes += bytes;
      parcels[found->second].parameters.push_back(parameter);
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
  const Groups& groups = optimizer.param_groups();
  share_out(groups);
  keep_own(optimizer);
  const std::vector<Parcel> parcels = moved_in_step(groups);
  at::Tensor result;
  try {
    HiddenGradients hidden;
    for (const Parcel& parcel : parcels) {
      if (parcel.owner == me_) continue;
      for (const at::Tensor& parameter : parcel.parameters) hidden.hide(parameter);
    }
    result = own_step();
  } catch (...) {
    fail_others(parcels, core::current_error().what());
    throw;
  }
  exchange(parcels);
  return result;
}

// The other ranks would wait for what this one does not send.
void StateShards::fail_others(const std::vector<Parcel>& parcels, const std::string& why) const {
  std::vector<std::string> names;
  for (const Parcel& parcel : parcels) names.push_back(parcel.name);
  if (names.empty()) return;
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

// One owner after the other, so that not all state is there a second time at once.
void StateShards::consolidate(Optimizer& optimizer, int to) {
  const std::string call = concat(name_, ".consolidate_state");
  if (std::find(ranks_.begin(), ranks_.end(), to) == ranks_.end()) {
    refuse_call(call, set_,
                concat("consolidate_state() of \"", name_, "\": rank ", to,
                       " is not one of the ranks ", core::list_ranks(ranks_)));
  }
  share_out(std::as_const(optimizer).param_groups());
  const bool here = me_ == to;
  const bool whole = here && (consolidated_ || has_state_of_others(optimizer));
  const ObjectOptions to_root{.name = call, .root = to, .process_set = set_};
  if (!broadcast_bytes(whole ? "whole" : "", to_root).empty()) return;
  for (size_t member = 0; member < ranks_.size(); ++member) {
    const int owner = ranks_[member];
    if (owner == to) continue;
    std::string bytes;
    const auto save = [&] {
      if (me_ == owner) bytes = save_own(optimizer);
    };
    on_all_ranks(save, {.name = call, .process_set = set_, .worker = owner});
    const std::vector<std::string> of_ranks = gather_bytes(bytes, to_root);
    const auto load = [&] {
      if (here) load_theirs(optimizer, of_ranks.at(member), owner);
    };
    on_all_ranks(load, {.name = call, .process_set = set_, .worker = to});
  }
  consolidated_ = here;
}

std::string StateShards::save_own(Optimizer& optimizer) {
  keep_own(optimizer);
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  saves_shard_ = true;
  try {
    optimizer.save(archive);
  } catch (...) {
    saves_shard_ = false;
    throw;
  }
  saves_shard_ = false;
  archive.save_to(stream);
  return std::move(stream).str();
}

// load() may add to the state that is there, or replace it.
void StateShards::load_theirs(Optimizer& optimizer, const std::string& bytes, int owner) const {
  const Groups& groups = std::as_const(optimizer).param_groups();
  const auto has_parameters = [](const auto& group) { return !group.params().empty(); };
  const auto group = std::find_if(groups.begin(), groups.end(), has_parameters);
  if (group == groups.end()) return;
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream, group->params().front().device());
  auto kept = std::move(optimizer.state());
  optimizer.state().clear();
  optimizer.load(archive);
  for (auto& [parameter, state] : kept) {
    const auto found = owners_.find(parameter);
    const bool is_theirs = found != owners_.end() && found->second == owner;
    if (!is_theirs) optimizer.state()[parameter] = std::move(state);
  }
}

void StateShards::require_whole(const Optimizer& optimizer) const {
  if (saves_shard_ || consolidated_ || optimizer.state().empty()) return;
  if (has_state_of_others(optimizer)) return;
  throw Error(ErrorCode::InvalidArgument,
              concat("save() of the optimizer of \"", name_, "\": its state is shared out over ",
                     ranks_.size(), " ranks; call consolidate_state(", me_,
                     ") on all of them first, which gives rank ", me_, " all of it"));
}

}  // namespace horon::torch_detail
