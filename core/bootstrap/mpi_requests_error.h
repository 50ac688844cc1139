// Which error MPI means where one of its calls has looked at several requests.
#pragma once

#include <span>

#include <mpi.h>

namespace horon::core {

// Before the call. MPI sets errors of statuses only where it has one.
inline MPI_Status* without_errors(std::span<MPI_Status> statuses) {
  for (MPI_Status& status : statuses) status.MPI_ERROR = MPI_SUCCESS;
  return statuses.data();
}

// `code`: of the call. It may say no more than that a status has the error, or not even that, as
// MPI_Testall() of Open MPI 5.0.10: then that one.
inline int error_of_requests(int code, std::span<const MPI_Status> statuses) {
  int kind = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
  if (kind != MPI_ERR_IN_STATUS && kind != MPI_SUCCESS) return code;
  for (const MPI_Status& status : statuses) {
    const int own = status.MPI_ERROR;
    if (own != MPI_SUCCESS && own != MPI_ERR_PENDING) return own;
  }
  return code;
}

}  // namespace horon::core
