// For memory that somebody may still write after this process has given up waiting: MPI, a device,
// another process.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace horon::core {

// Never released. The memory stays reachable, so that leak checkers do not report it. Any thread.
void keep_for_ever(std::shared_ptr<void> owner) noexcept;

// The same for an object, which is moved from; its move may throw nothing.
template <class T>
void keep_value_for_ever(T& value) noexcept {
  static_assert(std::is_nothrow_move_constructible_v<T>);
  try {
    keep_for_ever(std::make_shared<T>(std::move(value)));
  } catch (...) {  // no memory for the copy: what the object owns is reachable for nobody any more
    union Undestroyed {
      explicit Undestroyed(T& from) : value(std::move(from)) {}
      ~Undestroyed() {}
      T value;
    };
    const Undestroyed undestroyed(value);
  }
}

}  // namespace horon::core
