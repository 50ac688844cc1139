#include "horon/torch_bindings/collectives/average_in_groups.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"

namespace horon::torch_detail {
namespace {

constexpr size_t kGroupBytes = 1 << 20;
constexpr size_t kGroupTensors = 1024;

struct Group {
  std::vector<at::Tensor> tensors;
  size_t bytes = 0;
};

std::vector<Group> groups_of(const std::vector<at::Tensor>& tensors) {
  using Kind = std::tuple<at::ScalarType, c10::DeviceType, c10::DeviceIndex>;
  std::vector<Group> groups;
  std::map<Kind, size_t> open;  // where the next one of that kind goes
  for (const at::Tensor& tensor : tensors) {
    const at::Device device = tensor.device();
    const auto [found, is_new] =
        open.emplace(Kind(tensor.scalar_type(), device.type(), device.index()), groups.size());
    if (!is_new && (groups[found->second].bytes + tensor.nbytes() > kGroupBytes ||
                    groups[found->second].tensors.size() == kGroupTensors)) {
      found->second = groups.size();
    }
    if (found->second == groups.size()) groups.emplace_back();
    Group& group = groups[found->second];
    group.tensors.push_back(tensor);
    group.bytes += tensor.nbytes();
  }
  return groups;
}

}  // namespace

AverageInGroups::AverageInGroups(const std::string& name, const std::vector<at::Tensor>& tensors,
                                 const ProcessSet& set, Compression compression) {
  size_t number = 0;  // also of one that could not begin: the other ranks have it
  for (const Group& group : groups_of(tensors)) {
    const std::string name_of_group = core::concat(name, ".", number++);
    const bool travels_as_float32 =
        c10::toRealValueType(group.tensors.front().scalar_type()) == at::kFloat;
    failures_.run([&] {
      handles_.push_back(grouped_allreduce_async_(
          group.tensors, {.name = name_of_group,
                          .process_set = set,
                          .compression = travels_as_float32 ? compression : Compression::None}));
    });
  }
}

void AverageInGroups::wait() {
  for (const GroupHandle& handle : std::exchange(handles_, {})) {
    failures_.run([&] { (void)handle.wait(); });
  }
  if (failures_.first()) throw Error(*failures_.first());
}

}  // namespace horon::torch_detail
