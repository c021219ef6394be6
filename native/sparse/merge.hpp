// Sums of arrays that hold few elements, each with its place.
#pragma once

#include <cstdint>
#include <vector>

namespace hocket {

// Elements of an array, ascending by place, each place once.
struct Elements {
  const uint32_t* places;
  const float* values;
  uint64_t n;
};

// Replaces `places` and `values` by the sum of the parts. Values of one place are added in the order of the parts.
void add_elements(const std::vector<Elements>& parts, std::vector<uint32_t>& places, std::vector<float>& values);

// Subtracts from x those of the elements whose place is among `kept`, which ascend.
void subtract_kept(float* x, const Elements& elements, const uint32_t* kept, uint64_t num_kept);

}  // namespace hocket
