// Messages between ranks as a program numbers them, with receives from any rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/base/text.h"
#include "horon/core/runtime/open_receive.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core::test_world {

// The messages of one rank, numbered per source. Only five names per pair of ranks are used in
// turn.
class Letters : public std::enable_shared_from_this<Letters> {
 public:
  explicit Letters(Runtime& runtime) : runtime_(runtime), me_(runtime.topology().rank) {}

  std::shared_ptr<HandleState> send(int to, Tensor& tensor) {
    return submit(me_, to, name(me_, to, sent_[to]++), tensor);
  }
  // Makes a call that is wrong: the receiver hears of it.
  void send_nonsense(int to) {
    runtime_.refuse(name(me_, to, sent_[to]++), "no good", pair_set(me_, to, size()));
  }
  std::shared_ptr<HandleState> receive(int from, Tensor& tensor) {
    return submit(from, me_, name(from, me_, next_number(from)), tensor);
  }

  // May be called in the loop, too.
  std::shared_ptr<HandleState> receive_quietly(int from, Tensor& tensor) {
    return runtime_.submit_quietly(letter(from, me_, name(from, me_, next_number(from)), tensor));
  }

  struct FromAny {
    std::shared_ptr<HandleState> handle;
    std::shared_ptr<std::atomic<int>> source;
  };
  FromAny receive(Tensor& tensor) {
    auto receive = std::make_shared<Open>(shared_from_this());
    tensor.spec->kind = CollectiveKind::Broadcast;
    tensor.spec->root = me_ == 0 ? 1 : 0;
    Submission out = submission("any", tensor);
    out.set = receive->set_of(0);
    const auto source = receive->source;
    return {runtime_.submit(std::move(receive), std::move(out)), source};
  }

  std::function<void(uint64_t number)> after_next;  // called after a receive from any rank looked

 private:
  class Open final : public OpenReceive {
   public:
    explicit Open(std::shared_ptr<Letters> letters) : letters_(std::move(letters)) {
      for (int rank = 0; rank < letters_->size(); ++rank) {
        if (rank != letters_->me_) from_.push_back(rank);
      }
    }
    size_t sources() const override { return from_.size(); }
    uint32_t set_of(size_t at) const override {
      return pair_set(from_[at], letters_->me_, letters_->size());
    }
    Next next(size_t at) override {
      uint64_t number = 0;
      {
        const std::lock_guard lock(letters_->mutex_);
        number = letters_->taken_[from_[at]];
      }
      if (letters_->after_next) letters_->after_next(number);
      return {name(from_[at], letters_->me_, number), number};
    }
    bool take(size_t at, uint64_t number, const std::shared_ptr<HandleState>&) override {
      const std::lock_guard lock(letters_->mutex_);
      if (letters_->taken_[from_[at]] != number) return false;
      ++letters_->taken_[from_[at]];
      *source = from_[at];
      return true;
    }
    void aim(size_t at, const std::string& name, Submission& submission) const override {
      auto spec = std::make_shared<EntrySpec>(*submission.spec);
      spec->root = from_[at];
      submission.spec = std::move(spec);
      submission.name = name;
      submission.set = set_of(at);
    }
    std::string text() const override { return "a letter from any rank"; }

    const std::shared_ptr<std::atomic<int>> source = std::make_shared<std::atomic<int>>(-1);

   private:
    const std::shared_ptr<Letters> letters_;
    std::vector<int> from_;
  };

  static std::string name(int from, int to, uint64_t number) {
    return concat("letter ", number % 5, " from ", from, " to ", to);
  }
  int size() const { return runtime_.topology().size; }
  uint64_t next_number(int from) {
    const std::lock_guard lock(mutex_);
    return taken_[from]++;
  }
  Submission letter(int from, int to, const std::string& name, Tensor& tensor) const {
    tensor.spec->kind = CollectiveKind::Broadcast;
    tensor.spec->root = from;
    return in_set(pair_set(from, to, size()), name, tensor);
  }
  std::shared_ptr<HandleState> submit(int from, int to, const std::string& name, Tensor& tensor) {
    return runtime_.submit(letter(from, to, name, tensor));
  }

  Runtime& runtime_;
  const int me_;
  std::map<int, uint64_t> sent_;
  std::mutex mutex_;
  std::map<int, uint64_t> taken_;
};

}  // namespace horon::core::test_world
