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

constexpr size_t kLettersOfAWord = 5;  // BYTES and BUCKET; HOST may be anybody's

template <class Function>
bool any_word_of(std::string_view name, const Function& function) {
  for (size_t begin = 0, end = 0; begin < name.size(); begin = end + 1) {
    end = std::min(name.find('_', begin), name.size());
    const std::string_view word = name.substr(begin, end - begin);
    if (word.size() >= kLettersOfAWord && function(word)) return true;
  }
  return false;
}

bool share_a_word(std::string_view a, std::string_view b) {
  return any_word_of(a, [b](std::string_view of_a) {
    return any_word_of(b, [of_a](std::string_view of_b) {
      return of_a.starts_with(of_b) || of_b.starts_with(of_a);  // BUCKETS
    });
  });
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
    return name.starts_with(typed) || share_a_word(typed, name) ||
           3 * edit_distance(typed, name) <= typed.size();
  });
}

}  // namespace horon::core
