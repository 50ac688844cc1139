#include "horon/core/bootstrap/mpi_error.h"

#include <array>
#include <string>

#include <mpi.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ErrorCode::OperationFailed,
              concat(call, ": ", std::string(text.data(), static_cast<size_t>(length))));
}

}  // namespace horon::core
