#include "horon/tests/ops/contract_case.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

constexpr size_t kGuardBytes = 64;
constexpr int kGuard = 0x5a;

}  // namespace

AllreduceRun::AllreduceRun(const World& world, const AllreduceCase& tested, uint64_t sequence)
    : world_(world), case_(tested), sequence_(sequence) {
  const size_t padded = bytes() + 2 * kGuardBytes;
  output_memory_ = allocate(padded);
  std::memset(output_memory_.get(), kGuard, padded);
  // Private memory is not aligned either.
  const size_t shift = case_.registered ? 0 : size_of(case_.dtype);
  output_ = output_memory_.get() + kGuardBytes - shift;
  input_ = output_;
  if (!case_.in_place) {
    input_memory_ = allocate(std::max<size_t>(bytes(), 1));
    input_ = input_memory_.get();
  }
  const std::vector<std::byte> mine = input_of(world_.rank);
  if (!mine.empty()) std::memcpy(input_, mine.data(), mine.size());
}

std::shared_ptr<std::byte> AllreduceRun::allocate(size_t bytes) const {
  if (world_.allocate && case_.registered && case_.private_rank != world_.rank) {
    return world_.allocate(bytes);
  }
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

std::vector<std::byte> AllreduceRun::input_of(int rank) const {
  // Up to 3, so that the product of four ranks is exact in every type.
  return random_numbers({-3, 7}, case_.dtype, sequence_, rank, 0, case_.count);
}

Reduction AllreduceRun::reduction() const {
  return {case_.dtype, case_.op, case_.prescale, case_.postscale,
          case_.op == ReduceOp::Average ? world_.size : 1};
}

core::Batch AllreduceRun::batch() const {
  core::Batch batch;
  batch.sequence = sequence_;
  batch.dtype = case_.dtype;
  batch.reduce_op = case_.op;
  batch.prescale = case_.prescale;
  batch.postscale = case_.postscale;
  batch.divisor = reduction().divisor;
  batch.input = input_;
  batch.output = output_;
  batch.wants_output = is_wanted();
  batch.count = case_.count;
  batch.queue = world_.queue;
  return batch;
}

void AllreduceRun::check() const {
  SCOPED_TRACE(testing::Message() << to_string(case_.dtype) << ' ' << to_string(case_.op) << " of "
                                  << case_.count << (case_.in_place ? " in place" : "")
                                  << (case_.registered ? " registered" : "") << " scaled "
                                  << case_.prescale << ' ' << case_.postscale << " on rank "
                                  << world_.rank);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> pointers;
  for (int rank = 0; rank < world_.size; ++rank) inputs.push_back(input_of(rank));
  for (const auto& input : inputs) pointers.push_back(input.data());
  const std::vector<std::byte> expected = reference(reduction(), pointers, case_.count);
  // Compared by one call, because a sanitizer checks each element that a loop reads.
  ASSERT_TRUE(expected.empty() || !is_wanted() ||
              std::memcmp(expected.data(), output_, expected.size()) == 0)
      << "element " << first_wrong_byte(expected) / size_of(case_.dtype);
  if (!is_wanted() && !case_.writes_unwanted) {
    const auto written = [](std::byte one) { return one != std::byte{kGuard}; };
    EXPECT_TRUE(std::none_of(output_, output_ + bytes(), written)) << "nobody wants the output";
  }
  if (!case_.in_place && case_.count > 0) {
    const auto& mine = inputs[static_cast<size_t>(world_.rank)];
    EXPECT_EQ(std::memcmp(input_, mine.data(), mine.size()), 0) << "the input was changed";
  }
  for (size_t i = 1; i <= kGuardBytes / 2; ++i) {
    ASSERT_EQ(*(output_ - i), std::byte{kGuard}) << "byte " << i << " before the output";
    ASSERT_EQ(output_[bytes() + i - 1], std::byte{kGuard}) << "byte " << i << " behind it";
  }
}

void AllreduceRun::fill_random_floats() {
  const std::vector<std::byte> mine = random_floats(case_.dtype, world_.rank, case_.count);
  if (!mine.empty()) std::memcpy(input_, mine.data(), mine.size());
}

void AllreduceRun::set_nan(int64_t index) {
  // All ones is a NaN in every floating type.
  std::memset(input_ + index * static_cast<int64_t>(size_of(case_.dtype)), 0xff,
              size_of(case_.dtype));
}

bool AllreduceRun::is_nan(int64_t index) const {
  bool nan = false;
  visit_type(case_.dtype, [&](auto zero) {
    using T = decltype(zero);
    T element;
    std::memcpy(&element, output_ + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    if constexpr (std::is_floating_point_v<T>) {
      nan = std::isnan(element);
    } else {
      nan = std::isnan(float_from_16(case_.dtype, static_cast<uint16_t>(element)));
    }
  });
  return nan;
}

ContractBuffer::ContractBuffer(const World& world, const std::vector<std::byte>& content,
                               bool registered) {
  const size_t bytes = content.size() + 2 * kGuardBytes;
  registered = registered && world.allocate != nullptr;
  memory_ = registered ? world.allocate(bytes)
                       : std::shared_ptr<std::byte>(new std::byte[bytes],
                                                    std::default_delete<std::byte[]>());
  // Private memory is not aligned either.
  begin_ = kGuardBytes - (registered ? 0 : sizeof(int64_t));
  std::memset(memory_.get(), kGuard, bytes);
  if (!content.empty()) std::memcpy(data(), content.data(), content.size());
}

bool ContractBuffer::holds(const std::vector<std::byte>& content) const {
  for (size_t i = 1; i <= kGuardBytes / 2; ++i) {
    if (*(data() - i) != std::byte{kGuard}) return false;
    if (data()[content.size() + i - 1] != std::byte{kGuard}) return false;
  }
  return content.empty() || std::memcmp(data(), content.data(), content.size()) == 0;
}

ContractBlocks::ContractBlocks(const World& world, const std::vector<std::byte>& content,
                               DataType dtype, std::span<const int64_t> counts, bool registered) {
  auto from = content.begin();
  for (const int64_t count : counts) {
    const int64_t bytes = bytes_.emplace_back(count * static_cast<int64_t>(size_of(dtype)));
    blocks_.emplace_back(world, std::vector<std::byte>(from, from + bytes), registered);
    from += bytes;
  }
}

std::vector<std::byte*> ContractBlocks::places() const {
  std::vector<std::byte*> places;
  for (const ContractBuffer& block : blocks_) places.push_back(block.data());
  return places;
}

bool ContractBlocks::hold(const std::vector<std::byte>& content) const {
  auto from = content.begin();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].holds({from, from + bytes_[i]})) return false;
    from += bytes_[i];
  }
  return from == content.end();
}

size_t AllreduceRun::first_wrong_byte(const std::vector<std::byte>& expected) const {
  const auto wrong = std::mismatch(expected.begin(), expected.end(), output_).first;
  return static_cast<size_t>(wrong - expected.begin());
}

uint64_t AllreduceRun::output_hash() const { return hash_of({output_, bytes()}); }

std::vector<DataType> contract_types() {
  if (HORON_CONTRACT_HAS_ALL_TYPES) return kAllTypes;
  return {DataType::Float32, DataType::BFloat16, DataType::Int8};
}

}  // namespace horon::ops
