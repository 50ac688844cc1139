#include "horon/core/runtime/pair_sets.h"

#include <algorithm>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {
namespace {

constexpr int kSizeMax = 46340;  // whose square is less than 2^31

}  // namespace

uint32_t pair_set(int one, int other, int size) {
  const auto [low, high] = std::minmax(one, other);
  if (low < 0 || high >= size || low == high) {
    throw Error(ErrorCode::InvalidArgument,
                concat("send and receive need two different ranks of 0 to ", size - 1,
                       ", not ranks ", one, " and ", other));
  }
  if (size > kSizeMax) {
    throw Error(ErrorCode::Limit,
                concat("send and receive need a job of at most ", kSizeMax, " ranks"));
  }
  return kFirstPairSet + static_cast<uint32_t>(low) * static_cast<uint32_t>(size) +
         static_cast<uint32_t>(high);
}

std::vector<int> members_of_pair(uint32_t set, int size) {
  if (!is_pair_set(set) || size > kSizeMax) return {};
  const uint32_t number = set - kFirstPairSet;
  const auto low = static_cast<int>(number / static_cast<uint32_t>(size));
  const auto high = static_cast<int>(number % static_cast<uint32_t>(size));
  if (low >= high) return {};  // `high` is below the size as a remainder
  return {low, high};
}

std::string set_text(uint32_t set) {
  if (is_pair_set(set)) return "the set of two ranks";
  if (set < kFirstNumberedSet) return concat("process set ", set);
  const uint32_t number = set - kFirstNumberedSet;
  if (number < kFirstGroupNumber) return concat("process set ", number, " (made by its members)");
  return concat("group of torch.distributed ", number - kFirstGroupNumber);
}

}  // namespace horon::core
