// Rounds in which the ranks have nothing to agree on are made of their buckets alone, and whatever
// is not plain is found out from these.
#include <string>
#include <vector>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

const auto* const environment = testing::AddGlobalTestEnvironment(new SessionEnvironment);

const std::string kMismatch{to_string(ErrorCode::Mismatch)};

void forget(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& w : parameters) w.mutable_grad().reset();
}

// So that what follows is seen in a round that began as a plain one.
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

// After a few steps they also start without a message.
TEST(PlainRounds, ReduceTheirBucketsAndNothingElse) {
  if (size() == 1) return;
  const std::vector<at::Tensor> parameters{leaf({3}), leaf({2}, at::kDouble), leaf({4}, at::kHalf),
                                           leaf({5}, at::kBFloat16), leaf({3})};
  for (const Compression compression : {Compression::None, Compression::Float16}) {
    GradientReducerOptions options = alone();
    options.compression = compression;
    GradientReducer reducer(parameters, options);
    for (int i = 0; i < 5; ++i) run_plain_rounds(reducer, parameters);
    barrier();
    const Statistics before = statistics();
    run_plain_rounds(reducer, parameters);
    const Statistics after = statistics();
    EXPECT_EQ(after.frozen_starts + after.negotiated_starts,
              before.frozen_starts + before.negotiated_starts + 3 * parameters.size());
    EXPECT_EQ(after.control_messages_sent, before.control_messages_sent);
    barrier();
  }
}

// One rank recomputes what the others do not.
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
    EXPECT_EQ(reducer.statistics().late_parts, rank() == size() - 1 ? repetition + 1 : 0);
  }
}

// The buckets that are left have nothing of any rank, and the news is in another one.
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
              AllOf(StartsWith(kMismatch), HasSubstr("gave no weight")));
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

}  // namespace
}  // namespace horon
