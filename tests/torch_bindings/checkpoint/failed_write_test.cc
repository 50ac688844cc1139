// The error of a file that could not be written waits until all ranks can be told.
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"

namespace horon::failed_write_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::error_of;

TEST(FailedWrite, IsToldWhereACallInBetweenHasFailed) {
  const std::string name = "horon_failed_write_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  at::Tensor a = at::ones({4});
  const auto make = [&] {
    auto checkpoints = std::make_unique<Checkpoints>(folder);
    checkpoints->add("a", {{"a", a}});
    return checkpoints;
  };
  const auto checkpoints = make();
  auto ends = make();
  if (rank() == 0) fs::remove_all(folder);
  barrier();
  checkpoints->save(1);
  ends->save(1);
  // As if another rank were gone: the call fails, with an error that is not the file's.
  const auto wait = [](Checkpoints& of) {
    if (rank() != 1) return of.wait();
    torch_detail::refuse_call("Checkpoints::wait", {}, "rank 1 is gone");
  };
  EXPECT_THAT(error_of([&] { wait(*checkpoints); }), HasSubstr("rank 1 is gone"));
  EXPECT_THAT(error_of([&] { wait(*ends); }), HasSubstr("rank 1 is gone"));
  testing::internal::CaptureStderr();
  ends.reset();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("can't be created") != std::string::npos, rank() == 0) << said;
  EXPECT_THAT(error_of([&] { checkpoints->wait(); }),
              AllOf(HasSubstr("step-000000000001.pt"), HasSubstr("can't be created")));
  checkpoints->wait();  // told once
}

}  // namespace
}  // namespace horon::failed_write_test
