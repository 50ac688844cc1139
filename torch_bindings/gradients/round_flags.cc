#include "horon/torch_bindings/gradients/round_flags.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "horon/core/base/error.h"

namespace horon::torch_detail {
namespace {

// After kAsks two flags for each answer: the lower one says no, the upper one yes.
constexpr int kFirstAnswer = 1;
constexpr int kFingerprintBits = 16;
constexpr int kAnswers = 2 + kFingerprintBits;
static_assert(kFirstAnswer + 2 * kAnswers == RoundFlags::kCount);
constexpr uint64_t kAllNo = 0x5555'5555'5555'5555 & ((uint64_t{1} << 2 * kAnswers) - 1);

// Does not become 0 in float16 where an average divides it by a million ranks. The sum of all ranks
// may become infinite: it still counts as raised.
constexpr float kRaised = 256;

template <class T>
void write_elements(uint64_t raised, void* memory) {
  auto* const elements = static_cast<T*>(memory);
  for (size_t i = 0; i < RoundFlags::kCount; ++i) {
    elements[i] = static_cast<T>((raised >> i & 1) != 0 ? kRaised : 0.0F);
  }
}

template <class T>
uint64_t read_elements(const void* memory) {
  const auto* const elements = static_cast<const T*>(memory);
  uint64_t raised = 0;
  for (size_t i = 0; i < RoundFlags::kCount; ++i) {
    const bool is_raised = static_cast<double>(elements[i]) != 0;
    raised |= static_cast<uint64_t>(is_raised) << i;
  }
  return raised;
}

}  // namespace

void RoundFlags::say(bool first_round_of_step, bool rounded_otherwise, uint64_t fingerprint) {
  uint64_t yes = (first_round_of_step ? 1U : 0U) | (rounded_otherwise ? 2U : 0U);
  yes |= (fingerprint & ((1U << kFingerprintBits) - 1)) << 2;
  for (int answer = 0; answer < kAnswers; ++answer) {
    raised_ |= uint64_t{1} << (kFirstAnswer + 2 * answer + static_cast<int>(yes >> answer & 1));
  }
}

void RoundFlags::write(void* memory, at::ScalarType dtype) const {
  switch (dtype) {
    case at::kFloat:
      return write_elements<float>(raised_, memory);
    case at::kDouble:
      return write_elements<double>(raised_, memory);
    case at::kHalf:
      return write_elements<c10::Half>(raised_, memory);
    case at::kBFloat16:
      return write_elements<c10::BFloat16>(raised_, memory);
    default:
      HORON_CHECK(false, "gradients are of no such dtype");
  }
}

void RoundFlags::add(const void* memory, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      raised_ |= read_elements<float>(memory);
      return;
    case at::kDouble:
      raised_ |= read_elements<double>(memory);
      return;
    case at::kHalf:
      raised_ |= read_elements<c10::Half>(memory);
      return;
    case at::kBFloat16:
      raised_ |= read_elements<c10::BFloat16>(memory);
      return;
    default:
      HORON_CHECK(false, "gradients are of no such dtype");
  }
}

bool RoundFlags::alike() const {
  const uint64_t answers = raised_ >> kFirstAnswer;
  const uint64_t no = answers & kAllNo;
  const uint64_t yes = answers >> 1 & kAllNo;
  return (no | yes) == kAllNo && (no & yes) == 0;
}

}  // namespace horon::torch_detail
