// Reductions to one rank and of bits, results into memory of the caller's, and the queue of what
// has ended.
#include <new>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/no_memory.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/sparse_allreduce.h"

namespace horon::given_results_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::error_of;
using testing_support::error_without_memory;
using testing_support::expect_equal;
using testing_support::kTensorTypes;
using testing_support::NoMemory;
using testing_support::sum_of_all;
using testing_support::tells_of_rank_0;
using testing_support::values_of;

TEST(Reduce, EveryTypeShapeAndRoot) {
  for (const at::ScalarType type : kTensorTypes) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {0}, {7}, {2, 3, 5}}) {
      for (int root = 0; root < size(); ++root) {
        SCOPED_TRACE(testing::Message() << type << " " << at::IntArrayRef(shape) << " to " << root);
        const at::Tensor mine = values_of(shape, type, rank());
        const at::Tensor sum = sum_of_all(shape, type);
        const at::Tensor nothing = at::empty({0}, mine.options());
        expect_equal(reduce(mine, {.root = root, .op = ReduceOp::Sum}),
                     rank() == root ? sum : nothing);
        expect_equal(mine, values_of(shape, type, rank()));
        const at::Tensor in_place = mine.clone();
        expect_equal(reduce_(in_place, {.root = root, .op = ReduceOp::Sum}),
                     rank() == root ? sum : mine);
        expect_equal(in_place, rank() == root ? sum : mine);
      }
    }
  }
}

TEST(Reduce, OpsScalesAndStrides) {
  const int root = size() - 1;
  const at::Tensor strided = values_of({4, 6}, at::kDouble, rank()).t();
  const Handle mean = reduce_async(strided, {.root = root, .prescale = 2, .postscale = 0.5});
  const Handle most = reduce_async_(strided, {.root = root, .op = ReduceOp::Max});
  at::Tensor max = values_of({4, 6}, at::kDouble, 0).t();
  for (int r = 1; r < size(); ++r) max = max.maximum(values_of({4, 6}, at::kDouble, r).t());
  const at::Tensor average = mean.wait();
  (void)most.wait();
  if (rank() == root) {
    expect_equal(average, (sum_of_all({4, 6}, at::kDouble) / size()).t().contiguous(), 1e-12);
    expect_equal(strided.contiguous(), max.contiguous());
  }
}

TEST(Reduce, WhatTheRanksDisagreeAboutIsNamed) {
  const bool last = rank() == size() - 1;
  EXPECT_THAT(error_of([&] { reduce(at::ones({2}), {.name = "r", .root = last ? 1 : 0}); }),
              HasSubstr("disagree about the root: 0 on"));
  EXPECT_THAT(error_of([&] {
                reduce(last ? at::ones({2, 3}) : at::ones({3, 2}), {.name = "r"});
              }),
              AllOf(HasSubstr("shape [3, 2]) on"), HasSubstr("shape [2, 3]) on")));
  EXPECT_THAT(error_of([&] { reduce(at::ones({last ? 4 : 3}), {.name = "r"}); }),
              AllOf(HasSubstr("shape [3]) on"), HasSubstr("shape [4]) on")));
  EXPECT_THAT(error_of([&] { reduce(at::ones({2}), {.name = "r", .root = size()}); }),
              HasSubstr("is not in the process set"));
}

TEST(Refusal, FloatsHaveNoBitwiseReduction) {
  const auto refused = HasSubstr("BitAnd, BitOr and BitXor are for integers and bool");
  EXPECT_THAT(error_of([] { allreduce(at::ones({2}), {.name = "b", .op = ReduceOp::BitOr}); }),
              refused);
  EXPECT_THAT(error_of([] { reducescatter(at::ones({2}), {.name = "b", .op = ReduceOp::BitXor}); }),
              refused);
  EXPECT_THAT(error_of([] { reduce(at::ones({2}), {.name = "b", .op = ReduceOp::BitAnd}); }),
              refused);
}

TEST(Output, OfEveryKind) {
  const int n = size(), r = rank();
  const int64_t all_rows = int64_t{n} * (n + 1) / 2;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong, at::kComplexFloat}) {
    SCOPED_TRACE(type);
    const at::Tensor mine = values_of({r + 1, 3}, type, r);
    const at::Tensor want = allgather(mine);
    const at::Tensor all = at::zeros({all_rows, 3}, mine.options());
    EXPECT_EQ(allgather(mine, {.output = all}).data_ptr(), all.data_ptr());
    expect_equal(all, want);

    const at::Tensor on_root = at::zeros({r == 1 ? all_rows : 0, 3}, mine.options());
    const at::Tensor gathered = gather(mine, {.root = 1, .output = on_root});
    if (r == 1) expect_equal(on_root, want);
    EXPECT_EQ(gathered.size(0), on_root.size(0));

    const at::Tensor whole = values_of({2 * n, 2}, type, r);
    const at::Tensor share = at::zeros({2, 2}, mine.options());
    reducescatter(whole, {.op = ReduceOp::Sum, .output = share});
    expect_equal(share, reducescatter(whole, {.op = ReduceOp::Sum}));

    const at::Tensor from_all = at::zeros({2 * n, 2}, mine.options());
    const AlltoallResult exchanged = alltoall(whole, {.output = from_all});
    EXPECT_EQ(exchanged.tensor.data_ptr(), from_all.data_ptr());
    EXPECT_EQ(exchanged.received_splits, std::vector<int64_t>(static_cast<size_t>(n), 2));
    expect_equal(from_all, alltoall(whole).tensor);

    const at::Tensor part = at::zeros({2, 2}, mine.options());
    scatter(whole, {.output = part});
    expect_equal(part, values_of({2 * n, 2}, type, 0).slice(0, 2 * r, 2 * r + 2));
  }
}

// As sharded training gathers: what this rank gives is its own place in the result.
TEST(Output, TheInputMayBeAPartOfIt) {
  const at::Tensor all = at::zeros({size(), 4});
  const at::Tensor mine = all.narrow(0, rank(), 1);
  mine.fill_(rank() + 1);
  allgather(mine, {.output = all});
  for (int r = 0; r < size(); ++r) EXPECT_EQ(all[r].sum().item<float>(), 4.0F * (r + 1));
}

// As with arrays of NumPy, where each view becomes a tensor with a storage of its own.
TEST(Output, TheInputMayBeAPartOfItInAnotherStorage) {
  const int64_t share = 100'000;  // more than a message that is copied before it is sent
  std::vector<float> memory(static_cast<size_t>(share * size()));
  const at::Tensor whole = at::from_blob(memory.data(), {share * size()});
  const auto fill = [&] { whole.copy_(at::arange(whole.numel()).remainder(1000) + rank()); };
  fill();
  const at::Tensor sum = reducescatter(whole, {.op = ReduceOp::Sum});
  const int64_t begin = share * ((rank() + 1) % size());  // where the rows of the next rank are
  const at::Tensor mine = at::from_blob(memory.data() + begin, {share});
  reducescatter(whole, {.op = ReduceOp::Sum, .output = mine});
  expect_equal(mine, sum);
  fill();
  const at::Tensor gathered = allgather(mine);
  fill();
  expect_equal(allgather(mine, {.output = whole}), gathered);
}

TEST(Output, OfTheWrongSizeIsAnErrorHereAlone) {
  const bool wrong = rank() == 0;
  const at::Tensor all = at::zeros({wrong ? size() + 1 : size(), 2});
  const std::string error = error_of([&] { allgather(at::ones({1, 2}), {.output = all}); });
  if (wrong) {
    EXPECT_THAT(error, HasSubstr("rows, but the result has " + std::to_string(size())));
  } else {
    EXPECT_EQ(error, error_of([] {}));
    EXPECT_EQ(all.sum().item<float>(), 2.0F * size());
  }
}

// Of a result without elements nobody asks where it goes.
TEST(Output, WhereNoRowsComeMustHaveNone) {
  const bool wrong = rank() == 1;
  const at::Tensor rows = at::zeros({wrong || rank() == 0 ? size() : 0, 2});
  const Handle handle = gather_async(at::ones({1, 2}), {.output = rows});
  for (int i = 0; i < 2; ++i) {
    const std::string error = error_of([&] { (void)handle.wait(); });
    EXPECT_THAT(error, HasSubstr(wrong ? "rows, but the result has 0" : "no error"));
  }
}

TEST(Output, WhatCanNotBeWrittenIsRefused) {
  const auto error = [](const at::Tensor& output) {
    return error_of([&] { allgather(at::ones({1, 2}), {.name = "o", .output = output}); });
  };
  EXPECT_THAT(error(at::zeros({size(), 2}, at::kDouble)),
              HasSubstr("is Double, but the tensor is Float"));
  EXPECT_THAT(error(at::zeros({size(), 3})), HasSubstr("its rows must have the shape [2]"));
  EXPECT_THAT(error(at::zeros({2, size()}).t()), HasSubstr("is not row-major"));
  EXPECT_THAT(error(at::zeros({size(), 2}, at::kComplexFloat)), HasSubstr("is complex"));
}

TEST(Output, AGroupRefusesIt) {
  const at::Tensor x = at::ones({size(), 2});
  const at::Tensor all = at::zeros({size() * size(), 2});
  const auto refused = HasSubstr("`output` takes the result of one tensor");
  EXPECT_THAT(error_of([&] { grouped_allgather({x}, {.name = "g", .output = all}); }), refused);
  barrier();
  EXPECT_THAT(error_of([&] { grouped_reducescatter({x}, {.name = "g", .output = all}); }), refused);
  barrier();
  EXPECT_THAT(error_of([&] { grouped_alltoall({x}, {.name = "g", .output = all}); }), refused);
  barrier();
  EXPECT_THAT(error_of([&] { grouped_gather({x}, {.name = "g", .output = all}); }), refused);
  barrier();
  EXPECT_THAT(error_of([&] { grouped_scatter({x}, {.name = "g", .output = all}); }), refused);
  barrier();
  // One rank alone: the others learn it instead of waiting.
  const at::Tensor mine = rank() == 0 ? all : at::Tensor();
  EXPECT_THAT(error_of([&] { grouped_allgather({x}, {.name = "g", .output = mine}); }), refused);
}

TEST(Wait, HasTheResultAfterOneThatFoundNoMemory) {
  const at::Tensor few = values_of({2 * size()}, at::kFloat, rank());
  const at::Tensor many = values_of({1000 * size()}, at::kFloat, rank());
  const ReducescatterOptions sum{.op = ReduceOp::Sum, .compression = Compression::BFloat16};
  const GroupHandle handle = grouped_reducescatter_async({few, many}, sum);
  while (!handle.poll()) std::this_thread::yield();
  {
    const NoMemory no_memory;
    EXPECT_THROW((void)handle.wait(), std::bad_alloc);
  }
  const std::vector<at::Tensor> sums = handle.wait();
  ASSERT_EQ(sums.size(), 2);
  expect_equal(sums[0], reducescatter(few, {.op = ReduceOp::Sum}));
  expect_equal(sums[1], reducescatter(many, {.op = ReduceOp::Sum}));
}

TEST(Call, ACopyWithoutMemoryFailsOnAllRanks) {
  const at::Tensor turned = at::ones({size() * 40, 20}).t();
  const auto error_where = [](const auto& call) { return error_without_memory(call); };
  const auto of_rank_0 = tells_of_rank_0();
  EXPECT_THAT(error_where([&] { (void)allreduce(turned, {.name = "a"}); }), of_rank_0);
  EXPECT_THAT(error_where([&] { (void)allgather(turned, {.name = "b"}); }), of_rank_0);
  EXPECT_THAT(error_where([&] { (void)reduce(turned, {.name = "c"}); }), of_rank_0);
  const at::Tensor rows = at::ones({size() * 1000});
  const ReducescatterOptions narrow{.name = "d", .compression = Compression::Float16};
  EXPECT_THAT(error_where([&] { (void)reducescatter(rows, narrow); }), of_rank_0);
  const at::Tensor conjugated = at::ones({400}, at::kComplexFloat).conj();
  EXPECT_THAT(error_where([&] { (void)allreduce_(conjugated, {.name = "e"}); }), of_rank_0);
  expect_equal(allreduce(turned, {.name = "a"}), turned);
}

TEST(Refusal, OneElementInSeveralPlacesIsNotWritten) {
  const at::Tensor expanded = at::zeros({1}, at::kComplexFloat).expand({4});
  const auto refused = HasSubstr("several elements at one address");
  EXPECT_THAT(error_of([&] { allreduce_async_(expanded, {.name = "f"}); }), refused);
  EXPECT_THAT(error_of([&] { allreduce_async_(expanded.conj(), {.name = "g"}); }), refused);
  barrier();
}

TEST(Call, ASparseTensorWithoutMemoryFailsOnAllRanks) {
  const at::Tensor indices = at::arange(2000).fmod(1000).unsqueeze(0).to(at::kLong);
  const at::Tensor sparse = at::sparse_coo_tensor(indices, at::ones({2000}), {1000});
  const SparseAllreduceOptions sum{.name = "sparse", .op = ReduceOp::Sum};
  EXPECT_THAT(error_without_memory([&] { (void)sparse_allreduce(sparse, sum); }),
              tells_of_rank_0());
  const at::Tensor coalesced = sparse.coalesce();
  EXPECT_THAT(error_without_memory([&] { (void)sparse_allreduce(coalesced, sum); }),
              tells_of_rank_0());
  expect_equal(sparse_allreduce(sparse, sum).to_dense(), at::full({1000}, 2.0F * size()));
}

TEST(Call, BytesWithoutMemoryFailOnAllRanks) {
  const std::string bytes(2000, 'b');
  const std::vector<std::string> parts(static_cast<size_t>(size()), bytes);
  for (int root = 0; root < size(); ++root) {
    EXPECT_THAT(error_without_memory(
                    [&] { (void)broadcast_bytes(bytes, {.name = "broadcast", .root = root}); }),
                tells_of_rank_0());
    EXPECT_EQ(broadcast_bytes(rank() == root ? bytes : "", {.name = "broadcast", .root = root}),
              bytes);
  }
  EXPECT_THAT(error_without_memory([&] { (void)allgather_bytes(bytes, {.name = "allgather"}); }),
              tells_of_rank_0());
  EXPECT_EQ(allgather_bytes(bytes, {.name = "allgather"}), parts);
  EXPECT_THAT(error_without_memory([&] { (void)gather_bytes(bytes, {.name = "gather"}); }),
              tells_of_rank_0());
  EXPECT_EQ(gather_bytes(bytes, {.name = "gather"}).size(), rank() == 0 ? parts.size() : 0);
  EXPECT_THAT(error_without_memory([&] { (void)scatter_bytes(parts, {.name = "scatter"}); }),
              tells_of_rank_0());
  EXPECT_EQ(scatter_bytes(parts, {.name = "scatter"}), bytes);
}

TEST(ReduceInPlace, OnlyReadsElsewhereThanAtTheRoot) {
  const bool is_root = rank() == size() - 1;
  const at::Tensor x = is_root ? at::ones({3}) : at::ones({1}).expand({3});
  reduce_(x, {.root = size() - 1, .op = ReduceOp::Sum});
  expect_equal(x, at::full({3}, is_root ? double(size()) : 1.0));
}

// Made in inference mode, and reduced behind its end, also where results are copied back.
TEST(InferenceTensors, AreWrittenInPlace) {
  at::Tensor row, transposed;
  {
    const c10::InferenceMode inference;
    row = at::ones({3});
    transposed = at::ones({2, 3}).t();
  }
  const double sum = size();
  reduce_(row, {.root = size() - 1, .op = ReduceOp::Sum});
  expect_equal(row, at::full({3}, rank() == size() - 1 ? sum : 1.0));
  allreduce_(transposed, {.op = ReduceOp::Sum});
  expect_equal(transposed, at::full({3, 2}, sum));
  broadcast_(transposed, {.root = size() - 1});
  expect_equal(transposed, at::full({3, 2}, sum));
}

TEST(Completions, ATokenOfEachCallComesOut) {
  const auto queue = std::make_shared<CompletionQueue>();
  std::vector<Handle> handles;
  for (uint64_t i = 0; i < 50; ++i) {
    handles.push_back(allreduce_async(at::ones({2})));
    handles.back().notify(queue, i);
  }
  std::vector<int> seen(handles.size());
  for (size_t i = 0; i < handles.size(); ++i) ++seen[queue->next(std::nullopt).value()];
  EXPECT_EQ(seen, std::vector<int>(handles.size(), 1));
  for (const Handle& handle : handles) EXPECT_TRUE(handle.poll());
}

// A broadcast in place writes on the ranks that receive, and only there.
TEST(BroadcastInPlace, OnlyReadsAtTheRoot) {
  const bool is_root = rank() == size() - 1;
  const BroadcastOptions options = {.root = size() - 1};
  at::Tensor x = at::full({3}, rank() + 1.0).requires_grad_(true);
  at::Tensor saved = x.exp();  // its derivative is made of itself
  at::Tensor view = saved.detach();
  broadcast_(view, options);
  expect_equal(view, at::full({3}, double(size())).exp());
  if (is_root) {
    EXPECT_NO_THROW(saved.sum().backward());
  } else {
    EXPECT_THROW(saved.sum().backward(), c10::Error);
  }

  at::Tensor strided = is_root ? at::ones({1}).expand({3}) : at::zeros({6}).slice(0, 0, 6, 2);
  broadcast_(strided, options);
  expect_equal(strided, at::ones({3}));
}

}  // namespace
}  // namespace horon::given_results_test
