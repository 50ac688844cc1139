// A program that lets one thread at a time call MPI has process sets, too.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/ops/session/session.h"
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }

namespace horon {
namespace {

TEST(SerializedSession, MakesProcessSets) {
  int provided = -1;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), MPI_SUCCESS);
  if (provided > MPI_THREAD_SERIALIZED) GTEST_SKIP() << "this MPI grants more than was asked for";
  init_session();
  const ProcessSet last = add_process_set({size() - 1});
  const ProcessSet all = split_process_set(1);
  const ProcessSet alone = add_process_set_among({rank()}, 1);
  const ProcessSet both = add_process_set_among({0, 1}, 2);
  if (last.includes_me()) barrier(last);
  barrier(all);
  barrier(alone);
  barrier(both);
  remove_process_set(last);
  barrier();
  shutdown();
}

std::string said_by_a_session(const InitOptions& options) {
  testing::internal::CaptureStderr();
  init_session(options);
  shutdown();
  return testing::internal::GetCapturedStderr();
}

TEST(SerializedSession, WarnsWhereItsThreadCallsMpiAtAnyTime) {
  int level = -1;
  ASSERT_EQ(MPI_Query_thread(&level), MPI_SUCCESS);
  if (level > MPI_THREAD_SERIALIZED) GTEST_SKIP() << "this MPI grants more than was asked for";
  const auto warning = testing::HasSubstr("warning: MPI runs with MPI_THREAD_SERIALIZED");
  const std::string host = std::to_string(test_rank());
  const std::string between_hosts = said_by_a_session({.set = {{"HORON_HOST_ID", host}}});
  const std::string by_mpi = said_by_a_session({.set = {{"HORON_SHARED_MEMORY", "0"}}});
  const std::string on_one_host = said_by_a_session({.set = {{"HORON_HOST_ID", "same"}}});
  EXPECT_THAT(on_one_host, testing::Not(warning));
  if (test_rank() != 0) return;
  EXPECT_THAT(between_hosts, warning);
  EXPECT_THAT(by_mpi, warning);
}

TEST(SerializedSession, EndsWithMpi) { EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS); }

}  // namespace
}  // namespace horon
