// What the reductions on MPI share: the type in which MPI reduces, and the conversions before and
// after.
#pragma once

#include <memory>

#include "horon/ops/mpi/mpi_datatypes.h"
#include "horon/ops/mpi/mpi_in_flight.h"

namespace horon::ops {

// True: any order of the members gives the same bits. (MPI chooses its order by the length.)
bool same_in_any_order(const core::Batch& like, int members);

// 16-bit floats are reduced in float32 and rounded once. Averages of integers are summed in int64.
class MpiReduction : public MpiInFlight {
 protected:
  // `in_place`: MPI reduces in the memory of the result; the same on all ranks of a collective.
  // Open MPI chooses its algorithm by it, and ranks with different algorithms wait for each other
  // for ever. So a rank whose batch is not in place first copies its input there. Only where the
  // result is as long as the input.
  MpiReduction(std::shared_ptr<MpiChannel> channel, std::shared_ptr<const MpiReductions> reductions,
               core::Batch batch, int64_t input_count, bool in_place);

  DataType work_dtype() const { return work_dtype_; }
  size_t work_bytes(int64_t elements) const {
    return static_cast<size_t>(elements) * size_of(work_dtype_);
  }
  // From this element on: where MPI reads (MPI_IN_PLACE if in place), and where it writes the
  // result. They are never the same memory.
  const void* mpi_input(int64_t element) const {
    return in_place_ ? MPI_IN_PLACE : mpi_input_ + work_bytes(element);
  }
  std::byte* mpi_result(int64_t element) const { return mpi_result_ + work_bytes(element); }
  MPI_Op mpi_op() const { return reductions_->get(work_dtype_, batch().reduce_op); }

 private:
  void prepare(int64_t begin, int64_t count) final;
  void finish(int64_t begin, int64_t count) final;

  const std::shared_ptr<const MpiReductions> reductions_;
  const int64_t input_count_;
  const bool in_place_;
  // Whether MPI reduces in another type than the batch's.
  bool widened() const { return half_ || widened_integer_; }
  void choose_memory();

  bool half_ = false;
  bool widened_integer_ = false;
  bool prescaled_ = false;
  DataType work_dtype_ = DataType::Float32;
  double factor_ = 1.0;
  std::byte* converted_ = nullptr;  // what is reduced: a copy of the input, in work_dtype_
  const std::byte* mpi_input_ = nullptr;
  std::byte* mpi_result_ = nullptr;
};

}  // namespace horon::ops
