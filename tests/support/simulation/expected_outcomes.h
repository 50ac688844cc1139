// What must become of every call of every program, worked out from the programs alone, without time
// or messages: the protocol promises that the outcome does not depend on them.
//
// The rule: the k-th vote of a rank under a name meets the k-th vote of every other rank under it,
// counted since the last time that all ranks had joined. Programs must not submit a name again
// before they have waited for it, except in the same breath (then it is certain to be a duplicate).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "horon/tests/support/simulation/program.h"

namespace horon::simulation {

struct OpenEntry {
  std::vector<int> missing;  // ranks that have neither spoken nor joined nor shut down
  std::vector<int> ready;    // ranks that have submitted it
  std::vector<int> refused;  // ranks whose call was wrong
};

struct Expectation {
  std::vector<std::vector<Outcome>> outcomes;  // by rank and action; texts are not predicted
  std::map<std::string, OpenEntry> open;       // entries that stay open
  size_t records = 0;      // in the log; without the plans, of which there may be more or fewer
  std::vector<int> votes;  // Ready and Refused that each rank sends
  std::vector<std::vector<int>> joiners;  // of each round of joins: who may be last
  std::vector<bool> done;                 // the program of this rank comes to its end
  std::vector<int> away;                  // who has joined or left when nothing happens any more
  bool bye = false;
};

// `names`: the number by which users know each rank; roots and texts name ranks by it.
Expectation expected_outcomes(const std::vector<Program>& programs, const std::vector<int>& names);

// "rank 2", "ranks 0, 1 and 2" of these ranks, by their names.
std::string ranks_text(const std::vector<int>& ranks, const std::vector<int>& names);

}  // namespace horon::simulation
