// Copying bytes, of which there may be none: memcpy forbids null even then.
#pragma once

#include <cstddef>
#include <cstring>

namespace hocket {

inline void copy_bytes(std::byte* to, const std::byte* from, size_t nbytes) {
  if (nbytes) std::memcpy(to, from, nbytes);
}

}  // namespace hocket
