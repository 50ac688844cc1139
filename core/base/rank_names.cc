#include "horon/core/base/rank_names.h"

#include "horon/core/base/text.h"

namespace horon::core {

std::string name_ranks(std::span<const int> ranks) {
  return concat(ranks.size() == 1 ? "rank " : "ranks ", list_ranks(ranks));
}

}  // namespace horon::core
