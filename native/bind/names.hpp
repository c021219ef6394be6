// Numbers of names.
#pragma once

#include <string>

#include "core/error.hpp"

namespace hocket {

inline size_t index_of(const auto& names, const std::string& wanted, const char* what) {
  for (size_t i = 0; i < names.size(); ++i)
    if (wanted == names[i]) return i;
  throw Failure(ErrorCode::invalid_argument, std::string(what) + " '" + wanted + "' is not known");
}

}  // namespace hocket
