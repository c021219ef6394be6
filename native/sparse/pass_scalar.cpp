// The pass for every CPU.
#include "sparse/pass.hpp"

namespace hocket::scalar {

PassCounts select_pass(const Input& in, uint32_t low, uint32_t high, const Noted& out) {
  PassCounts found;
  uint64_t written = 0;
  for (uint64_t i = 0; i < in.n; ++i) {
    float value = in.x[i];
    if (in.added != nullptr) in.total[i] = value += in.added[i];
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    bits &= kMagnitude;
    // Without branches: which elements are above is not predictable.
    out.places[written] = static_cast<uint32_t>(i);
    out.values[written] = value;
    written += static_cast<uint64_t>((bits > low) & (written < out.capacity));
    found.above_low += bits > low;
    found.from_low += bits >= low;
    found.above_high += bits > high;
    found.from_high += bits >= high;
    found.largest = bits > found.largest ? bits : found.largest;
  }
  return found;
}

}  // namespace hocket::scalar
