// What packs and unpacks: vectors, and rows of elements that have some bits each.
//
// The files *.inl are written once over the compilers' vector extension, and compiled once per instruction set. Who
// includes them defines HOCKET_ISA, the namespace of this copy, and HOCKET_VECTOR_BYTES, its register width. As in
// native/reduce/kernels.inl, everything is in an anonymous namespace and calls no inline function of a shared header.
#pragma once

#include <cstdint>

#include "lossless/blocks.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE [[gnu::always_inline]] inline

namespace hocket::HOCKET_ISA {
namespace {

enum : uint8_t { kRaw, kEqual, kPacked, kPackedAndListed };  // a block: as it is, one element, packed, with a list

template <class Word, int kOfExponent, int kOfMantissa>
struct Float {
  using Bits = Word;
  static constexpr bool kIsFloat = true;
  static constexpr unsigned kExponent = kOfExponent, kMantissa = kOfMantissa;
};
template <class Word, bool kHasSign>
struct Integer {
  using Bits = Word;
  static constexpr bool kIsFloat = false;
  static constexpr Word kFlipped = kHasSign ? Word{1} << (8 * sizeof(Word) - 1) : Word{0};  // then bits order as values
};

constexpr uint64_t kRow = 64;  // bytes; of a row, each vector is packed by itself
constexpr uint64_t kVector = HOCKET_VECTOR_BYTES;

template <class Bits>
struct Lanes {
  static constexpr unsigned kWidth = 8 * sizeof(Bits);
  static constexpr uint64_t kPerRow = kRow / sizeof(Bits), kPerVector = kVector / sizeof(Bits);
  typedef Bits Vec __attribute__((vector_size(kVector)));
  typedef Bits InMemory __attribute__((vector_size(kVector), aligned(1), may_alias));
};
template <class Bits>
using Vec = typename Lanes<Bits>::Vec;

template <class Bits>
INLINE Vec<Bits> load(const void* from) {
  return *static_cast<const typename Lanes<Bits>::InMemory*>(from);
}
template <class Bits>
INLINE void store(void* to, Vec<Bits> value) {
  *static_cast<typename Lanes<Bits>::InMemory*>(to) = value;
}
template <class Bits>
INLINE Bits or_of(Vec<Bits> value) {
  Bits all = 0;
  for (uint64_t lane = 0; lane < Lanes<Bits>::kPerVector; ++lane) all |= value[lane];
  return all;
}

// Calls call(i) for the index of the first element of each vector of so many rows.
template <class Bits, class Call>
INLINE void for_vectors(uint64_t rows, Call call) {
  for (uint64_t i = 0; i < rows * Lanes<Bits>::kPerRow; i += Lanes<Bits>::kPerVector) call(i);
}

// Calls call(lane) for the lanes of a comparison that holds, in order.
template <class Bits, class Call>
INLINE void for_true(const auto& holds, Call call) {
#if defined(__AVX512BW__)
  uint64_t bytes = _mm512_movepi8_mask(reinterpret_cast<__m512i>(holds));
#elif defined(__AVX2__)
  uint64_t bytes = static_cast<uint32_t>(_mm256_movemask_epi8(reinterpret_cast<__m256i>(holds)));
#elif defined(__SSE2__)
  uint64_t bytes = static_cast<uint32_t>(_mm_movemask_epi8(reinterpret_cast<__m128i>(holds)));
#else
  uint64_t bytes = 0;
  for (uint64_t lane = 0; lane < Lanes<Bits>::kPerVector; ++lane)
    if (holds[lane] != 0) bytes |= ((uint64_t{1} << sizeof(Bits)) - 1) << (lane * sizeof(Bits));
#endif
  while (bytes != 0) {
    const auto first = static_cast<unsigned>(__builtin_ctzll(bytes));
    call(first / sizeof(Bits));
    bytes &= ~(((uint64_t{1} << sizeof(Bits)) - 1) << first);
  }
}

struct Writer {
  uint8_t* at;
  template <class T>
  INLINE void add(T value) {
    __builtin_memcpy(at, &value, sizeof value);
    at += sizeof value;
  }
  INLINE void add_all(const void* from, uint64_t nbytes) {
    __builtin_memcpy(at, from, nbytes);
    at += nbytes;
  }
};

struct Reader {
  const uint8_t* at;
  uint64_t left;
  INLINE const uint8_t* take(uint64_t nbytes) {  // null: there are fewer
    if (nbytes > left) return nullptr;
    left -= nbytes;
    const uint8_t* taken = at;
    at += nbytes;
    return taken;
  }
  template <class T>
  INLINE bool read(T& value) {
    const uint8_t* from = take(sizeof value);
    if (from != nullptr) __builtin_memcpy(&value, from, sizeof value);
    return from != nullptr;
  }
};

// Elements of a block or chunk, with room for whole vectors.
template <class Bits, uint64_t kMost>
struct alignas(64) Elements {
  Bits of[kMost + Lanes<Bits>::kPerRow];
};

template <class Bits>
INLINE uint64_t num_rows(uint64_t n) {
  return (n + Lanes<Bits>::kPerRow - 1) / Lanes<Bits>::kPerRow;
}

// Bytes of n elements of `width` bits.
template <class Bits>
INLINE uint64_t packed_nbytes(uint64_t n, unsigned width) {
  return (num_rows<Bits>(n) * width + Lanes<Bits>::kWidth - 1) / Lanes<Bits>::kWidth * kRow;
}

// Writes whole rows of elements that have `width` bits.
template <class Bits>
INLINE void pack_rows(const Bits* elements, uint64_t rows, unsigned width, Writer& out) {
  constexpr unsigned kWidth = Lanes<Bits>::kWidth;
  for (uint64_t part = 0; part < kRow; part += kVector) {
    uint8_t* to = out.at + part;
    const Bits* from = elements + part / sizeof(Bits);
    Vec<Bits> held{};
    unsigned num_held = 0;
    for (uint64_t row = 0; row < rows; ++row) {
      const Vec<Bits> value = load<Bits>(from + row * Lanes<Bits>::kPerRow);
      held |= value << static_cast<Bits>(num_held);
      num_held += width;
      if (num_held < kWidth) continue;
      store<Bits>(to, held);
      to += kRow;
      num_held -= kWidth;
      held = num_held > 0 ? value >> static_cast<Bits>(width - num_held) : Vec<Bits>{};
    }
    if (num_held > 0) store<Bits>(to, held);
  }
  out.at += packed_nbytes<Bits>(rows * Lanes<Bits>::kPerRow, width);
}

template <class Bits>
INLINE void unpack_rows(const uint8_t* in, uint64_t rows, unsigned width, Bits* elements) {
  constexpr unsigned kWidth = Lanes<Bits>::kWidth;
  const Bits mask = static_cast<Bits>(width == kWidth ? ~Bits{0} : (Bits{1} << width) - 1);
  for (uint64_t part = 0; part < kRow; part += kVector) {
    const uint8_t* from = in + part;
    Bits* to = elements + part / sizeof(Bits);
    Vec<Bits> held{};
    unsigned num_held = 0;  // bits of `held` that are not taken yet
    for (uint64_t row = 0; row < rows; ++row) {
      Vec<Bits> value = held;
      if (num_held < width) {
        held = load<Bits>(from);
        from += kRow;
        value |= held << static_cast<Bits>(num_held);
        const unsigned num_taken = width - num_held;
        held = num_taken < kWidth ? held >> static_cast<Bits>(num_taken) : Vec<Bits>{};
        num_held = kWidth - num_taken;
      } else {
        held >>= static_cast<Bits>(width);
        num_held -= width;
      }
      store<Bits>(to + row * Lanes<Bits>::kPerRow, value & mask);
    }
  }
}

}  // namespace
}  // namespace hocket::HOCKET_ISA
