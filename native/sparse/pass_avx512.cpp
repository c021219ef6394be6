// The pass for x86-64 with AVX-512 F; CMakeLists.txt gives this file its flags.
#include <immintrin.h>

#include "sparse/pass.hpp"

namespace hocket::avx512 {
namespace {

template <bool kAdds>
PassCounts pass(const Input& in, uint32_t low, uint32_t high, const Noted& out) {
  const uint64_t n = in.n;
  PassCounts found;
  uint64_t written = 0;
  const __m512i magnitude = _mm512_set1_epi32(static_cast<int>(kMagnitude));
  const __m512i lows = _mm512_set1_epi32(static_cast<int>(low)), highs = _mm512_set1_epi32(static_cast<int>(high));
  const __m512i ones = _mm512_set1_epi32(1), sixteen = _mm512_set1_epi32(16);
  __m512i place = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i largest = _mm512_setzero_si512();
  // Counts in lanes: 2^32 / 16 fit into 32 bits.
  __m512i from_low = largest, above_high = largest, from_high = largest;
  const auto take = [&](__m512i raw, __mmask16 valid) __attribute__((always_inline)) {
    const __m512i bits = _mm512_and_si512(raw, magnitude);
    largest = _mm512_max_epu32(largest, bits);
    const __mmask16 above = _mm512_mask_cmpgt_epu32_mask(valid, bits, lows);
    from_low = _mm512_mask_add_epi32(from_low, _mm512_mask_cmpge_epu32_mask(valid, bits, lows), from_low, ones);
    above_high = _mm512_mask_add_epi32(above_high, _mm512_mask_cmpgt_epu32_mask(valid, bits, highs), above_high, ones);
    from_high = _mm512_mask_add_epi32(from_high, _mm512_mask_cmpge_epu32_mask(valid, bits, highs), from_high, ones);
    const auto count = static_cast<uint64_t>(__builtin_popcount(above));
    found.above_low += count;
    // Compressing in a register and storing all of it: a compressing store takes much longer on some CPUs.
    _mm512_storeu_si512(out.places + written, _mm512_maskz_compress_epi32(above, place));
    _mm512_storeu_si512(out.values + written, _mm512_maskz_compress_epi32(above, raw));
    written += written + count <= out.capacity ? count : 0;
    place = _mm512_add_epi32(place, sixteen);
  };
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 raw = _mm512_loadu_ps(in.x + i);
    if constexpr (kAdds) {
      raw = _mm512_add_ps(raw, _mm512_loadu_ps(in.added + i));
      _mm512_storeu_ps(in.total + i, raw);
    }
    take(_mm512_castps_si512(raw), 0xFFFF);
  }
  if (i < n) {
    const auto valid = static_cast<__mmask16>((1U << (n - i)) - 1);
    __m512 raw = _mm512_maskz_loadu_ps(valid, in.x + i);
    if constexpr (kAdds) {
      raw = _mm512_add_ps(raw, _mm512_maskz_loadu_ps(valid, in.added + i));
      _mm512_mask_storeu_ps(in.total + i, valid, raw);
    }
    take(_mm512_castps_si512(raw), valid);
  }
  found.largest = _mm512_reduce_max_epu32(largest);
  uint32_t lanes[3][16];
  _mm512_storeu_si512(lanes[0], from_low);
  _mm512_storeu_si512(lanes[1], above_high);
  _mm512_storeu_si512(lanes[2], from_high);
  for (int lane = 0; lane < 16; ++lane) {
    found.from_low += lanes[0][lane];
    found.above_high += lanes[1][lane];
    found.from_high += lanes[2][lane];
  }
  return found;
}

}  // namespace

PassCounts select_pass(const Input& in, uint32_t low, uint32_t high, const Noted& out) {
  return in.added != nullptr ? pass<true>(in, low, high, out) : pass<false>(in, low, high, out);
}

}  // namespace hocket::avx512
