#include "horon/ops/hierarchical/host_sums.h"

#include <algorithm>
#include <array>
#include <vector>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/narrow_type.h"

namespace horon::ops {
namespace {

// Elements that are widened or narrowed in one go: they stay in the cache.
constexpr int64_t kBlockElements = 2048;
static_assert(kBlockElements % WireType::kAlignment == 0);
using WideBlock = std::array<std::byte, kBlockElements * sizeof(int64_t)>;

std::byte* element_at(std::byte* data, int64_t element, DataType dtype) {
  return data + element * static_cast<int64_t>(size_of(dtype));
}
const std::byte* element_at(const std::byte* data, int64_t element, DataType dtype) {
  return data + element * static_cast<int64_t>(size_of(dtype));
}
// `element`: a multiple of kBlockElements.
std::byte* element_at(std::byte* data, int64_t element, WireType type) {
  return data + type.bytes(element);
}
const std::byte* element_at(const std::byte* data, int64_t element, WireType type) {
  return data + type.bytes(element);
}

}  // namespace

HostSums::HostSums(const core::Batch& batch, bool raw, WireType wire_type)
    : dtype_(batch.dtype),
      prescale_(batch.prescale),
      wire_type_(wire_type),
      raw_(raw),
      narrowed_(wire_type.narrows(batch.dtype)),
      widened_(!narrowed_ && wire_type.dtype() != batch.dtype),
      of_hosts_{batch.dtype, batch.reduce_op, batch.prescale, batch.postscale, batch.divisor},
      factor_(batch.postscale / static_cast<double>(batch.divisor)),
      divisor_(batch.divisor) {
  if (raw_) return;
  const ReduceOp plain = batch.reduce_op == ReduceOp::Average ? ReduceOp::Sum : batch.reduce_op;
  // widen_ranks() has applied the prescale already.
  const DataType sum_type = narrowed_ ? DataType::Float32 : wire_type.dtype();
  of_ranks_ = {sum_type, plain, widened_ ? 1.0 : batch.prescale, 1.0, 1};
  of_hosts_.prescale = 1.0;
  if (widened_ || narrowed_) of_hosts_ = {sum_type, plain, 1.0, 1.0, 1};
}

bool HostSums::is_input(int local_size) const {
  if (raw_) return true;
  const bool travels_as_it_is = !widened_ && !narrowed_;
  return local_size == 1 && travels_as_it_is && (prescale_ == 1.0 || !is_floating(dtype_));
}

void HostSums::add_ranks(std::span<const std::byte* const> inputs, std::byte* sum,
                         int64_t count) const {
  if (widened_) return widen_ranks(inputs, sum, count);
  if (narrowed_) return narrow_ranks(inputs, sum, count);
  reduce_many(of_ranks_, inputs, {&sum, 1}, count);
}

void HostSums::add_some(std::span<const std::byte* const> sums, std::byte* sum,
                        int64_t count) const {
  reduce_many({of_ranks_.dtype, of_ranks_.op, 1.0, 1.0, 1}, sums, {&sum, 1}, count);
}

void HostSums::widen_ranks(std::span<const std::byte* const> inputs, std::byte* sum,
                           int64_t count) const {
  const DataType wide = of_ranks_.dtype;
  alignas(64) WideBlock next;
  const auto widen_into = [&](const std::byte* from, std::byte* to, int64_t elements) {
    if (core::is_16_bit_float(dtype_)) {
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

// Scales before it rounds: a large sum must fit into 16 bits.
void HostSums::narrow_ranks(std::span<const std::byte* const> inputs, std::byte* sum,
                            int64_t count) const {
  if (inputs.size() == 1) {
    const auto* const input = reinterpret_cast<const float*>(inputs.front());
    return wire_type_.narrow(input, sum, count, prescale_);
  }
  alignas(64) WideBlock total;
  std::byte* const to = total.data();
  std::vector<const std::byte*> parts(inputs.size());
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const int64_t elements = std::min(kBlockElements, count - begin);
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      parts[rank] = element_at(inputs[rank], begin, dtype_);
    }
    reduce_many(of_ranks_, parts, {&to, 1}, elements);
    wire_type_.narrow(reinterpret_cast<const float*>(to), element_at(sum, begin, wire_type_),
                      elements, 1.0);
  }
}

// Narrowed: calls visit(begin, elements, their total in float32) block by block.
template <class Visit>
void HostSums::for_each_total(std::span<const std::byte* const> sums, int64_t count,
                              const Visit& visit) const {
  alignas(64) WideBlock total;
  alignas(64) WideBlock next;
  std::byte* const to = total.data();
  const std::array<const std::byte*, 2> both = {to, next.data()};
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const int64_t elements = std::min(kBlockElements, count - begin);
    for (size_t host = 0; host < sums.size(); ++host) {
      std::byte* const wide = host == 0 ? to : next.data();
      wire_type_.widen(element_at(sums[host], begin, wire_type_), reinterpret_cast<float*>(wide),
                       elements);
      if (host > 0) reduce_many(of_hosts_, both, {&to, 1}, elements);
    }
    visit(begin, elements, to);
  }
}

void HostSums::add_hosts_for_wire(std::span<const std::byte* const> sums, std::byte* result,
                                  int64_t count) const {
  for_each_total(sums, count, [&](int64_t begin, int64_t elements, const std::byte* total) {
    wire_type_.narrow(reinterpret_cast<const float*>(total), element_at(result, begin, wire_type_),
                      elements, factor_);
  });
}

void HostSums::widen_result(const std::byte* result, std::span<std::byte* const> outputs,
                            int64_t count) const {
  for (std::byte* const output : outputs) {
    wire_type_.widen(result, reinterpret_cast<float*>(output), count);
  }
}

void HostSums::add_hosts(std::span<const std::byte* const> sums,
                         std::span<std::byte* const> outputs, int64_t count) const {
  if (widened_) return add_wide(sums, outputs, count);
  if (!narrowed_) return reduce_many(of_hosts_, sums, outputs, count);
  const Reduction scaled{dtype_, ReduceOp::Sum, 1.0, factor_, 1};
  std::vector<std::byte*> places(outputs.size());
  for_each_total(sums, count, [&](int64_t begin, int64_t elements, const std::byte* total) {
    for (size_t rank = 0; rank < places.size(); ++rank) {
      places[rank] = element_at(outputs[rank], begin, dtype_);
    }
    reduce_many(scaled, {&total, 1}, places, elements);
  });
}

void HostSums::add_wide(std::span<const std::byte* const> sums, std::span<std::byte* const> outputs,
                        int64_t count) const {
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
    if (core::is_16_bit_float(dtype_)) {
      narrow(dtype_, reinterpret_cast<const float*>(to), first, elements, factor_);
    } else {
      narrow_quotients(dtype_, reinterpret_cast<const int64_t*>(to), first, elements, divisor_);
    }
    for (std::byte* const output : outputs.subspan(1)) {
      core::copy_bytes(element_at(output, begin, dtype_), first,
                       static_cast<size_t>(elements) * size_of(dtype_));
    }
  }
}

}  // namespace horon::ops
