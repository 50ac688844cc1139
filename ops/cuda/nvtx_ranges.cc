#include "horon/ops/cuda/nvtx_ranges.h"

#include <nvtx3/nvToolsExt.h>

namespace horon::ops {
namespace {

class NvtxRanges final : public core::LiveRanges {
 public:
  explicit NvtxRanges(nvtxDomainHandle_t domain) : domain_(domain) {}

  uint64_t begin(const std::string& name) override {
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = name.c_str();  // the tool copies it
    return nvtxDomainRangeStartEx(domain_, &event);
  }
  void end(uint64_t range) noexcept override { nvtxDomainRangeEnd(domain_, range); }

 private:
  const nvtxDomainHandle_t domain_;
};

}  // namespace

std::unique_ptr<core::LiveRanges> nvtx_ranges() {
  // One for the process, as NVTX asks: jobs that follow each other share it.
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("Horon");
  if (domain == nullptr) return nullptr;
  return std::make_unique<NvtxRanges>(domain);
}

}  // namespace horon::ops
