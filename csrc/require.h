// Errors of the values that callers pass.
#pragma once

#include <stdexcept>
#include <string>

namespace headrace {

[[noreturn]] inline void fail(const std::string& message) { throw std::invalid_argument(message); }

inline void require(bool condition, const std::string& message) {
  if (!condition) fail(message);
}

}  // namespace headrace
