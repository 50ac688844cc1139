#include "horon/core/base/current_error.h"

#include <new>

namespace horon::core {

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::Limit, "out of memory");
  } catch (const std::exception& error) {
    return Error(ErrorCode::OperationFailed, error.what());
  } catch (...) {
    return Error(ErrorCode::OperationFailed, "unknown exception");
  }
}

}  // namespace horon::core
