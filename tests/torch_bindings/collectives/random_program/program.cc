#include "horon/tests/torch_bindings/collectives/random_program/program.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

#include <ATen/ATen.h>

namespace horon::random_program {
namespace {

const std::vector<at::ScalarType> kTypes{
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,          at::kByte,
    at::kShort, at::kInt,    at::kLong, at::kBool,     at::kComplexDouble, at::kComplexFloat};
const std::vector<std::vector<int64_t>> kShapes{{},        {0},       {1},    {3},     {2, 5},
                                                {4, 0, 2}, {3, 1, 7}, {1031}, {20'011}};
const std::vector<std::vector<int64_t>> kRowShapes{{}, {1}, {3}, {2, 2}, {0}, {2, 0}, {401}};

const std::vector<CollectiveKind> kKinds{CollectiveKind::Allreduce,     CollectiveKind::Allreduce,
                                         CollectiveKind::Broadcast,     CollectiveKind::Allgather,
                                         CollectiveKind::Reducescatter, CollectiveKind::Alltoall,
                                         CollectiveKind::Gather,        CollectiveKind::Scatter};

class Maker {
 public:
  Maker(unsigned seed, int size) : random_(seed), size_(size) {
    std::vector<int> world(size);
    std::iota(world.begin(), world.end(), 0);
    sets_[0] = world;
  }

  Step step() {
    Step step;
    const int what = draw(20);
    if (what < 10) {
      step.kind = Step::Kind::Batch;
      const int count = 1 + draw(8);
      for (int i = 0; i < count; ++i) step.calls.push_back(call(true));
    } else if (what < 13) {
      step.kind = Step::Kind::Blocking;
      step.calls.push_back(call(draw(2) == 0));
    } else if (what < 15) {
      step.kind = Step::Kind::MakeSet;
      step.set = next_set_++;
      step.ranks = subset();
      sets_[step.set] = step.ranks;
    } else if (what == 15 && sets_.size() > 1) {
      step.kind = Step::Kind::RemoveSet;
      step.set = pick_set(1);
      sets_.erase(step.set);
    } else if (what == 16) {
      step.kind = Step::Kind::Duplicate;
      step.set = pick_set(0);
      step.calls.push_back(plain_call(step.set, CollectiveKind::Allreduce));
      step.calls[0].name = "duplicate." + std::to_string(step.calls[0].id);
    } else if (what == 17) {
      make_join(step);
    } else {
      step.kind = Step::Kind::Barrier;
      step.set = pick_set(0);
    }
    return step;
  }

 private:
  int draw(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  template <class List>
  const auto& pick(const List& list) {
    return list[draw(static_cast<int>(list.size()))];
  }

  std::vector<int> subset() {
    std::vector<int> ranks;
    for (int r = 0; r < size_; ++r) {
      if (draw(3) != 0) ranks.push_back(r);
    }
    if (ranks.empty()) ranks.push_back(draw(size_));
    return ranks;
  }

  // `from` 1: not the world.
  int pick_set(int from) {
    auto set = sets_.begin();
    std::advance(set, from + draw(static_cast<int>(sets_.size()) - from));
    return set->first;
  }

  Call call(bool named) { return call_on(draw(2) == 0 ? 0 : pick_set(0), named); }

  Call call_on(int set, bool named) {
    Call call = plain_call(set, pick(kKinds));
    if (named) call.name = "call." + std::to_string(call.id);
    // A wrong call has a name: the others may be waiting for it under one.
    if (named && call.ranks.size() > 1 && draw(8) == 0) add_fault(call);
    return call;
  }

  Call plain_call(int set, CollectiveKind kind) {
    Call call;
    call.id = next_id_++;
    call.kind = kind;
    call.set = set;
    call.ranks = sets_[set];
    call.grouped = draw(4) == 0;
    call.strided = draw(3) == 0;
    call.dtype = pick(kTypes);
    call.root = pick(call.ranks);
    const int parts = call.grouped ? 1 + draw(4) : 1;
    const bool rows = !(kind == CollectiveKind::Allreduce || kind == CollectiveKind::Broadcast);
    for (int i = 0; i < parts; ++i) call.shapes.push_back(pick(rows ? kRowShapes : kShapes));
    call.in_place = !rows && draw(2) == 0;
    if (core::reduces(kind)) choose_reduction(call);
    if (rows) choose_rows(call);
    return call;
  }

  void choose_reduction(Call& call) {
    call.op = static_cast<ReduceOp>(draw(static_cast<int>(ReduceOp::Adasum)));
    if (at::isComplexType(call.dtype)) call.op = static_cast<ReduceOp>(draw(2));
    const bool has_bits = at::isIntegralType(call.dtype, /*includeBool=*/true);
    if (is_bitwise(call.op) && !has_bits) call.op = ReduceOp::Max;
    if (call.dtype == at::kBool && call.op == ReduceOp::Average) call.op = ReduceOp::Sum;
    if (!at::isIntegralType(call.dtype, true) && draw(3) == 0) {
      call.prescale = 2;
      call.postscale = 0.5;
    }
    const bool has_adasum =
        call.kind == CollectiveKind::Allreduce && at::isFloatingType(call.dtype);
    if (has_adasum && draw(5) == 0) call.op = ReduceOp::Adasum;
  }

  void choose_rows(Call& call) {
    const size_t members = call.ranks.size();
    call.scalar = draw(5) == 0 &&
                  (call.kind == CollectiveKind::Allgather || call.kind == CollectiveKind::Gather);
    call.default_splits = draw(3) == 0;
    const int equal = draw(3);
    int64_t total = draw(9);
    for (size_t m = 0; m < members; ++m) {
      call.own_rows.push_back(draw(4));
      call.splits.push_back(draw(4));
      std::vector<int64_t>& to = call.matrix.emplace_back();
      for (size_t t = 0; t < members; ++t) to.push_back(call.default_splits ? equal : draw(3));
    }
    if (call.default_splits) call.splits = core::even_splits(total, static_cast<int>(members));
  }

  void add_fault(Call& call) {
    std::vector<Fault> faults{Fault::Shape, Fault::Dtype, Fault::Kind, Fault::Undefined};
    if (core::reduces(call.kind)) faults.push_back(Fault::Op);
    if (core::has_root(call.kind)) faults.push_back(Fault::Root);
    call.fault = pick(faults);
    call.guilty = pick(call.ranks);
    if (call.fault == Fault::Dtype) call.prescale = call.postscale = 1;
  }

  void make_join(Step& step) {
    step.kind = Step::Kind::Join;
    int most = 0;
    for (int r = 0; r < size_; ++r) {
      step.counts.push_back(draw(5));
      most = std::max(most, step.counts.back());
    }
    for (int i = 0; i < most; ++i) {
      Call call = plain_call(0, draw(3) == 0 ? CollectiveKind::Allgather  //
                                             : CollectiveKind::Allreduce);
      call.name = "join." + std::to_string(call.id);
      // Which ranks Adasum pairs depends on which have joined, too; with three ranks it makes no
      // difference.
      if (call.op == ReduceOp::Adasum && size_ > 3) call.op = ReduceOp::Sum;
      call.ranks.clear();
      for (int r = 0; r < size_; ++r) {
        if (step.counts[r] > i) call.ranks.push_back(r);
      }
      step.calls.push_back(std::move(call));
    }
  }

  std::mt19937 random_;
  const int size_;
  std::map<int, std::vector<int>> sets_;  // those that there are
  int next_set_ = 1;
  int next_id_ = 0;
};

std::string list(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return "[" + text + "]";
}

}  // namespace

size_t Call::member(int rank) const {
  return static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

std::vector<int64_t> Call::shape(size_t part, int rank) const {
  std::vector<int64_t> full = shapes[part];
  const size_t m = member(rank);
  const auto sum = [](const std::vector<int64_t>& of) {
    return std::accumulate(of.begin(), of.end(), int64_t{0});
  };
  switch (kind) {
    case CollectiveKind::Allgather:
    case CollectiveKind::Gather:
      if (scalar) return {};
      full.insert(full.begin(), own_rows[m] + static_cast<int64_t>(part % 2));
      break;
    case CollectiveKind::Scatter:  // only the root's rows are read
      full.insert(full.begin(), rank == root ? sum(splits) : static_cast<int64_t>(m));
      break;
    case CollectiveKind::Reducescatter:
      full.insert(full.begin(), sum(splits));
      break;
    case CollectiveKind::Alltoall:
      full.insert(full.begin(), sum(matrix[m]));
      break;
    default:
      break;
  }
  return full;
}

Program make_program(unsigned seed, int size, int steps) {
  Program program{seed, {}};
  Maker maker(seed, size);
  for (int i = 0; i < steps; ++i) program.steps.push_back(maker.step());
  return program;
}

std::string describe(const Call& call) {
  std::ostringstream out;
  out << (call.grouped ? "grouped " : "") << to_string(call.kind) << (call.in_place ? "_" : "")
      << " '" << call.name << "' " << call.dtype << " shapes";
  for (const auto& shape : call.shapes) out << " " << list(shape);
  out << " set " << call.set << " of " << call.ranks.size() << " ranks, root " << call.root;
  if (core::reduces(call.kind)) out << ", " << to_string(call.op) << " prescale " << call.prescale;
  out << ", splits " << (call.default_splits ? "by default " : "") << list(call.splits)
      << (call.strided ? ", strided" : "") << (call.scalar ? ", scalar" : "");
  if (call.fault != Fault::None) {
    out << ", fault " << static_cast<int>(call.fault) << " of rank " << call.guilty;
  }
  return std::move(out).str();
}

std::string describe(const Step& step) {
  static const char* const names[] = {"batch",   "blocking", "make set", "remove set",
                                      "barrier", "join",     "duplicate"};
  std::ostringstream out;
  out << names[static_cast<int>(step.kind)] << " on set " << step.set;
  for (const int r : step.ranks) out << " " << r;
  for (const int count : step.counts) out << " x" << count;
  for (const Call& call : step.calls) out << "\n      " << describe(call);
  return std::move(out).str();
}

}  // namespace horon::random_program
