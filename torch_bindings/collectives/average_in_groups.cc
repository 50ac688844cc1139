#include "horon/torch_bindings/collectives/average_in_groups.h"

#include <cstddef>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/tensors/parcels.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {

Fact fact_in_place(const char* what, const std::string& name, const at::Tensor& tensor,
                   size_t place) {
  return {core::concat(what, " \"", name, "\""),
          core::concat(type_and_shape(tensor, name), " in place ", place)};
}

AverageInGroups::AverageInGroups(const std::string& name, const std::vector<at::Tensor>& tensors,
                                 const ProcessSet& set, Compression compression) {
  size_t number = 0;  // also of one that could not begin: the other ranks have it
  for (const std::vector<at::Tensor>& group : in_parcels(tensors)) {
    const std::string name_of_group = core::concat(name, ".", number++);
    const bool travels_as_float32 = c10::toRealValueType(group.front().scalar_type()) == at::kFloat;
    failures_.run([&] {
      handles_.push_back(grouped_allreduce_async_(
          group, {.name = name_of_group,
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
