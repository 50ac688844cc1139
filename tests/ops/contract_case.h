// One allreduce of the contract suite: its memory on this rank, and what must be in it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/tests/ops/op_contract.h"
#include "horon/tests/ops/scalar_reference.h"

namespace horon::ops {

struct AllreduceCase {
  DataType dtype = DataType::Float32;
  ReduceOp op = ReduceOp::Sum;
  int64_t count = 0;
  bool in_place = true;
  bool registered = true;  // the memory comes from World::allocate, where there is one
  int private_rank = -1;   // the only rank whose memory does not; -1: none
  int wanted_by = -1;      // the only rank that wants the result, not in place elsewhere; -1: all
  bool writes_unwanted = true;  // false: it must not write the outputs of the other ranks
  double prescale = 1.0;
  double postscale = 1.0;
};

class AllreduceRun {
 public:
  // `sequence` varies the numbers. All ranks make the same cases, so each knows the inputs of the
  // others: small whole numbers, whose sums are exact.
  AllreduceRun(const World& world, const AllreduceCase& tested, uint64_t sequence);

  core::Batch batch() const;
  // Expects the exact result, unchanged guards around it, and an unchanged input.
  void check() const;

  void fill_random_floats();
  void set_nan(int64_t index);
  bool is_nan(int64_t index) const;
  uint64_t output_hash() const;

 private:
  std::vector<std::byte> input_of(int rank) const;
  size_t first_wrong_byte(const std::vector<std::byte>& expected) const;
  Reduction reduction() const;
  std::shared_ptr<std::byte> allocate(size_t bytes) const;
  bool is_wanted() const { return case_.wanted_by < 0 || case_.wanted_by == world_.rank; }
  size_t bytes() const { return static_cast<size_t>(case_.count) * size_of(case_.dtype); }

  const World& world_;
  const AllreduceCase case_;
  const uint64_t sequence_;
  std::shared_ptr<std::byte> output_memory_;  // with a guard before and behind
  std::shared_ptr<std::byte> input_memory_;
  std::byte* output_ = nullptr;
  std::byte* input_ = nullptr;
};

// Memory for an input or an output, with guards around it.
class ContractBuffer {
 public:
  // `registered`: the memory comes from World::allocate, where there is one.
  ContractBuffer(const World& world, const std::vector<std::byte>& content, bool registered);
  std::byte* data() const { return memory_.get() + begin_; }
  // Whether it holds exactly that, and nothing was written around it.
  bool holds(const std::vector<std::byte>& content) const;

 private:
  std::shared_ptr<std::byte> memory_;
  size_t begin_ = 0;
};

// Memory for an output in blocks that lie apart, each with guards around it.
class ContractBlocks {
 public:
  // `content`: that of all blocks, one after the other, `counts` elements of each.
  ContractBlocks(const World& world, const std::vector<std::byte>& content, DataType dtype,
                 std::span<const int64_t> counts, bool registered);
  std::vector<std::byte*> places() const;
  bool hold(const std::vector<std::byte>& content) const;

 private:
  std::vector<int64_t> bytes_;
  std::vector<ContractBuffer> blocks_;
};

// The types that the suite tests: all, or under a sanitizer a few of different sizes. Types differ
// only in the kernels, and host_kernels_test tests these with all types.
std::vector<DataType> contract_types();

}  // namespace horon::ops
