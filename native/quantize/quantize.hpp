// Quantizers of single precision: arrays as few bytes, and those added to arrays.
//
// Results depend neither on the instruction set nor on the division of an array into calls at ends of groups, but for
// random numbers. No alignment is needed; x has neither NaN nor infinities.
#pragma once

#include <cstdint>

#include "reduce/reduce.hpp"

namespace hocket {

// What a decoded value does to an element: it replaces it, is added to it, or subtracted from it.
enum class Applied : uint8_t { set, add, subtract };

constexpr uint64_t num_groups(uint64_t n, uint64_t group) { return (n + group - 1) / group; }

struct Quantizers {
  // QSGD (Alistarh et al., arXiv 1610.02132): of each group its Euclidean norm, rounded up and at most the largest
  // float, and of each element an integer from -levels to levels, rounded by chance so that its mean is exact.
  void (*qsgd)(const float* x, uint64_t n, uint64_t group, int levels, uint64_t seed, float* norms, int8_t* out);
  void (*apply_qsgd)(const float* norms, const int8_t* in, uint64_t n, uint64_t group, int levels, Applied how,
                     float* x);
  // Signs, the first one in the lowest bit of a byte, and the mean magnitude of each group. group: a multiple of 8.
  void (*one_bit)(const float* x, uint64_t n, uint64_t group, float* means, uint8_t* signs);
  void (*apply_one_bit)(const float* means, const uint8_t* signs, uint64_t n, uint64_t group, Applied how, float* x);
  // To nearest, ties to even; what would become infinite is cut.
  void (*bfloat16)(const float* x, uint64_t n, uint16_t* out);
  void (*apply_bfloat16)(const uint16_t* in, uint64_t n, Applied how, float* x);
};

// Those of an instruction set, which must be available.
Quantizers quantizers(Isa isa);

}  // namespace hocket
