// The pass for x86-64 with AVX-512 F; CMakeLists.txt gives this file its flags.
#include <immintrin.h>

#include "sparse/pass.hpp"

namespace hocket::avx512 {
namespace {

// Whether 64 bytes from here cross the end of a page, as a number: a branch on it alone would be mispredicted.
uint32_t crosses_page(const void* at) { return (reinterpret_cast<uintptr_t>(at) & 4095) > 4096 - 64; }

// Writes the marked elements one behind the other, and garbage behind them. Compressing in a register and storing all
// of it: a compressing store takes much longer on some CPUs. But where nothing is marked for long, all stores are to
// one place, and if the end of a page is in it, each takes as long as dozens of others.
[[gnu::always_inline]] inline void store_marked(__mmask16 marked, __m512i place, __m512i value, uint32_t* places,
                                                float* values) {
  if ((static_cast<uint32_t>(marked == 0) & (crosses_page(places) | crosses_page(values))) != 0) return;
  _mm512_storeu_si512(places, _mm512_maskz_compress_epi32(marked, place));
  _mm512_storeu_si512(values, _mm512_maskz_compress_epi32(marked, value));
}

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
    store_marked(above, place, raw, out.places + written, out.values + written);
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

PassCounts select(const Input& in, uint32_t low, uint32_t high, const Noted& out) {
  return in.added != nullptr ? pass<true>(in, low, high, out) : pass<false>(in, low, high, out);
}

__mmask16 valid_of(uint64_t n, uint64_t i) {
  return i + 16 <= n ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1U << (n - i)) - 1);
}

uint64_t below(const float* values, uint64_t n, uint32_t high, uint32_t* out) {
  const __m512i magnitude = _mm512_set1_epi32(static_cast<int>(kMagnitude));
  const __m512i highs = _mm512_set1_epi32(static_cast<int>(high));
  uint64_t written = 0;
  for (uint64_t i = 0; i < n; i += 16) {
    const __mmask16 valid = valid_of(n, i);
    const __m512i bits = _mm512_and_si512(_mm512_maskz_loadu_epi32(valid, values + i), magnitude);
    const __mmask16 is_below = _mm512_mask_cmplt_epu32_mask(valid, bits, highs);
    _mm512_storeu_si512(out + written, _mm512_maskz_compress_epi32(is_below, bits));
    written += static_cast<uint64_t>(__builtin_popcount(is_below));
  }
  return written;
}

uint64_t keep(const Candidates& in, uint32_t threshold, uint64_t num_equal, uint64_t num_wanted, uint32_t* places,
              float* values) {
  const __m512i magnitude = _mm512_set1_epi32(static_cast<int>(kMagnitude));
  const __m512i thresholds = _mm512_set1_epi32(static_cast<int>(threshold)), sixteen = _mm512_set1_epi32(16);
  __m512i own = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  uint64_t num_kept = 0;
  for (uint64_t i = 0; i < in.n && num_kept < num_wanted; i += 16) {
    const __mmask16 valid = valid_of(in.n, i);
    const __m512i place = in.places != nullptr ? _mm512_maskz_loadu_epi32(valid, in.places + i) : own;
    const __m512i value = _mm512_maskz_loadu_epi32(valid, in.values + i);
    const __m512i bits = _mm512_and_si512(value, magnitude);
    uint32_t equal = _mm512_mask_cmpeq_epu32_mask(valid, bits, thresholds);
    auto count = static_cast<uint64_t>(__builtin_popcount(equal));
    for (; count > num_equal; --count) equal &= ~(uint32_t{1} << (31 - __builtin_clz(equal)));  // the first ones stay
    num_equal -= count;
    const auto kept = static_cast<__mmask16>(_mm512_mask_cmpgt_epu32_mask(valid, bits, thresholds) | equal);
    store_marked(kept, place, value, places + num_kept, values + num_kept);
    num_kept += static_cast<uint64_t>(__builtin_popcount(kept));
    own = _mm512_add_epi32(own, sixteen);
  }
  return num_kept;
}

}  // namespace

Passes passes() { return {select, below, keep}; }

}  // namespace hocket::avx512
