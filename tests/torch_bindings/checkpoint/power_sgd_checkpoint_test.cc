// What PowerSGD goes on from.
#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/gradients/power_sgd.h"

namespace horon::power_sgd_checkpoint_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

at::Tensor parameter_of(std::vector<int64_t> shape, at::ScalarType dtype) {
  return at::zeros(shape, dtype).requires_grad_(true);
}

// What reduce() makes in some steps of matrices and a vector, of two types.
struct Steps {
  at::Tensor w = parameter_of({9, 20}, at::kDouble), v = parameter_of({12, 10}, at::kFloat);
  at::Tensor bias = parameter_of({5}, at::kDouble);
  const NamedTensors all{{"net.w", w}, {"net.bias", bias}, {"net.v", v}};

  std::vector<at::Tensor> make(PowerSgd& power_sgd, int begin, int end) const {
    std::vector<at::Tensor> made;
    for (int step = begin; step < end; ++step) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + rank());
      for (const auto& [name, each] : all) {
        each.mutable_grad() = at::randn(each.sizes(), generator, each.options());
      }
      power_sgd.reduce();
      for (const auto& [name, each] : all) made.push_back(each.grad().clone());
    }
    return made;
  }
};

bool are_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

TEST(PowerSgd, GoesOnFromACheckpointBitByBit) {
  const std::string folder = broadcast_object(
      (std::filesystem::temp_directory_path() / ("horon_power_sgd_" + std::to_string(getpid())))
          .string());
  const Steps steps;
  const PowerSgdOptions options{.matrix_rank = 2, .start_step = 1};
  PowerSgd saved(steps.all, options), loaded(steps.all, options), fresh(steps.all, options);
  steps.make(saved, 0, 3);
  Checkpoints(folder).add_of_rank("power_sgd", saved).save(3);
  const std::vector<at::Tensor> want = steps.make(saved, 3, 6);
  ASSERT_TRUE(Checkpoints(folder).add_of_rank("power_sgd", loaded).load_latest());
  EXPECT_EQ(loaded.steps(), size() == 1 ? 0 : 3);
  EXPECT_TRUE(are_equal(steps.make(loaded, 3, 6), want));
  EXPECT_EQ(are_equal(steps.make(fresh, 3, 6), want), size() == 1);
  barrier();
  if (rank() == 0) std::filesystem::remove_all(folder);
}

std::string bytes_of(const PowerSgd& power_sgd) {
  torch::serialize::OutputArchive archive;
  power_sgd.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

torch::serialize::InputArchive archive_of(const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}

at::Tensor read(const std::string& bytes, const char* key) {
  at::Tensor value;
  archive_of(bytes).read(key, value, /*is_buffer=*/true);
  return value;
}

TEST(PowerSgd, OtherRanksGoOnFromTheMeanOfWhatWasLeftOut) {
  if (size() == 1) return;
  const Steps steps;
  for (const ProcessSet& set : {ProcessSet(), add_process_set({0, size() - 1})}) {
    PowerSgdOptions options{.matrix_rank = 2, .start_step = 0};
    PowerSgd all_ranks(steps.all, options);
    options.process_set = set;
    PowerSgd saved(steps.all, options);
    steps.make(saved, 0, 3);
    std::vector<torch::serialize::InputArchive> archives;
    at::Tensor mean = at::zeros({12, 10}, at::kDouble);
    const std::vector<std::string> of_ranks = allgather_object(bytes_of(saved));
    for (const std::string& bytes : of_ranks) archives.push_back(archive_of(bytes));
    for (const int member : set.ranks()) {
      mean += read(of_ranks[static_cast<size_t>(member)], "left_out2") / set.size();
    }
    all_ranks.load_resharded(archives);
    EXPECT_EQ(all_ranks.steps(), 3);
    const std::string loaded = bytes_of(all_ranks);
    EXPECT_TRUE(at::allclose(read(loaded, "left_out2"), mean, 1e-12, 1e-12));
    EXPECT_TRUE(read(loaded, "rows").equal(read(of_ranks.front(), "rows")));
    steps.make(all_ranks, 3, 4);
    if (!set.is_world()) remove_process_set(set);
  }
}

TEST(PowerSgd, AnArchiveThatDoesNotFitChangesNothing) {
  const Steps steps;
  PowerSgd saved(steps.all, {.matrix_rank = 2, .start_step = 0});
  steps.make(saved, 0, 2);
  const auto refused = [&](const NamedTensors& parameters, int64_t matrix_rank) {
    PowerSgd other(parameters, {.matrix_rank = matrix_rank, .start_step = 0});
    const std::string before = bytes_of(other);
    torch::serialize::InputArchive archive = archive_of(bytes_of(saved));
    const std::string error = error_of([&] { other.load(archive); });
    EXPECT_EQ(bytes_of(other), before);
    return error;
  };
  EXPECT_THAT(refused(steps.all, 1),
              AllOf(StartsWith(kInvalid), HasSubstr("another matrix_rank: the approximation is "
                                                    "float64 [30, 2] there and float64 [30, 1]")));
  EXPECT_THAT(refused({{"w", steps.w}}, 2), HasSubstr("[30, 2] there and float64 [20, 2] here"));
  EXPECT_THAT(
      refused({{"w", steps.w}, {"b", steps.bias}, {"u", parameter_of({11, 10}, at::kDouble)}}, 2),
      HasSubstr("left_out of \"u\" is float64 [12, 10] there and float64 [11, 10] here"));
}

}  // namespace
}  // namespace horon::power_sgd_checkpoint_test
