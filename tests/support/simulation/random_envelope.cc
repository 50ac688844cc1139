#include "horon/tests/support/simulation/random_envelope.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "horon/tests/support/simulation/random_spec.h"

namespace horon::simulation {
namespace {

const std::vector<int> ranks = {0, 1, 2, 3, 4};

// All lengths of encoded numbers occur.
uint64_t random_number(std::mt19937_64& random) { return random() >> random() % 64; }

std::string random_text(std::mt19937_64& random) {
  std::string text(random() % 4 == 0 ? random() % 300 : random() % 12, ' ');
  for (char& letter : text) letter = static_cast<char>(random());
  return text;
}

std::vector<bool> random_flags(std::mt19937_64& random) {
  std::vector<bool> flags(random() % 2 == 0 ? 0 : random() % 40);
  for (size_t i = 0; i < flags.size(); ++i) flags[i] = random() % 2 == 0;
  return flags;
}

std::vector<uint32_t> random_numbers(std::mt19937_64& random) {
  std::vector<uint32_t> numbers(random() % 5);
  for (uint32_t& number : numbers) number = static_cast<uint32_t>(random_number(random));
  return numbers;
}

core::SpecPtr spec(std::mt19937_64& random) {
  core::SpecPtr base = random_spec(random, random_text(random), ranks);
  return random() % 2 == 0 ? base : random_change(random, base, ranks);
}

ErrorCode random_code(std::mt19937_64& random) {
  return static_cast<ErrorCode>(random() % (static_cast<uint64_t>(ErrorCode::Internal) + 1));
}

core::Ready random_ready(std::mt19937_64& random) {
  core::Ready ready;
  if (random() % 2 == 0) {
    ready.id = static_cast<core::EntryId>(1 + random_number(random) % core::kIdsMax);
  } else {
    ready.name = random_text(random);
    ready.spec = spec(random);
    ready.eager = random() % 2 == 0;
  }
  ready.absent = random_flags(random);
  ready.extents.resize(random() % 4);
  for (int64_t& rows : ready.extents) rows = static_cast<int64_t>(random_number(random));
  return ready;
}

core::Eager random_eager(std::mt19937_64& random) {
  core::Eager eager;
  eager.id = static_cast<core::EntryId>(1 + random_number(random) % core::kIdsMax);
  eager.round = random_number(random);
  eager.elements.resize(random() % 40);
  for (std::byte& element : eager.elements) element = static_cast<std::byte>(random());
  return eager;
}

core::PlannedEntry random_planned(std::mt19937_64& random) {
  core::PlannedEntry entry;
  if (random() % 3 != 0) entry.id = static_cast<core::EntryId>(random_number(random));
  if (random() % 2 == 0) {
    entry.name = random_text(random);
    entry.spec = spec(random);
    entry.eager = random() % 2 == 0;
  }
  entry.round = random_number(random);
  entry.produced = random_flags(random);
  entry.extents.resize(random() % 4);
  for (int64_t& rows : entry.extents) rows = static_cast<int64_t>(random_number(random));
  return entry;
}

core::Plan random_plan(std::mt19937_64& random) {
  core::Plan plan;
  plan.batches.resize(random() % 4);
  for (core::PlannedBatch& batch : plan.batches) {
    for (uint64_t i = random() % 4; i > 0; --i) batch.entries.push_back(random_planned(random));
    for (uint64_t i = random() % 3; i > 0; --i) batch.joined.push_back(static_cast<int>(random()));
  }
  return plan;
}

bool same(const core::SpecPtr& a, const core::SpecPtr& b) {
  return (a == nullptr) == (b == nullptr) && (a == nullptr || *a == *b);
}

bool same(const core::Ready& a, const core::Ready& b) {
  return a.id == b.id && a.name == b.name && same(a.spec, b.spec) && a.eager == b.eager &&
         a.absent == b.absent && a.extents == b.extents;
}

bool same(const core::PlannedEntry& a, const core::PlannedEntry& b) {
  return a.id == b.id && a.name == b.name && same(a.spec, b.spec) && a.eager == b.eager &&
         a.round == b.round && a.produced == b.produced && a.extents == b.extents;
}

bool same(const core::PlannedBatch& a, const core::PlannedBatch& b) {
  return a.joined == b.joined &&
         std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                    [](const auto& x, const auto& y) { return same(x, y); });
}

bool same(const core::Plan& a, const core::Plan& b) {
  return std::equal(a.batches.begin(), a.batches.end(), b.batches.begin(), b.batches.end(),
                    [](const auto& x, const auto& y) { return same(x, y); });
}

bool same(const core::Item& a, const core::Item& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        const T& y = std::get<T>(b);
        if constexpr (std::is_same_v<T, core::Ready> || std::is_same_v<T, core::Plan>) {
          return same(x, y);
        } else if constexpr (std::is_same_v<T, core::Eager>) {
          return x.id == y.id && x.round == y.round && x.elements == y.elements;
        } else if constexpr (std::is_same_v<T, core::Refused>) {
          return x.name == y.name && x.text == y.text;
        } else if constexpr (std::is_same_v<T, core::Fail>) {
          return x.name == y.name && x.code == y.code && x.text == y.text && x.round == y.round;
        } else if constexpr (std::is_same_v<T, core::Ping> || std::is_same_v<T, core::Pong>) {
          return x.number == y.number;
        } else if constexpr (std::is_same_v<T, core::Drained>) {
          return x.batches == y.batches;
        } else if constexpr (std::is_same_v<T, core::Freeze>) {
          return x.ids == y.ids && x.places == y.places;
        } else if constexpr (std::is_same_v<T, core::Thaw>) {
          return x.places == y.places;
        } else if constexpr (std::is_same_v<T, core::Deviate>) {
          return x.place == y.place;
        } else if constexpr (std::is_same_v<T, core::RingItem>) {
          return x.kind == y.kind && x.value == y.value && x.more == y.more;
        } else if constexpr (std::is_same_v<T, core::Unused>) {
          return x.name == y.name && x.round == y.round;
        } else if constexpr (std::is_same_v<T, core::Seek>) {
          return x.name == y.name;
        } else if constexpr (std::is_same_v<T, core::Found>) {
          return x.name == y.name && x.gone == y.gone;
        } else if constexpr (std::is_same_v<T, core::Joined>) {
          return x.last == y.last;
        } else if constexpr (std::is_same_v<T, core::Stall>) {
          return x.text == y.text;
        } else if constexpr (std::is_same_v<T, core::Abort>) {
          return x.code == y.code && x.text == y.text;
        } else {
          static_assert(std::is_empty_v<T>);
          return true;
        }
      },
      a);
}

}  // namespace

core::Item random_item(std::mt19937_64& random, size_t kind) {
  switch (kind) {
    case 0:
      return random_ready(random);
    case 1:
      return core::Refused{random_text(random), random_text(random)};
    case 2:
      return core::Join{};
    case 3:
      return core::Shutdown{};
    case 4:
      return core::Ping{random_number(random)};
    case 5:
      return core::Pong{random_number(random)};
    case 6:
      return random_plan(random);
    case 7:
      return core::Fail{random_text(random), random_code(random), random_text(random),
                        random_number(random)};
    case 8:
      return core::Unused{random_text(random), random_number(random)};
    case 9:
      return core::Joined{static_cast<int32_t>(random())};
    case 10:
      return core::Bye{};
    case 11:
      return core::Stall{random_text(random)};
    case 12:
      return core::Abort{random_code(random), random_text(random)};
    case 13:
      return core::Drained{random_number(random)};
    case 14:
      return core::Freeze{random_numbers(random), random_numbers(random)};
    case 15:
      return core::Thaw{random_numbers(random)};
    case 16:
      return core::Deviate{static_cast<core::Place>(random_number(random))};
    case 18:
      return core::Seek{random_text(random)};
    case 19:
      return core::Found{random_text(random), random() % 2 == 0};
    case 20:
      return random_eager(random);
    default:
      return core::unpack(random_number(random));
  }
}

core::Envelope random_envelope(std::mt19937_64& random) {
  core::Envelope envelope;
  envelope.set = static_cast<uint32_t>(random_number(random));
  envelope.applied = random_number(random);
  for (uint64_t i = random() % 6; i > 0; --i) {
    envelope.items.push_back(random_item(random, random() % std::variant_size_v<core::Item>));
  }
  return envelope;
}

bool same(const core::Envelope& a, const core::Envelope& b) {
  return a.set == b.set && a.applied == b.applied &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [](const auto& x, const auto& y) { return same(x, y); });
}

}  // namespace horon::simulation
