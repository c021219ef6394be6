// The pass for x86-64 with AVX2 and BMI2; CMakeLists.txt gives this file its flags.
#include <immintrin.h>

#include "sparse/pass.hpp"

namespace hocket::avx2 {
namespace {

template <bool kAdds>
PassCounts pass(const Input& in, uint32_t low, uint32_t high, const Noted& out) {
  const uint64_t n = in.n;
  PassCounts found;
  uint64_t written = 0;
  const __m256i magnitude = _mm256_set1_epi32(static_cast<int>(kMagnitude));
  const __m256i lows = _mm256_set1_epi32(static_cast<int>(low)), highs = _mm256_set1_epi32(static_cast<int>(high));
  __m256i place = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  const __m256i eight = _mm256_set1_epi32(8);
  __m256i largest = _mm256_setzero_si256();
  // Counts in lanes, as negative numbers: a comparison gives -1. Magnitudes are below 2^31, so signed comparisons do.
  __m256i below_low = largest, above_high = largest, below_high = largest;
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 read = _mm256_loadu_ps(in.x + i);
    if constexpr (kAdds) {
      read = _mm256_add_ps(read, _mm256_loadu_ps(in.added + i));
      _mm256_storeu_ps(in.total + i, read);
    }
    const __m256i raw = _mm256_castps_si256(read);
    const __m256i bits = _mm256_and_si256(raw, magnitude);
    largest = _mm256_max_epu32(largest, bits);
    const __m256i above = _mm256_cmpgt_epi32(bits, lows);
    below_low = _mm256_add_epi32(below_low, _mm256_cmpgt_epi32(lows, bits));
    above_high = _mm256_add_epi32(above_high, _mm256_cmpgt_epi32(bits, highs));
    below_high = _mm256_add_epi32(below_high, _mm256_cmpgt_epi32(highs, bits));
    // The lanes to keep, brought to the front: a byte for each lane, gathered by pext, is the order of a permutation.
    const auto mask = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above)));
    const uint64_t bytes = _pdep_u64(mask, 0x0101010101010101) * 0xFF;
    const __m256i order =
        _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(_pext_u64(0x0706050403020100, bytes))));
    const auto count = static_cast<uint64_t>(__builtin_popcount(mask));
    found.above_low += count;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.places + written), _mm256_permutevar8x32_epi32(place, order));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.values + written), _mm256_permutevar8x32_epi32(raw, order));
    written += written + count <= out.capacity ? count : 0;
    place = _mm256_add_epi32(place, eight);
  }
  uint32_t lanes[4][8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes[0]), below_low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes[1]), above_high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes[2]), below_high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes[3]), largest);
  uint64_t under_low = 0, under_high = 0;
  for (int lane = 0; lane < 8; ++lane) {
    under_low += -lanes[0][lane];
    found.above_high += -lanes[1][lane];
    under_high += -lanes[2][lane];
    found.largest = lanes[3][lane] > found.largest ? lanes[3][lane] : found.largest;
  }
  found.from_low = i - under_low;
  found.from_high = i - under_high;
  for (; i < n; ++i) {
    float value = in.x[i];
    if constexpr (kAdds) in.total[i] = value += in.added[i];
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    bits &= kMagnitude;
    if (bits > low) {
      ++found.above_low;
      if (written < out.capacity) {
        out.places[written] = static_cast<uint32_t>(i);
        out.values[written++] = value;
      }
    }
    found.from_low += bits >= low;
    found.above_high += bits > high;
    found.from_high += bits >= high;
    found.largest = bits > found.largest ? bits : found.largest;
  }
  return found;
}

PassCounts select(const Input& in, uint32_t low, uint32_t high, const Noted& out) {
  return in.added != nullptr ? pass<true>(in, low, high, out) : pass<false>(in, low, high, out);
}

}  // namespace

Passes passes() { return {select, scalar::passes().below, scalar::passes().keep}; }

}  // namespace hocket::avx2
