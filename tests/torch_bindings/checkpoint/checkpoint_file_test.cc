// Labels of checkpoints, and files whose hash is right but not their content.
#include "horon/torch_bindings/checkpoint/checkpoint_file.h"

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <unistd.h>

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "horon/tests/support/grouping_locale.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/checkpoint/opened_checkpoint.h"
#include "horon/torch_bindings/collectives/bytes.h"

namespace horon::checkpoint_file_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class CheckpointFile : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = "horon_checkpoint_file_" + std::to_string(getpid());
    folder_ = broadcast_bytes((fs::temp_directory_path() / name).string());
    if (rank() == 0) fs::create_directory(folder_);
    barrier();
  }
  void TearDown() override {
    barrier();
    if (rank() == 0) fs::remove_all(folder_);
  }
  std::string folder_;
};

c10::impl::GenericDict dictionary() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}

TEST_F(CheckpointFile, LabelsAreReadAsTheyWereWrittenInEveryLocale) {
  const std::string path = folder_ + "/rank-" + std::to_string(rank()) + ".pt";
  const test::GroupingLocale german;
  for (const std::optional<double> metric :
       {std::optional<double>(), std::optional(0.1), std::optional(-1e300),
        std::optional(std::numeric_limits<double>::infinity()), std::optional(1.0 / 3)}) {
    torch_detail::write_checkpoint_file(
        path, {.number = 12345, .step = 9876543210, .metric = metric}, dictionary());
    const torch_detail::CheckpointLabel label = torch_detail::read_checkpoint_label(path);
    EXPECT_EQ(label.number, 12345u);
    EXPECT_EQ(label.step, 9876543210);
    EXPECT_EQ(label.metric, metric);
  }
}

// Rank 0 alone reads the file, and all must hear what is wrong with it.
TEST_F(CheckpointFile, AWrongContentIsTheErrorOfAllRanks) {
  const std::string path = folder_ + "/step-000000000001.pt";
  c10::impl::GenericList no_ranks(c10::AnyType::get()), numbers(c10::AnyType::get());
  numbers.push_back(5);
  // Right is a list with a dictionary for each rank.
  for (const c10::IValue& ranks : {c10::IValue(5), c10::IValue(no_ranks), c10::IValue(numbers)}) {
    if (rank() == 0) {
      c10::impl::GenericDict content = dictionary();
      content.insert(torch_detail::kValues, dictionary());
      content.insert(torch_detail::kRanks, ranks);
      torch_detail::write_checkpoint_file(path, {.number = 1, .step = 1, .metric = {}}, content);
    }
    barrier();
    Checkpoints checkpoints(folder_);
    at::Tensor value = at::zeros({3});
    checkpoints.add("value", {{"value", value}});
    EXPECT_THAT(test::error_of([&] { checkpoints.load(path); }),
                AllOf(HasSubstr(path), HasSubstr("is not one of Horon's")));
    barrier();
  }
}

}  // namespace
}  // namespace horon::checkpoint_file_test
