#include "horon/core/base/nearest_name.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace horon::core {
namespace {

// The edit distance: how many letters must be added, dropped or changed to turn `a` into `b`. `row`
// is one row of the usual table: distances of the letters of `a` read so far to each prefix of `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    if (!typed.empty() && name.starts_with(typed)) return name;
  }
  std::string_view nearest;
  size_t nearest_distance = std::numeric_limits<size_t>::max();
  for (const std::string_view name : names) {
    const size_t distance = edit_distance(typed, name);
    if (distance >= nearest_distance) continue;
    nearest = name;
    nearest_distance = distance;
  }
  return nearest;
}

bool may_mean_one_of(std::string_view typed, std::span<const std::string_view> names) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return name.starts_with(typed) || typed.starts_with(name) ||
           3 * edit_distance(typed, name) <= typed.size();
  });
}

}  // namespace horon::core
