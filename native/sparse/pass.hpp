// The passes of a selection: over all elements, and over those that were noted. Compiled once per instruction set.
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

// What a pass reads: x, or the sums of x and `added`, which it writes to `total`. Without `added`, total is x.
struct Input {
  const float* x;
  const float* added;
  float* total;
  uint64_t n;  // < 2^32
};

// Where a pass writes: both arrays need room for 16 elements more than `capacity`.
struct Noted {
  uint32_t* places;
  float* values;
  uint64_t capacity;
};

// Counts the elements by the bits of their magnitude, and writes places and values of those above `low`, ascending by
// place, as far as there is room. low <= high.
using SelectPass = PassCounts (*)(const Input& in, uint32_t low, uint32_t high, const Noted& out);

// Writes the magnitudes below `high` of n values, in their order, and returns their number. `out` needs room for 16
// more than there are.
using BelowPass = uint64_t (*)(const float* values, uint64_t n, uint32_t high, uint32_t* out);

// Elements, of which a pass takes the first `num_wanted` that are above `threshold` or among the first `num_equal` at
// it.
struct Candidates {
  const uint32_t* places;  // null: the i-th value has place i
  const float* values;
  uint64_t n;
};

// Writes these elements, perhaps over the candidates, with room for 16 more; returns their number.
using KeepPass = uint64_t (*)(const Candidates& in, uint32_t threshold, uint64_t num_equal, uint64_t num_wanted,
                              uint32_t* places, float* values);

struct Passes {
  SelectPass select;
  BelowPass below;
  KeepPass keep;
};

namespace scalar {
Passes passes();
}
#if defined(__x86_64__)
namespace avx2 {
Passes passes();  // all but `select` are those without vector instructions
}
namespace avx512 {
Passes passes();
}
#endif

}  // namespace hocket
