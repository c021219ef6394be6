// The elements that are not zero, and where they were.
#pragma once

#include "lossless/vectors.inl"

namespace hocket::HOCKET_ISA {
namespace {

// Writes the marks of the elements that are not zero, a bit each, and these elements; returns their number.
template <class Bits>
INLINE uint64_t take_marked(const Bits* elements, uint64_t n, uint8_t* marks, Bits* marked) {
  uint64_t count = 0, i = 0;
#if defined(__AVX512F__)
  if constexpr (sizeof(Bits) == 2 || sizeof(Bits) == 4) {
    for (; i + 16 <= n; i += 16) {
      __m512i value;
      if constexpr (sizeof(Bits) == 4)
        value = _mm512_loadu_si512(elements + i);
      else
        value = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(elements + i)));
      const __mmask16 is_marked = _mm512_test_epi32_mask(value, value);
      const auto bits = static_cast<uint16_t>(is_marked);
      __builtin_memcpy(marks + i / 8, &bits, sizeof bits);
      const __m512i together = _mm512_maskz_compress_epi32(is_marked, value);
      if constexpr (sizeof(Bits) == 4)
        _mm512_storeu_si512(marked + count, together);
      else
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(marked + count), _mm512_cvtepi32_epi16(together));
      count += static_cast<uint64_t>(__builtin_popcount(bits));
    }
  }
#endif
  for (; i < n; i += 8) {
    const uint64_t end = i + 8 < n ? i + 8 : n;
    unsigned bits = 0;
    for (uint64_t at = i; at < end; ++at) {
      const unsigned is_marked = elements[at] != 0;
      marked[count] = elements[at];
      count += is_marked;
      bits |= is_marked << (at - i);
    }
    marks[i / 8] = static_cast<uint8_t>(bits);
  }
  return count;
}

// Puts marked elements back between zeros.
template <class Bits>
INLINE void put_marked(const Bits* marked, const uint8_t* marks, uint64_t n, Bits* elements) {
  uint64_t count = 0, i = 0;
#if defined(__AVX512F__)
  if constexpr (sizeof(Bits) == 2 || sizeof(Bits) == 4) {
    for (; i + 16 <= n; i += 16) {
      uint16_t bits;
      __builtin_memcpy(&bits, marks + i / 8, sizeof bits);
      const auto is_marked = static_cast<__mmask16>(bits);
      if constexpr (sizeof(Bits) == 4) {
        _mm512_storeu_si512(elements + i, _mm512_maskz_expand_epi32(is_marked, _mm512_loadu_si512(marked + count)));
      } else {
        const __m512i together =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(marked + count)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(elements + i),
                            _mm512_cvtepi32_epi16(_mm512_maskz_expand_epi32(is_marked, together)));
      }
      count += static_cast<uint64_t>(__builtin_popcount(bits));
    }
  }
#endif
  for (; i < n; ++i) {
    const unsigned is_marked = unsigned{marks[i / 8]} >> (i % 8) & 1U;
    elements[i] = static_cast<Bits>(marked[count] & static_cast<Bits>(-static_cast<Bits>(is_marked)));
    count += is_marked;
  }
}

template <class Bits>
INLINE uint64_t count_zeros(const Bits* elements, uint64_t n) {
  uint64_t count = 0, i = 0;
  Vec<Bits> counts{};  // a chunk has fewer vectors than a lane counts, but of bytes
  if constexpr (sizeof(Bits) > 1) {
    for (; i + Lanes<Bits>::kPerVector <= n; i += Lanes<Bits>::kPerVector)
      counts -= reinterpret_cast<Vec<Bits>>(load<Bits>(elements + i) == Bits{0});
    for (uint64_t lane = 0; lane < Lanes<Bits>::kPerVector; ++lane) count += counts[lane];
  }
  for (; i < n; ++i) count += elements[i] == 0;
  return count;
}

}  // namespace
}  // namespace hocket::HOCKET_ISA
