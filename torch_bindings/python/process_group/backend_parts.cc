#include <algorithm>
#include <string>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/python/process_group/backend.h"

namespace horon::python::process_group {
namespace {

using core::concat;

// As good as for ever; Python has no durations as long as those of C++.
constexpr std::chrono::hours kLongest{24 * 365};

// Whether this torch asks backends to split, and not NCCL's alone.
template <class Backend>
constexpr bool splits() {
  return requires { &Backend::split; };
}

// Torch 2.8 has these in the options of NCCL alone.
template <class Options>
void describe(Options& options, const std::string& name, const std::string& text,
              const std::vector<uint64_t>& ranks) {
  if constexpr (requires { options.group_name; }) {
    options.group_name = name;
    options.group_desc = text;
    options.global_ranks_in_group = ranks;
  }
}

}  // namespace

c10::intrusive_ptr<::c10d::Backend::Options> HoronBackend::getBackendOptions() {
  const auto timeout = std::min<std::chrono::milliseconds>(timeout_.load(), kLongest);
  auto options = c10::make_intrusive<GroupOptions>(getBackendName(), timeout);
  describe(*options, getGroupUid(), getGroupDesc(), parts_.ranks);
  return options;
}

bool HoronBackend::supportsSplitting() const {
  return splits<::c10d::Backend>() && parts_.make != nullptr;
}

c10::intrusive_ptr<::c10d::Backend> HoronBackend::split(
    const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  if (parts_.make == nullptr) {
    throw Error(ErrorCode::InvalidArgument, "split_group(): this group can't be split");
  }
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) return {};
  // Torch 2.11 asks once for each kind of devices of the group, with one store, and drops all
  // answers but the first.
  if (store.defined() && last_store_.lock() == store && last_ranks_ == ranks) {
    if (auto part = last_part_.lock()) return part;
  }
  std::vector<uint64_t> in_default_group;
  for (const int rank : ranks) {
    if (rank < 0 || static_cast<size_t>(rank) >= parts_.ranks.size()) {
      throw Error(ErrorCode::InvalidArgument,
                  concat("split_group(): rank ", rank, " is not in this group, which has ",
                         getSize(), " ranks"));
    }
    in_default_group.push_back(parts_.ranks[static_cast<size_t>(rank)]);
  }
  auto part = parts_.make(in_default_group, options.defined() ? options->timeout : timeout_.load());
  last_store_ = c10::weak_intrusive_ptr<::c10d::Store>(store);
  last_ranks_ = ranks;
  last_part_ = c10::weak_intrusive_ptr<Backend>(part);
  return part;
}

}  // namespace horon::python::process_group
