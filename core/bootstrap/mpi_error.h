// MPI's error codes as exceptions.
#pragma once

namespace horon::core {

// Throws Error(OperationFailed) with the call's name and MPI's own text unless `code` is
// MPI_SUCCESS.
void check_mpi(int code, const char* call);

}  // namespace horon::core
