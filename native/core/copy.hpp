// Copying bytes, of which there may be none: memcpy forbids null even then.
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

// Arrays from here on do not stay in a cache until they are used, whatever is done.
inline constexpr uint64_t kStreamedBytes = 4 << 20;

// Past the caches: the destination is not read before it is written, and what the caches hold stays there.
inline void copy_past_caches(std::byte* to, const std::byte* from, size_t nbytes) {
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

// Into an array of so many bytes altogether.
inline void copy_into_array(std::byte* to, const std::byte* from, size_t nbytes, uint64_t array_bytes) {
  if (array_bytes >= kStreamedBytes)
    copy_past_caches(to, from, nbytes);
  else
    copy_bytes(to, from, nbytes);
}

}  // namespace hocket
