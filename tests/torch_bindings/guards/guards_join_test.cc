// The guards where ranks have joined: while they are away, and when they come back.
#include <filesystem>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/guards/save0.h"

namespace horon::guards_join_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

// Rank 0 has joined while the others run `work`.
void without_rank_0(const std::function<void()>& work) {
  if (rank() != 0) work();
  join();
}

TEST(RankZeroHasJoined, WhatItAloneDoesIsAnErrorOfTheOthers) {
  const std::string folder = broadcast_object(
      (std::filesystem::temp_directory_path() / ("joined_" + std::to_string(getpid()))).string());
  const auto expect_error = [](const char* call, const std::function<void()>& work) {
    EXPECT_THAT(error_of(work), AllOf(StartsWith(std::string("rank left: ") + call),
                                      HasSubstr("rank 0 has joined")));
  };
  without_rank_0([&] {
    expect_error("save0", [&] { save0(at::ones({3}), folder + ".pt"); });
    expect_error("Checkpoints", [&] { const Checkpoints unused(folder); });
  });
  EXPECT_FALSE(std::filesystem::exists(folder + ".pt"));
  EXPECT_FALSE(std::filesystem::exists(folder));
  barrier();
  at::Tensor thing = at::ones({3});
  Checkpoints checkpoints(folder);
  checkpoints.add("thing", {{"thing", thing}});
  checkpoints.save(1);
  without_rank_0([&] {
    expect_error("Checkpoints::save", [&] { checkpoints.save(2); });
    expect_error("Checkpoints::wait", [&] { checkpoints.wait(); });
    expect_error("Checkpoints::load", [&] { checkpoints.load_latest(); });
    expect_error("Checkpoints", [&] { checkpoints.latest(); });
  });
  checkpoints.wait();
  EXPECT_EQ(checkpoints.load_latest()->step, 1);
  barrier();
  rank_zero_only([&] { std::filesystem::remove_all(folder); });
}

}  // namespace
}  // namespace horon::guards_join_test
