// Reducescatter, alltoall, gather, scatter, groups, complex types and compression against what each
// rank works out by itself.
#include <numeric>
#include <tuple>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"

namespace horon::block_collectives_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;
using testing_support::expect_equal;
using testing_support::kTensorTypes;
using testing_support::sum_of_all;
using testing_support::values_of;

int64_t first_row(const std::vector<int64_t>& splits, int r) {
  return std::accumulate(splits.begin(), splits.begin() + r, int64_t{0});
}

// How many rows go from one rank to another, sometimes none; the same formula everywhere.
int64_t rows_between(int from, int to) { return (from * 2 + to * 3) % 4; }

std::vector<int64_t> rows_from(int from) {
  std::vector<int64_t> rows;
  for (int to = 0; to < size(); ++to) rows.push_back(rows_between(from, to));
  return rows;
}

std::vector<int64_t> rows_to(int to) {
  std::vector<int64_t> rows;
  for (int from = 0; from < size(); ++from) rows.push_back(rows_between(from, to));
  return rows;
}

at::Tensor input_of(int from, at::ScalarType type) {
  return values_of({first_row(rows_from(from), size()), 3}, type, from);
}

TEST(Reducescatter, EveryTypeWithUnevenRows) {
  for (const at::ScalarType type : kTensorTypes) {
    SCOPED_TRACE(type);
    for (const int64_t rows : {0, 1, 5, 8}) {
      const std::vector<int64_t> splits = core::even_splits(rows, size());
      const at::Tensor want =
          sum_of_all({rows, 2}, type)
              .slice(0, first_row(splits, rank()), first_row(splits, rank() + 1));
      expect_equal(reducescatter(values_of({rows, 2}, type, rank()), {.op = ReduceOp::Sum}), want);
    }
  }
}

TEST(Reducescatter, GivenSplitsScalesAndOps) {
  std::vector<int64_t> splits;
  for (int r = 0; r < size(); ++r) splits.push_back(r == 1 ? 0 : 2 * r + 1);
  const int64_t rows = first_row(splits, size());
  const at::Tensor x = values_of({rows, 3}, at::kFloat, rank());
  const at::Tensor all = allreduce(x, {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 4});
  expect_equal(
      reducescatter(x, {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 4, .splits = splits}),
      all.slice(0, first_row(splits, rank()), first_row(splits, rank() + 1)));
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    expect_equal(
        reducescatter(x, {.op = op, .splits = splits}),
        allreduce(x, {.op = op}).slice(0, first_row(splits, rank()), first_row(splits, rank() + 1)),
        1e-6);
  }
}

TEST(Alltoall, EveryTypeWithUnevenSplits) {
  for (const at::ScalarType type : kTensorTypes) {
    SCOPED_TRACE(type);
    std::vector<at::Tensor> want;
    for (int from = 0; from < size(); ++from) {
      const int64_t begin = first_row(rows_from(from), rank());
      want.push_back(input_of(from, type).slice(0, begin, begin + rows_between(from, rank())));
    }
    const AlltoallResult got = alltoall(input_of(rank(), type), {.splits = rows_from(rank())});
    expect_equal(got.tensor, at::cat(want));
    EXPECT_EQ(got.received_splits, rows_to(rank()));
  }
}

TEST(Alltoall, EqualSplitsNeedNotBeGiven) {
  const at::Tensor x = at::arange(size() * 2, at::kLong) + 100 * rank();
  std::vector<at::Tensor> want;
  for (int from = 0; from < size(); ++from) {
    want.push_back(at::arange(2 * rank(), 2 * rank() + 2, at::kLong) + 100 * from);
  }
  expect_equal(alltoall(x).tensor, at::cat(want));
  expect_equal(alltoall(at::ones({2 * size(), 0})).tensor, at::ones({2 * size(), 0}));
}

TEST(Gather, OnlyTheRootGetsRows) {
  for (const at::ScalarType type : kTensorTypes) {
    for (int root = 0; root < size(); ++root) {
      std::vector<at::Tensor> all;
      for (int r = 0; r < size(); ++r) all.push_back(values_of({r, 2}, type, r));
      const at::Tensor got = gather(values_of({rank(), 2}, type, rank()), {.root = root});
      expect_equal(got, rank() == root ? at::cat(all) : values_of({0, 2}, type, 0));
    }
  }
  expect_equal(gather(at::scalar_tensor(double(rank()), at::kDouble)),
               rank() == 0 ? at::arange(size(), at::kDouble) : at::empty({0}, at::kDouble));
}

TEST(Scatter, OfTheRootsRows) {
  for (const at::ScalarType type : kTensorTypes) {
    for (int root = 0; root < size(); ++root) {
      const at::Tensor whole = input_of(root, type);
      const std::vector<int64_t> splits = rows_from(root);
      const int64_t begin = first_row(splits, rank());
      ScatterOptions options{.root = root};
      if (rank() == root) options.splits = splits;
      const at::Tensor mine = rank() == root ? whole : values_of({rank(), 3}, type, 0);
      expect_equal(scatter(mine, options), whole.slice(0, begin, begin + splits[rank()]));
    }
  }
}

TEST(Splits, ThatCantBeAreRefusedOnEveryRank) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  const bool guilty = rank() == 1;
  const at::Tensor x = at::ones({size(), 2});
  std::vector<int64_t> good(static_cast<size_t>(size()), 1);
  std::vector<int64_t> bad = good;
  ++bad.back();
  EXPECT_THAT(error_of([&] { alltoall(x, {.name = "a2a", .splits = guilty ? bad : good}); }),
              AllOf(StartsWith("invalid argument"), HasSubstr("tensor \"a2a\""),
                    HasSubstr("add up to " + std::to_string(size() + 1))));
  EXPECT_THAT(error_of([&] {
                alltoall(x, {.name = "a2a", .splits = guilty ? std::vector<int64_t>{1} : good});
              }),
              size() == 2 ? HasSubstr("for 2 ranks") : HasSubstr("give one for each rank"));
  EXPECT_THAT(error_of([&] { alltoall(at::ones({size() + (guilty ? 1 : 0)}), {.name = "a2a"}); }),
              HasSubstr("is not divisible by the"));
  EXPECT_THAT(error_of([&] { reducescatter(x, {.name = "rs", .splits = guilty ? bad : good}); }),
              HasSubstr("add up to"));
  std::vector<int64_t> other(static_cast<size_t>(size()), 0);
  other.front() = size();
  EXPECT_THAT(error_of([&] { reducescatter(x, {.name = "rs", .splits = guilty ? other : good}); }),
              AllOf(StartsWith("mismatch"), HasSubstr("disagree about the splits"),
                    HasSubstr("on rank 1")));
  EXPECT_THAT(error_of([&] { reducescatter(at::scalar_tensor(1.0)); }), HasSubstr("is a scalar"));
  EXPECT_THAT(error_of([&] { gather(x, {.name = "g", .root = guilty ? 99 : 0}); }),
              HasSubstr("root 99 is not in the process set"));
  expect_equal(alltoall(x, {.name = "a2a"}).tensor, x);
}

// -- groups ---------------------------------------------------------------------------------------

TEST(Group, AllreduceOfManyShapes) {
  const std::vector<std::vector<int64_t>> shapes{{}, {0}, {3}, {2, 5}, {70001}};
  for (const at::ScalarType type : {at::kFloat, at::kLong, at::kBFloat16, at::kComplexFloat}) {
    Tensors mine;
    for (const auto& shape : shapes) mine.push_back(values_of(shape, type, rank()));
    const Tensors got = grouped_allreduce(mine, {.op = ReduceOp::Sum});
    grouped_allreduce_(mine, {.op = ReduceOp::Sum});
    for (size_t i = 0; i < shapes.size(); ++i) {
      expect_equal(got[i], sum_of_all(shapes[i], type));
      expect_equal(mine[i], got[i]);
    }
  }
}

TEST(Group, EveryKind) {
  const Tensors mine{values_of({rank(), 2}, at::kInt, rank()), values_of({2, 0}, at::kInt, 0),
                     values_of({3}, at::kInt, rank() + 1)};
  const Tensors rows = grouped_allgather(mine);
  std::vector<at::Tensor> first;
  std::vector<at::Tensor> third;
  for (int r = 0; r < size(); ++r) {
    first.push_back(values_of({r, 2}, at::kInt, r));
    third.push_back(values_of({3}, at::kInt, r + 1));
  }
  expect_equal(rows[0], at::cat(first));
  expect_equal(rows[1], values_of({2 * size(), 0}, at::kInt, 0));
  expect_equal(rows[2], at::cat(third));

  const int root = size() - 1;
  const Tensors gathered = grouped_gather(mine, {.root = root});
  expect_equal(gathered[0], rank() == root ? at::cat(first) : values_of({0, 2}, at::kInt, 0));
  const Tensors same =
      grouped_broadcast({at::full({3}, rank()), at::full({2, 2}, 7 * rank())}, {.root = root});
  expect_equal(same[1], at::full({2, 2}, 7 * root));

  const Tensors pair{values_of({5, 2}, at::kDouble, rank()), values_of({4}, at::kDouble, rank())};
  const Tensors parts = grouped_reducescatter(pair, {.op = ReduceOp::Sum});
  expect_equal(parts[0], reducescatter(pair[0], {.op = ReduceOp::Sum}));
  expect_equal(parts[1], reducescatter(pair[1], {.op = ReduceOp::Sum}));

  const Tensors all{input_of(rank(), at::kLong), input_of(rank(), at::kLong) * 2};
  const Tensors swapped = grouped_alltoall(all, {.splits = rows_from(rank())});
  expect_equal(swapped[1], alltoall(all[1], {.splits = rows_from(rank())}).tensor);
  expect_equal(swapped[0] * 2, swapped[1]);

  const Tensors scattered = grouped_scatter(
      {values_of({5, 2}, at::kFloat, 3), values_of({7}, at::kFloat, 4)}, {.root = root});
  expect_equal(scattered[1], scatter(values_of({7}, at::kFloat, 4), {.root = root}));
}

TEST(Group, MayBeSubmittedInAnyOrder) {
  std::vector<GroupHandle> handles(6);
  for (int i = 0; i < 6; ++i) {
    const int which = (i + rank() * 2) % 6;
    handles[static_cast<size_t>(which)] =
        grouped_allreduce_async({at::full({3}, which), at::full({9000}, which)},
                                {.name = "group " + std::to_string(which), .op = ReduceOp::Max});
  }
  for (int i = 0; i < 6; ++i) {
    expect_equal(handles[static_cast<size_t>(i)].wait()[1], at::full({9000}, i));
  }
}

TEST(Group, FailsAsOne) {
  EXPECT_THAT(error_of([] {
                grouped_allreduce({at::ones({2}), at::ones({2}, at::kLong)});
              }),
              AllOf(HasSubstr("tensor 1 of the group is int64, but the first is float32"),
                    HasSubstr("one dtype")));
  EXPECT_THAT(error_of([] { grouped_allreduce({}); }), HasSubstr("the group has no tensors"));
  if (size() == 1) return;
  Tensors tensors(rank() == 1 ? 3 : 2, at::ones({2}));
  EXPECT_THAT(
      error_of([&] { grouped_allreduce(tensors, {.name = "trio"}); }),
      AllOf(StartsWith("mismatch"), HasSubstr("number of tensors"), HasSubstr("3 on rank 1")));
}

// -- strides ------------------------------------------------------------------------------------

// The same values in another order of memory: results are the same, and row-major.
TEST(Strides, EveryKindTakesAnyLayout) {
  for (const at::ScalarType type : {at::kFloat, at::kLong, at::kBool, at::kComplexDouble}) {
    const int64_t rows = 2 * size();
    const at::Tensor plain = values_of({rows, 3, 2, 2}, type, rank());
    at::Tensor wide = at::zeros({rows, 3, 2, 4}, plain.options());
    wide.slice(3, 0, 4, 2).copy_(plain);
    for (const at::Tensor& strided :
         {plain.to(at::MemoryFormat::ChannelsLast), wide.slice(3, 0, 4, 2),
          plain.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2})}) {
      const auto same = [](const at::Tensor& got, const at::Tensor& want) {
        expect_equal(got, want);
        EXPECT_TRUE(got.is_contiguous());
      };
      same(allreduce(strided, {.op = ReduceOp::Sum}), allreduce(plain, {.op = ReduceOp::Sum}));
      same(broadcast(strided), broadcast(plain));
      same(allgather(strided), allgather(plain));
      same(reducescatter(strided, {.op = ReduceOp::Sum}),
           reducescatter(plain, {.op = ReduceOp::Sum}));
      same(alltoall(strided).tensor, alltoall(plain).tensor);
      same(gather(strided), gather(plain));
      same(scatter(strided), scatter(plain));
      at::Tensor in_place = strided.clone(at::MemoryFormat::Preserve);
      grouped_broadcast(Tensors{in_place, plain});
      Tensors group{in_place, plain.clone()};
      grouped_allreduce_(group, {.op = ReduceOp::Sum});
      expect_equal(in_place, group[1]);
    }
  }
}

// -- types ----------------------------------------------------------------------------------------

TEST(Complex, SumsAveragesAndMovesData) {
  const at::Tensor x = values_of({4, 3}, at::kComplexFloat, rank());
  expect_equal(allreduce(x, {.op = ReduceOp::Sum}), sum_of_all({4, 3}, at::kComplexFloat));
  // A lazily conjugated and transposed tensor, in place.
  at::Tensor flipped = values_of({3, 4}, at::kComplexFloat, rank()).t().conj();
  const at::Tensor want = sum_of_all({3, 4}, at::kComplexFloat).t().conj().resolve_conj();
  allreduce_(flipped, {.op = ReduceOp::Sum});
  expect_equal(flipped.resolve_conj(), want);
  expect_equal(broadcast(x), values_of({4, 3}, at::kComplexFloat, 0));
  EXPECT_THAT(error_of([&] { allreduce(x, {.op = ReduceOp::Max}); }), HasSubstr("is complex"));
}

// LibTorch's tensors that stand for zeros and have no memory: they arrive as zeros that have.
TEST(ZeroTensors, AreReadAndNotWritten) {
  for (const at::ScalarType type : {at::kFloat, at::kComplexFloat}) {
    const at::Tensor none = at::_efficientzerotensor({size()}, at::TensorOptions(type));
    const at::Tensor zeros = at::zeros({size()}, type), ones = at::ones({size()}, type);
    expect_equal(allreduce(rank() == 0 ? none : ones, {.op = ReduceOp::Sum}), ones * (size() - 1));
    expect_equal(broadcast(rank() == 0 ? none : ones), zeros);
    expect_equal(allgather(none), at::zeros({size() * size()}, type));
    expect_equal(alltoall(none).tensor, zeros);
    expect_equal(reduce(none, {.op = ReduceOp::Sum}),
                 rank() == 0 ? zeros : at::empty({0}, zeros.options()));
    expect_equal(grouped_allreduce({none, ones}, {.op = ReduceOp::Sum})[0], zeros);
    const std::string why = "is a ZeroTensor, which has no memory of its own";
    EXPECT_THAT(error_of([&] { allreduce_(none); }), HasSubstr(why));
    EXPECT_THAT(error_of([&] { broadcast_(none); }), HasSubstr(why));
  }
}

TEST(Compression, RoundsWhatTravelsAndSumsInFloat) {
  // 1 + 2^-9 is no float16 sum of itself with 1024 others, but it is if sums are made in float32.
  const at::Tensor x = at::arange(5000).to(at::kFloat).remainder(300) + rank();
  for (const Compression type : {Compression::Float16, Compression::BFloat16}) {
    const at::ScalarType half = type == Compression::Float16 ? at::kHalf : at::kBFloat16;
    at::Tensor sum = at::zeros({5000});
    for (int r = 0; r < size(); ++r) {
      sum += (at::arange(5000).to(at::kFloat).remainder(300) + r).to(half).to(at::kFloat);
    }
    const at::Tensor want = sum.to(half).to(at::kFloat);
    expect_equal(allreduce(x, {.op = ReduceOp::Sum, .compression = type}), want);
    at::Tensor in_place = x.clone();
    expect_equal(allreduce_(in_place, {.op = ReduceOp::Sum, .compression = type}), want);
    // Scales are applied in float32: 1e6 would be no float16.
    const at::Tensor large = at::full({10}, 1e6);
    expect_equal(
        allreduce(
            large,
            {.op = ReduceOp::Average, .prescale = 1e-3, .postscale = 1e3, .compression = type}),
        large, 1e-2);
  }
  EXPECT_THAT(error_of([] {
                allreduce(at::ones({2}, at::kDouble), {.compression = Compression::Float16});
              }),
              HasSubstr("compression is for allreduce of float32"));
}

at::Tensor own_rows(const at::Tensor& rows) {
  return rows.tensor_split(size())[static_cast<size_t>(rank())];
}

TEST(Compression, RowsOfAReducescatterAreThoseOfAnAllreduce) {
  const at::Tensor x = values_of({37, 3}, at::kFloat, rank()) / 7;
  const at::Tensor complex = at::view_as_complex(values_of({9, 2}, at::kFloat, rank()) / 3);
  for (const Compression type : {Compression::Float16, Compression::BFloat16}) {
    for (const auto& [op, prescale, postscale] :
         {std::tuple(ReduceOp::Sum, 1.0, 1.0), std::tuple(ReduceOp::Average, 0.5, 3.0),
          std::tuple(ReduceOp::Max, 1e-3, 1e6)}) {
      const AllreduceOptions whole{
          .op = op, .prescale = prescale, .postscale = postscale, .compression = type};
      ReducescatterOptions options{
          .op = op, .prescale = prescale, .postscale = postscale, .compression = type};
      const at::Tensor want = own_rows(allreduce(x, whole));
      expect_equal(reducescatter(x, options), want);
      options.output = at::full_like(want, -1);
      EXPECT_TRUE(reducescatter(x, options).is_same(options.output));
      expect_equal(options.output, want);
      options.output = at::Tensor();
      const std::vector<at::Tensor> group =
          grouped_reducescatter({x, x.slice(1, 1), x[0]}, options);
      expect_equal(group[0], want);
      expect_equal(group[1], want.slice(1, 1));
      expect_equal(group[2], own_rows(allreduce(x[0], whole)));
      expect_equal(reducescatter(at::empty({0, 4}), options), at::empty({0, 4}));
      expect_equal(reducescatter(at::empty({5, 0}), options), own_rows(at::empty({5, 0})));
      if (op == ReduceOp::Max) continue;
      expect_equal(reducescatter(complex, options), own_rows(allreduce(complex, whole)));
    }
  }
}

TEST(Compression, OfAReducescatterIsTheSameOnAllRanksAndTo16Bits) {
  const auto says = [](const at::Tensor& rows, const ReducescatterOptions& options) {
    return error_of([&] { (void)reducescatter(rows, options); });
  };
  const at::Tensor rows = at::ones({4});
  EXPECT_THAT(
      says(rows.to(at::kDouble), {.name = "d", .compression = Compression::Float16}),
      AllOf(HasSubstr("\"d\""), HasSubstr("can compress only float32"), HasSubstr("not float64")));
  EXPECT_THAT(says(rows, {.name = "i", .compression = Compression::Int8}), HasSubstr("int8"));
  EXPECT_THAT(says(rows, {.output = at::ones({7}), .compression = Compression::Float16}),
              HasSubstr("the output has 7 elements"));
  EXPECT_THAT(says(rows, {.name = "b", .op = ReduceOp::BitOr, .compression = Compression::Float16}),
              HasSubstr("is float32: BitAnd"));
  if (size() == 1) return;
  const bool first = rank() == 0;
  EXPECT_THAT(says(first ? rows : rows.to(at::kHalf),
                   {.name = "h", .compression = first ? Compression::Float16 : Compression::None}),
              AllOf(StartsWith("mismatch"), HasSubstr("float32 as float16")));
  EXPECT_THAT(
      says(rows, {.name = "c", .compression = first ? Compression::Float16 : Compression::None}),
      AllOf(StartsWith("mismatch"), HasSubstr("\"c\""), HasSubstr("float16")));
  EXPECT_THAT(
      says(rows, {.name = "p",
                  .prescale = first ? 0.5 : 0.500000001,
                  .compression = Compression::Float16}),
      AllOf(StartsWith("mismatch"), HasSubstr("prescale 0.5,"), HasSubstr("prescale 0.500000001")));
  expect_equal(reducescatter(rows, {.compression = Compression::Float16}), own_rows(rows));
}

}  // namespace
}  // namespace horon::block_collectives_test
