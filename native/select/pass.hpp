// The pass of a selection over all elements; compiled once per instruction set.
#pragma once

#include <cstdint>

namespace hocket {

constexpr uint32_t kMagnitude = 0x7FFFFFFF;  // the bits of a float without its sign; they order as magnitudes do
constexpr uint32_t kInfinite = 0x7F800000;   // of infinity; those of NaN are larger

struct PassCounts {
  uint64_t above_low = 0;   // > low
  uint64_t from_low = 0;    // >= low
  uint64_t above_high = 0;  // > high
  uint64_t from_high = 0;   // >= high
  uint32_t largest = 0;     // largest magnitude
};

// Counts the elements by the bits of their magnitude, and writes places and values of those above `low`, ascending by
// place, as far as there is room. Both arrays need room for 16 more than `capacity`. low <= high, n < 2^32.
using SelectPass = PassCounts (*)(const float* x, uint64_t n, uint32_t low, uint32_t high, uint32_t* places,
                                  float* values, uint64_t capacity);

namespace scalar {
PassCounts select_pass(const float* x, uint64_t n, uint32_t low, uint32_t high, uint32_t* places, float* values,
                       uint64_t capacity);
}
#if defined(__x86_64__)
namespace avx2 {
PassCounts select_pass(const float* x, uint64_t n, uint32_t low, uint32_t high, uint32_t* places, float* values,
                       uint64_t capacity);
}
namespace avx512 {
PassCounts select_pass(const float* x, uint64_t n, uint32_t low, uint32_t high, uint32_t* places, float* values,
                       uint64_t capacity);
}
#endif

}  // namespace hocket
