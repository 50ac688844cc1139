#include "horon/ops/mpi/mpi_allreduce.h"

#include <utility>

#include "horon/core/transport/mpi_error.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/host_refusal.h"
#include "horon/ops/mpi/mpi_in_flight.h"

namespace horon::ops {
namespace {

class InFlightAllreduce final : public MpiInFlight {
 public:
  InFlightAllreduce(std::shared_ptr<MpiChannel> channel,
                    std::shared_ptr<const MpiReductions> reductions, core::Batch given)
      : MpiInFlight(std::move(channel), std::move(given)), reductions_(std::move(reductions)) {
    const DataType dtype = batch().dtype;
    const bool average = batch().reduce_op == ReduceOp::Average && !is_floating(dtype);
    half_ = dtype == DataType::Float16 || dtype == DataType::BFloat16;
    widened_integer_ = average && dtype != DataType::Int64;
    factor_ = batch().postscale / static_cast<double>(batch().divisor);
    work_dtype_ = half_ ? DataType::Float32 : widened_integer_ ? DataType::Int64 : dtype;
    const bool widened = half_ || widened_integer_;
    work_ = widened ? take_scratch(static_cast<size_t>(batch().count) * size_of(work_dtype_))
                    : batch().output;
    const bool prescaled = is_floating(dtype) && batch().prescale != 1.0;
    in_place_ = widened || prescaled || batch().input == batch().output;
    if (widened || prescaled) set_prepare_count(batch().count);
    if (widened || average || (is_floating(dtype) && factor_ != 1.0)) {
      set_finish_count(batch().count);
    }
  }

 private:
  std::byte* at(std::byte* base, int64_t element, DataType dtype) const {
    return base + element * static_cast<int64_t>(size_of(dtype));
  }

  void prepare(int64_t begin, int64_t count) override {
    const DataType dtype = batch().dtype;
    const std::byte* from = batch().input + begin * static_cast<int64_t>(size_of(dtype));
    std::byte* to = at(work_, begin, work_dtype_);
    if (half_) {
      widen(dtype, from, reinterpret_cast<float*>(to), count, batch().prescale);
    } else if (widened_integer_) {
      widen_integers(dtype, from, reinterpret_cast<int64_t*>(to), count);
    } else {
      scale(dtype, from, to, count, batch().prescale);
    }
  }

  void post() override {
    const MPI_Op op = reductions_->get(work_dtype_, batch().reduce_op);
    for_each_piece(batch().count, [&](int64_t begin, int count) {
      const auto offset = begin * static_cast<int64_t>(size_of(work_dtype_));
      const void* from = in_place_ ? MPI_IN_PLACE : batch().input + offset;
      core::check_mpi(MPI_Iallreduce(from, work_ + offset, count, mpi_datatype(work_dtype_), op,
                                     channel().communicator(), add_request()),
                      "MPI_Iallreduce");
    });
  }

  void finish(int64_t begin, int64_t count) override {
    const DataType dtype = batch().dtype;
    const std::byte* from = at(work_, begin, work_dtype_);
    std::byte* to = at(batch().output, begin, dtype);
    if (half_) {
      narrow(dtype, reinterpret_cast<const float*>(from), to, count, factor_);
    } else if (!is_floating(dtype)) {
      narrow_quotients(dtype, reinterpret_cast<const int64_t*>(from), to, count, batch().divisor);
    } else {
      scale(dtype, from, to, count, factor_);
    }
  }

  std::shared_ptr<const MpiReductions> reductions_;
  DataType work_dtype_ = DataType::Float32;
  bool half_ = false;
  bool widened_integer_ = false;
  bool in_place_ = false;
  double factor_ = 1.0;
  std::byte* work_ = nullptr;  // where MPI reduces, in work_dtype_
};

}  // namespace

MpiAllreduce::MpiAllreduce(std::shared_ptr<MpiChannel> channel)
    : channel_(std::move(channel)), reductions_(std::make_shared<MpiReductions>()) {}

std::string MpiAllreduce::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Allreduce);
}

std::unique_ptr<core::InFlight> MpiAllreduce::start(core::Batch batch) {
  return std::make_unique<InFlightAllreduce>(channel_, reductions_, std::move(batch));
}

}  // namespace horon::ops
