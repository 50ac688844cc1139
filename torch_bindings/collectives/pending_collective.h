// A collective on tensors from its call to its wait(); all public forms are built on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/entry_spec.h"
#include "horon/core/base/error.h"
#include "horon/core/runtime/submission.h"
#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/collectives/names_in_flight.h"

namespace horon::core {
class OpenReceive;
class Runtime;
}  // namespace horon::core

namespace horon::torch_detail {

// Where the result goes: to a new tensor, to the one that was given, or nowhere, because this rank
// only sends.
enum class Into : uint8_t { New, Same, Nowhere };

// Owned by the handles of one collective and, until it has ended, by the runtime: so on a GPU its
// tensors live until their work has been done there. The runtime thread calls LibTorch for one
// thing only, memory of a GPU for results whose size the ranks have just told each other: the first
// wait() does what is left to do on tensors.
class PendingCollective {
 public:
  // `kind_name`: what an unnamed call is called after ("allreduce", "grouped_allreduce").
  PendingCollective(CollectiveKind kind, std::string_view kind_name, const std::string& name,
                    const ProcessSet& process_set, bool grouped = false);

  // What the ranks agree on, without the parts; fill in before the first part.
  core::EntrySpec spec;
  const std::string name;
  // Compared beside the names of the parts; fill in before the first part.
  std::string remark;
  // The caller copies the results elsewhere, and then calls drop_results(): so rows get memory that
  // is reused, since fresh pages cost more than the copy.
  bool results_are_copied = false;
  // Narrows the float32 rows that add_rows() adds to 16 bits. spec.prescale is applied before
  // narrowing, spec.postscale after widening. Fill in before the first part.
  Compression row_compression = Compression::None;
  // The tensors of add() need only have equally many elements on all ranks, in row-major order,
  // whatever their shapes are: torch.distributed asks for no more. Fill in before the first part.
  bool shapes_may_differ = false;
  // If the call is wrong here, it fails on the other ranks too. False for a receive from any rank.
  // Set before the first part.
  bool concerns_others = true;

  // Throws `error` here, and makes the call of this name fail on the other ranks as well: they
  // would wait for this one otherwise.
  [[noreturn]] void refuse(const Error& error) const;

  // Refuses a root that is not in the process set.
  void set_root(int root);
  // Rows for each member where the call gives no splits. equal_splits() refuses a first dimension
  // that can't be divided; even_splits() gives the first members one row more.
  std::vector<int64_t> equal_splits(const at::Tensor& tensor) const;
  std::vector<int64_t> even_splits(const at::Tensor& tensor) const;

  // Takes memory for so many parts.
  void reserve(size_t parts);
  // Adds a tensor whose result has its own shape: written to a new tensor, or to itself.
  void add(const at::Tensor& tensor, Into into);
  // Adds a tensor whose result differs in its first dimension; a scalar counts as one row. Of a
  // scatter's ranks other than the root none of the rows are taken.
  // `splits`: for the members of the set, if this rank divides the rows.
  // `output`: where the result goes; undefined: to a new tensor.
  void add_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits = {},
                const at::Tensor& output = {});
  // The same for a tensor of elements, the only one, whose result may go into `outputs`, one for
  // each member of the set: as Submission::output_blocks, and each contiguous, of the dtype of
  // `rows`, which must not travel in disguise. If it has gone there, the tensor's result is
  // undefined; else the caller has to copy the result.
  void add_rows_apart(const at::Tensor& rows, const std::vector<int64_t>& splits,
                      const std::vector<at::Tensor>& outputs);

  // Adds the one tensor of a reduction to spec.root, with all its elements: the result is there,
  // and on the other ranks no elements, or with Into::Same the tensor as it is.
  void add_reduced(const at::Tensor& tensor, Into into);

  // A hash of what the ranks agree on, without names: calls that are alike have the same. Call it
  // between the last part and submit().
  uint64_t likeness() const;

  // Begins. If a call of this name is in flight: throws Error(DuplicateName) if the program has
  // given the name, else waits for that call first. The parts must have been checked, and `self` is
  // this object.
  void submit(const std::shared_ptr<PendingCollective>& self);
  // The same without that error, for names that Horon gives in turn: the last call of this name has
  // ended, even if its end has not been reported yet. Wakes::Nobody: this thread calls
  // runtime().drive() next, whatever happens in between.
  enum class Wakes : uint8_t { WhoeverSteps, Nobody };
  void submit_in_turn(const std::shared_ptr<PendingCollective>& self,
                      Wakes wakes = Wakes::WhoeverSteps);
  // The same for a receive from any rank.
  void submit(const std::shared_ptr<PendingCollective>& self,
              std::shared_ptr<core::OpenReceive> receive);
  // After submit_in_turn(). Valid even after its session has ended.
  core::Runtime& runtime() const { return *runtime_; }
  // Begins and returns when it has ended: this thread does the work, if no other one does already.
  void run(const std::shared_ptr<PendingCollective>& self);

  c10::Device device() const { return device_; }  // of its tensors
  core::HandleState& state() const { return *state_; }
  const std::shared_ptr<core::HandleState>& handle() const { return state_; }
  // Returns when it has ended; throws Error(Timeout) when the time is over.
  void wait(std::chrono::nanoseconds timeout) const;
  // After it has ended: the results, in the order of the parts. On a GPU the current stream of this
  // thread waits for them. Throws the collective's error, each time.
  const std::vector<at::Tensor>& results();
  // Lets go of the results: nobody calls results() any more.
  void drop_results() { results_.clear(); }
  // Whether results() writes into a tensor of the caller's.
  bool copies_back() const;
  // The rows of each result that came from each member of the set; [part][member].
  std::vector<std::vector<int64_t>> received_rows() const;

 private:
  struct Part {
    at::Tensor result;    // rows: made by the first wait()
    at::Tensor target;    // in place on a tensor that is not row-major: takes a copy of `output`
    at::Tensor output;    // row-major, real; undefined: the memory of `result`
    c10::Storage input;   // so that the memory stays, whatever the program does to its tensor
    at::DimVector shape;  // what the ranks agree on
    std::optional<at::ScalarType> disguised;  // type_in_disguise() of what the caller gave
    bool rows_are_empty = false;              // one element stands for each row, see add_rows()
    at::DimVector row_shape;                  // rows: the shape of one, real
    std::optional<at::DimVector> whole;       // rows: of the result in place of them, real
    at::TensorOptions options;                // rows: of the result
    at::Tensor given;                         // rows: what the caller wants the result in, real
    std::shared_ptr<std::byte> bytes;
    at::Tensor flat;  // rows on a GPU: in the place of `bytes`
    int64_t elements = 0;
  };

  core::Submission submission(const std::shared_ptr<PendingCollective>& self);
  // If LibTorch throws in `work` (no memory for a copy, say), the other ranks learn of it too.
  template <class Work>
  void or_refuse(const Work& work) const {
    try {
      work();
    } catch (const Error&) {
      throw;
    } catch (...) {
      refuse(core::current_error());
    }
  }
  void check(const at::Tensor& tensor, Into into);
  bool writes(Into into) const;
  void add_checked(const at::Tensor& tensor, Into into);
  void add_checked_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                        const at::Tensor& output);
  bool narrows_rows() const { return row_compression != Compression::None; }
  DataType type_that_travels(DataType dtype) const;
  void check_device(const at::Tensor& tensor);
  void check_output(const Part& part, const at::Tensor& rows, const at::Tensor& output) const;
  // What is wrong with the number of rows of Part::given; empty if nothing is. Called once that of
  // the result is known.
  static std::string fault_of_given(const Part& part);
  void check_reduction(const at::Tensor& tensor, DataType dtype) const;
  bool is_plain() const;
  std::shared_ptr<const core::EntrySpec> agreed_spec();
  std::string part_name(size_t index) const;
  at::Tensor new_output(const at::Tensor& real, Into into) const;
  std::byte* allocate_rows(Part& part, int64_t elements, core::MemoryQueue& queue) const;
  void settle();
  void settle_rows(Part& part);
  void narrow(Part& part, at::Tensor& rows);
  at::Tensor widened(const at::Tensor& rows) const;
  bool is_written_apart(const Part& part) const;

  const ProcessSet process_set_;
  const bool has_given_name_;
  const bool grouped_;  // several tensors under one name
  std::vector<Part> parts_;
  std::vector<core::MemoryPart> memory_;  // of the parts
  std::vector<int64_t> splits_;
  double prescale_ = 1, postscale_ = 1;  // with narrows_rows(), instead of those of `spec`
  // Of add_rows_apart(): the tensors own the memory of the blocks; submission() takes the blocks.
  std::vector<at::Tensor> outputs_apart_;
  std::vector<core::OutputBlock> output_blocks_;
  std::shared_ptr<core::HandleState> state_;
  core::Runtime* runtime_ = nullptr;
  NamedCall named_;  // of submit()
  std::vector<at::Tensor> results_;
  std::once_flag settled_;
  // Of all parts. On a GPU: the stream that was the current one at the call, and the copies that
  // the first wait() has made, if any.
  c10::Device device_{c10::kCPU};
  std::optional<c10::Stream> stream_;
  std::unique_ptr<core::Event> copied_;
};

}  // namespace horon::torch_detail
