// Packing and unpacking of arrays, block by block; compiled once per instruction set.
#pragma once

#include <cstdint>

#include "core/types.hpp"

namespace hocket {

constexpr uint64_t kBlock = 512;  // elements: as many lanes of 64 bytes as a lane has bits, for every size of elements
constexpr uint64_t kChunk = 8 * kBlock;  // elements of a bitmap of zeros

// See lossless.hpp. Complex numbers are given as floats.
struct Blocks {
  uint64_t (*pack)(DType dtype, const uint8_t* elements, uint64_t n, uint8_t* out);
  bool (*unpack)(DType dtype, const uint8_t* in, uint64_t nbytes, uint8_t* elements, uint64_t n);
};

namespace scalar {
Blocks blocks();
}
#if defined(__x86_64__)
namespace avx2 {
Blocks blocks();
}
namespace avx512 {
Blocks blocks();
}
#endif

}  // namespace hocket
