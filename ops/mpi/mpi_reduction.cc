#include "horon/ops/mpi/mpi_reduction.h"

#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/narrow_type.h"
#include "horon/core/base/round_up.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/host/sum_type.h"

namespace horon::ops {

bool same_in_any_order(const core::Batch& like, int members) {
  const bool picks = like.reduce_op == ReduceOp::Min || like.reduce_op == ReduceOp::Max;
  return !is_floating(like.dtype) || picks || members <= 2;
}

MpiReduction::MpiReduction(std::shared_ptr<MpiChannel> channel,
                           std::shared_ptr<const MpiReductions> reductions, core::Batch given,
                           int64_t input_count, bool in_place)
    : MpiInFlight(std::move(channel), std::move(given)),
      reductions_(std::move(reductions)),
      input_count_(input_count),
      in_place_(in_place) {
  const DataType dtype = batch().dtype;
  const bool average = batch().reduce_op == ReduceOp::Average && !is_floating(dtype);
  half_ = core::is_16_bit_float(dtype);
  widened_integer_ = average && dtype != DataType::Int64;
  prescaled_ = is_floating(dtype) && batch().prescale != 1.0;
  factor_ = batch().postscale / static_cast<double>(batch().divisor);
  work_dtype_ = sum_type(dtype, batch().reduce_op);
  choose_memory();
}

void MpiReduction::choose_memory() {
  const bool is_apart = batch().input != batch().output;
  const bool copies = widened() || prescaled_ || is_apart == in_place_;
  if (in_place_) {
    mpi_result_ = widened() ? take_scratch(work_bytes(input_count_)) : batch().output;
    converted_ = mpi_result_;
  } else {
    const size_t input_bytes = copies ? core::round_up(work_bytes(input_count_), size_t{16}) : 0;
    const size_t result_bytes = widened() ? work_bytes(batch().count) : 0;
    std::byte* scratch = nullptr;
    if (input_bytes + result_bytes > 0) scratch = take_scratch(input_bytes + result_bytes);
    converted_ = copies ? scratch : nullptr;
    mpi_input_ = copies ? scratch : batch().input;
    mpi_result_ = widened() ? scratch + input_bytes : batch().output;
  }
  if (copies) set_prepare_count(input_count_);
  const DataType dtype = batch().dtype;
  const bool average = batch().reduce_op == ReduceOp::Average && !is_floating(dtype);
  if (widened() || average || (is_floating(dtype) && factor_ != 1.0)) {
    set_finish_count(batch().count);
  }
}

void MpiReduction::prepare(int64_t begin, int64_t count) {
  const DataType dtype = batch().dtype;
  const std::byte* from = batch().input + begin * static_cast<int64_t>(size_of(dtype));
  std::byte* to = converted_ + work_bytes(begin);
  if (half_) {
    widen(dtype, from, reinterpret_cast<float*>(to), count, batch().prescale);
  } else if (widened_integer_) {
    widen_integers(dtype, from, reinterpret_cast<int64_t*>(to), count);
  } else if (prescaled_) {
    scale(dtype, from, to, count, batch().prescale);
  } else {
    core::copy_bytes(to, from, work_bytes(count));
  }
}

void MpiReduction::finish(int64_t begin, int64_t count) {
  const DataType dtype = batch().dtype;
  const std::byte* from = mpi_result_ + work_bytes(begin);
  std::byte* to = batch().output + begin * static_cast<int64_t>(size_of(dtype));
  if (half_) {
    narrow(dtype, reinterpret_cast<const float*>(from), to, count, factor_);
  } else if (!is_floating(dtype)) {
    narrow_quotients(dtype, reinterpret_cast<const int64_t*>(from), to, count, batch().divisor);
  } else {
    scale(dtype, from, to, count, factor_);
  }
}

}  // namespace horon::ops
