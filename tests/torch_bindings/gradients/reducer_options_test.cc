// What the options of a GradientReducer do to gradients that are known beforehand.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "horon/ops/session/process_set.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"

namespace horon::reducer_options_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

std::string construction_error(GradientReducerOptions options) {
  const at::Tensor a = leaf({2}), b = leaf({2}), c = leaf({2}, at::kDouble);
  return error_of([&] { GradientReducer reducer({{"a", a}, {"b", b}, {"c", c}}, options); });
}

TEST(ReducerOptions, WrongValuesAreNamed) {
  const auto invalid = [](const char* what) {
    return AllOf(StartsWith(kInvalid), HasSubstr(what));
  };
  EXPECT_THAT(construction_error({.backward_passes_per_step = 0}),
              invalid("backward_passes_per_step is 0"));
  EXPECT_THAT(construction_error({.piece_bytes = -1}),
              invalid("piece_bytes is -1; give 0 or more"));
  EXPECT_THAT(construction_error({.gradient_predivide_factor = 0}),
              invalid("gradient_predivide_factor is 0"));
  EXPECT_THAT(construction_error({.gradient_predivide_factor = kNaN}),
              invalid("gradient_predivide_factor is nan"));
  EXPECT_THAT(construction_error({.op = ReduceOp::Sum, .gradient_predivide_factor = 2}),
              invalid("gradient_predivide_factor needs op Average, but op is Sum"));
  EXPECT_THAT(construction_error({.op = ReduceOp::Max, .average_aggregated_gradients = true}),
              invalid("average_aggregated_gradients"));
  EXPECT_THAT(construction_error({.op = ReduceOp::BitOr}), invalid("op is BitOr"));
  EXPECT_THAT(construction_error({.op = ReduceOp::Min, .sparse_as_dense = false}),
              invalid("sparse_as_dense"));
  EXPECT_THAT(construction_error({.num_groups = -1}), invalid("num_groups is -1"));
  EXPECT_THAT(construction_error({.groups = {{"a"}}, .num_groups = 1}), invalid("num_groups"));
  EXPECT_THAT(construction_error({.groups = {{"a", "d"}}}), invalid("\"d\""));
  EXPECT_THAT(construction_error({.groups = {{"a"}, {"b", "a"}}}), invalid("\"a\" is named twice"));
  EXPECT_THAT(construction_error({.groups = {{"a", "c"}}}),
              AllOf(invalid("\"c\" is Double"), HasSubstr("\"a\" of the same group is Float")));
}

TEST(ReducerOptions, DifferentOptionsOnTheRanksAreAMismatch) {
  const at::Tensor w = leaf({2});
  GradientReducer reducer({{"w", w}}, {.backward_passes_per_step = rank() == 0 ? 2 : 3});
  if (size() == 1) return;
  EXPECT_THAT(error_of([&] { reducer.synchronize(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("2 passes"), HasSubstr("3 passes")));
}

// The buckets themselves tell. The plan does not have piece_bytes, so that autotuning can change
// it.
TEST(ReducerOptions, DifferentPiecesOnTheRanksAreAMismatch) {
  const at::Tensor w = leaf({20'000});
  GradientReducer reducer({{"w", w}}, {.piece_bytes = rank() == 0 ? 65536 : 0});
  if (size() == 1) return;
  const std::string error = error_of([&] {
    weighted(w, 1).backward();
    reducer.synchronize();
  });
  EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("piece bytes: 65536 on rank 0, 0 on"),
                           HasSubstr("Every rank must give the same piece bytes")));
}

TEST(ReducerOptions, PiecesOfAnyLengthGiveTheSameBits) {
  std::vector<at::Tensor> results;
  for (const int64_t piece_bytes : {int64_t{0}, int64_t{1}, int64_t{5000}, int64_t{1} << 40}) {
    const at::Tensor w = leaf({300'001}), v = leaf({7});
    GradientReducer reducer({{"w", w}, {"v", v}}, {.piece_bytes = piece_bytes});
    EXPECT_EQ(reducer.statistics().piece_bytes, piece_bytes);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor of_rank = at::arange(300'001, at::kFloat).mul(0.37 + rank()).sin();
      (weighted(v, rank() + 1) + (w * of_rank).sum()).backward();
      expect_gradient(v, mean_of_ranks());
      results.push_back(w.grad().clone());
      w.mutable_grad().reset();
      v.mutable_grad().reset();
    }
  }
  for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results.front()));
}

TEST(ReducerOptions, ProcessSetReducesInside) {
  const ProcessSet set = add_even_odd_process_set();
  double mean = 0;
  for (const int r : set.ranks()) mean += (r + 1.0) / set.size();
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
    GradientReducerOptions options = alone(op);
    options.process_set = set;
    GradientReducer reducer({{"w", w}, {"v", v}}, options);
    const double want = mean * (op == ReduceOp::Sum ? set.size() : 1);
    for (int step = 1; step <= 3; ++step) {  // without zero_grad
      at::Tensor loss = weighted(w, rank() + 1);
      if (rank() < 2) loss = loss + weighted(v, set.size());
      loss.backward();
      reducer.synchronize();
      expect_close(w, step * want);
      expect_close(v, step * (op == ReduceOp::Sum ? set.size() : 1));
    }
  }
}

// The ranks outside the set run the same program, and train for themselves.
TEST(ReducerOptions, RanksOutsideTheProcessSetAreLeftAlone) {
  const ProcessSet set = add_process_set({0});
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, {.process_set = set});
  weighted(w, rank() + 1).backward();
  reducer.synchronize();
  expect_close(w, rank() + 1);
  EXPECT_EQ(reducer.statistics().steps, 1);
  EXPECT_EQ(reducer.statistics().buckets, set.includes_me() ? 1 : 0);
  EXPECT_EQ(reducer.reduce_number(rank()), rank());
  remove_process_set(set);
}

TEST(ReducerOptions, OutlivesItsProcessSet) {
  const ProcessSet set = add_even_odd_process_set();
  const at::Tensor w = leaf({3});
  {
    GradientReducer reducer({{"w", w}}, {.process_set = set});
    weighted(w, 1).backward();
    reducer.synchronize();
    for (const ProcessSet& each : process_sets()) {
      if (!each.is_world()) remove_process_set(each);
    }
    EXPECT_THAT(error_of([&] { weighted(w, 1).backward(); }), HasSubstr("process set"));
    EXPECT_THAT(error_of([&] { reducer.synchronize(); }), HasSubstr("process set"));
  }
  barrier();
}

TEST(ReducerOptions, AddedParametersAreInNoGroup) {
  const at::Tensor a = leaf({2}), b = leaf({2}), c = leaf({2});
  GradientReducerOptions options = alone();
  options.groups = {{"a", "b"}};
  GradientReducer reducer({{"a", a}, {"b", b}}, options);
  reducer.add_parameters({{"c", c}});
  EXPECT_EQ(reducer.statistics().buckets, 2);
  (weighted(a, 1) + weighted(b, 1) + weighted(c, rank() + 1)).backward();
  EXPECT_EQ(reducer.statistics().submitted_in_backward, 2);
  reducer.synchronize();
  expect_gradient(c, mean_of_ranks());
}

TEST(ReducerOptions, CompressionRoundsFloatsOnly) {
  for (const Compression compression : {Compression::Float16, Compression::BFloat16}) {
    const at::Tensor w = leaf({1000}), v = leaf({3}, at::kDouble), h = leaf({3}, at::kHalf);
    GradientReducer reducer({{"w", w}, {"v", v}, {"h", h}}, {.compression = compression});
    const double fine = 1 + std::ldexp(1.0, -12);  // more digits than 16 bits have
    (weighted(w, fine) + weighted(v, fine) + weighted(h, rank() + 1)).backward();
    reducer.synchronize();
    if (size() > 1) expect_gradient(w, 1);
    expect_close(v, fine);
    expect_gradient(h, mean_of_ranks());
    w.mutable_grad().reset();
    weighted(w, rank() + 1).backward();  // small whole numbers pass unrounded
    weighted(w, rank() + 1).backward();  // and a late part too
    reducer.synchronize();
    expect_close(w, 2 * mean_of_ranks());
  }
}

TEST(ReducerOptions, PassesAddUpBeforeTheyAreReduced) {
  for (const bool average : {false, true}) {
    for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
      const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
      GradientReducerOptions options = alone(op);
      options.backward_passes_per_step = 3;
      options.average_aggregated_gradients = average;
      GradientReducer reducer({{"w", w}, {"v", v}}, options);
      const double of_ranks = op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks();
      for (int step = 1; step <= 3; ++step) {  // without zero_grad
        for (int pass = 0; pass < 3; ++pass) {
          EXPECT_EQ(reducer.statistics().submitted_in_backward, step - 1);
          weighted(w, (rank() + 1) * (pass + 1)).backward();
          if (pass == 1) weighted(v, rank() + 1).backward();  // in one pass of the three
        }
        EXPECT_EQ(reducer.statistics().submitted_in_backward, step);
        reducer.synchronize(GradientReducer::Passes::All);
        expect_close(w, step * 6 * of_ranks / (average ? 3 : 1));
        expect_close(v, step * of_ranks / (average ? 3 : 1));
      }
      EXPECT_EQ(reducer.statistics().late_parts, 0);
      weighted(w, 0).backward();
      weighted(w, 0).backward();
      for (int more = 0; more < 2; ++more) weighted(w, rank() + 1).backward();  // one too many
      reducer.synchronize();
      expect_close(w, 20 * of_ranks / (average ? 3 : 1));
    }
  }
}

TEST(ReducerOptions, EarlyStepIsRefusedOnAllRanks) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, {.backward_passes_per_step = 3});
  const int early = size() - 1;
  const auto synchronize = [&] { reducer.synchronize(GradientReducer::Passes::All); };
  EXPECT_THAT(error_of([&] {
                for (int pass = 0; pass < (rank() == early ? 2 : 3); ++pass) {
                  weighted(w, 1).backward();
                }
                synchronize();
              }),
              AllOf(StartsWith(kInvalid),
                    HasSubstr("rank " + std::to_string(early) + " called step() before"),
                    HasSubstr("backward_passes_per_step = 3")));
  expect_close(w, 3 - 1.0 / size());
  w.mutable_grad().reset();
  EXPECT_THAT(error_of(synchronize), StartsWith(kInvalid));  // none at all
  weighted(w, rank() + 1).backward();
  reducer.synchronize();  // Passes::Any
  expect_close(w, mean_of_ranks());
  w.mutable_grad().reset();
  for (int pass = 0; pass < 3; ++pass) weighted(w, rank() + 1).backward();
  synchronize();
  expect_close(w, 3 * mean_of_ranks());
}

TEST(ReducerOptions, PredivideFactorKeepsTheAverage) {
  for (const double factor : {0.5, 2.0, 7.0}) {
    const at::Tensor w = leaf({3}, at::kDouble), h = leaf({3}, at::kHalf);
    GradientReducerOptions options = alone();
    options.gradient_predivide_factor = factor;
    GradientReducer reducer({{"w", w}, {"h", h}}, options);
    for (int step = 1; step <= 2; ++step) {
      h.mutable_grad().reset();
      weighted(w, rank() + 1).backward();
      weighted(w, 1).backward();  // a late part
      weighted(h, 60000).backward();
      reducer.synchronize();
      expect_close(w, step * (mean_of_ranks() + 1));
      EXPECT_TRUE(at::allclose(h.grad(), at::full({3}, 60000, at::kHalf), 1e-3)) << h.grad();
    }
  }
}

// The parameters of each bucket, in order.
std::vector<std::vector<std::string>> buckets_of(const NamedTensors& parameters,
                                                 const GradientReducerOptions& options) {
  GradientReducer reducer(parameters, options);
  std::vector<std::vector<std::string>> buckets;
  reducer.after_bucket([&](const BucketView& bucket) { buckets.push_back(bucket.parameters); });
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (const auto& [name, parameter] : parameters) {
    parameter.mutable_grad().reset();
    loss = loss + weighted(parameter, rank() + 1).to(at::kDouble);
  }
  loss.backward();
  reducer.synchronize();
  for (const auto& [name, parameter] : parameters) expect_gradient(parameter, mean_of_ranks());
  return buckets;
}

TEST(ReducerOptions, GroupsShareABucket) {
  NamedTensors all;
  for (const char* name : {"a", "b", "c", "d", "e"}) all.emplace_back(name, leaf({2}));
  GradientReducerOptions options = alone();
  options.groups = {{"a", "e"}, {}, {"b"}};
  EXPECT_THAT(buckets_of(all, options), ElementsAre(ElementsAre("e", "a"), ElementsAre("d"),
                                                    ElementsAre("c"), ElementsAre("b")));
  options.groups = {};
  options.num_groups = 2;
  EXPECT_THAT(buckets_of(all, options),
              ElementsAre(ElementsAre("e", "d"), ElementsAre("c", "b", "a")));
  options.num_groups = 9;
  EXPECT_EQ(buckets_of(all, options).size(), 5u);
  all = NamedTensors();
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    all.emplace_back(name, leaf({2}, name == std::string("b") ? at::kDouble : at::kFloat));
  }
  options.num_groups = 1;
  EXPECT_THAT(buckets_of(all, options),
              ElementsAre(ElementsAre("e", "d", "c", "a"), ElementsAre("b")));
}

// Horovod's groups deadlock when ranks use different parameters.
TEST(ReducerOptions, GroupsWithParametersUnusedOnSomeRanks) {
  const at::Tensor a = leaf({2}), b = leaf({3});
  GradientReducer reducer({{"a", a}, {"b", b}}, {.groups = {{"a", "b"}}});
  for (int step = 0; step < 2; ++step) {
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    weighted(rank() == 0 ? a : b, size()).backward();
    reducer.synchronize();
    expect_gradient(a, 1);
    if (size() > 1) expect_gradient(b, size() - 1);
  }
}

TEST(ReducerOptions, NotFiniteGradientsAreNamedOnAllRanks) {
  const at::Tensor w = leaf({4}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducerOptions options = alone();
  options.check_finite = true;
  GradientReducer reducer({{"weight", w}, {"v", v}}, options);
  const int bad = size() - 1;
  const std::string named = "gradient of \"weight\" on rank " + std::to_string(bad);
  const auto factors = [&](double wrong) {
    return at::tensor({1.0, rank() == bad ? wrong : 1.0, 1.0, 1.0}, at::kDouble);
  };
  for (const double wrong : {kNaN, -std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(error_of([&] { ((w * factors(wrong)).sum() + weighted(v, 1)).backward(); }),
                AllOf(StartsWith(kInvalid), HasSubstr(named),
                      HasSubstr(std::isnan(wrong) ? "1 NaN and 0 Inf" : "0 NaN and 1 Inf")));
    EXPECT_FALSE(w.grad().defined());
    expect_close(v, 1);
    v.mutable_grad().reset();
    // In a second pass.
    weighted(w, 1).backward();
    EXPECT_THAT(error_of([&] { (w * factors(wrong)).sum().backward(); }), HasSubstr(named));
    w.mutable_grad().reset();
    weighted(w, rank() + 1).backward();
    reducer.synchronize();
    expect_close(w, mean_of_ranks());
    w.mutable_grad().reset();
  }
  // Large numbers whose sum overflows are fine.
  weighted(w, 1e308).backward();
  reducer.synchronize();
  EXPECT_EQ(w.grad().isfinite().all().item<bool>(), size() == 1);
}

// The ranks outside go on.
TEST(ReducerOptions, NotFiniteGradientsInAProcessSet) {
  const ProcessSet set = add_even_odd_process_set();
  const at::Tensor w = leaf({4}, at::kDouble);
  GradientReducer reducer({{"w", w}}, {.process_set = set, .check_finite = true});
  const at::Tensor loss = weighted(w, rank() == 0 ? kNaN : 1);
  if (rank() % 2 == 0) {
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("\"w\" on rank 0"));
  } else {
    loss.backward();
    reducer.synchronize();
  }
  w.mutable_grad().reset();
  weighted(w, 5).backward();
  reducer.synchronize();
  expect_close(w, 5);
}

TEST(ReducerOptions, NotFiniteGradientsPassUnlessAskedFor) {
  const at::Tensor w = leaf({2});
  GradientReducer reducer({{"w", w}}, {.check_finite = false});
  weighted(w, rank() == 0 ? kNaN : 1).backward();
  reducer.synchronize();
  EXPECT_TRUE(w.grad().isnan().all().item<bool>());
}

TEST(ReducerOptionsAndSession, KnobChecksThatGradientsAreFinite) {
  shutdown();
  init({.set = {{"HORON_CHECK_FINITE", "1"}}});
  {
    const at::Tensor w = leaf({2});
    GradientReducer reducer({{"w", w}});
    EXPECT_THAT(error_of([&] { weighted(w, rank() == 0 ? kNaN : 1).backward(); }),
                HasSubstr("\"w\" on rank 0"));
  }
  shutdown();
  init();
}

// In the new session another reducer may have its name, and its ranks may be other ones.
TEST(ReducerOptionsAndSession, AReducerOfAnEarlierSessionIsRefused) {
  const at::Tensor w = leaf({2}), v = leaf({2});
  shutdown();
  init();
  GradientReducer earlier({{"w", w}});
  weighted(w, 1).backward();
  earlier.synchronize();
  shutdown();
  init();
  const auto says_so =
      AllOf(StartsWith(kInvalid), HasSubstr("was made before the last shutdown()"));
  EXPECT_THAT(error_of([&] { weighted(w, 1).backward(); }), says_so);
  EXPECT_THAT(error_of([&] { earlier.synchronize(); }), says_so);
  EXPECT_THAT(error_of([&] { earlier.set_weight(1); }), says_so);
  GradientReducer reducer({{"v", v}});
  EXPECT_EQ(reducer.name(), earlier.name());
  weighted(v, rank() + 1).backward();
  expect_gradient(v, mean_of_ranks());
  reducer.synchronize();
}

}  // namespace
}  // namespace horon::reducer_options_test
