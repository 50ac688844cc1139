// Allreduce, broadcast and allgather of tensors against sums that each rank works out by itself.
#include "horon/torch_bindings/collectives/collectives.h"

#include <cmath>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/session_environment.h"

namespace horon::collectives_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;
using testing_support::expect_equal;
using testing_support::values_of;

const std::vector<at::ScalarType> kTypes{at::kFloat, at::kDouble, at::kHalf,  at::kBFloat16,
                                         at::kChar,  at::kByte,   at::kShort, at::kInt,
                                         at::kLong,  at::kBool};
const std::vector<std::vector<int64_t>> kShapes{{}, {0}, {1}, {3, 0, 2}, {7}, {2, 3, 5}, {1031}};

at::Tensor folded(const std::vector<at::Tensor>& all, ReduceOp op) {
  at::Tensor result = all.front();
  for (size_t i = 1; i < all.size(); ++i) {
    if (op == ReduceOp::BitAnd) result = result.bitwise_and(all[i]);
    if (op == ReduceOp::BitOr) result = result.bitwise_or(all[i]);
    if (op == ReduceOp::BitXor) result = result.bitwise_xor(all[i]);
  }
  return result;
}

at::Tensor reduced(const std::vector<int64_t>& shape, at::ScalarType type, ReduceOp op) {
  std::vector<at::Tensor> all;
  for (int r = 0; r < size(); ++r) all.push_back(values_of(shape, type, r).to(at::kLong));
  const at::Tensor stacked = at::stack(all);
  switch (op) {
    case ReduceOp::Sum:
      return type == at::kBool ? stacked.sum(0).gt(0) : stacked.sum(0).to(type);
    case ReduceOp::Average: {
      const at::Tensor mean = stacked.sum(0).to(at::kDouble) / size();
      return at::isIntegralType(type, false) ? mean.trunc().to(type) : mean.to(type);
    }
    case ReduceOp::Min:
      return std::get<0>(stacked.min(0)).to(type);
    case ReduceOp::Max:
      return std::get<0>(stacked.max(0)).to(type);
    case ReduceOp::Product:
      return stacked.prod(0).to(type);
    default:  // Adasum has tests of its own
      return folded(all, op).to(type);
  }
}

bool exists(at::ScalarType type, ReduceOp op) {
  if (is_bitwise(op)) return at::isIntegralType(type, /*includeBool=*/true);
  return type != at::kBool || op != ReduceOp::Average;
}

double tolerance_of(at::ScalarType type, ReduceOp op) {
  if (op != ReduceOp::Average || !at::isFloatingType(type)) return 0;
  if (type == at::kHalf) return 1e-3;
  return type == at::kBFloat16 ? 8e-3 : 1e-6;
}

TEST(Allreduce, EveryTypeOpAndShape) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& shape : kShapes) {
      for (int op = 0; op < static_cast<int>(ReduceOp::Adasum); ++op) {
        const auto reduce = static_cast<ReduceOp>(op);
        if (!exists(type, reduce)) continue;
        SCOPED_TRACE(testing::Message()
                     << type << " " << at::IntArrayRef(shape) << " " << to_string(reduce));
        const at::Tensor mine = values_of(shape, type, rank());
        at::Tensor in_place = mine.clone();
        const at::Tensor want = reduced(shape, type, reduce);
        expect_equal(allreduce(mine, {.op = reduce}), want, tolerance_of(type, reduce));
        expect_equal(mine, values_of(shape, type, rank()));
        const void* before = in_place.data_ptr();
        expect_equal(allreduce_(in_place, {.op = reduce}), want, tolerance_of(type, reduce));
        EXPECT_EQ(in_place.data_ptr(), before);
      }
    }
  }
}

TEST(Allreduce, ScalesBeforeAndAfter) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor got = allreduce(values_of({9}, type, rank()),
                                     {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 4.0});
    expect_equal(got, (reduced({9}, at::kDouble, ReduceOp::Sum) * 2).to(type));
  }
}

// 16-bit sums that would be lost if they were rounded at each step: 2048 + 1 has no half.
TEST(Allreduce, SumsHalvesInFloat) {
  const double own = rank() == 0 ? 2048 : 1;
  const at::Tensor got = allreduce(at::full({5}, own, at::kHalf), {.op = ReduceOp::Sum});
  expect_equal(got, at::full({5}, 2048.0 + (size() - 1), at::kFloat).to(at::kHalf));
}

TEST(Allreduce, AnyStrides) {
  const at::Tensor want = reduced({4, 6}, at::kFloat, ReduceOp::Sum);
  const at::Tensor mine = values_of({4, 6}, at::kFloat, rank());
  // Ranks may differ in their layouts.
  at::Tensor transposed = rank() % 2 == 0 ? mine.t().contiguous().t() : mine.clone();
  expect_equal(allreduce(transposed, {.op = ReduceOp::Sum}), want);
  allreduce_(transposed, {.op = ReduceOp::Sum});
  expect_equal(transposed, want);

  at::Tensor frame = at::full({8, 12}, 77.0);
  at::Tensor window = frame.slice(0, 1, 8, 2).slice(1, 0, 12, 2);
  window.copy_(mine);
  allreduce_(window, {.op = ReduceOp::Sum});
  expect_equal(window, want);
  EXPECT_EQ(frame.sum().item<double>(), want.sum().item<double>() + 77.0 * (96 - 24));

  at::Tensor image =
      values_of({2, 3, 4, 5}, at::kFloat, rank()).contiguous(at::MemoryFormat::ChannelsLast);
  const auto strides = image.strides().vec();
  allreduce_(image, {.op = ReduceOp::Sum});
  EXPECT_EQ(image.strides(), at::IntArrayRef(strides));
  expect_equal(image, reduced({2, 3, 4, 5}, at::kFloat, ReduceOp::Sum));

  const at::Tensor expanded = at::full({1}, double(rank())).expand({6});
  expect_equal(allreduce(expanded, {.op = ReduceOp::Sum}),
               at::full({6}, size() * (size() - 1) / 2.0));

  const at::Tensor negated = at::imag(at::complex(mine, mine).conj());
  ASSERT_TRUE(negated.is_neg());
  expect_equal(allreduce(negated, {.op = ReduceOp::Sum}), -want);
}

TEST(Allreduce, RefusesWhatItCannotDo) {
  at::Tensor good = at::ones({2});
  at::Tensor undefined;
  at::Tensor flags = at::ones({2}, at::kBool);
  at::Tensor whole = at::ones({2}, at::kInt);
  const auto refusal = [](const at::Tensor& tensor, AllreduceOptions options) {
    options.name = "weight";
    return error_of([&] { allreduce(tensor, options); });
  };
  const auto says = [](const char* why) {
    return AllOf(StartsWith("invalid argument"), HasSubstr("\"weight\""), HasSubstr(why));
  };
  EXPECT_THAT(refusal(undefined, {}), says("undefined"));
  EXPECT_THAT(refusal(at::ones({2, 2}).to_sparse(), {}), says("Sparse"));
  EXPECT_THAT(refusal(at::empty({2}, at::device(at::kMeta)), {}), says("meta"));
  EXPECT_THAT(refusal(at::empty({2}, at::kUInt16), {}), says("UInt16"));
  EXPECT_THAT(refusal(flags, {.op = ReduceOp::Average}), says("bool"));
  EXPECT_THAT(refusal(whole, {.prescale = 0.5}), says("int32"));
  EXPECT_THAT(refusal(good, {.postscale = NAN}), says("finite"));
  at::Tensor expanded = at::ones({1}).expand({3});
  EXPECT_THAT(error_of([&] { allreduce_(expanded, {.name = "weight"}); }), says("expanded"));
  EXPECT_THAT(error_of([] { Handle().wait(); }), StartsWith("invalid argument"));
  expect_equal(allreduce(good, {.op = ReduceOp::Sum}), at::full({2}, double(size())));
}

TEST(Allreduce, WritesAreSeenByAutogradAndResultsHaveNoHistory) {
  at::Tensor x = at::ones({3}).requires_grad_(true);
  EXPECT_FALSE(allreduce(x, {.op = ReduceOp::Sum}).requires_grad());
  at::Tensor saved = at::ones({3});
  at::Tensor y = (x * saved).sum();
  const auto version = saved._version();
  allreduce_(saved);
  EXPECT_GT(saved._version(), version);
  EXPECT_THROW(y.backward(), c10::Error);
}

// The last rank's call differs from the others: every rank must learn the tensor, the ranks and
// both values, and go on.
class Mismatch : public testing::Test {
 protected:
  void SetUp() override {
    if (size() == 1) GTEST_SKIP() << "needs two ranks";
  }
  void TearDown() override {
    if (size() > 1)
      expect_equal(allreduce(at::ones({2}), {.op = ReduceOp::Sum}), at::full({2}, double(size())));
  }
  bool odd() const { return rank() == size() - 1; }
  static void expect_mismatch(const Handle& handle, const char* one, const char* other) {
    EXPECT_THAT(error_of([&] { handle.wait(); }),
                AllOf(StartsWith("mismatch"), HasSubstr("tensor \"it"),
                      testing::ContainsRegex(std::string(one) + " on ranks? 0"),
                      HasSubstr(other + (" on rank " + std::to_string(size() - 1)))));
    EXPECT_TRUE(handle.poll());
    EXPECT_THAT(error_of([&] { handle.wait(); }), StartsWith("mismatch"));
  }
};

TEST_F(Mismatch, Shape) {
  expect_mismatch(allreduce_async(odd() ? at::ones({3, 2}) : at::ones({2, 3}), {.name = "it"}),
                  R"(\[2, 3\])", "[3, 2]");
}
TEST_F(Mismatch, Dtype) {
  expect_mismatch(allreduce_async(at::ones({2}, odd() ? at::kDouble : at::kFloat), {.name = "it"}),
                  "float32", "float64");
}
TEST_F(Mismatch, Op) {
  expect_mismatch(
      allreduce_async(at::ones({2}), {.name = "it", .op = odd() ? ReduceOp::Min : ReduceOp::Sum}),
      "Sum", "Min");
}
TEST_F(Mismatch, Scale) {
  expect_mismatch(allreduce_async(at::ones({2}), {.name = "it", .prescale = odd() ? 0.5 : 0.25}),
                  "0.25", "0.5");
}
TEST_F(Mismatch, Root) {
  expect_mismatch(broadcast_async(at::ones({2}), {.name = "it", .root = odd() ? 1 : 0}), "root: 0",
                  "1");
}
TEST_F(Mismatch, Kind) {
  expect_mismatch(odd() ? broadcast_async(at::ones({2}), {.name = "it"})
                        : allreduce_async(at::ones({2}), {.name = "it"}),
                  "allreduce", "broadcast");
}
TEST_F(Mismatch, RowsOfAllgather) {
  expect_mismatch(allgather_async(at::ones({4, odd() ? 2 : 3}), {.name = "it"}), R"(\[\*, 3\])",
                  "[*, 2]");
}
TEST_F(Mismatch, RowsWithoutElements) {
  expect_mismatch(allgather_async(at::ones({4, odd() ? 3 : 0}), {.name = "it"}),
                  R"(\(rows of shape \[0\]\))", ", a plain allgather");
}

TEST(Refusal, OfOneRankReachesTheOthersAndTheNameWorksAgain) {
  const at::Tensor wrong = at::ones({2}, at::kBool);
  const at::Tensor right = at::ones({2});
  const int guilty = size() - 1;
  try {
    allreduce(rank() == guilty ? wrong : right, {.name = "refused", .op = ReduceOp::Average});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("average of bool is not defined"));
    if (rank() != guilty) {
      EXPECT_THAT(error.what(), testing::HasSubstr("refused on rank " + std::to_string(guilty)));
    }
  }
  const at::Tensor sum = allreduce(right, {.name = "refused", .op = ReduceOp::Sum});
  EXPECT_EQ(sum[0].item<float>(), static_cast<float>(size()));
}

TEST(Async, OrderMayDifferByRank) {
  constexpr int kCount = 40;
  std::vector<Handle> handles(kCount);
  for (int i = 0; i < kCount; ++i) {
    const int which = (rank() % 2 == 0 ? i + 11 * rank() : 2 * kCount - 1 - i) % kCount;
    const std::string name = "order." + std::to_string(which);
    handles[which] = allreduce_async(at::full({which * 50}, double(which + rank())),
                                     {.name = name, .op = ReduceOp::Sum});
  }
  for (int i = 0; i < kCount; ++i) {
    expect_equal(handles[i].wait(),
                 at::full({i * 50}, double(size() * i + size() * (size() - 1) / 2)));
    EXPECT_TRUE(handles[i].poll());
  }
}

TEST(Async, TimeoutDoesNotEndTheCollective) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  Handle handle;
  if (rank() == 0) {
    handle = allreduce_async(at::ones({4}), {.name = "late", .op = ReduceOp::Sum});
    EXPECT_FALSE(handle.poll());
    EXPECT_THAT(error_of([&] { handle.wait(std::chrono::milliseconds(20)); }),
                AllOf(StartsWith("timeout"), HasSubstr("\"late\"")));
    EXPECT_THAT(error_of([&] { allreduce(at::ones({4}), {.name = "late"}); }),
                StartsWith("duplicate name"));
    EXPECT_THAT(error_of([&] { (void)allreduce_async(at::ones({4}), {.name = "late"}); }),
                AllOf(StartsWith("duplicate name"), HasSubstr("\"late\"")));
  }
  barrier();
  if (rank() != 0) handle = allreduce_async(at::ones({4}), {.name = "late", .op = ReduceOp::Sum});
  const Handle copy = handle;
  const at::Tensor result = copy.wait(std::chrono::minutes(1));
  expect_equal(result, at::full({4}, double(size())));
  EXPECT_TRUE(result.is_same(handle.wait()));
}

TEST(Async, HandlesNeedNotBeWaitedFor) {
  at::Tensor kept = at::ones({1000});
  allreduce_async_(kept, {.name = "dropped.in_place", .op = ReduceOp::Sum});
  for (int i = 0; i < 50; ++i) {
    allreduce_async(at::ones({1000}), {.name = "dropped." + std::to_string(i)});
    allgather_async(at::ones({10}), {.name = "dropped.rows." + std::to_string(i)});
  }
  // Batches run in the order in which they became complete: when the next one is done, so are the
  // earlier ones.
  barrier();
  allreduce(at::ones({1}), {.op = ReduceOp::Max});
  barrier();
  expect_equal(kept, at::full({1000}, double(size())));
}

TEST(Async, ManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 25; ++i) {
        // Some names come again, some do not.
        std::string name = "thread." + std::to_string(t);
        if (i % 2 == 0) name += "." + std::to_string(i);
        const at::Tensor got =
            allreduce(at::full({100}, double(t)), {.name = name, .op = ReduceOp::Max});
        expect_equal(got, at::full({100}, double(t)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Async, LargeOnesBesideSmallOnes) {
  const at::Tensor large = at::full({3'000'001}, 1.0 + rank());
  std::vector<Handle> handles{allreduce_async(large, {.op = ReduceOp::Sum})};
  for (int i = 0; i < 20; ++i)
    handles.push_back(allreduce_async(at::ones({i}), {.op = ReduceOp::Sum}));
  expect_equal(handles[0].wait(), at::full({3'000'001}, size() * (size() + 1) / 2.0));
  for (int i = 0; i < 20; ++i) expect_equal(handles[i + 1].wait(), at::full({i}, double(size())));
}

TEST(Broadcast, EveryTypeShapeAndRoot) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& shape : kShapes) {
      const int root = static_cast<int>(shape.size() + static_cast<size_t>(type)) % size();
      SCOPED_TRACE(testing::Message() << type << " " << at::IntArrayRef(shape) << " root " << root);
      at::Tensor mine = values_of(shape, type, rank());
      expect_equal(broadcast(mine, {.root = root}), values_of(shape, type, root));
      expect_equal(mine, values_of(shape, type, rank()));
      expect_equal(broadcast_(mine, {.root = root}), values_of(shape, type, root));
    }
  }
}

TEST(Broadcast, AnyStrides) {
  at::Tensor mine = at::full({4, 3}, double(rank())).t();
  broadcast_(mine, {.root = size() - 1});
  expect_equal(mine, at::full({3, 4}, double(size() - 1)));
}

TEST(Broadcast, RefusesARootThatIsNoRank) {
  for (const int root : {-1, size()}) {
    EXPECT_THAT(
        error_of([&] { broadcast(at::ones({1}), {.name = "b", .root = root}); }),
        AllOf(StartsWith("invalid argument"), HasSubstr("\"b\""), HasSubstr(std::to_string(root))));
  }
  barrier();
}

TEST(Allgather, EveryTypeWithUnevenRows) {
  for (const at::ScalarType type : kTypes) {
    SCOPED_TRACE(type);
    // Rank 0 has no row at all.
    std::vector<at::Tensor> want;
    for (int r = 0; r < size(); ++r) want.push_back(values_of({r, 2, 3}, type, r));
    expect_equal(allgather(values_of({rank(), 2, 3}, type, rank())), at::cat(want));
  }
}

TEST(Allgather, ScalarsBecomeRows) {
  expect_equal(allgather(at::scalar_tensor(double(rank()), at::kDouble)),
               at::arange(size(), at::kDouble));
}

TEST(Allgather, RowsWithoutElementsAreCounted) {
  const int64_t rows = int64_t{size()} * (size() + 1) / 2;
  EXPECT_EQ(allgather(at::ones({rank() + 1, 0})).sizes(), at::IntArrayRef({rows, 0}));
  EXPECT_EQ(allgather(at::ones({rank() + 1, 3, 0, 2})).sizes(), at::IntArrayRef({rows, 3, 0, 2}));
  EXPECT_EQ(allgather(at::ones({0, 4})).sizes(), at::IntArrayRef({0, 4}));
}

TEST(Allgather, AnyStrides) {
  const at::Tensor mine = at::full({2, 5}, double(rank())).t();
  const at::Tensor got = allgather(mine);
  ASSERT_EQ(got.sizes(), at::IntArrayRef({5 * size(), 2}));
  for (int r = 0; r < size(); ++r)
    expect_equal(got.slice(0, 5 * r, 5 * r + 5), at::full({5, 2}, double(r)));
}

TEST(Allgather, ResultOutlivesItsHandle) {
  at::Tensor got;
  {
    const Handle handle = allgather_async(at::full({7}, double(rank()), at::kInt));
    got = handle.wait();
    EXPECT_TRUE(got.is_same(handle.wait()));
  }
  got.add_(1);
  EXPECT_EQ(got.sum().item<int64_t>(), 7 * size() * (size() + 1) / 2);
}

}  // namespace
}  // namespace horon::collectives_test
