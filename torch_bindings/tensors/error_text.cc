#include "horon/torch_bindings/tensors/error_text.h"

#include <c10/util/Exception.h>

namespace horon::torch_detail {

std::string error_text(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = from_torch ? from_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

Error current_error(ErrorCode other) {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return {other, error_text(error)};
  } catch (...) {
    return {other, "an exception that is no std::exception"};
  }
}

}  // namespace horon::torch_detail
