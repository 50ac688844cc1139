// The elements that members have sent with their votes (Eager), until all members have sent theirs.
//
// All members count the rounds of an id alike: a round ends when the entry is served, by a record
// or because all members have sent Eager for it. Other members may be ahead of this one. They have
// heard from all and have voted again, or have applied records that this member has yet to apply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "horon/core/negotiation/protocol.h"

namespace horon::core {

class EagerVotes {
 public:
  explicit EagerVotes(size_t members) : members_(members) {}

  uint64_t round(EntryId id) const;
  // The entry has been served: what came for its round is dropped.
  void end_round(EntryId id);
  // Keeps what a member has sent; what came too late for its round is dropped. Throws
  // Error(Internal) if no member can have sent it.
  void keep(size_t member, Eager eager);
  // Once all members have sent theirs for the current round: the elements by member. Ends the
  // round. Empty before.
  std::vector<std::vector<std::byte>> take_complete(EntryId id);
  // The job is over.
  void clear() { entries_.clear(); }

 private:
  using Elements = std::vector<std::optional<std::vector<std::byte>>>;  // by member
  struct Entry {
    uint64_t round = 0;
    std::vector<Elements> rounds;  // from this one on
    size_t missing = 0;            // of the first of them
  };
  Entry& at(EntryId id);
  static void end_round(Entry& entry);

  const size_t members_;
  std::unordered_map<EntryId, Entry> entries_;
};

}  // namespace horon::core
