// Sorted magnitudes of floats.
#pragma once

#include <cstdint>
#include <vector>

namespace hocket {

// The bits of the magnitudes of n floats, ascending; they order as the magnitudes do.
std::vector<uint32_t> sorted_magnitudes(const float* values, uint64_t n);

}  // namespace hocket
