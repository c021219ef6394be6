// The pass for every CPU.
#include "select/pass.hpp"

namespace hocket::scalar {

PassCounts select_pass(const float* x, uint64_t n, uint32_t low, uint32_t high, uint32_t* places, float* values,
                       uint64_t capacity) {
  PassCounts found;
  uint64_t written = 0;
  for (uint64_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    bits &= kMagnitude;
    // Without branches: which elements are above is not predictable.
    places[written] = static_cast<uint32_t>(i);
    values[written] = x[i];
    written += static_cast<uint64_t>((bits > low) & (written < capacity));
    found.above_low += bits > low;
    found.from_low += bits >= low;
    found.above_high += bits > high;
    found.from_high += bits >= high;
    found.largest = bits > found.largest ? bits : found.largest;
  }
  return found;
}

}  // namespace hocket::scalar
