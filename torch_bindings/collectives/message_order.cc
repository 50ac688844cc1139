#include "horon/torch_bindings/collectives/message_order.h"

#include <cstddef>
#include <cstdint>

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/open_receive.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::torch_detail {
namespace {

using core::concat;

// Holds no tensor: the loop destroys it.
class ReceiveFromAny final : public core::OpenReceive {
 public:
  ReceiveFromAny(std::shared_ptr<MessageNumbers> numbers, const std::vector<int>& sources,
                 const Message& message, c10::Device device)
      : numbers_(std::move(numbers)), ranks_(sources), tag_(message.tag), device_(device) {
    for (const int from : sources) {
      const uint32_t set = core::pair_set(from, message.to, size());
      sources_.push_back({set, {from, message.to, message.tag, message.of_set}});
      sources_.back().device = device_in_spec(device, set);
    }
  }

  size_t sources() const override { return sources_.size(); }
  uint32_t set_of(size_t source) const override { return sources_[source].set; }

  Next next(size_t source) override {
    auto [name, number] = numbers_->next(sources_[source].message);
    return {std::move(name), number};
  }

  bool take(size_t source, uint64_t number,
            const std::shared_ptr<core::HandleState>& handle) override {
    if (!numbers_->take(sources_[source].message, number, handle)) return false;
    *source_ = ranks_[source];
    return true;
  }

  // The name of the part begins with that of the entry.
  void aim(size_t source, const std::string& name, core::Submission& submission) const override {
    auto spec = std::make_shared<core::EntrySpec>(*submission.spec);
    spec->root = ranks_[source];
    spec->device = sources_[source].device;
    spec->parts.front().name.replace(0, submission.name.size(), name);
    submission.spec = std::move(spec);
    submission.name = name;
    submission.set = sources_[source].set;
    note_device(submission, device_);
  }

  std::string text() const override {
    return concat("a message with tag ", tag_, " from any rank (", core::list_ranks(ranks_), ")");
  }

  std::shared_ptr<const std::atomic<int>> source() const { return source_; }

 private:
  struct Source {
    uint32_t set = 0;
    Message message;
    DeviceKind device = DeviceKind::Host;
  };
  const std::shared_ptr<MessageNumbers> numbers_;
  const std::vector<int> ranks_;
  const int tag_;
  const c10::Device device_;
  std::vector<Source> sources_;
  const std::shared_ptr<std::atomic<int>> source_ = std::make_shared<std::atomic<int>>(-1);
};

}  // namespace

std::shared_ptr<PendingCollective> MessageOrder::prepare(const Message& message,
                                                         const std::string& name) const {
  const uint32_t id = core::pair_set(message.from, message.to, size());
  const ProcessSet pair(id, core::members_of_pair(id, size()), rank(), ops::session_number());
  // In two pieces of memory: a weak_ptr to what make_shared() has made would keep all of it.
  std::shared_ptr<PendingCollective> pending(
      new PendingCollective(CollectiveKind::Broadcast, "send", name, pair));
  pending->set_root(message.from);
  pending->shapes_may_differ = compares_ == Compares::Elements;
  return pending;
}

std::shared_ptr<PendingCollective> MessageOrder::start(const Message& message,
                                                       const at::Tensor& tensor) {
  core::refuse_if_banned("send or recv");  // before it is counted
  (void)core::pair_set(message.from, message.to, size());
  const MessageNumbers::Taken taken = numbers_->take(message);
  try {
    std::shared_ptr<PendingCollective> pending = prepare(message, taken.name);
    pending->add(tensor, message.from == rank() ? Into::Nowhere : Into::Same);
    pending->submit_in_turn(pending);
    numbers_->note(taken, {.until_gone = {}, .handle = pending->handle()});
    return pending;
  } catch (...) {
    numbers_->note(taken, {});
    throw;
  }
}

std::shared_ptr<PendingCollective> MessageOrder::run(const Message& message,
                                                     const at::Tensor& tensor) {
  core::refuse_if_banned("send or recv");  // before it is counted
  (void)core::pair_set(message.from, message.to, size());
  const MessageNumbers::Taken taken = numbers_->take(message);
  std::shared_ptr<PendingCollective> pending;
  try {
    pending = prepare(message, taken.name);
    pending->add(tensor, message.from == rank() ? Into::Nowhere : Into::Same);
  } catch (...) {
    numbers_->note(taken, {});
    throw;
  }
  numbers_->note(taken, {.until_gone = pending});
  pending->run(pending);
  return pending;
}

FromAny MessageOrder::start_from_any(const std::vector<int>& sources, const Message& message,
                                     const at::Tensor& tensor) {
  core::refuse_if_banned("send or recv");
  if (sources.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "recv from any rank: there is no other rank to receive from");
  }
  Message first = message;
  first.from = sources.front();
  const std::string set = message.of_set.empty() ? "" : concat(", ", message.of_set);
  std::shared_ptr<PendingCollective> pending =
      prepare(first, concat(begins_, "recv ", message.to, " from any, tag ", message.tag, set));
  pending->concerns_others = false;
  pending->add(tensor, Into::Same);
  const auto receive =
      std::make_shared<ReceiveFromAny>(numbers_, sources, message, tensor.device());
  pending->submit(pending, receive);
  return {std::move(pending), receive->source()};
}

}  // namespace horon::torch_detail
