#include "horon/ops/timing/copy_rounds.h"

#include <algorithm>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/host/process_memory.h"
#include "horon/ops/host/ring_lines.h"

namespace horon::ops {
namespace {

constexpr size_t kParts = 8;
constexpr size_t kBytes = CopyRings::kBytes;

}  // namespace

CopyRounds::CopyRounds(CopyRings& rings, bool leads, int process)
    : rings_(rings),
      mine_(rings.sides[leads ? 0 : 1]),
      other_(rings.sides[leads ? 1 : 0]),
      process_(process),
      input_(kParts * kBytes),
      output_(kParts * kBytes) {}

size_t CopyRounds::begin() const { return rounds_ % kParts * kBytes; }

void CopyRounds::run(Step step) {
  std::byte* const input = input_.data() + begin();
  std::byte* const output = output_.data() + begin();
  switch (step) {
    case Compute:
      std::fill_n(input, kBytes, static_cast<std::byte>(rounds_));
      mine_.block = reinterpret_cast<uint64_t>(input);
      break;
    case Fill:
      core::copy_bytes(mine_.ring.data(), input, kBytes);
      break;
    case Drain:
      core::copy_bytes(output, other_.ring.data(), kBytes);
      take_lines(other_.ring.data(), kBytes);
      break;
    default:
      if (core::read_process(process_, output, other_.block, kBytes) != 0) rings_.refused = true;
      ++rounds_;
      break;
  }
}

}  // namespace horon::ops
