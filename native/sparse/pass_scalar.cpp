// The passes for every CPU. Without branches: which elements are above is not predictable.
#include "sparse/pass.hpp"

namespace hocket::scalar {
namespace {

uint32_t magnitude_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits & kMagnitude;
}

PassCounts select_pass(const Input& in, uint32_t low, uint32_t high, const Noted& out) {
  PassCounts found;
  uint64_t written = 0;
  for (uint64_t i = 0; i < in.n; ++i) {
    float value = in.x[i];
    if (in.added != nullptr) in.total[i] = value += in.added[i];
    const uint32_t bits = magnitude_of(value);
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

uint64_t below(const float* values, uint64_t n, uint32_t high, uint32_t* out) {
  uint64_t written = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t bits = magnitude_of(values[i]);
    out[written] = bits;
    written += bits < high;
  }
  return written;
}

uint64_t keep(const Candidates& in, uint32_t threshold, uint64_t num_equal, uint64_t num_wanted, uint32_t* places,
              float* values) {
  uint64_t num_kept = 0;
  for (uint64_t i = 0; i < in.n && num_kept < num_wanted; ++i) {
    const uint32_t bits = magnitude_of(in.values[i]);
    const bool is_equal = bits == threshold && num_equal > 0;
    places[num_kept] = in.places != nullptr ? in.places[i] : static_cast<uint32_t>(i);
    values[num_kept] = in.values[i];
    num_kept += static_cast<uint64_t>((bits > threshold) | is_equal);
    num_equal -= is_equal;
  }
  return num_kept;
}

}  // namespace

Passes passes() { return {select_pass, below, keep}; }

}  // namespace hocket::scalar
