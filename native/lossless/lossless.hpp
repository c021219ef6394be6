// Arrays in fewer bytes, from which every bit comes back.
//
// An array is cut into blocks of 512 elements. Of a block of floats, zeros become a bitmap; of the others, sign and
// mantissa are kept without the low bits that are zero in all of them, and the exponent as a small number above the
// least one of a window; an exponent outside of the window is listed. Integers are kept as small numbers above the
// least one. All elements of a block then have equally many bits, which are packed lane by lane: element i is in lane
// i mod L, where L elements are 64 bytes, so that one instruction packs L elements.
//
// The parts are known from PFOR (Zukowski et al. 2006, doi:10.1109/ICDE.2006.150), vertical packing (Lemire and Boytsov
// 2015, arXiv:1209.2137) and compression of messages by zeros and bit planes (MPC, Yang et al. 2015,
// doi:10.1109/CLUSTER.2015.59).
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.hpp"
#include "reduce/reduce.hpp"

namespace hocket {

// The most bytes that n elements can become: one more for each block than they are.
uint64_t most_packed_nbytes(DType dtype, uint64_t n);

// Writes n elements to `out`, which has most_packed_nbytes(), and returns the number of bytes written. Complex numbers
// are pairs of floats. No alignment is needed.
uint64_t pack_lossless(Isa isa, DType dtype, const uint8_t* elements, uint64_t n, uint8_t* out);

// Reads n elements from `nbytes` bytes. Returns false for bytes that no call of pack_lossless() has written for so many
// elements of that type; then the elements are undefined.
bool unpack_lossless(Isa isa, DType dtype, const uint8_t* in, uint64_t nbytes, uint8_t* elements, uint64_t n);

}  // namespace hocket
