// Any bytes that arrive as a control message are refused or understood, and at worst a rank that
// reads them ends with an error. With libFuzzer this is the fuzzed function; without it,
// tests/support/fuzz_main.cc calls it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/negotiation/controller.h"
#include "horon/core/negotiation/wire_format.h"

namespace {

using horon::core::Controller;
using horon::core::Effects;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wire_format_fuzz: %s\n", what);
  std::abort();
}

void feed(int rank, int from, std::span<const std::byte> bytes) {
  Controller::Options options;
  options.rank = rank;
  options.size = 3;
  options.stall_warn_after = 1;
  Controller controller(options);
  horon::core::EntrySpec spec;
  spec.parts = {{"x", {2}}, {"y", {3}}};
  controller.submit({1, "x", std::make_shared<horon::core::EntrySpec>(spec), {}, {}});
  for (int round = 0; round < 2; ++round) {
    controller.receive(from, bytes);
    controller.tick(round * 2'000'000'000LL);
    const Effects effects = controller.take_effects();
    for (const auto& batch : effects.starts) {
      require(batch.contributors > 0 && !batch.entries.empty(), "a batch that can't be");
      for (const auto& entry : batch.entries) require(entry.spec != nullptr, "no spec");
      controller.batch_finished();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const std::vector<std::byte> again = horon::core::encode(horon::core::decode(bytes));
    require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
            "it was read as something else");
  } catch (const horon::Error&) {
    // Refused: all is well.
  }
  feed(0, 1, bytes);
  feed(1, 0, bytes);
  feed(1, 2, bytes);
  return 0;
}
