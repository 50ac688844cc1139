// Random programs against a model of what gradients are: passes that reach other parameters on
// every rank, gradients dropped in between, steps with and without zeroing, buckets of every size,
// options of every kind.
//
// Arguments: --seed=N    the first program (default 0)
//            --count=N   how many programs
#include <optional>
#include <random>
#include <string>

#include "horon/tests/support/test_arguments.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::reducer_random_test {
namespace {

using namespace testing_support;

constexpr int kParameters = 6;
constexpr int kSteps = 10;

// One random program, the same numbers on every rank.
class Program {
 public:
  Program(unsigned seed, WaitIn wait_in) : random_(seed), wait_in_(wait_in) {
    op_ = draw(2) == 0 ? ReduceOp::Sum : ReduceOp::Average;
    const std::vector<std::vector<int64_t>> shapes{{}, {0}, {3}, {2, 2}, {7}, {1, 5}};
    NamedTensors named;
    for (int p = 0; p < kParameters; ++p) {
      parameters_.push_back(leaf(shapes[p], p % 3 == 0 ? at::kFloat : at::kDouble));
      named.emplace_back("p" + std::to_string(p), parameters_.back());
    }
    older_.resize(kParameters);
    const int64_t bytes = std::vector<int64_t>{1, 40, 1 << 20}[draw(3)];
    GradientReducerOptions options{.op = op_, .bucket_bytes = bytes, .first_bucket_bytes = bytes};
    options.wait_in = wait_in;
    options.backward_passes_per_step = 1 + draw(2);
    options.average_aggregated_gradients = draw(2) == 0;
    options.num_groups = draw(3);
    if (op_ == ReduceOp::Average) options.gradient_predivide_factor = 1 + draw(2);
    if (options.average_aggregated_gradients) divisor_ = options.backward_passes_per_step;
    reducer_.emplace(named, options);
  }

  int refused_ = 0;
  int synchronized_ = 0;

  void run() {
    for (int step = 0; step < kSteps; ++step) {
      zero(draw(3));
      sums_.assign(kParameters, std::vector<std::optional<double>>(size()));
      choose_weights();
      const int passes = draw(4);
      for (int pass = 0; pass < passes; ++pass) {
        std::optional<GradientReducer::NoSync> no_sync;
        if (draw(4) == 0) no_sync.emplace(reducer_->no_sync());
        backward();
        no_sync.reset();
        if (draw(4) == 0) drop();
        if (draw(8) != 0) continue;
        synchronize();
        choose_weights();
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

  void choose_weights() {
    weights_.assign(size(), 1);
    if (op_ != ReduceOp::Average || draw(3) != 0) return;
    for (double& weight : weights_) weight = draw(4);
    reducer_->set_weight(weights_[rank()]);
  }

  // What the step adds to a parameter's gradient, without older values.
  std::optional<double> reduced(int p) const {
    double sum = 0, weights = 0;
    bool any = false;
    for (int r = 0; r < size(); ++r) {
      weights += weights_[r];
      if (!sums_[p][r] || weights_[r] == 0) continue;
      any = true;
      sum += weights_[r] * *sums_[p][r];
    }
    if (!any) return std::nullopt;
    return sum / divisor_ / (op_ == ReduceOp::Sum ? 1 : weights);
  }

  // Each rank reaches its own parameters; which, and with what gradient, all know.
  void backward() {
    at::Tensor loss;
    for (int p = 0; p < kParameters; ++p) {
      for (int r = 0; r < size(); ++r) {
        const int x = draw(9) - 4;
        // When backward() waits, all ranks run it equally often: each has a gradient of p0.
        const bool needed = wait_in_ == WaitIn::Backward && p == 0;
        if (draw(3) == 0 && !needed) continue;
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

  // A gradient in flight that one rank drops and another does not is refused on all ranks. The
  // model then begins anew.
  bool refused() {
    try {
      reducer_->synchronize();
      return false;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("one rank dropped it"));
      EXPECT_TRUE(dropped_);
      EXPECT_EQ(wait_in_, WaitIn::Step);
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
      if (const std::optional<double> value = reduced(p)) {
        older_[p] = older_[p].value_or(0) + *value;
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
  const WaitIn wait_in_;
  bool dropped_ = false;
  ReduceOp op_ = ReduceOp::Average;
  double divisor_ = 1;
  std::vector<double> weights_;  // of the ranks, in this step
  std::vector<at::Tensor> parameters_;
  std::optional<GradientReducer> reducer_;
  std::vector<std::optional<double>> older_;              // what .grad holds after a step
  std::vector<std::vector<std::optional<double>>> sums_;  // [parameter][rank] of this step
};

class RandomPrograms : public testing::TestWithParam<WaitIn> {};

TEST_P(RandomPrograms, EqualTheModel) {
  const int first = number_argument("--seed", 0);
  const int count = number_argument("--count", 25);
  int refused = 0, synchronized = 0;
  for (int seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(testing::Message() << "again: --seed=" << seed << " --count=1");
    Program program(static_cast<unsigned>(seed), GetParam());
    program.run();
    refused += program.refused_;
    synchronized += program.synchronized_;
    if (HasFailure()) return;
  }
  if (count >= 25) {  // what one program comes to is luck
    EXPECT_LT(refused, synchronized / 4);
  }
}

INSTANTIATE_TEST_SUITE_P(WaitIn, RandomPrograms, testing::Values(WaitIn::Backward, WaitIn::Step),
                         [](const auto& test) {
                           return test.param == WaitIn::Step ? "Step" : "Backward";
                         });

}  // namespace
}  // namespace horon::reducer_random_test
