// What the collectives of one process set run on.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "horon/core/base/entry_spec.h"

namespace horon::core {

class Executor;
class Gate;
struct Batch;

struct SetResources {
  SetResources();
  SetResources(std::shared_ptr<void> kept, std::unique_ptr<Executor> runs,
               std::unique_ptr<Gate> starts = nullptr);
  SetResources(SetResources&&) noexcept;
  SetResources& operator=(SetResources&&) noexcept;
  ~SetResources();

  std::shared_ptr<void> keep_alive;  // outlives the others
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Gate> gate;  // on all members or on none; may be null
  // Allreduce in host memory, where the input of each member is here: writes what the batch asks
  // for, from `batch.count` elements of each, to `batch.output`. The bits are those of the op that
  // runs such a batch between hosts. May be empty: then nothing is sent eagerly.
  std::function<void(const Batch& batch, std::span<const std::byte* const> inputs)> reduce;
  // By kind of device: why the members can't use theirs together, as the text of an error. Empty:
  // they can, or this build can't.
  std::array<std::string, kDeviceKindCount> unavailable;
  // Some members have such a device and others have none, and the user wants them to take part
  // together: tensors on a device are copied to the host for each collective
  // (Submission::copied_to_host). The same on all members.
  std::array<bool, kDeviceKindCount> mixed = {};
};

}  // namespace horon::core
