// What the reductions on MPI share: the type that MPI reduces in, and the conversions on both
// sides.
#pragma once

#include <memory>

#include "horon/ops/mpi/mpi_datatypes.h"
#include "horon/ops/mpi/mpi_in_flight.h"

namespace horon::ops {

// 16-bit floats are reduced in float32 and rounded once; averages of integers in int64. A derived
// class chooses the memory that MPI works on and posts.
class MpiReduction : public MpiInFlight {
 protected:
  MpiReduction(std::shared_ptr<MpiChannel> channel, std::shared_ptr<const MpiReductions> reductions,
               core::Batch batch, int64_t input_count);

  // MPI reduces in another type than the batch's.
  bool widened() const { return half_ || widened_integer_; }
  // MPI can't read the input as it is.
  bool converts_input() const { return widened() || prescaled_; }
  DataType work_dtype() const { return work_dtype_; }
  size_t work_bytes(int64_t elements) const {
    return static_cast<size_t>(elements) * size_of(work_dtype_);
  }
  // Where the converted input goes (unused unless converts_input()), and where MPI leaves the
  // result. Call once, in the constructor.
  void set_work(std::byte* input, std::byte* result);
  std::byte* work_result() const { return work_result_; }
  MPI_Op mpi_op() const { return reductions_->get(work_dtype_, batch().reduce_op); }

 private:
  void prepare(int64_t begin, int64_t count) final;
  void finish(int64_t begin, int64_t count) final;

  const std::shared_ptr<const MpiReductions> reductions_;
  const int64_t input_count_;
  bool half_ = false;
  bool widened_integer_ = false;
  bool prescaled_ = false;
  DataType work_dtype_ = DataType::Float32;
  double factor_ = 1.0;
  std::byte* work_input_ = nullptr;
  std::byte* work_result_ = nullptr;
};

}  // namespace horon::ops
