// Which collectives have ended, in the order in which they did: for programs that have many under
// way and can't wait for one of them, such as those that keep promises of another library.
//
//   auto queue = std::make_shared<CompletionQueue>();
//   handle->notify(queue, 7);                       // at any time, also if it has ended
//   while (const auto token = queue->next(std::nullopt)) finish_promise(*token);
//
// The loop runs no code of the program: it only links a token into the queue, which needs no
// memory. A thread of the program takes the token out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace horon::core {

class CompletionQueue {
 public:
  CompletionQueue() = default;
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Blocks until there is a token, close() or the timeout. nullopt: there is no token; in a forked
  // child none will ever come. Any thread of the program, several at a time.
  std::optional<uint64_t> next(std::optional<std::chrono::nanoseconds> timeout);
  // From now on next() does not block; what is in the queue still comes out. Any thread.
  void close();

  // For HandleState: what it will put into the queue, allocated while notify() may still throw.
  struct Entry {
    std::shared_ptr<CompletionQueue> queue;
    uint64_t token = 0;
    std::unique_ptr<Entry> next;
  };
  // Moves the entry to its queue. Called by whoever steps the loop, and by HandleState::notify().
  static void push(std::unique_ptr<Entry> entry) noexcept;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Entry> first_;
  Entry* last_ = nullptr;
  bool closed_ = false;
};

}  // namespace horon::core
