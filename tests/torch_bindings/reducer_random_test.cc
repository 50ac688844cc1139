// Random programs against a model of what gradients are: passes that reach other parameters on
// every rank, gradients dropped in between, steps with and without zeroing, buckets of every size.
#include <optional>
#include <random>
#include <string>

#include "horon/tests/torch_bindings/gradient_support.h"
#include "horon/torch_bindings/collectives.h"

namespace horon {
namespace {

using namespace testing_support;

const auto* const environment = testing::AddGlobalTestEnvironment(new SessionEnvironment);

constexpr int kParameters = 6;
constexpr int kSteps = 10;

// One random program, the same numbers on every rank.
class Program {
 public:
  explicit Program(unsigned seed) : random_(seed) {
    op_ = draw(2) == 0 ? ReduceOp::Sum : ReduceOp::Average;
    const std::vector<std::vector<int64_t>> shapes{{}, {0}, {3}, {2, 2}, {7}, {1, 5}};
    NamedParameters named;
    for (int p = 0; p < kParameters; ++p) {
      parameters_.push_back(leaf(shapes[p], p % 3 == 0 ? at::kFloat : at::kDouble));
      named.emplace_back("p" + std::to_string(p), parameters_.back());
    }
    older_.resize(kParameters);
    const int64_t bytes = std::vector<int64_t>{1, 40, 1 << 20}[draw(3)];
    reducer_.emplace(named, GradientReducerOptions{
                                .op = op_, .bucket_bytes = bytes, .first_bucket_bytes = bytes});
  }

  int refused_ = 0;
  int synchronized_ = 0;

  void run() {
    for (int step = 0; step < kSteps; ++step) {
      zero(draw(3));
      sums_.assign(kParameters, std::vector<std::optional<double>>(size()));
      const int passes = draw(4);
      for (int pass = 0; pass < passes; ++pass) {
        backward();
        if (draw(4) == 0) drop();
        if (draw(8) == 0) synchronize();
      }
      synchronize();
      check(step);
      if (testing::Test::HasFailure()) return;
    }
  }

 private:
  int draw(int limit) { return static_cast<int>(random_() % limit); }

  void zero(int how) {
    for (int p = 0; p < kParameters; ++p) {
      if (how == 0 || !older_[p]) continue;
      if (how == 1) parameters_[p].mutable_grad().reset();
      if (how == 2) parameters_[p].mutable_grad().zero_();
      older_[p] = how == 1 ? std::nullopt : std::optional<double>(0);
    }
  }

  // Each rank reaches its own parameters; which, and with what gradient, all know.
  void backward() {
    at::Tensor loss;
    for (int p = 0; p < kParameters; ++p) {
      for (int r = 0; r < size(); ++r) {
        const int x = draw(9) - 4;
        if (draw(3) == 0) continue;
        sums_[p][r] = sums_[p][r].value_or(0) + x;
        if (r != rank()) continue;
        const at::Tensor term = weighted(parameters_[p], x).to(at::kDouble);
        loss = loss.defined() ? loss + term : term;
      }
    }
    if (loss.defined()) loss.backward();
  }

  void drop() {
    dropped_ = true;
    for (int p = 0; p < kParameters; ++p) {
      parameters_[p].mutable_grad().reset();
      older_[p].reset();
      sums_[p].assign(size(), std::nullopt);
    }
  }

  // What one rank drops in flight and another not is refused on all ranks; the model begins anew.
  bool refused() {
    try {
      reducer_->synchronize();
      return false;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("one rank has dropped it"));
      EXPECT_TRUE(dropped_);
    }
    return true;
  }

  void synchronize() {
    if (refused()) {
      drop();
      ++refused_;
    }
    dropped_ = false;
    ++synchronized_;
    for (int p = 0; p < kParameters; ++p) {
      bool any = false;
      double sum = 0;
      for (const std::optional<double>& part : sums_[p]) {
        any = any || part.has_value();
        sum += part.value_or(0);
      }
      if (any) {
        older_[p] = older_[p].value_or(0) + (op_ == ReduceOp::Sum ? sum : sum / size());
      }
      sums_[p].assign(size(), std::nullopt);
    }
  }

  void check(int step) {
    std::vector<at::Tensor> bits;
    for (int p = 0; p < kParameters; ++p) {
      SCOPED_TRACE(testing::Message() << "step " << step << " parameter " << p);
      const at::Tensor& grad = parameters_[p].grad();
      ASSERT_EQ(grad.defined(), older_[p].has_value());
      if (!grad.defined()) continue;
      EXPECT_TRUE(at::allclose(grad.to(at::kDouble),
                               at::full(grad.sizes(), *older_[p], at::kDouble), 1e-5, 1e-4))
          << grad << "\nand not " << *older_[p];
      bits.push_back(grad.reshape(-1).view(at::kByte));
    }
    if (bits.empty()) return;
    // To the bit on all ranks.
    const at::Tensor all = at::cat(bits);
    EXPECT_TRUE(allreduce(all, {.name = "low", .op = ReduceOp::Min})
                    .equal(allreduce(all, {.name = "high", .op = ReduceOp::Max})));
  }

  std::mt19937 random_;
  bool dropped_ = false;
  ReduceOp op_ = ReduceOp::Average;
  std::vector<at::Tensor> parameters_;
  std::optional<GradientReducer> reducer_;
  std::vector<std::optional<double>> older_;              // what .grad holds after a step
  std::vector<std::vector<std::optional<double>>> sums_;  // [parameter][rank] of this step
};

TEST(Reducer, RandomPrograms) {
  int refused = 0, synchronized = 0;
  for (unsigned seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Program program(seed);
    program.run();
    refused += program.refused_;
    synchronized += program.synchronized_;
    if (HasFailure()) return;
  }
  EXPECT_LT(refused, synchronized / 4);
}

}  // namespace
}  // namespace horon
