// The number of a name.
#pragma once

#include <string>

#include "core/error.hpp"

namespace hocket {

inline size_t index_of(const auto& names, const std::string& wanted, const char* what) {
  for (size_t i = 0; i < names.size(); ++i)
    if (wanted == names[i]) return i;
  std::string message("there is no ");
  message.append(what).append(" '").append(wanted).append("'; choose from ");
  for (size_t i = 0; i < names.size(); ++i) message.append(i == 0 ? "" : ", ").append(names[i]);
  throw Failure(ErrorCode::invalid_argument, message);
}

}  // namespace hocket
