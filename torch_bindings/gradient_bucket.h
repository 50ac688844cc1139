// Gradients that are reduced together: which parameters share a bucket, and its memory.
//
// A bucket is one entry of the runtime (one part per parameter) and one stretch of memory that the
// collectives use without a copy. The gradients lie in it one behind the other without gaps, so
// that the entry has a single MemoryPart and nothing is packed a second time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "horon/core/base/entry_spec.h"
#include "horon/core/runtime/handle.h"

namespace horon::torch_detail {

// Where the elements of one gradient lie relative to each other: as in the parameter if that is
// dense, else row by row.
struct GradientLayout {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool trained = true;  // required a gradient when the layout was taken

  int64_t elements() const;
  int64_t bytes() const;
  // Has the parameter still this dtype, shape and strides?
  bool fits(const at::Tensor& parameter) const;
};

// Throws Error(InvalidArgument) naming the parameter if collectives can't use its gradients.
GradientLayout layout_of(const at::Tensor& parameter, const std::string& name);

// The buckets, as indices into `layouts`. Backward reaches the last parameters first, so the order
// is the reverse of theirs. Only gradients of one dtype share a bucket, and frozen parameters have
// their own, which then cost nothing. A bucket is closed when it holds `bytes`; the first one of a
// dtype at `first_bytes`, so that communication starts early. No gradient is split.
std::vector<std::vector<size_t>> plan_buckets(std::span<const GradientLayout> layouts,
                                              int64_t first_bytes, int64_t bytes);

class GradientBucket {
 public:
  // `slots` are indices into `layouts`. Takes memory from core::allocate_host().
  GradientBucket(std::string name, std::vector<size_t> slots,
                 std::span<const GradientLayout> layouts, ReduceOp op);

  // A tensor over the memory of one part, without autograd history; each call makes a new one.
  at::Tensor make_view(size_t part) const;
  // Is this tensor exactly the memory of the part (by storage, offset, dtype and strides)?
  bool holds(const at::Tensor& tensor, size_t part) const;

  // Hands the bucket to the runtime. `absent`: one flag per part, or empty. Throws Error.
  void submit(std::vector<bool> absent);

  const std::string& name() const { return name_; }
  const std::vector<size_t>& slots() const { return slots_; }
  int64_t elements() const { return elements_; }

  // All ranks get an Error with this text for the bucket, in this step.
  void refuse(const std::string& text);

  // Of this step; null until submitted.
  std::shared_ptr<core::HandleState> handle;
  bool refused = false;
  // Expected parts that have not come yet.
  int64_t pending = 0;

 private:
  struct Part {
    int64_t offset = 0;  // in elements
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };

  std::string name_;
  std::vector<size_t> slots_;
  at::ScalarType dtype_;
  std::vector<Part> parts_;
  int64_t elements_ = 0;
  std::shared_ptr<std::byte> memory_;
  c10::Storage storage_;
  std::shared_ptr<const core::EntrySpec> spec_;  // made once, so that a step copies no names
};

// One line that two ranks share if their buckets are alike, and that shows roughly how they differ
// if not.
std::string describe_plan(const std::deque<GradientBucket>& buckets,
                          std::span<const GradientLayout> layouts, ReduceOp op);

}  // namespace horon::torch_detail
