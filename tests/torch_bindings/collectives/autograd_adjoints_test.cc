// Gradients of collectives against one process that does the same with plain tensor functions on
// the inputs of all ranks: once, and twice for the derivative of the derivative.
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "horon/tests/torch_bindings/collectives/autograd_support.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/autograd.h"

namespace horon::autograd_adjoints_test {
namespace {

using testing_support::expect_close;
using testing_support::values;
using Tensors = std::vector<at::Tensor>;

// The loss that member `index` of the set computes from its result. It is another one on each rank,
// and not linear, so that the second derivative is not zero.
at::Tensor loss_of(const at::Tensor& y, int index) {
  const at::Tensor real = y.is_complex() ? at::view_as_real(y) : y;
  return (real.pow(3) * values(real.sizes().vec(), 10.0 + index)).sum();
}

struct Gradients {
  at::Tensor first;   // of the sum of all losses by the input
  at::Tensor second;  // of the sum of all squares of the first, each weighted its own way
};

at::Tensor second_loss(const at::Tensor& first, int index) {
  const at::Tensor real = first.is_complex() ? at::view_as_real(first) : first;
  return (real.pow(2) * values(real.sizes().vec(), 20.0 + index)).sum();
}

struct Case {
  std::function<at::Tensor(int index)> input;
  std::function<at::Tensor(const at::Tensor&)> collective;
  // The results of all members from the inputs of all.
  std::function<Tensors(const Tensors&)> model;
};

at::Tensor or_zeros(const at::Tensor& gradient, const at::Tensor& of) {
  return gradient.defined() ? gradient : at::zeros_like(of);
}

Gradients distributed(const Case& c, int index) {
  const at::Tensor x = c.input(index).requires_grad_(true);
  const at::Tensor loss = loss_of(c.collective(x), index);
  const at::Tensor first = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
  const at::Tensor second = torch::autograd::grad({second_loss(first, index)}, {x})[0];
  return {first.detach(), second};
}

Gradients modelled(const Case& c, int members, int index) {
  Tensors inputs;
  for (int r = 0; r < members; ++r) inputs.push_back(c.input(r).requires_grad_(true));
  const Tensors outputs = c.model(inputs);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int r = 0; r < members; ++r) loss = loss + loss_of(outputs[r], r);
  Tensors firsts = torch::autograd::grad({loss}, inputs, {}, true, true, true);
  at::Tensor squares = at::zeros({}, at::kDouble);
  for (int r = 0; r < members; ++r) {
    firsts[r] = or_zeros(firsts[r], inputs[r]);
    squares = squares + second_loss(firsts[r], r);
  }
  if (!squares.requires_grad()) return {firsts[index], at::zeros_like(inputs[index])};
  const Tensors seconds = torch::autograd::grad({squares}, inputs, {}, {}, false, true);
  return {firsts[index].detach(), or_zeros(seconds[index], inputs[index])};
}

void expect_gradients(const Case& c, const ProcessSet& set = {}) {
  if (!set.includes_me()) return;
  const Gradients got = distributed(c, set.rank());
  const Gradients want = modelled(c, set.size(), set.rank());
  expect_close(got.first, want.first);
  expect_close(got.second, want.second);
}

// All ranks; and if there are three, two sets that overlap.
class Adjoints : public testing::Test {
 protected:
  void for_each_set(const std::function<void(const ProcessSet&)>& check) {
    check({});
    if (size() < 3) return;
    std::vector<int> all_but_first;
    for (int r = 1; r < size(); ++r) all_but_first.push_back(r);
    for (const auto& ranks : {all_but_first, std::vector<int>{0, size() - 1}}) {
      SCOPED_TRACE(testing::PrintToString(ranks));
      const ProcessSet set = add_process_set(ranks);
      check(set);
      remove_process_set(set);
    }
  }
  void TearDown() override { barrier(); }
};

at::Tensor sum_of(const Tensors& all) { return at::stack(all).sum(0); }

TEST_F(Adjoints, Allreduce) {
  for_each_set([](const ProcessSet& set) {
    for (const auto type : {at::kDouble, at::kComplexDouble}) {
      for (const auto& shape : {std::vector<int64_t>{}, {0, 2}, {3, 2}}) {
        for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
          SCOPED_TRACE(testing::Message() << type << at::IntArrayRef(shape) << to_string(op));
          const double factor = 2.0 * 0.25 / (op == ReduceOp::Average ? set.size() : 1);
          const AllreduceOptions options{
              .op = op, .process_set = set, .prescale = 2.0, .postscale = 0.25};
          expect_gradients(
              {.input = [&](int r) { return values(shape, r, type); },
               .collective = [&](auto& x) { return autograd::allreduce(x, options); },
               .model = [&](auto& all) { return Tensors(all.size(), sum_of(all) * factor); }},
              set);
        }
      }
    }
  });
}

TEST_F(Adjoints, Broadcast) {
  for_each_set([](const ProcessSet& set) {
    for (const auto& shape : {std::vector<int64_t>{}, {0, 2}, {3, 2}}) {
      for (int root = 0; root < set.size(); ++root) {
        const BroadcastOptions options{.root = set.ranks()[root], .process_set = set};
        expect_gradients({.input = [&](int r) { return values(shape, r); },
                          .collective = [&](auto& x) { return autograd::broadcast(x, options); },
                          .model = [&](auto& all) { return Tensors(all.size(), all[root] * 1); }},
                         set);
      }
    }
  });
}

TEST_F(Adjoints, AllgatherOfUnevenRows) {
  for_each_set([](const ProcessSet& set) {
    for (const auto type : {at::kDouble, at::kComplexDouble}) {
      expect_gradients(
          {.input =
               [&](int r) {
                 return values({r, 2}, r, type);
               },
           .collective = [&](auto& x) { return autograd::allgather(x, {.process_set = set}); },
           .model = [&](auto& all) { return Tensors(all.size(), at::cat(all)); }},
          set);
      expect_gradients(
          {.input = [&](int r) { return values({}, r, type); },
           .collective = [&](auto& x) { return autograd::allgather(x, {.process_set = set}); },
           .model = [&](auto& all) { return Tensors(all.size(), at::stack(all)); }},
          set);
    }
  });
}

TEST_F(Adjoints, Reducescatter) {
  for_each_set([](const ProcessSet& set) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
      for (const bool uneven : {false, true}) {
        std::vector<int64_t> splits;
        for (int r = 0; r < set.size(); ++r) splits.push_back(uneven ? 2 * r : 2);
        int64_t rows = 0;
        for (const int64_t split : splits) rows += split;
        const double factor = 2.0 * 0.25 / (op == ReduceOp::Average ? set.size() : 1);
        ReducescatterOptions options{
            .op = op, .process_set = set, .prescale = 2.0, .postscale = 0.25};
        if (uneven) options.splits = splits;
        expect_gradients(
            {.input =
                 [&](int r) {
                   return values({rows, 3}, r);
                 },
             .collective = [&](auto& x) { return autograd::reducescatter(x, options); },
             .model = [&](auto& all) { return (sum_of(all) * factor).split_with_sizes(splits); }},
            set);
      }
    }
  });
}

// Rows that rank `from` sends to rank `to`.
int64_t rows_between(int from, int to) { return (2 * from + to) % 3; }

TEST_F(Adjoints, Alltoall) {
  for_each_set([](const ProcessSet& set) {
    const auto splits_of = [&](int r) {
      std::vector<int64_t> splits;
      for (int to = 0; to < set.size(); ++to) splits.push_back(rows_between(r, to));
      return splits;
    };
    const auto rows_of = [&](int r) {
      int64_t rows = 0;
      for (const int64_t split : splits_of(r)) rows += split;
      return rows;
    };
    expect_gradients(
        {.input =
             [&](int r) {
               return values({rows_of(r), 2}, r);
             },
         .collective =
             [&](auto& x) {
               const AlltoallResult result =
                   autograd::alltoall(x, {.process_set = set, .splits = splits_of(set.rank())});
               for (int from = 0; from < set.size(); ++from) {
                 EXPECT_EQ(result.received_splits.at(from), rows_between(from, set.rank()));
               }
               return result.tensor;
             },
         .model =
             [&](auto& all) {
               Tensors results;
               for (int to = 0; to < set.size(); ++to) {
                 Tensors blocks;
                 for (int from = 0; from < set.size(); ++from) {
                   blocks.push_back(all[from].split_with_sizes(splits_of(from))[to]);
                 }
                 results.push_back(at::cat(blocks));
               }
               return results;
             }},
        set);
  });
}

TEST_F(Adjoints, GatherAndScatter) {
  for_each_set([](const ProcessSet& set) {
    for (int root = 0; root < set.size(); ++root) {
      const int world_root = set.ranks()[root];
      for (const bool scalars : {false, true}) {
        expect_gradients({.input =
                              [&](int r) {
                                return scalars ? values({}, r) : values({r + 1, 2}, r);
                              },
                          .collective =
                              [&](auto& x) {
                                return autograd::gather(x,
                                                        {.root = world_root, .process_set = set});
                              },
                          .model =
                              [&](auto& all) {
                                const at::Tensor rows = scalars ? at::stack(all) : at::cat(all);
                                Tensors results(all.size(), rows.slice(0, 0, 0));
                                results[root] = rows;
                                return results;
                              }},
                         set);
      }
      std::vector<int64_t> splits;
      for (int r = 0; r < set.size(); ++r) splits.push_back(r + 1);
      const int64_t rows = int64_t{set.size()} * (set.size() + 1) / 2;
      expect_gradients(
          // The other members' inputs may have any length, and are not read.
          {.input =
               [&](int r) {
                 return values({r == root ? rows : r, 2}, r);
               },
           .collective =
               [&](auto& x) {
                 ScatterOptions options{.root = world_root, .process_set = set};
                 if (set.rank() == root) options.splits = splits;
                 return autograd::scatter(x, options);
               },
           .model = [&](auto& all) { return all[root].split_with_sizes(splits); }},
          set);
    }
  });
}

// The loss of image and text pairs, each rank having some of them.
TEST_F(Adjoints, ContrastiveLoss) {
  const auto logits = [](const at::Tensor& own, const at::Tensor& all) {
    return own.mm(all.t()).log_softmax(1);
  };
  Tensors inputs;
  Tensors losses;
  for (int r = 0; r < size(); ++r) inputs.push_back(values({r + 2, 3}, r).requires_grad_(true));
  for (const at::Tensor& input : inputs) losses.push_back(logits(input, at::cat(inputs)).sum());
  const at::Tensor want = torch::autograd::grad({sum_of(losses)}, {inputs[rank()]})[0];
  const at::Tensor mine = inputs[rank()].detach().clone().requires_grad_(true);
  logits(mine, autograd::allgather(mine)).sum().backward();
  expect_close(mine.grad(), want);
}

}  // namespace
}  // namespace horon::autograd_adjoints_test
