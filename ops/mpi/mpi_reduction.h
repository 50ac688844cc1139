// What the reductions on MPI share: the type in which MPI reduces, and the conversions before and
// after.
#pragma once

#include <memory>

#include "horon/ops/mpi/mpi_datatypes.h"
#include "horon/ops/mpi/mpi_in_flight.h"

namespace horon::ops {

// 16-bit floats are reduced in float32 and rounded once. Averages of integers are summed in int64.
class MpiReduction : public MpiInFlight {
 protected:
  MpiReduction(std::shared_ptr<MpiChannel> channel, std::shared_ptr<const MpiReductions> reductions,
               core::Batch batch, int64_t input_count);

  DataType work_dtype() const { return work_dtype_; }
  size_t work_bytes(int64_t elements) const {
    return static_cast<size_t>(elements) * size_of(work_dtype_);
  }
  // Where MPI reads, and where it writes the result; never the same memory. A batch may be in place
  // on some ranks only, but MPI_IN_PLACE must be used by all ranks or by none: Open MPI chooses
  // another algorithm for it, and ranks with different algorithms wait for each other for ever.
  const std::byte* mpi_input() const { return mpi_input_; }
  std::byte* mpi_result() const { return mpi_result_; }
  MPI_Op mpi_op() const { return reductions_->get(work_dtype_, batch().reduce_op); }

 private:
  void prepare(int64_t begin, int64_t count) final;
  void finish(int64_t begin, int64_t count) final;

  const std::shared_ptr<const MpiReductions> reductions_;
  const int64_t input_count_;
  // Whether MPI reduces in another type than the batch's.
  bool widened() const { return half_ || widened_integer_; }
  void choose_memory();

  bool half_ = false;
  bool widened_integer_ = false;
  bool prescaled_ = false;
  DataType work_dtype_ = DataType::Float32;
  double factor_ = 1.0;
  std::byte* converted_ = nullptr;  // a copy of the input, in work_dtype_
  const std::byte* mpi_input_ = nullptr;
  std::byte* mpi_result_ = nullptr;
};

}  // namespace horon::ops
