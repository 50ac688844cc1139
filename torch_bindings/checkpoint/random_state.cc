#include "horon/torch_bindings/checkpoint/random_state.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Dict.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace horon::torch_detail {
namespace {

std::vector<std::pair<std::string, at::Generator>> generators() {
  std::vector<std::pair<std::string, at::Generator>> all;
  all.emplace_back("cpu", at::globalContext().defaultGenerator(c10::Device(c10::kCPU)));
  if (at::globalContext().hasCUDA() && c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
    const c10::Device device = c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice();
    all.emplace_back("cuda", at::globalContext().defaultGenerator(device));
  }
  return all;
}

}  // namespace

c10::IValue random_states() {
  c10::impl::GenericDict states(c10::StringType::get(), c10::AnyType::get());
  for (auto& [name, generator] : generators()) {
    const std::lock_guard lock(generator.mutex());
    states.insert(name, generator.get_state());
  }
  return states;
}

void set_random_states(const c10::IValue& states) {
  const c10::impl::GenericDict saved = states.toGenericDict();
  for (auto& [name, generator] : generators()) {
    const auto state = saved.find(name);
    if (state == saved.end()) continue;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state->value().toTensor());
  }
}

void seed_generators(uint64_t seed) {
  for (auto& [name, generator] : generators()) {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

}  // namespace horon::torch_detail
