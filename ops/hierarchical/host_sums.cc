#include "horon/ops/hierarchical/host_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace horon::ops {
namespace {

// Of what is widened or narrowed in one go: it stays in the cache.
constexpr int64_t kBlockElements = 2048;
using WideBlock = std::array<std::byte, kBlockElements * sizeof(int64_t)>;

bool is_16_bit_float(DataType dtype) {
  return dtype == DataType::Float16 || dtype == DataType::BFloat16;
}

std::byte* element_at(std::byte* data, int64_t element, DataType dtype) {
  return data + element * static_cast<int64_t>(size_of(dtype));
}
const std::byte* element_at(const std::byte* data, int64_t element, DataType dtype) {
  return data + element * static_cast<int64_t>(size_of(dtype));
}

}  // namespace

HostSums::HostSums(const core::Batch& batch, const ExchangePlan& plan)
    : dtype_(batch.dtype),
      prescale_(batch.prescale),
      raw_(plan.raw),
      widened_(plan.wire_type != batch.dtype),
      of_hosts_{batch.dtype, batch.reduce_op, batch.prescale, batch.postscale, batch.divisor},
      factor_(batch.postscale / static_cast<double>(batch.divisor)),
      divisor_(batch.divisor) {
  if (raw_) return;
  const ReduceOp plain = batch.reduce_op == ReduceOp::Average ? ReduceOp::Sum : batch.reduce_op;
  // What is widened is scaled there.
  of_ranks_ = {plan.wire_type, plain, widened_ ? 1.0 : batch.prescale, 1.0, 1};
  of_hosts_.prescale = 1.0;
  if (widened_) of_hosts_ = {plan.wire_type, plain, 1.0, 1.0, 1};
}

bool HostSums::is_input(int local_size) const {
  return raw_ || (local_size == 1 && !widened_ && (prescale_ == 1.0 || !is_floating(dtype_)));
}

void HostSums::add_ranks(std::span<const std::byte* const> inputs, std::byte* sum,
                         int64_t count) const {
  if (widened_) return widen_ranks(inputs, sum, count);
  reduce_many(of_ranks_, inputs, {&sum, 1}, count);
}

void HostSums::widen_ranks(std::span<const std::byte* const> inputs, std::byte* sum,
                           int64_t count) const {
  const DataType wide = of_ranks_.dtype;
  alignas(64) WideBlock next;
  const auto widen_into = [&](const std::byte* from, std::byte* to, int64_t elements) {
    if (is_16_bit_float(dtype_)) {
      widen(dtype_, from, reinterpret_cast<float*>(to), elements, prescale_);
    } else {
      widen_integers(dtype_, from, reinterpret_cast<int64_t*>(to), elements);
    }
  };
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const int64_t elements = std::min(kBlockElements, count - begin);
    std::byte* const to = element_at(sum, begin, wide);
    widen_into(element_at(inputs.front(), begin, dtype_), to, elements);
    for (const std::byte* const input : inputs.subspan(1)) {
      widen_into(element_at(input, begin, dtype_), next.data(), elements);
      const std::array<const std::byte*, 2> both = {to, next.data()};
      reduce_many(of_ranks_, both, {&to, 1}, elements);
    }
  }
}

void HostSums::add_hosts(std::span<const std::byte* const> sums,
                         std::span<std::byte* const> outputs, int64_t count) const {
  if (raw_ || !widened_) return reduce_many(of_hosts_, sums, outputs, count);
  const DataType wide = of_hosts_.dtype;
  alignas(64) WideBlock total;
  std::byte* const to = total.data();
  std::vector<const std::byte*> parts(sums.begin(), sums.end());
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const int64_t elements = std::min(kBlockElements, count - begin);
    for (size_t host = 0; host < parts.size(); ++host) {
      parts[host] = element_at(sums[host], begin, wide);
    }
    reduce_many(of_hosts_, parts, {&to, 1}, elements);
    std::byte* const first = element_at(outputs.front(), begin, dtype_);
    if (is_16_bit_float(dtype_)) {
      narrow(dtype_, reinterpret_cast<const float*>(to), first, elements, factor_);
    } else {
      narrow_quotients(dtype_, reinterpret_cast<const int64_t*>(to), first, elements, divisor_);
    }
    for (std::byte* const output : outputs.subspan(1)) {
      std::memcpy(element_at(output, begin, dtype_), first,
                  static_cast<size_t>(elements) * size_of(dtype_));
    }
  }
}

}  // namespace horon::ops
