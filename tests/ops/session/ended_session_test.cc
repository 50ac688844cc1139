// A process set of a session that has ended never stands for a set of a later session.
#include <filesystem>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/open_descriptors.h"

namespace horon {
namespace {

using core::concat;
using test::error_of;

void expect_refused(const ProcessSet& set) {
  const std::vector<std::function<void()>> calls = {
      [&] { barrier(set); },
      [&] { (void)join(set); },
      [&] { remove_process_set(set); },
      [&] { leave_process_set(set); },
      [&] { (void)ops::explain_selection(set); },
      [&] { (void)set.id(); },  // as collectives of tensors ask for it
  };
  for (size_t call = 0; call < calls.size(); ++call) {
    const std::string error = error_of(calls[call]);
    EXPECT_THAT(error, testing::StartsWith(test::kInvalid)) << call;
    EXPECT_THAT(error, testing::HasSubstr("of ranks 0 and 1: this process set belongs to a session "
                                          "that has ended"))
        << call;
  }
}

// The sets of the second session have the numbers of the first ones.
TEST(EndedSession, ItsProcessSetsAreRefusedInTheNextOne) {
  init_session();
  const ProcessSet all = process_sets().front();
  const ProcessSet first = add_process_set({0, 1});
  ProcessSet first_alone;
  if (rank() < 2) first_alone = add_process_set_among({0, 1}, 7);
  shutdown();
  EXPECT_EQ(error_of([&] { barrier(first); }), error_of([] { barrier(); })) << "no session at all";
  init_session({.process_sets = {{1, 2}}});
  const ProcessSet second = process_sets().back();
  ProcessSet second_alone;
  if (rank() == 1 || rank() == 2) second_alone = add_process_set_among({1, 2}, 7);
  expect_refused(first);
  if (!first_alone.is_world()) expect_refused(first_alone);
  EXPECT_EQ(first.ranks(), (std::vector{0, 1}));
  barrier(all);
  if (second.includes_me()) barrier(second);
  if (!second_alone.is_world()) barrier(second_alone);
  remove_process_set(second);
  EXPECT_NE(error_of([&] { remove_process_set(second); }).find("has been removed before"),
            std::string::npos);
  shutdown();
}

// Sessions are kept after their end, their files are not.
TEST(EndedSession, ItsTimelineIsClosed) {
  const std::string path = concat(testing::TempDir(), "/ended_session.", getpid(), ".json");
  const auto session = [&] {
    init_session({.set = {{"HORON_TIMELINE", path}}});
    barrier();
    shutdown();
    std::filesystem::remove(path);
    return test::open_descriptors();
  };
  const int first = session();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(session(), first);
}

}  // namespace
}  // namespace horon
