// Random programs of collectives on the real library, against a model in one process: all kinds,
// single and grouped, in any order on each rank, with process sets, joins and wrong calls.
//
// Arguments: --seed=N    the first program (default 0)
//            --count=N   how many programs
//            --steps=N   how long each is
//            --shrink    a program that fails is run again with fewer and fewer of its steps, and
//                        what is left of it is printed
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/support/test_arguments.h"
#include "horon/tests/torch_bindings/collectives/random_program/runner.h"
#include "horon/torch_bindings/session.h"

namespace horon {
namespace {

using random_program::Program;
using random_program::Runner;
using testing_support::argument;
using testing_support::number_argument;

// A hang becomes an error that says of which program it was, before the watchdog ends all.
class Session : public ::testing::Environment {
  void SetUp() override { init({.set = {{"HORON_STALL_ABORT_S", "120"}}}); }
  void TearDown() override { shutdown(); }
};
const auto* const environment = testing::AddGlobalTestEnvironment(new Session);

// Leaves out as many steps as it can, large pieces first, while the program still fails. The answer
// is the same on all ranks, because failures are.
std::vector<bool> shrink(const Program& program) {
  std::vector<bool> enabled(program.steps.size(), true);
  for (size_t piece = enabled.size() / 2; piece > 0; piece /= 2) {
    for (size_t begin = 0; begin < enabled.size(); begin += piece) {
      std::vector<bool> fewer = enabled;
      for (size_t i = begin; i < std::min(begin + piece, fewer.size()); ++i) fewer[i] = false;
      if (fewer != enabled && !Runner(program, fewer).run().empty()) enabled = fewer;
    }
  }
  return enabled;
}

TEST(RandomPrograms, AgreeWithTheModel) {
  const int first = number_argument("--seed", 0);
  const int count = number_argument("--count", 40);
  const int steps = number_argument("--steps", 40);
  for (int seed = first; seed < first + count; ++seed) {
    const Program program = random_program::make_program(seed, size(), steps);
    const std::string failure =
        Runner(program, std::vector<bool>(program.steps.size(), true)).run();
    if (failure.empty()) continue;
    ADD_FAILURE() << failure << "\n  again: --seed=" << seed << " --count=1 --steps=" << steps
                  << " --shrink";
    if (argument("--shrink") == nullptr) return;
    const std::vector<bool> left = shrink(program);
    for (size_t i = 0; rank() == 0 && i < left.size(); ++i) {
      if (left[i]) std::printf("step %zu: %s\n", i, describe(program.steps[i]).c_str());
    }
    return;
  }
}

}  // namespace
}  // namespace horon
