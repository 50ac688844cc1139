// Random programs of collectives: what each rank does, worked out from a seed by every rank alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"

namespace horon::random_program {

// What one rank of a call does otherwise than the others.
enum class Fault : uint8_t { None, Shape, Dtype, Op, Root, Kind, Undefined };

struct Call {
  int id = 0;  // unique in the program; also what its values depend on
  std::string name;
  CollectiveKind kind = CollectiveKind::Allreduce;
  bool grouped = false;
  bool in_place = false;  // allreduce and broadcast
  bool strided = false;
  int set = 0;
  std::vector<int> ranks;  // of the set, or of those who have not joined
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1;
  double postscale = 1;
  int root = 0;
  // Of each part: its shape, or for kinds that move rows the shape of a row.
  std::vector<std::vector<int64_t>> shapes;
  bool scalar = false;                       // allgather and gather: no dimension at all
  std::vector<int64_t> own_rows;             // allgather, gather: by member
  bool default_splits = false;               // the call gives none
  std::vector<int64_t> splits;               // reducescatter, scatter: by member
  std::vector<std::vector<int64_t>> matrix;  // alltoall: from member, to member
  Fault fault = Fault::None;
  int guilty = 0;  // the rank that does otherwise

  size_t member(int rank) const;
  std::vector<int64_t> shape(size_t part, int rank) const;
};

struct Step {
  enum class Kind : uint8_t { Batch, Blocking, MakeSet, RemoveSet, Barrier, Join, Duplicate };
  Kind kind = Kind::Batch;
  int set = 0;
  std::vector<int> ranks;   // MakeSet
  std::vector<Call> calls;  // Batch: at once, in any order; Blocking: one; Join: one after another
  std::vector<int> counts;  // Join: how many of the calls each rank makes before it joins
};

struct Program {
  unsigned seed = 0;
  std::vector<Step> steps;
};

Program make_program(unsigned seed, int size, int steps);

std::string describe(const Call& call);
std::string describe(const Step& step);

}  // namespace horon::random_program
