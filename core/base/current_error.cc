#include "horon/core/base/current_error.h"

#include <new>
#include <string>

namespace horon::core {

Error current_error(ErrorCode other) {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::Limit, "out of memory");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return Error(other, text.substr(0, text.find('\n')));
  } catch (...) {
    return Error(other, "an exception that is no std::exception");
  }
}

}  // namespace horon::core
