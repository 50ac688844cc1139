// Gradients that are reduced together: which parameters share a bucket, and its memory.
//
// A bucket is one entry of the runtime (one part per parameter) and one stretch of memory that the
// collectives use without a copy. The gradients lie in it one behind the other without gaps, so
// that the entry has a single MemoryPart and nothing is packed a second time. Complex gradients
// have buckets of their own; for the runtime each number there is two real ones. Behind them lie
// the flags of the round, where the ranks send them (GradientSettings::has_round_flags()); with
// Compression::Int8 in a block of their own, since in a block with gradients the smaller numbers
// would be lost.
//
// With shard_gradients each rank gets some of the gradients: those of one rank lie in one stretch,
// which is reduced to it alone. The result comes to a stretch behind all of them, and from there to
// where .grad shows it.
//
// With compression to 16 bits a bucket has a second stretch of memory, of half the size, for what
// travels. The hooks write the scaled and rounded gradients there, and the result comes back to the
// first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include "horon/core/base/entry_spec.h"
#include "horon/core/base/error.h"
#include "horon/core/runtime/handle.h"
#include "horon/torch_bindings/gradients/bucket_countdown.h"
#include "horon/torch_bindings/gradients/bucket_part.h"
#include "horon/torch_bindings/gradients/round_flags.h"
#include "horon/torch_bindings/gradients/settings.h"

namespace horon::torch_detail {

class GradientBucket {
 public:
  // `slots` are indices into `layouts`. `shares`: for each rank of the set, how many real numbers
  // of the gradients it gets; they lie in the order of ranks. Empty: all ranks get all. Takes
  // memory from ops::allocate_host(), or on a GPU from LibTorch; for a bucket that nobody touches
  // (of a sparse gradient, or on a rank that reduces alone) only address space.
  GradientBucket(std::string name, std::vector<size_t> slots,
                 std::span<const GradientLayout> layouts, const GradientSettings& settings,
                 std::vector<int64_t> shares, bool untouched);

  // A tensor over the memory of one part, without autograd history; each call makes a new one.
  at::Tensor make_view(size_t part) const;
  // All parts, one behind the other.
  at::Tensor flat() const;
  const BucketPart& part(size_t part) const { return parts_[part]; }

  // Before the first submission: the plan of all buckets, which the ranks compare beside the
  // gradients of this bucket.
  void name_plan(const std::string& plan);
  // Hands the bucket to the runtime. `absent`: says for each gradient whether this rank has none;
  // empty if it has all. If the bucket narrows(), all of its parts have been narrowed. A bucket
  // with no gradient on any rank is not reduced, so its flags are lost. `flags_count`: it is
  // reduced all the same, for its flags. Throws Error.
  void submit(std::vector<bool> absent, const RoundFlags& flags, bool flags_count);
  // On a GPU: the current stream has been given work that writes to this memory, or to a late part
  // of one of these gradients. Any thread.
  void note_writer();
  // The current stream waits for the work of the writers noted so far, so that it can read or
  // change values in this memory. Before a submission. Throws LibTorch's errors.
  void let_current_stream_wait_for_writers();
  // On a GPU: the current stream uses this memory after `handle` has finished. LibTorch must know
  // that, or it may give the memory away too early when nobody holds it any more.
  void note_reader() const;
  // When `handle` has finished with a result, once: brings it to where the gradients lie.
  void place_result() const;
  // When `handle` has finished with a result: adds the flags of all ranks.
  void add_flags_to(RoundFlags& flags) const;

  const std::string& name() const { return name_; }
  const std::vector<size_t>& slots() const { return slots_; }
  int64_t reals() const { return reals_; }
  // Its only gradient stays sparse: it is never submitted.
  bool is_sparse() const { return sparse_; }
  // Its gradients travel in 16 bits.
  bool narrows() const { return narrow_.memory != nullptr; }

  // The bucket fails with this text on all ranks, in this round; on this rank `refusal` is set.
  void refuse(const Error& error);

  // Of this step; null until submitted.
  std::shared_ptr<core::HandleState> handle;
  std::optional<Error> refusal;
  // Says which hook submits it, in this round.
  BucketCountdown countdown;

 private:
  // Of this rank's share. The tensors are made once, since a graph may capture what is done with
  // them.
  struct Share {
    int64_t begin = 0;  // in real_dtype_
    int64_t count = 0;
    size_t result_at = 0;  // in memory_, in bytes; in the dtype that travels
    at::Tensor values = {}, result = {};
    double factor = 1;  // of what has travelled in 16 bits
    // On a GPU with compression to 16 bits: submit() narrows `all` into `all_narrow`.
    at::Tensor all = {}, all_narrow = {};
  };

  at::Tensor make_view(at::ScalarType dtype, int64_t offset, at::IntArrayRef sizes,
                       at::IntArrayRef strides) const;
  void take_memory(size_t bytes, bool idle);
  void lay_out(std::span<const GradientLayout> layouts, const GradientSettings& settings,
               std::vector<int64_t> shares);
  void share_out(core::EntrySpec& spec, std::vector<int64_t> shares);
  void write_flags(const RoundFlags& flags);
  size_t bytes_of(int64_t reals) const {
    return static_cast<size_t>(reals) * c10::elementSize(real_dtype_);
  }

  std::string name_;
  std::vector<size_t> slots_;
  uint32_t set_;
  bool sparse_;
  at::ScalarType dtype_;       // of the gradients
  at::ScalarType real_dtype_;  // of what travels
  std::vector<BucketPart> parts_;
  int64_t reals_ = 0;  // of the gradients, as they travel
  bool has_flags_;
  int64_t flags_begin_ = 0;     // in real_dtype_
  NarrowMemory narrow_;         // in memory_
  std::byte* input_ = nullptr;  // of the collective, in memory_
  std::optional<Share> share_;  // empty: this rank gets all
  std::shared_ptr<std::byte> memory_;
  // On a GPU: the tensor that owns memory_, and the stream for which LibTorch has allocated it.
  at::Tensor memory_on_gpu_;
  std::optional<c10::Stream> stream_of_memory_;
  c10::Storage storage_;
  std::shared_ptr<const core::EntrySpec> spec_;  // made once, so that a step copies no names
  c10::Device device_;
  std::mutex writers_mutex_;
  std::vector<c10::Stream> writers_;  // for which no stream has waited yet
};

}  // namespace horon::torch_detail
