// Completes futures. DDP's reducer and its hooks want them; a thread that waits for a Work needs
// none.
#pragma once

#include <memory>

#include <ATen/core/ivalue.h>

#include "horon/torch_bindings/python/process_group/late_results.h"
#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

using Future = c10::intrusive_ptr<c10::ivalue::Future>;

// One thread at a time waits for the next operation that ends. The thread that completes a future
// runs its callbacks, which may wait for later operations themselves (a hook of DDP that does
// several collectives). So a thread that has waited lets another one wait before it completes the
// future.
//
// Any thread may call. The threads live on until all that was added has been completed, if need be
// without this object: its owner may be destroyed by a thread that holds the GIL, which a callback
// may want.
class CompletionThreads {
 public:
  enum class Ends : bool {
    InOrder,     // of their calls: the thread waits for the oldest operation, and does its work
    InAnyOrder,  // the thread is told which one has ended; the loop does the work
  };
  explicit CompletionThreads(Ends ends);
  ~CompletionThreads();
  CompletionThreads(const CompletionThreads&) = delete;
  CompletionThreads& operator=(const CompletionThreads&) = delete;

  // Ends::InOrder: in the order in which the operations began. If it throws (no thread can be
  // started, say), nothing has been added.
  void add(std::shared_ptr<Operation> operation, Future future,
           std::shared_ptr<LateResults> late_results);

  class State;

 private:
  const std::shared_ptr<State> state_;
};

// Completes a future with what the operation, which has ended, has given; `late_results`, those of
// its group, let go of it. On a GPU no stream of the program waits for that, except one in which
// somebody waits for the future.
void complete(Operation& operation, c10::ivalue::Future& future, LateResults& late_results);

// Waits until every future of this process whose operation has ended is completed and its callbacks
// have returned, but not for ever. Before Python ends: its threads must not be in it by then.
// Without the GIL.
void let_completions_end();

}  // namespace horon::python::process_group
