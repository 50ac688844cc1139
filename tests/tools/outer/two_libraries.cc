// One session for two libraries: begun by the first, used by both, ended by the second.
#include <iostream>

#include "libraries.h"
#include <horon/core/base/error.h>
#include <horon/ops/session/session.h>

namespace {

bool throws_horon_error(void (*call)()) {
  try {
    call();
  } catch (const horon::Error& error) {
    return error.code() == horon::ErrorCode::InvalidArgument;
  }
  return false;
}

}  // namespace

int main() {
  first::init();
  second::init();
  const bool same = first::rank() == second::rank() && first::rank() == horon::rank();
  const bool caught = throws_horon_error(second::make_wrong_process_set);
  if (horon::rank() == 0) {
    std::cout << "two_libraries: " << (same ? "one session" : "two sessions") << ", error "
              << (caught ? "caught" : "lost") << std::endl;
  }
  second::shutdown();
  return same && caught && !horon::is_initialized() ? 0 : 1;
}
