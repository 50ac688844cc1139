#include "horon/torch_bindings/checkpoint/rank_state.h"

#include <cstdint>
#include <utility>

#include <ATen/Version.h>
#include <torch/optim/optimizer.h>

#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/checkpoint/opened_checkpoint.h"
#include "horon/torch_bindings/checkpoint/random_state.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/state/optimizer_state.h"
#include "horon/torch_bindings/tensors/failures.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

void load_buffers(const NamedParts& parts, const c10::IValue& own) {
  const PlainMode plain;
  for (const auto& [name, part] : parts) {
    if (!own.toGenericDict().contains(name)) continue;
    const c10::impl::GenericDict saved = value_in(own, name).toGenericDict();
    for (const auto& [key, tensor] : part->own_tensors()) {
      // Detached: a tensor that was made in inference mode can't be written by itself.
      if (saved.contains(key)) tensor.detach().copy_(saved.at(key).toTensor());
    }
  }
}

void begin_random_numbers_anew(const SavedOfRanks& saved, const ProcessSet& set) {
  Fingerprint seed;
  seed.add(tensor_bytes(value_in(value_in(saved.states.front(), kRandom), "cpu").toTensor()));
  seed.add(static_cast<uint64_t>(set.rank()));
  seed_generators(seed.value());
  if (set.rank() != 0) return;
  core::log(core::LogLevel::Warn,
            core::concat("the checkpoint was saved by ", saved.ranks,
                         saved.ranks == 1 ? " rank" : " ranks", " and is loaded by ", set.size(),
                         ": each rank's random numbers begin anew, and buffers that "
                         "differed between ranks get the values of rank ",
                         writer_of(set)));
}

// The part of a rank's state that other ranks can use, too.
c10::IValue things_in(const c10::IValue& state, bool with_random) {
  c10::impl::GenericDict things = text_dictionary();
  for (const auto& entry : state.toGenericDict()) {
    const std::string name = entry.key().toStringRef();
    if (name == kBuffers || (name == kRandom && !with_random)) continue;
    things.insert(entry.key(), entry.value());
  }
  return things;
}

// Where it was computed: ranks elsewhere may round differently.
std::string place_of(torch::optim::Optimizer& optimizer) {
  const c10::DeviceType type = device_of_parameters(optimizer).type();
  return core::concat(c10::DeviceTypeName(type), " ", at::get_cpu_capability());
}

// The place and what stands for the state. Empty: there is none to lose, or none that is known.
std::pair<std::string, std::string> state_summary(torch::optim::Optimizer& optimizer) {
  if (!is_known_optimizer(optimizer) || std::as_const(optimizer).state().empty()) return {};
  const PlainMode plain;
  const TakenApart apart = take_apart(optimizer);
  Fingerprint all;
  all.add(apart.bytes);
  for (const at::Tensor& tensor : apart.tensors) {
    const bool is_readable = tensor.is_cpu() && tensor.is_contiguous();
    const at::Tensor rows = is_readable ? tensor : host_copy(tensor);
    all.add(rows.const_data_ptr(), rows.nbytes());
  }
  return {place_of(optimizer), std::to_string(all.value())};
}

}  // namespace

void require_same_state(const std::string& name, torch::optim::Optimizer& optimizer,
                        const ProcessSet& set) {
  std::pair<std::string, std::string> own;
  Failures failures;
  failures.run([&] { own = state_summary(optimizer); });
  const auto gather = [&](const std::string& text) {
    return allgather_bytes(text, {.name = "checkpoint.state", .process_set = set});
  };
  const std::vector<std::string> places = gather(own.first), states = gather(own.second);
  if (failures.first()) throw Error(*failures.first());
  const std::vector<int> ranks = set.ranks();
  std::vector<int> others;
  for (size_t r = 1; r < states.size(); ++r) {
    const bool comparable = states[0].empty() || places[r] == places[0];
    if (comparable && !states[r].empty() && states[r] != states[0]) others.push_back(ranks[r]);
  }
  if (others.empty()) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("checkpoints: the state of \"", name, "\" on ", core::name_ranks(others),
                           " is not that of rank ", ranks[0],
                           ", which alone would be saved; add the optimizer by add_of_rank(), or ",
                           "call broadcast_optimizer_state() first"));
}

SavedOfRanks share_states(const c10::impl::GenericList& of_ranks, int ranks,
                          const ProcessSet& set) {
  SavedOfRanks saved{ranks, ranks == set.size(), {}};
  const auto named = [&](const char* name) {
    return ObjectOptions{.name = name, .root = writer_of(set), .process_set = set};
  };
  if (saved.same_ranks) {
    std::vector<std::string> parts;
    for (c10::IValue state : of_ranks) parts.push_back(to_bytes(state));
    saved.states.push_back(from_bytes(scatter_bytes(parts, named("checkpoint.ranks"))));
    return saved;
  }
  c10::impl::GenericList things(c10::AnyType::get());
  for (c10::IValue state : of_ranks) things.push_back(things_in(state, things.empty()));
  const std::string all = broadcast_bytes(set.rank() == 0 ? to_bytes(things) : std::string(),
                                          named("checkpoint.all_ranks"));
  for (c10::IValue state : from_bytes(all).toList()) saved.states.push_back(state);
  return saved;
}

std::string buffer_fingerprints(const NamedParts& parts) {
  std::string all;
  for (const auto& [name, part] : parts) {
    for (const auto& [key, tensor] : part->own_tensors()) {
      const at::Tensor rows = host_copy(tensor);
      Fingerprint bits;
      bits.add(rows.const_data_ptr(), rows.nbytes());
      const uint64_t value = bits.value();
      all.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  return all;
}

c10::IValue differing_buffers(const NamedParts& parts, const std::string& fingerprints_of_root) {
  c10::impl::GenericDict own = text_dictionary();
  const std::string here = buffer_fingerprints(parts);
  constexpr size_t kEach = sizeof(uint64_t);
  size_t place = 0;
  for (const auto& [name, part] : parts) {
    c10::impl::GenericDict differing = text_dictionary();
    for (const auto& [key, tensor] : part->own_tensors()) {
      const bool alike = here.compare(place, kEach, fingerprints_of_root, place, kEach) == 0;
      if (!alike) differing.insert(key, host_copy(tensor));
      place += kEach;
    }
    if (!differing.empty()) own.insert(name, differing);
  }
  return own;
}

void load_rank_state(const NamedParts& parts, const SavedOfRanks& saved, const ProcessSet& set) {
  if (!saved.same_ranks) return begin_random_numbers_anew(saved, set);
  const c10::IValue& own = saved.states.front();
  load_buffers(parts, value_in(own, kBuffers));
  set_random_states(value_in(own, kRandom));
}

}  // namespace horon::torch_detail
