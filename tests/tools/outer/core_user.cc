// A program without LibTorch.
#include <iostream>

#include <horon/core/base/version.h>
#include <horon/ops/session/session.h>

int main() {
  horon::init_session();
  horon::barrier();
  if (horon::rank() == 0) {
    std::cout << "core_user: " << horon::size() << " ranks, " << horon::version() << std::endl;
  }
  horon::shutdown();
}
