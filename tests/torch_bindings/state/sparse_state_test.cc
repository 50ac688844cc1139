// Momentum of sparse gradients is sparse, and goes to other ranks and into checkpoints as it is.
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <torch/nn/functional/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::sparse_state_test {
namespace {

namespace fs = std::filesystem;
namespace optim = ::torch::optim;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

struct Table {
  void step(const std::vector<int64_t>& rows) {
    optimizer.zero_grad();
    at::embedding(weight, at::tensor(rows), -1, false, /*sparse=*/true).pow(2).sum().backward();
    optimizer.step();
  }
  at::Tensor momentum() {
    const auto& state = *optimizer.state().at(weight.unsafeGetTensorImpl());
    return static_cast<const optim::SGDParamState&>(state).momentum_buffer();
  }
  at::Tensor weight = at::arange(12.0).view({6, 2}).requires_grad_(true);
  optim::SGD optimizer{{weight}, optim::SGDOptions(0.1).momentum(0.9)};
};

void expect_same(const at::Tensor& sparse, const at::Tensor& other) {
  EXPECT_TRUE(sparse._indices().equal(other._indices()));
  EXPECT_TRUE(sparse._values().equal(other._values()));
  EXPECT_EQ(sparse.is_coalesced(), other.is_coalesced());
}

TEST(SparseState, IsBroadcast) {
  const int root = size() - 1;
  Table table;
  for (int i = 0; i <= 2 * rank(); ++i) table.step({1, rank() % 6, 4, 1});
  const at::Tensor before = table.momentum().clone();
  broadcast_parameters({{"weight", table.weight}}, root);
  broadcast_optimizer_state(table.optimizer, root);
  ASSERT_TRUE(table.momentum().is_sparse());
  if (rank() == root) expect_same(table.momentum(), before);
  const auto expect_replicas = [&] {
    check_replicas_equal({{"weight", table.weight},
                          {"coalesced", at::full({1}, table.momentum().is_coalesced())},
                          {"indices", table.momentum()._indices()},
                          {"values", table.momentum()._values()}});
  };
  expect_replicas();
  table.step({4, 5});
  expect_replicas();
}

TEST(SparseState, GoesOnFromACheckpoint) {
  const std::string name = "horon_sparse_state_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  Table table;
  {
    Checkpoints checkpoints(folder);
    checkpoints.add("weight", {{"weight", table.weight}}).add("optimizer", table.optimizer);
    table.step({1, 3, 1});
    table.step({2, 3});
    checkpoints.save(2);
    const at::Tensor momentum = table.momentum().clone();
    table.step({0, 3});
    const at::Tensor want = table.weight.detach().clone();
    table.step({5});
    ASSERT_TRUE(checkpoints.load_latest());
    ASSERT_TRUE(table.momentum().is_sparse());
    expect_same(table.momentum(), momentum);
    table.step({0, 3});
    EXPECT_TRUE(table.weight.equal(want)) << table.weight << want;
  }
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

// The learning rate of Adagrad falls with its steps.
TEST(StateOfAdagrad, CountsItsSteps) {
  const at::Tensor weight = at::ones({2}).requires_grad_(true);
  optim::Adagrad optimizer({weight}, optim::AdagradOptions(0.1).lr_decay(0.5));
  for (int i = 0; i <= rank(); ++i) {
    weight.mutable_grad() = at::ones({2});
    optimizer.step();
  }
  broadcast_optimizer_state(optimizer, size() - 1);
  const auto& state =
      static_cast<optim::AdagradParamState&>(*optimizer.state().at(weight.unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), size());
}

// Of a class that Horon does not know, too.
TEST(StateOfOwnOptimizers, ThatTheRootHasNotIsDropped) {
  struct Own : optim::SGD {
    using SGD::SGD;
  };
  const at::Tensor weight = at::ones({2}).requires_grad_(true);
  Own optimizer({weight}, optim::SGDOptions(0.1).momentum(0.9));
  if (rank() != 0) {
    weight.mutable_grad() = at::ones({2});
    optimizer.step();
  }
  broadcast_optimizer_state(optimizer, 0);
  EXPECT_TRUE(optimizer.state().empty());
}

// One of the program's own, whose load() fails on the last rank.
struct Refusing : optim::SGD {
  using SGD::SGD;
  void load(torch::serialize::InputArchive& archive) override {
    if (rank() == horon::size() - 1) throw std::runtime_error("made by an old version");
    SGD::load(archive);
  }
};

TEST(StateThatIsRefused, LeavesWhatWasThere) {
  if (size() == 1) return;
  const at::Tensor weight = at::ones({2}).requires_grad_(true);
  Refusing optimizer({weight}, optim::SGDOptions(0.1).momentum(0.9));
  (weight * (rank() + 1)).sum().backward();
  optimizer.step();
  EXPECT_THAT(
      error_of([&] { broadcast_optimizer_state(optimizer); }),
      AllOf(StartsWith("failed: broadcast_optimizer_state"), HasSubstr("made by an old version")));
  ASSERT_EQ(optimizer.state().size(), 1U);
  const auto& state =
      static_cast<optim::SGDParamState&>(*optimizer.state().at(weight.unsafeGetTensorImpl()));
  const int from = rank() == size() - 1 ? rank() : 0;
  EXPECT_TRUE(state.momentum_buffer().equal(at::full({2}, from + 1.0)));
}

}  // namespace
}  // namespace horon::sparse_state_test
