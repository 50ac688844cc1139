// Which error MPI means where one of its calls has looked at several requests.
#pragma once

#include <span>

#include <mpi.h>

namespace horon::core {

// Call it before the MPI call: MPI sets the MPI_ERROR of a status only if it has an error.
inline MPI_Status* without_errors(std::span<MPI_Status> statuses) {
  for (MPI_Status& status : statuses) status.MPI_ERROR = MPI_SUCCESS;
  return statuses.data();
}

// `code`: returned by the call. It may only say that some status has the error, or not even that
// (MPI_Testall() of Open MPI 5.0.10). Then returns the first error that a status has.
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
