// Rounds in which the ranks have nothing to agree on are made of their buckets alone, and whatever
// is not plain is found out from these. A rank that reduces with nobody makes none.
#include <cmath>
#include <string>
#include <vector>

#include "horon/ops/session/session.h"
#include "horon/tests/support/statistics_between_collectives.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::plain_rounds_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

void forget(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& w : parameters) w.mutable_grad().reset();
}

// Runs plain rounds, so that the next round begins as a plain one.
void run_plain_rounds(GradientReducer& reducer, const std::vector<at::Tensor>& parameters) {
  for (int step = 0; step < 3; ++step) {
    forget(parameters);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& w : parameters) loss = loss + weighted(w, rank() + 1);
    loss.backward();
    reducer.synchronize();
    for (const at::Tensor& w : parameters) expect_gradient(w, mean_of_ranks(), 1e-2);
  }
}

// After a few steps they also start without a message, on one host.
TEST(PlainRounds, ReduceTheirBucketsAndNothingElse) {
  if (size() == 1) return;
  const SessionWithoutLimits session;
  const std::vector<at::Tensor> parameters{leaf({3}), leaf({2}, at::kDouble), leaf({4}, at::kHalf),
                                           leaf({5}, at::kBFloat16), leaf({3})};
  for (const Compression compression : {Compression::None, Compression::Float16}) {
    GradientReducerOptions options = alone();
    options.compression = compression;
    GradientReducer reducer(parameters, options);
    for (int i = 0; i < 5; ++i) run_plain_rounds(reducer, parameters);
    const Statistics before = test::statistics_between_collectives();
    run_plain_rounds(reducer, parameters);
    const Statistics after = test::statistics_between_collectives();
    EXPECT_EQ(after.frozen_starts + after.negotiated_starts,
              before.frozen_starts + before.negotiated_starts + 3 * parameters.size());
    if (local_size() == size()) {  // hosts tell each other of frozen starts by messages
      EXPECT_EQ(after.control_messages_sent, before.control_messages_sent);
    }
    barrier();
  }
}

// One rank recomputes a segment, and the other ranks do not.
TEST(PlainRounds, ALatePartOfOneRankIsHeard) {
  const at::Tensor w = leaf({2}, at::kDouble), last = leaf({2}, at::kDouble);
  GradientReducer reducer({{"last", last}, {"w", w}}, alone());
  for (int repetition = 0; repetition < 3; ++repetition) {
    run_plain_rounds(reducer, {w, last});
    forget({w, last});
    const at::Tensor x = at::full({2}, rank() + 1.0, at::kDouble) * last;
    at::Tensor y = x * w;
    if (rank() == size() - 1) y = segment(x, w, false) * w;
    y.sum().backward();
    expect_gradient(w, mean_of_ranks() + 1);  // the late part is size() on one rank
    expect_gradient(last, mean_of_ranks());
    reducer.synchronize();
    EXPECT_EQ(reducer.statistics().late_parts,
              size() > 1 && rank() == size() - 1 ? repetition + 1 : 0);
  }
}

// The buckets that are still to come hold nothing of any rank, and the rank's news is in another
// one.
TEST(PlainRounds, NewsOfARankWhoseLastBucketIsEmpty) {
  const at::Tensor w = leaf({2}, at::kDouble), unused = leaf({2}, at::kDouble);
  GradientReducer reducer({{"unused", unused}, {"w", w}}, alone());
  run_plain_rounds(reducer, {w, unused});
  forget({w, unused});
  const at::Tensor x = at::full({2}, rank() + 1.0, at::kDouble).requires_grad_(true);
  at::Tensor y = x * w;
  if (rank() == size() - 1) y = segment(x * 1, w, false) * w;
  y.sum().backward();
  expect_gradient(w, mean_of_ranks() + 1);
  EXPECT_FALSE(unused.grad().defined());
  reducer.synchronize();
  run_plain_rounds(reducer, {w, unused});
}

// The last bucket is sent only for the news in it.
TEST(PlainRounds, ABucketWithoutGradientsIsNotShown) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2}, at::kDouble), unused = leaf({2}, at::kDouble);
  GradientReducer reducer({{"unused", unused}, {"w", w}}, alone());
  run_plain_rounds(reducer, {w, unused});
  std::vector<std::string> shown;
  reducer.after_bucket([&](const BucketView& bucket) { shown.push_back(bucket.parameters.at(0)); });
  forget({w, unused});
  const at::Tensor x = at::full({2}, rank() + 1.0, at::kDouble).requires_grad_(true);
  (segment(x * 1, w, false) * w).sum().backward();  // on all ranks
  EXPECT_THAT(shown, testing::ElementsAre("w"));
  EXPECT_FALSE(unused.grad().defined());
}

// Between two backward passes of a round, parameters may change alike on all ranks. In the first
// pass not all ranks need have a gradient.
TEST(PlainRounds, ReplicasAreComparedWhenTheRoundBegins) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2}, at::kDouble);
  GradientReducerOptions options = alone();
  options.backward_passes_per_step = 2;
  GradientReducer reducer({{"w", w}}, options);
  const auto step = [&] {
    forget({w});
    if (rank() == 0) weighted(w, 1).backward();
    w.detach().mul_(0.5);
    weighted(w, 1).backward();
    reducer.synchronize();
    expect_gradient(w, 1 + 1.0 / size());
  };
  for (int i = 0; i < 5; ++i) step();
  barrier();
  const Statistics before = statistics();
  for (int i = 0; i < 5; ++i) step();
  const Statistics after = statistics();
  EXPECT_EQ(after.frozen_starts + after.negotiated_starts,
            before.frozen_starts + before.negotiated_starts + 5);
  barrier();
}

// Hooks that ran after the last round without a gradient do not count in the next step.
TEST(PlainRounds, AParameterMayChangeAfterAnUndefinedGradient) {
  const at::Tensor w = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  run_plain_rounds(reducer, {w});
  forget({w});
  weighted(w, rank() + 1).backward();
  NoGradient::apply(w).backward();
  expect_gradient(w, mean_of_ranks());
  reducer.synchronize();
  forget({w});
  w.set_data(w.detach().to(at::kFloat));
  weighted(w, rank() + 1).backward();
  expect_gradient(w, mean_of_ranks());
  reducer.synchronize();
}

TEST(PlainRounds, NobodyHasAnyGradient) {
  const at::Tensor w = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  for (int i = 0; i < 3; ++i) {
    run_plain_rounds(reducer, {w});
    expect_gradient(w, mean_of_ranks());
    reducer.synchronize();
    reducer.synchronize();
    expect_gradient(w, mean_of_ranks());  // an older value stays to the bit
  }
}

TEST(PlainRounds, WeightsComeAndGo) {
  const at::Tensor w = leaf({2}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  double squares = 0;
  for (int r = 1; r <= size(); ++r) squares += r * r;
  for (int i = 0; i < 3; ++i) {
    run_plain_rounds(reducer, {w, v});
    forget({w, v});
    reducer.set_weight(rank() + 1);
    (weighted(w, rank() + 1) + weighted(v, rank() + 1)).backward();
    reducer.synchronize();
    expect_gradient(w, squares / sum_of_ranks());
    expect_gradient(v, squares / sum_of_ranks());
  }
  run_plain_rounds(reducer, {w, v});
  if (size() == 1) return;
  if (rank() == 0) reducer.set_weight(2);
  EXPECT_THAT(error_of([&] { weighted(w, 1).backward(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("did not call set_weight()")));
}

TEST(PlainRounds, ReplicasThatGoApartAreNamed) {
  const at::Tensor w = leaf({2}, at::kDouble), v = leaf({3}, at::kHalf);
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  run_plain_rounds(reducer, {w, v});
  if (size() == 1) return;
  if (rank() == size() - 1) v.detach().mul_(2);
  EXPECT_THAT(error_of([&] {
                run_plain_rounds(reducer, {w, v});
              }),
              AllOf(StartsWith(kMismatch), HasSubstr("\"v\""),
                    HasSubstr("on rank " + std::to_string(size() - 1) + " from rank 0")));
}

TEST(PlainRounds, OneMoreBackwardOnARankIsNamed) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2}), v = leaf({3});
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  run_plain_rounds(reducer, {w, v});
  const std::string error = error_of([&] {
    for (int step = 0; step < 2; ++step) {
      weighted(w, 1).backward();
      if (rank() == 0 && step == 0) weighted(w, 1).backward();
      reducer.synchronize();
    }
  });
  EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("rank 0 in backward 2 of step 4"),
                           HasSubstr("in backward 1 of step 5")));
}

// Only one rank makes new buckets.
TEST(PlainRounds, OtherPlansAreNamed) {
  if (size() == 1) return;
  for (const bool adds : {false, true}) {
    const at::Tensor w = leaf({2}), v = leaf({3}), added = leaf({3});
    GradientReducer reducer({{"w", w}, {"v", v}}, alone());
    run_plain_rounds(reducer, {w, v});
    if (rank() == 0) {
      if (adds) {
        reducer.add_parameters({{"added", added}});
      } else {
        w.set_data(w.detach().to(at::kDouble));
      }
    }
    forget({w, v});
    EXPECT_THAT(error_of([&] {
                  (weighted(w, 1) + weighted(v, 1)).backward();
                  reducer.synchronize();
                }),
                AllOf(StartsWith(kMismatch), HasSubstr("plan")));
    barrier();
  }
}

// Frozen parameters have buckets of their own, so the plans differ.
TEST(PlainRounds, AParameterThatIsFrozenOnOneRankOnlyIsNamed) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2}), v = leaf({3}), u = leaf({4});
  if (rank() == size() - 1) v.requires_grad_(false);
  GradientReducer reducer({{"w", w}, {"v", v}, {"u", u}});
  EXPECT_THAT(error_of([&] { (weighted(w, 1) + weighted(u, 1)).backward(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("\"v\""), HasSubstr("requires_grad"),
                    HasSubstr("rank " + std::to_string(size() - 1))));
  barrier();
}

// Process sets of one rank: each rank reduces with nobody.
ProcessSet set_of_this_rank() {
  ProcessSet mine;
  for (int r = 0; r < size(); ++r) {
    const ProcessSet set = add_process_set({r});
    if (r == rank()) mine = set;
  }
  return mine;
}

TEST(RankAlone, KeepsItsGradientsWhereTheyAre) {
  const at::Tensor w = leaf({3}), v = leaf({2}, at::kHalf);
  const void* before = nullptr;
  call_after(w, [&](const at::Tensor& parameter) { before = parameter.grad().const_data_ptr(); });
  GradientReducerOptions options = alone(ReduceOp::Sum);
  options.process_set = set_of_this_rank();
  barrier();
  const Statistics of_job = statistics();
  {
    GradientReducer reducer({{"w", w}, {"v", v}}, options);
    for (int step = 1; step <= 3; ++step) {
      forget({w, v});
      for (int pass = 1; pass <= 2; ++pass) {
        (weighted(w, rank() + 1) + weighted(v, 1)).backward();
        EXPECT_EQ(w.grad().const_data_ptr(), before);
        expect_gradient(w, pass * (rank() + 1));
        expect_gradient(v, pass);
      }
      EXPECT_EQ(reducer.unsynchronized_parameter(), "");
      {
        const auto quiet = reducer.no_sync();
        weighted(w, 1).backward();
        EXPECT_EQ(reducer.unsynchronized_parameter(), "w");
      }
      reducer.synchronize();
      expect_gradient(w, 2 * (rank() + 1) + 1);
      EXPECT_EQ(reducer.statistics().steps, 3 * step);
    }
  }
  EXPECT_EQ(statistics().negotiated_starts, of_job.negotiated_starts);
  EXPECT_EQ(statistics().frozen_starts, of_job.frozen_starts);
  barrier();
}

// A feature that needs the buckets gets them, also in the middle of a job.
TEST(RankAlone, WeightsFunctionsAndPasses) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducerOptions options = alone();
  options.process_set = set_of_this_rank();
  GradientReducer weighing({{"w", w}}, options);
  weighted(w, 2).backward();
  weighing.synchronize();
  weighing.set_weight(0);
  weighted(w, NAN).backward();
  weighing.synchronize();
  expect_gradient(w, 2);  // the older value, since nobody has samples
  weighted(w, 3).backward();
  expect_gradient(w, 5);
  weighing.synchronize();

  const at::Tensor v = leaf({3}, at::kDouble);
  options.backward_passes_per_step = 2;
  GradientReducer reducer({{"v", v}}, options);
  weighted(v, 2).backward();
  EXPECT_THAT(error_of([&] { reducer.synchronize(GradientReducer::Passes::All); }),
              HasSubstr("backward_passes_per_step = 2"));
  forget({v});
  weighted(v, 1).backward();
  weighted(v, 1).backward();
  reducer.synchronize(GradientReducer::Passes::All);
  expect_gradient(v, 2);
  int calls = 0;
  reducer.after_bucket([&](const BucketView& bucket) {
    ++calls;
    bucket.flat.neg_();
  });
  forget({v});
  weighted(v, 1).backward();
  weighted(v, 1).backward();
  EXPECT_EQ(calls, 1);
  expect_gradient(v, -2);
  reducer.synchronize();
}

// The buckets are made for what the parameters are then.
TEST(RankAlone, BucketsAfterAMoveToAnotherDtype) {
  const at::Tensor w = leaf({3});
  GradientReducerOptions options = alone();
  options.process_set = set_of_this_rank();
  GradientReducer reducer({{"w", w}}, options);
  w.set_data(w.detach().to(at::kDouble));
  weighted(w, 1.0 / 3).backward();
  reducer.synchronize();
  reducer.set_weight(1);
  EXPECT_EQ(w.grad().scalar_type(), at::kDouble);
  expect_close(w, 1.0 / 3);
  weighted(w, 1.0 / 3).backward();
  expect_close(w, 2.0 / 3);
  reducer.synchronize();
}

TEST(RankAlone, SparseGradientsBecomeDense) {
  const at::Tensor w = leaf({4, 2});
  GradientReducerOptions options = alone();
  options.process_set = set_of_this_rank();
  GradientReducer reducer({{"w", w}}, options);
  const at::Tensor rows = at::tensor({1, 1, 3}, at::kLong);
  at::embedding(w, rows, -1, false, /*sparse=*/true).sum().backward();
  ASSERT_EQ(w.grad().layout(), at::kStrided);
  EXPECT_EQ(w.grad().sum().item<float>(), 6);
  reducer.synchronize();
}

TEST(RankAlone, ASecondReducerIsRefused) {
  const at::Tensor w = leaf({4});
  GradientReducerOptions options = alone();
  options.process_set = set_of_this_rank();
  GradientReducer reducer({{"w", w}}, options);
  EXPECT_THAT(error_of([&] {
                GradientReducer({{"w", w}}, options);
              }),
              HasSubstr("belongs to another"));
}

}  // namespace
}  // namespace horon::plain_rounds_test
