// The specs of calls that come again under the same names. A call that is like the latest of its
// name gives the runtime the same spec: then no name and no shape is copied, and the ranks agree by
// comparing one address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "horon/core/base/entry_spec.h"

namespace horon::torch_detail {

struct KnownCall {
  core::EntrySpec call;  // without its parts
  bool grouped = false;
  std::shared_ptr<const core::EntrySpec> spec;
};

// Any thread.
class KnownCalls {
 public:
  // The latest call of this name on this process set. Null: none is known.
  std::shared_ptr<const KnownCall> find(uint32_t set, const std::string& name) const;
  // May throw for want of memory, and then nothing has changed.
  void note(uint32_t set, const std::string& name, std::shared_ptr<const KnownCall> call);

  // At most so many tensors in all calls that are kept; beyond that all calls are forgotten.
  static constexpr size_t kPartsMax = 16384;

 private:
  using Key = std::pair<uint32_t, std::string_view>;
  struct Hash {
    size_t operator()(const Key& key) const {
      return std::hash<std::string_view>()(key.second) ^ key.first;
    }
  };
  struct Kept {
    std::unique_ptr<const std::string> name;  // what the key views
    std::shared_ptr<const KnownCall> call;
  };

  mutable std::mutex mutex_;
  std::unordered_map<Key, Kept, Hash> calls_;
  size_t parts_ = 0;
};

// Of this process. Specs are values, so they outlive sessions.
KnownCalls& known_calls();

}  // namespace horon::torch_detail
