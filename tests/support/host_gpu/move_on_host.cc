#include "horon/tests/support/host_gpu/move_on_host.h"

#include "horon/core/base/error.h"
#include "horon/ops/host/half.h"
#include "horon/tests/support/bfloat16.h"

#define HORON_DEVICE_FUNCTION
#include "horon/ops/cuda/move_body.inc"

namespace horon::test {
namespace {

struct HostMachine {
  static float from_half(uint16_t bits) { return ops::float_from_half(bits); }
  static float from_bfloat16(uint16_t bits) { return ops::float_from_bfloat16(bits); }
  static uint16_t to_half(float value) { return ops::half_from_float(value); }
  static uint16_t to_bfloat16(float value) { return ops::bfloat16_from_float(value); }
};

}  // namespace

void run_on_host(const ops::MoveLaunch& launch, uint32_t lanes) {
  namespace body = ops::move_body;
  const ops::MoveParameters& parameters = launch.parameters();
  const auto from_size = static_cast<uint32_t>(size_of(parameters.from_type));
  const auto to_size = static_cast<uint32_t>(size_of(parameters.to_type));
  const bool known = body::visit_action<HostMachine>(parameters, [&](auto tag) {
    using Action = typename decltype(tag)::Type;
    for (uint32_t chunk = 0; chunk < parameters.chunks; ++chunk) {
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        body::run_chunk<Action>(parameters, launch.moves().data(), from_size, to_size, chunk,
                                {lane, lanes});
      }
    }
  });
  HORON_CHECK(known, "there is a kernel for every launch that can be made");
}

}  // namespace horon::test
