#include "horon/ops/adasum/adasum_allreduce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/core/base/round_up.h"
#include "horon/core/execution/finished_flight.h"
#include "horon/ops/adasum/adasum_kernels.h"
#include "horon/ops/adasum/adasum_tasks.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/host/scratch_loan.h"

namespace horon::ops {
namespace {

using core::Progress;

constexpr int64_t kElementsPerStep = int64_t{128} << 10;
// Tags above these belong to hosts_exchange.h, tags below to message_exchange.h.
constexpr int kFirstTag = Messages::kFirstBlockTag + static_cast<int>(ExchangeWindow::kDistinct);

}  // namespace

class AdasumAllreduce::Running final : public core::InFlight {
 public:
  Running(AdasumAllreduce& parent, core::Batch batch)
      : parent_(parent),
        batch_(std::move(batch)),
        number_(parent.window_.take_number()),
        tag_(kFirstTag + static_cast<int>(number_ % ExchangeWindow::kDistinct)),
        tasks_(adasum_tasks(parent.rank_, parent.size_, batch_.count)),
        scratch_(parent.scratch_.get()) {
    int64_t end = 0;
    for (const int64_t count : batch_.tensor_counts) {
      if (count > 0) ends_.push_back(end += count);
    }
    HORON_CHECK(end == batch_.count, "the tensors are the batch");
  }

  Progress step() override {
    if (!parent_.window_.may_begin(number_)) return Progress::Ringing;
    if (scratch_.memory() == nullptr) take_scratch();
    parent_.messages_->progress();
    budget_ = kElementsPerStep;
    bool moved = false;
    while (next_ < tasks_.size()) {
      const int64_t left = budget_;
      const bool complete = run(tasks_[next_]);
      moved = moved || complete || budget_ < left;
      if (!complete) return moved ? Progress::Advanced : waits();
      ++next_;
      begun_ = false;
    }
    scratch_.give_back();
    parent_.window_.note_ended(number_);
    return Progress::Done;
  }

 private:
  // Other ranks wait for what this one sends in the tasks that follow.
  Progress waits() const {
    return next_ + 1 < tasks_.size() ? Progress::Driving : Progress::Polling;
  }
  size_t bytes_of(int64_t elements) const {
    return static_cast<size_t>(elements) * size_of(batch_.dtype);
  }
  std::byte* output(int64_t element) const { return batch_.output + bytes_of(element); }
  // It holds the products too: MPI may still use them when this is given up.
  void take_scratch() {
    int64_t received = 0;
    for (const AdasumTask& task : tasks_) {
      if (!task.into_output) received = std::max(received, task.kept.count());
    }
    const size_t products = core::whole_cache_lines(ends_.size() * sizeof(AdasumProducts));
    std::byte* const memory = scratch_.take(2 * products + std::max<size_t>(bytes_of(received), 1));
    products_ = reinterpret_cast<AdasumProducts*>(memory);
    products_of_peer_ = reinterpret_cast<AdasumProducts*>(memory + products);
    received_ = memory + 2 * products;
  }

  // False: call it again, since it waits for a peer or the step has been long enough.
  bool run(const AdasumTask& task) {
    switch (task.kind) {
      case AdasumTask::Kind::CopyIn:
        return copy_in();
      case AdasumTask::Kind::Exchange:
        return exchange(task);
      case AdasumTask::Kind::Products:
        return multiply(task);
      case AdasumTask::Kind::SumProducts:
        return sum_products(task);
      case AdasumTask::Kind::Combine:
        return combine(task);
      case AdasumTask::Kind::ScaleResult:
        return batch_.postscale == 1.0 ||
               walk({0, batch_.count}, [&](size_t, int64_t at, int64_t count) {
                 scale(batch_.dtype, output(at), output(at), count, batch_.postscale);
               });
    }
    return true;
  }

  // Calls visit(tensor, first element, elements) for the stretches of tensors in a range, as many
  // as the step has time for. True when the range is done.
  template <class Visit>
  bool walk(const AdasumRange& range, const Visit& visit) {
    if (!std::exchange(begun_, true)) {
      at_ = range.begin;
      tensor_ =
          static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), at_) - ends_.begin());
    }
    while (at_ < range.end && budget_ > 0) {
      const int64_t count = std::min({ends_[tensor_] - at_, range.end - at_, budget_});
      visit(tensor_, at_, count);
      at_ += count;
      budget_ -= count;
      if (at_ == ends_[tensor_]) ++tensor_;
    }
    return at_ == range.end;
  }

  bool copy_in() {
    if (batch_.prescale == 1.0 && batch_.input == batch_.output) return true;
    return walk({0, batch_.count}, [&](size_t /*tensor*/, int64_t at, int64_t count) {
      const std::byte* const from = batch_.input + bytes_of(at);
      if (batch_.prescale == 1.0) return core::copy_bytes(output(at), from, bytes_of(count));
      scale(batch_.dtype, from, output(at), count, batch_.prescale);
    });
  }

  bool exchange(const AdasumTask& task) {
    if (!std::exchange(begun_, true)) {
      std::byte* const to = task.into_output ? output(task.kept.begin) : received_;
      post(task.peer, output(task.given.begin), bytes_of(task.given.count()), to,
           bytes_of(task.kept.count()));
    }
    return messages_are_over();
  }

  bool sum_products(const AdasumTask& task) {
    const size_t bytes = ends_.size() * sizeof(AdasumProducts);
    if (!std::exchange(begun_, true)) {
      post(task.peer, reinterpret_cast<std::byte*>(products_), bytes,
           reinterpret_cast<std::byte*>(products_of_peer_), bytes);
    }
    if (!messages_are_over()) return false;
    for (size_t tensor = 0; tensor < ends_.size(); ++tensor) {
      products_[tensor] += products_of_peer_[tensor];
    }
    return true;
  }

  bool multiply(const AdasumTask& task) {
    if (!begun_) std::fill_n(products_, ends_.size(), AdasumProducts());
    return walk(task.kept, [&](size_t tensor, int64_t at, int64_t count) {
      const auto [a, b] = vectors(task, at);
      products_[tensor] += adasum_products(batch_.dtype, a, b, count);
    });
  }

  bool combine(const AdasumTask& task) {
    return walk(task.kept, [&](size_t tensor, int64_t at, int64_t count) {
      const auto [a, b] = vectors(task, at);
      adasum_combine(batch_.dtype, adasum_factors(products_[tensor]), a, b, output(at), count);
    });
  }

  std::pair<const std::byte*, const std::byte*> vectors(const AdasumTask& task, int64_t at) const {
    const std::byte* const own = output(at);
    const std::byte* const received = received_ + bytes_of(at - task.kept.begin);
    return task.own_first ? std::pair(own, received) : std::pair(received, own);
  }

  void post(int peer, const std::byte* from, size_t given, std::byte* to, size_t kept) {
    for_each_message(kept, [&](size_t begin, int64_t bytes) {
      pending_.push_back(parent_.messages_->receive(peer, tag_, to + begin, bytes));
    });
    for_each_message(given, [&](size_t begin, int64_t bytes) {
      pending_.push_back(parent_.messages_->send(peer, tag_, from + begin, bytes));
    });
  }

  template <class Visit>
  void for_each_message(size_t bytes, const Visit& visit) const {
    const auto longest = static_cast<size_t>(parent_.piece_bytes_max_);
    for (size_t begin = 0; begin < bytes; begin += longest) {
      visit(begin, static_cast<int64_t>(std::min(longest, bytes - begin)));
    }
  }

  bool messages_are_over() {
    while (!pending_.empty() && parent_.messages_->take_if_over(pending_.back())) {
      pending_.pop_back();
    }
    return pending_.empty();
  }

  AdasumAllreduce& parent_;
  const core::Batch batch_;
  const uint64_t number_;
  const int tag_;
  const std::vector<AdasumTask> tasks_;
  std::vector<int64_t> ends_;  // of the tensors that have elements, in elements of the batch
  size_t next_ = 0;            // task
  bool begun_ = false;         // the task next_ has begun
  int64_t budget_ = 0;         // elements that this step may still touch
  int64_t at_ = 0;             // of a walk: the next element
  size_t tensor_ = 0;          // it belongs to
  ScratchLoan scratch_;
  AdasumProducts* products_ = nullptr;  // [tensor]
  AdasumProducts* products_of_peer_ = nullptr;
  std::byte* received_ = nullptr;
  std::vector<Messages::Id> pending_;
};

AdasumAllreduce::AdasumAllreduce(std::shared_ptr<Messages> messages,
                                 std::shared_ptr<core::ScratchPool> scratch, int rank, int size,
                                 int64_t piece_bytes_max)
    : messages_(std::move(messages)),
      scratch_(std::move(scratch)),
      rank_(rank),
      size_(size),
      piece_bytes_max_(piece_bytes_max) {}

std::string AdasumAllreduce::refusal(const core::BatchFacts& facts) const {
  core::BatchFacts of_sum = facts;
  of_sum.reduce_op = ReduceOp::Sum;
  const std::string why = host_refusal(of_sum, CollectiveKind::Allreduce);
  if (!why.empty()) return why;
  if (facts.reduce_op != ReduceOp::Adasum) return "it does Adasum only";
  return std::string(why_no_reduction(facts.dtype, facts.reduce_op));
}

std::unique_ptr<core::InFlight> AdasumAllreduce::start(core::Batch batch) {
  if (batch.count == 0) return std::make_unique<core::FinishedFlight>();
  return std::make_unique<Running>(*this, std::move(batch));
}

}  // namespace horon::ops
