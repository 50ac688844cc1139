// Buckets follow the order in which gradients come, where that is not the reverse of the
// parameters.
#include "horon/torch_bindings/gradients/bucket_order.h"

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::bucket_order_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace testing_support;
using namespace torch_detail;

constexpr int64_t kElements = 256;  // of each parameter: 1 KiB

// Three parameters in a bucket.
GradientReducerOptions in_threes() {
  return {.bucket_bytes = 3 << 10, .first_bucket_bytes = 3 << 10};
}

// A model that uses its parameters, whose values are 1, in an order of its own.
struct Chain {
  explicit Chain(std::vector<size_t> uses) : order(std::move(uses)) {
    for (size_t i = 0; i < order.size(); ++i) parameters.push_back(leaf({kElements}));
  }
  // All have one shape. The gradient of each that is used is rank + 1.
  void backward(std::span<const size_t> used) const {
    at::Tensor x = at::full(parameters.front().sizes(), rank() + 1.0, at::kFloat);
    for (const size_t i : used) x = x * parameters[i];
    x.sum().backward();
  }
  void step(GradientReducer& reducer) const { step(reducer, order); }
  void step(GradientReducer& reducer, std::span<const size_t> used) const {
    forget();
    backward(used);
    for (const size_t i : used) expect_gradient(parameters[i], mean_of_ranks());
    reducer.synchronize();
  }
  void forget() const {
    for (const at::Tensor& w : parameters) w.mutable_grad().reset();
  }
  bool share_a_bucket(std::span<const size_t> some) const {
    for (const size_t i : some) {
      if (!parameters[i].grad().is_alias_of(parameters[some[0]].grad())) return false;
    }
    return true;
  }
  // Whether each three parameters that are used one after the other share a bucket.
  bool neighbours_share_buckets() const {
    for (size_t i = 0; i + 3 <= order.size(); i += 3) {
      if (!share_a_bucket(std::span(order).subspan(i, 3))) return false;
    }
    return true;
  }

  std::vector<size_t> order;
  std::vector<at::Tensor> parameters;
};

const std::vector<size_t> kApart{0, 3, 6, 1, 4,
                                 7, 2, 5, 8};  // each in a bucket of its own at first
const std::vector<size_t> kAsRegistered{0, 1, 2, 3, 4, 5, 6, 7, 8};

int64_t reorders_where_many(int64_t reorders) { return size() == 1 ? 0 : reorders; }

TEST(BucketOrder, NeighboursInBackwardShareABucket) {
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  chain.step(reducer);
  EXPECT_FALSE(size() > 1 && chain.neighbours_share_buckets());
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(1));
  if (size() == 1) return;
  EXPECT_TRUE(chain.neighbours_share_buckets());
  EXPECT_EQ(reducer.statistics().buckets, 3);
}

TEST(BucketOrder, StaysWhereAnotherOneWouldHardlyStartSooner) {
  const std::vector<std::vector<size_t>> orders{
      kAsRegistered, {0, 2, 1, 5, 4, 3, 7, 6, 8}};  // the second: within the buckets only
  for (const std::vector<size_t>& order : orders) {
    const Chain chain(order);
    GradientReducer reducer(chain.parameters, in_threes());
    for (int i = 0; i < 4; ++i) chain.step(reducer);
    EXPECT_EQ(reducer.statistics().reorders, 0);
  }
}

TEST(BucketOrder, StaysWhereAProgramOrAnOptionKeepsIt) {
  const Chain chain(kApart);
  for (const bool has_function : {false, true}) {
    GradientReducerOptions options = in_threes();
    options.learn_bucket_order = has_function;
    GradientReducer reducer(chain.parameters, options);
    if (has_function) reducer.after_bucket([](const BucketView&) {});
    for (int i = 0; i < 4; ++i) chain.step(reducer);
    EXPECT_EQ(reducer.statistics().reorders, 0);
  }
}

// The function may keep something for each bucket, which would then be of other parameters.
TEST(BucketOrder, StaysForAFunctionThatComesBehindTheFirstStep) {
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  chain.step(reducer);
  reducer.after_bucket([](const BucketView&) {});
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  EXPECT_EQ(reducer.statistics().reorders, 0);
  reducer.after_bucket(nullptr);
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(1));
}

// They would hold back the parameters that have a gradient.
TEST(BucketOrder, ParametersWithoutAGradientShareTheLastBuckets) {
  const Chain chain(kAsRegistered);
  GradientReducer reducer(chain.parameters, in_threes());
  const std::vector<size_t> used{6, 0, 7, 1, 8, 2};
  for (int i = 0; i < 4; ++i) chain.step(reducer, used);
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(1));
  for (const size_t i : {3, 4, 5}) EXPECT_FALSE(chain.parameters[i].grad().defined());
  if (size() == 1) return;
  EXPECT_TRUE(chain.share_a_bucket(std::span(used).subspan(0, 3)));
  EXPECT_TRUE(chain.share_a_bucket(std::span(used).subspan(3, 3)));
  const std::vector<size_t> all{6, 0, 7, 1, 8, 2, 3, 4, 5};
  chain.step(reducer, all);
  chain.step(reducer, all);
}

// A GAN's steps: each backward() reaches other parameters.
TEST(BucketOrder, IsThatOfAllBackwardPassesOfAStep) {
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  for (int i = 0; i < 4; ++i) {
    chain.forget();
    for (const size_t first : {6, 3, 0}) chain.backward(std::span(chain.order).subspan(first, 3));
    for (const at::Tensor& w : chain.parameters) expect_gradient(w, mean_of_ranks());
    reducer.synchronize();
  }
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(1));
  EXPECT_TRUE(size() == 1 || chain.neighbours_share_buckets());
}

TEST(BucketOrder, IsLearnedAnewWithMoreParameters) {
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  Chain more({9, 0, 12, 3, 6, 1, 15, 10, 4, 7, 13, 2, 5, 8, 16, 11, 14, 17});
  more.parameters = chain.parameters;
  NamedTensors added;
  for (size_t i = chain.parameters.size(); i < more.order.size(); ++i) {
    more.parameters.push_back(leaf({kElements}));
    added.emplace_back(std::to_string(i), more.parameters.back());
  }
  reducer.add_parameters(added);
  for (int i = 0; i < 4; ++i) more.step(reducer);
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(2));
  EXPECT_TRUE(size() == 1 || more.neighbours_share_buckets());
}

// The buckets are made anew for another reason; parameters that are added later come last.
TEST(BucketOrder, IsKeptInNewBuckets) {
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  reducer.add_parameters(
      {{"9", leaf({kElements})}, {"10", leaf({kElements})}, {"11", leaf({kElements})}});
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  reducer.set_backward_passes_per_step(1);
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(1));
  EXPECT_TRUE(size() == 1 || chain.neighbours_share_buckets());
}

// The closure throws when the other ranks have the new buckets already: more of them, or fewer.
TEST(BucketOrder, AStepThatThrowsBeforeItsBackwardHasTheNewBuckets) {
  for (const bool more : {true, false}) {
    // Of 1 and 4 KiB in turns; if all of one size come before those of the other, buckets fill
    // otherwise.
    std::vector<at::Tensor> parameters;
    std::vector<size_t> order;
    for (size_t i = 0; i < 8; ++i) {
      const bool is_long = more ? i % 2 == 0 : i < 4;
      parameters.push_back(leaf({is_long ? 4 * kElements : kElements}));
    }
    for (size_t i = 0; i < 8; ++i)
      order.push_back(more ? (2 * i) % 8 + i / 4 : i / 2 + 4 * (i % 2));
    DistributedOptimizer optimizer(::torch::optim::SGD(parameters, 0.0), parameters,
                                   {.bucket_bytes = 4 << 10, .first_bucket_bytes = 4 << 10});
    for (int step = 1; step <= 5; ++step) {
      const bool throws = step == 3;
      const auto closure = [&] {
        if (throws && rank() == size() - 1) throw std::runtime_error("no more data");
        optimizer.zero_grad();
        at::Tensor x = at::full({kElements}, rank() + 1.0, at::kFloat);
        for (const size_t i : order) x = x * parameters[i].slice(0, 0, kElements);
        const at::Tensor loss = x.sum();
        loss.backward();
        return loss;
      };
      if (throws) {
        EXPECT_ANY_THROW(optimizer.step(closure));
        continue;
      }
      optimizer.step(closure);
      for (const at::Tensor& w : parameters) {
        EXPECT_EQ(w.grad()[0].item<double>(), mean_of_ranks());
      }
    }
    EXPECT_EQ(optimizer.statistics().reorders, reorders_where_many(1)) << more;
  }
}

// Parameters of another shape need new buckets too; the order stays.
TEST(BucketOrder, IsKeptForParametersOfAnotherShape) {
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  for (const at::Tensor& w : chain.parameters) w.set_data(w.view({2, kElements / 2}).clone());
  for (int i = 0; i < 3; ++i) chain.step(reducer);
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(1));
  EXPECT_TRUE(size() == 1 || chain.neighbours_share_buckets());
}

// The gradients before the exception make no order.
TEST(BucketOrder, IsNotThatOfABackwardPassThatWasGivenUp) {
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  bool throws = true;
  chain.parameters[4].register_hook([&](const at::Tensor& gradient) {
    if (throws) throw std::runtime_error("a hook of the program");
    return gradient;
  });
  EXPECT_ANY_THROW(chain.backward(chain.order));
  throws = false;
  reducer.synchronize();
  EXPECT_EQ(reducer.statistics().reorders, 0);
  for (int i = 0; i < 4; ++i) chain.step(reducer);
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(1));
  EXPECT_TRUE(size() == 1 || chain.neighbours_share_buckets());
}

// A rank that comes back from join() would have other buckets than the other ranks.
TEST(BucketOrder, ComesWhenAllRanksTakePart) {
  if (size() == 1) return;
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  chain.step(reducer);
  if (rank() < size() - 1) {
    for (int i = 0; i < 3; ++i) {
      chain.forget();
      chain.backward(chain.order);
      for (const at::Tensor& w : chain.parameters) expect_gradient(w, size() / 2.0);
      reducer.synchronize();
      EXPECT_EQ(reducer.statistics().reorders, 0);
    }
  }
  join();
  for (int i = 0; i < 3; ++i) chain.step(reducer);
  EXPECT_EQ(reducer.statistics().reorders, 1);
  EXPECT_TRUE(chain.neighbours_share_buckets());
}

// One rank has heard of the order, and comes back when the others have used it.
TEST(BucketOrder, IsThatOfTheOthersWhereParametersAreAddedAfterAJoin) {
  const Chain chain(kApart);
  GradientReducer reducer(chain.parameters, in_threes());
  for (int i = 0; i < 2; ++i) chain.step(reducer);
  if (rank() < size() - 1) {
    chain.forget();
    chain.backward(chain.order);
    reducer.synchronize();
  }
  join();
  const at::Tensor more = leaf({kElements});
  reducer.add_parameters({{"more", more}});
  for (int i = 0; i < 2; ++i) ASSERT_EQ(error_of([&] { chain.step(reducer); }), "no error");
  EXPECT_EQ(reducer.statistics().reorders, reorders_where_many(1));
}

TEST(BucketOrder, ChangesNoBits) {
  std::vector<std::vector<at::Tensor>> results;
  for (const bool learns : {false, true}) {
    const Chain chain(kApart);
    GradientReducerOptions options = in_threes();
    options.learn_bucket_order = learns;
    GradientReducer reducer(chain.parameters, options);
    std::vector<at::Tensor>& gradients = results.emplace_back();
    for (int step = 0; step < 5; ++step) {
      chain.forget();
      at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + rank());
      at::Tensor x = at::randn({kElements}, generator);
      for (const size_t i : chain.order) x = (x * chain.parameters[i]).tanh();
      x.sum().backward();
      for (const at::Tensor& w : chain.parameters) gradients.push_back(w.grad().clone());
      reducer.synchronize();
    }
    EXPECT_EQ(reducer.statistics().reorders, learns ? reorders_where_many(1) : 0);
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(results[0][i].equal(results[1][i])) << "gradient " << i;
  }
}

TEST(BucketOrder, AnotherOrderOrOptionOnARankIsNamed) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2}), v = leaf({2});
  const auto error_with = [&](const NamedTensors& parameters, double predivide) {
    GradientReducer reducer(parameters, {.gradient_predivide_factor = predivide});
    return error_of([&] { (weighted(w, 1) + weighted(v, 1)).backward(); });
  };
  const bool first = rank() == 0;
  EXPECT_THAT(
      error_with({{first ? "v" : "w", first ? v : w}, {first ? "w" : "v", first ? w : v}}, 1),
      AllOf(HasSubstr("parameter \"v\" of rank 0 differs"), HasSubstr("at position 1, in")));
  EXPECT_THAT(error_with({{"w", w}, {"v", v}}, first ? 2 : 1),
              AllOf(HasSubstr("the option list of rank 0 differs"), HasSubstr("scales 0.5")));
}

GradientLayout floats(int64_t count) { return {.name = "w", .sizes = {count}, .strides = {1}}; }

TEST(BucketOrder, IsThatOfThePlan) {
  const std::vector<GradientLayout> layouts(4, floats(2));
  const BucketBytes pairs{.first = 16, .others = 16};
  EXPECT_THAT(plan_buckets(layouts, pairs, {}, {}),
              ElementsAre(ElementsAre(3, 2), ElementsAre(1, 0)));
  EXPECT_THAT(plan_buckets(layouts, pairs, {}, std::vector<size_t>{1, 3, 0, 2}),
              ElementsAre(ElementsAre(1, 3), ElementsAre(0, 2)));
  EXPECT_THAT(plan_buckets(layouts, pairs, {{0, 1}}, std::vector<size_t>{1, 3, 0, 2}),
              ElementsAre(ElementsAre(1, 0), ElementsAre(3, 2)));
}

TEST(BucketOrder, AStartIsAPartOfTheBackwardPass) {
  const std::vector<GradientLayout> layouts{floats(1), floats(1), floats(6), floats(1)};
  EXPECT_DOUBLE_EQ(mean_start({{3, 2}, {1, 0}}, layouts, std::vector<size_t>{3, 2, 1, 0}),
                   (7 * 0.5 + 2 * 1.0) / 9);
  EXPECT_DOUBLE_EQ(mean_start({{3, 2}, {1, 0}}, layouts, std::vector<size_t>{3, 0, 1, 2}),
                   (7 * 1.0 + 2 * 0.75) / 9);
  EXPECT_DOUBLE_EQ(mean_start({{3, 2}, {1, 0}}, layouts, std::vector<size_t>{3, 0}),
                   (1 * 0.5 + 1 * 1.0) / 2);
  EXPECT_EQ(mean_start({{3, 2}, {1, 0}}, layouts, {}), 0);
  EXPECT_THAT(order_of_all(std::vector<size_t>{3, 0}, 4), ElementsAre(3, 0, 2, 1));
}

TEST(BucketOrder, TheLastArrivalOfAGradientCounts) {
  ArrivalOrder arrivals;
  arrivals.note(1);  // nobody watches
  EXPECT_TRUE(arrivals.arrived().empty());
  arrivals.watch(3);
  for (const size_t gradient : {2, 0, 2}) arrivals.note(gradient);
  EXPECT_THAT(arrivals.arrived(), ElementsAre(0, 2));
  arrivals.stop();
  arrivals.note(1);
  EXPECT_THAT(arrivals.arrived(), ElementsAre(0, 2));
  arrivals.watch(3);
  EXPECT_TRUE(arrivals.arrived().empty());
}

}  // namespace
}  // namespace horon::bucket_order_test
