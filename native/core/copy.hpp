// Copies of bytes. nbytes may be zero: memcpy forbids null pointers even then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "core/units.hpp"

namespace hocket {

inline void copy_bytes(std::byte* to, const std::byte* from, size_t nbytes) {
  if (nbytes) std::memcpy(to, from, nbytes);
}

// Arrays of at least this size do not stay in a cache until they are used.
inline constexpr uint64_t kStreamedBytes = 4 << 20;

// Bypasses the caches: the destination is not read before it is written, and the caches keep their content.
inline void copy_nontemporal(std::byte* to, const std::byte* from, size_t nbytes) {
#ifdef __SSE2__
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes;
  if (nbytes > head + kLineBytes) {
    std::memcpy(to, from, head);
    size_t i = head;
    for (; i + kLineBytes <= nbytes; i += kLineBytes) {
      const auto* source = reinterpret_cast<const __m128i*>(from + i);
      auto* target = reinterpret_cast<__m128i*>(to + i);
      const __m128i a = _mm_loadu_si128(source);
      const __m128i b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2);
      const __m128i d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();
    to += i;
    from += i;
    nbytes -= i;
  }
#endif
  copy_bytes(to, from, nbytes);
}

// Copies into an array whose total size is array_bytes.
inline void copy_into_array(std::byte* to, const std::byte* from, size_t nbytes, uint64_t array_bytes) {
  if (array_bytes >= kStreamedBytes)
    copy_nontemporal(to, from, nbytes);
  else
    copy_bytes(to, from, nbytes);
}

}  // namespace hocket
