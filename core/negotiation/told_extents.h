// What a member is told about the rows of all members, in a Plan.
//
// All that the members of an alltoall have said would be N x N numbers for each of N members. So
// each member is told only what concerns it, part by part: the rows that it sends to each member,
// those that it gets from each, and the sum over all members. For the other kinds every member is
// told all that all have said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "horon/core/negotiation/protocol.h"

namespace horon::core {

// How many numbers a member is told. `ranks`: of all members.
size_t extents_told(const EntrySpec& spec, std::span<const int> ranks);

// Alltoall: what all members have said. The sum, which is the same for all of them, is made once: a
// sum for each member would add N x N numbers N times.
class SaidByAll {
 public:
  // `said`: by each of `size` members, one after the other, part by part.
  SaidByAll(std::vector<int64_t> said, size_t size);

  std::vector<int64_t> told_to(size_t member) const;

 private:
  size_t parts() const { return of_all_.size(); }
  std::span<const int64_t> rows(size_t from, size_t part) const;

  const std::vector<int64_t> said_;
  const size_t size_;
  std::vector<int64_t> of_all_;  // [part]
};

// Where the numbers of one part are in what a member of an alltoall is told.
struct ToldOfPart {
  ToldOfPart(std::span<const int64_t> told, size_t part, size_t size);
  std::span<const int64_t> sends;  // [member]
  std::span<const int64_t> gets;   // [member]
  int64_t of_all;
};

// Whether members are told different numbers of this record of the coordinator's log.
bool differs_by_member(const Item& record);
// The version of such a record that `member` is told.
Item told_to(const Item& record, size_t member);

}  // namespace horon::core
