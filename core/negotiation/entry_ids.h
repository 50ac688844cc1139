// The ids that stand for (name, spec) in messages; the table is the same on every member.
//
// The coordinator gives an id in the Plan that first agrees a name with its spec. A name that
// changes its shape keeps a few ids, for shapes that come again and again (a smaller last batch).
// After that the new spec gets the oldest of them, so a name that always changes uses up no ids.
// That is safe: an id belongs to one name, and a Plan of a name is made only when every member's
// vote under it has been taken, so no message with the old spec is on its way.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "horon/core/negotiation/protocol.h"

namespace horon::core {

class EntryIds {
 public:
  static constexpr size_t kSpecsPerName = 4;

  struct Known {
    std::string name;
    SpecPtr spec;
    bool eager = false;
  };

  // kNoId if this spec has not been agreed for this name.
  EntryId find(const std::string& name, const SpecPtr& spec);
  // For the coordinator: gives an id to what find() does not know. kNoId if none is left.
  EntryId give(const std::string& name, const SpecPtr& spec, bool eager = false);
  // For members: notes the id of a Plan. False if no coordinator can have given it.
  bool note(EntryId id, const std::string& name, const SpecPtr& spec, bool eager = false);
  // For each Plan of an id: it is the latest of its name.
  void note_plan(EntryId id);
  // kNoId if the name has no id.
  EntryId latest(const std::string& name) const;
  // Whether members may send Eager for this id: it must be of the latest Plan of its name. Every
  // member that votes under the name has applied that Plan, so all that vote find the same.
  bool is_eager(EntryId id) const;
  // Null if the id was never given.
  const Known* get(EntryId id) const;
  // find() compares pointers before values: the next submission probably brings this pointer.
  void expect(EntryId id, const SpecPtr& spec) { known_[id - 1].spec = spec; }
  // New names get no id any more.
  bool used_up() const { return known_.size() == kIdsMax; }

 private:
  struct OfName {
    std::array<EntryId, kSpecsPerName> ids{};
    size_t count = 0;
    size_t oldest = 0;  // its index in `ids`
    EntryId latest = kNoId;
  };

  std::vector<Known> known_;  // [id - 1]
  std::unordered_map<std::string, OfName> by_name_;
};

}  // namespace horon::core
