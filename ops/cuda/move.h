// Many copies on a device in one launch: packing and unpacking of a fusion buffer, with a cast, a
// scale, a fill or a check on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/execution/memory_queue.h"

namespace horon::ops {

// A contiguous stretch of a launch, in memory of the device.
struct Move {
  const void* from = nullptr;  // null: `to` is filled with MoveLaunch::pattern
  void* to = nullptr;
  uint32_t count = 0;        // elements
  uint32_t first_chunk = 0;  // where it begins in the list of chunks; filled in by add()
};

// What is done to each element on its way.
enum class MoveKind : uint8_t {
  Bytes,   // nothing; an element is a byte
  Floats,  // to = round(factor * from): in float64 where both are float64, else in float32
  Divide,  // integers: to = from / divisor, rounded toward zero
};

// What all moves of a launch share.
struct MoveParameters {
  // The work is cut into chunks of equal size, so that one huge tensor among a thousand tiny ones
  // does not decide how long a launch takes. Counted in the larger of the two types:
  static constexpr uint32_t kChunkBytes = 8 << 10;

  MoveKind kind = MoveKind::Bytes;
  DataType from_type = DataType::UInt8;
  DataType to_type = DataType::UInt8;
  uint32_t elements_per_chunk = kChunkBytes;
  uint32_t moves = 0;
  uint32_t chunks = 0;  // of all moves
  double factor = 1.0;
  int64_t divisor = 1;
  uint64_t pattern = 0;  // eight bytes of equal elements, as they lie in memory
  // Set to 1 if a result is not finite (Floats only), else left alone. Null: not checked.
  uint32_t* not_finite = nullptr;
};

// One launch of one kernel.
class MoveLaunch {
 public:
  // A table of this size is a parameter of the kernel (32,764 bytes at most, CUDA 12.1 and later
  // from compute capability 7.0 on), so nothing has to be copied to the device before it.
  static constexpr size_t kMovesMax = 1344;

  MoveLaunch() = default;
  // Floats: float32, float64 and the 16-bit types into themselves, float32 into the 16-bit types
  // and back.
  static MoveLaunch scale(DataType from, DataType to, double factor);
  // Divide: integers.
  static MoveLaunch divide(DataType dtype, int64_t divisor);

  // Appends a stretch of `count` elements (bytes, if they are only copied), as several moves if it
  // is too long for one. False: the launch is full, and unchanged.
  bool add(const std::byte* from, std::byte* to, int64_t count);
  bool add_fill(std::byte* to, int64_t bytes, uint64_t pattern);
  // Appends a copy as make_launches() does. False: it does not fit in.
  bool add(const core::CopyItem& item);

  void report_not_finite(uint32_t* flag) { parameters_.not_finite = flag; }
  const MoveParameters& parameters() const { return parameters_; }
  std::span<const Move> moves() const { return moves_; }

 private:
  MoveParameters parameters_;
  std::vector<Move> moves_;
  bool fills_ = false;  // one of the moves is a fill
};

// The launches that do these copies: one for each kind of cast, factor and pattern, and more if
// there are more than kMovesMax. Empty copies are left out.
std::vector<MoveLaunch> make_launches(std::span<const core::CopyItem> items);

}  // namespace horon::ops
