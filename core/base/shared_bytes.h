// Bytes that nobody changes any more, so that one payload does for many receivers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace horon::core {

// Copies share the bytes, and making one needs no memory. Any thread may read them; the last copy
// frees them. Deliberately not a range: a caller that wants bytes of its own must copy them.
class SharedBytes {
 public:
  SharedBytes() = default;  // none
  // Implicit: this is how an encoded message becomes one to send. Throws std::bad_alloc.
  SharedBytes(std::vector<std::byte> bytes) {
    if (bytes.empty()) return;
    bytes_ = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  }

  // The same address in all copies, however long they live; null if there are no bytes.
  const std::byte* data() const noexcept { return bytes_ == nullptr ? nullptr : bytes_->data(); }
  size_t size() const noexcept { return bytes_ == nullptr ? 0 : bytes_->size(); }
  bool empty() const noexcept { return bytes_ == nullptr; }
  operator std::span<const std::byte>() const noexcept { return {data(), size()}; }

 private:
  std::shared_ptr<const std::vector<std::byte>> bytes_;
};

}  // namespace horon::core
