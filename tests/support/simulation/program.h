// What the ranks of a simulated job do, and what became of it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/negotiation/effects.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::simulation {

using core::Nanos;

inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

// One call of a program.
struct Action {
  enum class Kind { Submit, Refuse, Wait, Join, Shutdown, Think };
  Kind kind = Kind::Think;
  std::string name;    // Submit, Refuse; Wait: empty waits for everything, also for Joined and Bye
  core::SpecPtr spec;  // Submit
  std::vector<bool> absent;
  bool same_breath = false;  // the library does nothing between the action before and this one
  Nanos time = 0;            // Think
};

using Program = std::vector<Action>;

// The extents that a rank announces for its rows; where it may divide the rows, it divides them as
// evenly as possible.
std::vector<int64_t> extents_said(const core::EntrySpec& spec, bool is_root, int size);

Action submit(std::string name, core::SpecPtr spec, std::vector<bool> absent = {});
Action refuse(std::string name);
Action wait(std::string name);
Action wait_all();
Action join();
Action shutdown();
Action think(Nanos time);
Action in_same_breath(Action action);

// The data of one submission: which action of which rank's program.
struct Contribution {
  int rank = 0;
  size_t action = 0;
  auto operator<=>(const Contribution&) const = default;
};

// Whether a runtime might send the elements with the vote. What a simulation sends for them tells
// whose data it is.
bool may_be_eager(const Action& action);
std::vector<std::byte> bytes_of(const Contribution& contribution);
// Empty if that is nothing that bytes_of() has made.
std::optional<Contribution> contribution_of(const std::vector<std::byte>& bytes);

// What became of a Submit or a Join.
struct Outcome {
  enum class Kind { None, Pending, Ran, Unused, Failed, Joined };
  Kind kind = Kind::None;
  ErrorCode code = ErrorCode::Internal;  // Failed
  std::string text;                      // Failed; expectations: a part of it
  int last_joined = -1;                  // Joined
  size_t round = 0;  // expectations: Joined and all else are counted apart; equal for all ranks
  // Ran: whose data is in the result, by rank; one list for all ranks.
  std::shared_ptr<const std::vector<Contribution>> contributions;
  int contributors = 0;
  std::vector<bool> produced;
  std::vector<int64_t> extents;
};

std::string describe(const Action& action);
std::string describe(const core::EntrySpec& spec);
std::string describe(const core::RingItem& entry);
std::string describe(const core::Item& item);
std::string describe(const Outcome& outcome);
// One line per rank.
std::string describe(const std::vector<Program>& programs);

}  // namespace horon::simulation
