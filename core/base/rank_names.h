// How messages name ranks: "rank 1", "ranks 0, 1 and 5".
#pragma once

#include <span>
#include <string>

namespace horon::core {

// `ranks`: at least one, ascending. Long lists are cut as in list_ranks().
std::string name_ranks(std::span<const int> ranks);

}  // namespace horon::core
