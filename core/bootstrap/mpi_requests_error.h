// Which error MPI means where one of its calls has looked at several requests.
#pragma once

#include <span>

#include <mpi.h>

namespace horon::core {

// `code`: of the call. It may say no more than that a status has the error: then that one.
inline int error_of_requests(int code, std::span<const MPI_Status> statuses) {
  int kind = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
  if (kind != MPI_ERR_IN_STATUS) return code;
  for (const MPI_Status& status : statuses) {
    const int own = status.MPI_ERROR;
    if (own != MPI_SUCCESS && own != MPI_ERR_PENDING) return own;
  }
  return code;
}

}  // namespace horon::core
