// One list of all fields of an EntrySpec, each with a change of it. Tests of what must be equal
// (agreement, fusion, wire format) run through the list, so that a new field can't be forgotten:
// fields_of() does not compile until it names the field, and SpecChanges.EveryFieldIsChanged fails
// until the list changes it.
#pragma once

#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "horon/core/base/entry_spec.h"

namespace horon::test {

// References to all fields, in the order of their declaration.
template <class Spec>
auto fields_of(Spec& spec) {
  auto& [kind, dtype, reduce_op, device, root, prescale, postscale, compression, piece_bytes,
         captured, splits, as_one, parts] = spec;
  return std::tie(kind, dtype, reduce_op, device, root, prescale, postscale, compression,
                  piece_bytes, captured, splits, as_one, parts);
}
inline constexpr size_t kSpecFieldCount =
    std::tuple_size_v<decltype(fields_of(std::declval<core::EntrySpec&>()))>;

struct SpecChange {
  std::string field;                // as agreement.cc names it in an error
  void (*apply)(core::EntrySpec&);  // sets another value, whatever the value is now
  std::string before;               // how the error shows the value of spec_to_change()
  std::string after;                // and that value changed
  // The change is in a tensor of the entry. All other fields hold for the collective as a whole.
  bool of_a_tensor = false;
};

// An allreduce of one tensor "grad" of shape [2, 3], all other fields at their defaults.
core::EntrySpec spec_to_change();
// At least one change of each field; each changes one field only.
const std::vector<SpecChange>& spec_changes();
// The positions, in fields_of(), of the fields in which the specs differ.
std::vector<size_t> differing_fields(const core::EntrySpec& a, const core::EntrySpec& b);

}  // namespace horon::test
