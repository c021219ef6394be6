// The blocks, written once over the compilers' vector extension and compiled once per instruction set.
//
// The including file defines HOCKET_ISA, the namespace of this copy, and HOCKET_VECTOR_BYTES, its register width. As in
// native/reduce/kernels.inl, everything is in an anonymous namespace and calls no inline function of a shared header.
//
// An array is a sequence of chunks. A chunk begins with a byte that says which of its elements follow: all, those that
// a bitmap marks, or none, since all are zero. They follow in blocks; a block begins with a byte that says how.
#include <cstdint>

#include "lossless/blocks.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE [[gnu::always_inline]] inline

namespace hocket::HOCKET_ISA {
namespace {

enum : uint8_t { kAll, kMarked, kZeros };                    // what follows of a chunk
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

// --- zeros -----------------------------------------------------------------------------------------------------------

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

// --- blocks of floats ------------------------------------------------------------------------------------------------

// Exponents of `num_bits` bits above `base`; if some are outside, 0 stands for these.
struct Window {
  unsigned num_bits;
  unsigned base;
  bool lists;
  uint64_t num_outside;
};

// The window for which exponents and list need the fewest bits, by a sample of the elements.
template <class Type>
INLINE Window window_of(const typename Type::Bits* elements, uint64_t n) {
  using Bits = typename Type::Bits;
  constexpr unsigned kMost = (1U << Type::kExponent) - 1;
  Vec<Bits> lows = Vec<Bits>{} + Bits{kMost}, highs{};
  const auto exponents = [&](uint64_t i) __attribute__((always_inline)) {
    return (load<Bits>(elements + i) >> Type::kMantissa) & Bits{kMost};
  };
  const uint64_t rows = num_rows<Bits>(n);
  for_vectors<Bits>(rows, [&](uint64_t i) {
    const Vec<Bits> each = exponents(i);
    lows = each < lows ? each : lows;
    highs = each > highs ? each : highs;
  });
  unsigned least = kMost, most = 0;
  for (uint64_t lane = 0; lane < Lanes<Bits>::kPerVector; ++lane) {
    least = lows[lane] < least ? static_cast<unsigned>(lows[lane]) : least;
    most = highs[lane] > most ? static_cast<unsigned>(highs[lane]) : most;
  }
  const unsigned num_bits = most == least ? 0 : 32 - static_cast<unsigned>(__builtin_clz(most - least));
  Window best{num_bits, least, false, 0};
  if constexpr (Type::kExponent <= 8) {  // a list has bytes
    if (num_bits < 2) return best;
    alignas(64) uint16_t counts[kMost + 1] = {};
    uint64_t num_sampled = 0;
    for (uint64_t i = 0; i < n; i += 4, ++num_sampled)
      ++counts[static_cast<unsigned>(elements[i] >> Type::kMantissa) & kMost];
    uint64_t fewest = num_sampled * num_bits;
    for (unsigned fewer = num_bits - 1; fewer > 0; --fewer) {
      const unsigned size = (1U << fewer) - 1;
      uint64_t inside = 0, most_inside = 0;
      unsigned base = least;
      for (unsigned last = least; last <= most; ++last) {
        inside += counts[last];
        if (last - least >= size) inside -= counts[last - size];
        if (inside > most_inside) {
          most_inside = inside;
          base = last - least >= size ? last - size + 1 : least;
        }
      }
      const uint64_t bits = num_sampled * fewer + 8 * (num_sampled - most_inside) + 4;
      if (bits >= fewest) {
        if (most_inside < num_sampled / 2) break;
        continue;
      }
      fewest = bits;
      best = {fewer, base, true, 0};
    }
    if (!best.lists) return best;
    Vec<Bits> outside{};
    const Bits size = static_cast<Bits>((1U << best.num_bits) - 1);
    uint64_t i = 0;
    for (; i + Lanes<Bits>::kPerVector <= n; i += Lanes<Bits>::kPerVector)
      outside -= reinterpret_cast<Vec<Bits>>(exponents(i) - static_cast<Bits>(best.base) >= size);
    for (uint64_t lane = 0; lane < Lanes<Bits>::kPerVector; ++lane) best.num_outside += outside[lane];
    for (; i < n; ++i) {
      const unsigned each = static_cast<unsigned>(elements[i] >> Type::kMantissa) & kMost;
      best.num_outside += each - best.base >= size;
    }
  }
  return best;
}

template <class Type>
INLINE bool pack_floats(const typename Type::Bits* elements, uint64_t n, uint64_t most_nbytes, Writer& out) {
  using Bits = typename Type::Bits;
  constexpr unsigned kMantissa = Type::kMantissa;
  constexpr Bits kFraction = (Bits{1} << kMantissa) - 1, kMost = (Bits{1} << Type::kExponent) - 1;
  const uint64_t rows = num_rows<Bits>(n);
  Vec<Bits> all{};
  for_vectors<Bits>(rows, [&](uint64_t i) { all |= load<Bits>(elements + i); });
  const Bits fraction = or_of<Bits>(all) & kFraction;
  const unsigned cut = fraction == 0 ? kMantissa : static_cast<unsigned>(__builtin_ctzll(fraction));
  const Window window = window_of<Type>(elements, n);
  const bool lists = window.lists;
  const unsigned rest = 1 + kMantissa - cut;  // bits of sign and mantissa
  const uint64_t nbytes = 5 + (lists ? 2 + window.num_outside : 0) + packed_nbytes<Bits>(n, rest + window.num_bits);
  if (nbytes >= most_nbytes) return false;
  out.add(lists ? kPackedAndListed : kPacked);
  out.add(static_cast<uint8_t>(cut));
  out.add(static_cast<uint8_t>(window.num_bits));
  out.add(static_cast<uint16_t>(window.base));
  const Bits size = static_cast<Bits>((1U << window.num_bits) - lists);
  const Bits base = static_cast<Bits>(window.base);
  if (lists) {
    out.add(static_cast<uint16_t>(window.num_outside));
    for_vectors<Bits>(rows, [&](uint64_t i) {
      const Vec<Bits> exponent = (load<Bits>(elements + i) >> kMantissa) & kMost;
      for_true<Bits>(exponent - base >= size, [&](uint64_t lane) {
        if (i + lane < n) out.add(static_cast<uint8_t>(exponent[lane]));
      });
    });
  }
  Elements<Bits, kBlock> codes;
  for_vectors<Bits>(rows, [&](uint64_t i) {
    const Vec<Bits> value = load<Bits>(elements + i);
    Vec<Bits> above = ((value >> kMantissa) & kMost) - base;
    const auto is_inside = above < size;
    above = (above + static_cast<Bits>(lists)) & reinterpret_cast<Vec<Bits>>(is_inside);
    const Vec<Bits> sign = value >> static_cast<Bits>(kMantissa + Type::kExponent);
    const Vec<Bits> kept =
        (sign << static_cast<Bits>(kMantissa - cut)) | ((value & kFraction) >> static_cast<Bits>(cut));
    store<Bits>(codes.of + i, (above << static_cast<Bits>(rest)) | kept);
  });
  pack_rows<Bits>(codes.of, rows, rest + window.num_bits, out);
  return true;
}

template <class Type>
INLINE bool unpack_floats(Reader& in, bool lists, typename Type::Bits* elements, uint64_t n) {
  using Bits = typename Type::Bits;
  constexpr unsigned kMantissa = Type::kMantissa;
  constexpr Bits kMost = (Bits{1} << Type::kExponent) - 1;
  uint8_t cut = 0, num_bits = 0;
  uint16_t base = 0, num_listed = 0;
  if (!in.read(cut) || !in.read(num_bits) || !in.read(base) || cut > kMantissa || num_bits > Type::kExponent)
    return false;
  if (lists && (!in.read(num_listed) || num_listed > n)) return false;
  const uint8_t* listed = in.take(num_listed);
  const unsigned rest = 1 + kMantissa - cut;
  const uint8_t* packed = in.take(packed_nbytes<Bits>(n, rest + num_bits));
  if (listed == nullptr || packed == nullptr) return false;
  const uint64_t rows = num_rows<Bits>(n);
  Elements<Bits, kBlock> codes;
  unpack_rows<Bits>(packed, rows, rest + num_bits, codes.of);
  const Bits first = static_cast<Bits>(base - lists);
  const Bits fraction = static_cast<Bits>((Bits{1} << (kMantissa - cut)) - 1);
  for_vectors<Bits>(rows, [&](uint64_t i) {
    const Vec<Bits> code = load<Bits>(codes.of + i);
    const Vec<Bits> exponent = ((code >> static_cast<Bits>(rest)) + first) & kMost;
    const Vec<Bits> sign = (code >> static_cast<Bits>(kMantissa - cut)) & Bits{1};
    store<Bits>(elements + i, (sign << static_cast<Bits>(kMantissa + Type::kExponent)) |
                                  (exponent << static_cast<Bits>(kMantissa)) |
                                  ((code & fraction) << static_cast<Bits>(cut)));
  });
  if (!lists) return true;
  uint64_t count = 0;
  for_vectors<Bits>(rows, [&](uint64_t i) {
    for_true<Bits>((load<Bits>(codes.of + i) >> static_cast<Bits>(rest)) == Bits{0}, [&](uint64_t lane) {
      Bits& element = elements[i + lane];
      if (i + lane < n && count++ < num_listed)
        element = static_cast<Bits>((element & ~(kMost << kMantissa)) | (Bits{listed[count - 1]} << kMantissa));
    });
  });
  return count == num_listed;
}

// --- blocks of integers ----------------------------------------------------------------------------------------------

template <class Type>
INLINE bool pack_integers(const typename Type::Bits* elements, uint64_t n, uint64_t most_nbytes, Writer& out) {
  using Bits = typename Type::Bits;
  const uint64_t rows = num_rows<Bits>(n);
  Bits least = static_cast<Bits>(elements[0] ^ Type::kFlipped);
  for (uint64_t i = 0; i < n; ++i) {
    const Bits each = static_cast<Bits>(elements[i] ^ Type::kFlipped);
    least = each < least ? each : least;
  }
  const Bits base = static_cast<Bits>(least ^ Type::kFlipped);
  Vec<Bits> all{};
  for_vectors<Bits>(rows, [&](uint64_t i) { all |= load<Bits>(elements + i) - base; });
  const Bits bits = or_of<Bits>(all);  // not 0, since not all elements are equal
  const auto cut = static_cast<unsigned>(__builtin_ctzll(bits));
  const unsigned width = 64 - static_cast<unsigned>(__builtin_clzll(bits)) - cut;
  if (3 + sizeof(Bits) + packed_nbytes<Bits>(n, width) >= most_nbytes) return false;
  out.add(kPacked);
  out.add(static_cast<uint8_t>(cut));
  out.add(static_cast<uint8_t>(width));
  out.add(base);
  Elements<Bits, kBlock> codes;
  for_vectors<Bits>(rows, [&](uint64_t i) {
    store<Bits>(codes.of + i, (load<Bits>(elements + i) - base) >> static_cast<Bits>(cut));
  });
  pack_rows<Bits>(codes.of, rows, width, out);
  return true;
}

template <class Type>
INLINE bool unpack_integers(Reader& in, typename Type::Bits* elements, uint64_t n) {
  using Bits = typename Type::Bits;
  uint8_t cut = 0, width = 0;
  Bits base = 0;
  if (!in.read(cut) || !in.read(width) || !in.read(base) || width == 0 || cut + width > Lanes<Bits>::kWidth)
    return false;
  const uint8_t* packed = in.take(packed_nbytes<Bits>(n, width));
  if (packed == nullptr) return false;
  const uint64_t rows = num_rows<Bits>(n);
  unpack_rows<Bits>(packed, rows, width, elements);
  for_vectors<Bits>(rows, [&](uint64_t i) {
    store<Bits>(elements + i, (load<Bits>(elements + i) << static_cast<Bits>(cut)) + base);
  });
  return true;
}

// --- arrays ----------------------------------------------------------------------------------------------------------

// Writes a block of at most kBlock elements; behind them, as many as whole vectors need may be overwritten.
template <class Type>
INLINE void pack_block(typename Type::Bits* elements, uint64_t n, Writer& out) {
  using Bits = typename Type::Bits;
  const uint64_t raw = n * sizeof(Bits), rows = num_rows<Bits>(n);
  Bits saved[Lanes<Bits>::kPerRow];  // what is behind the elements
  const uint64_t num_behind = rows * Lanes<Bits>::kPerRow - n;
  __builtin_memcpy(saved, elements + n, num_behind * sizeof(Bits));
  for (uint64_t i = 0; i < num_behind; ++i) elements[n + i] = elements[0];
  Vec<Bits> differs{};
  for_vectors<Bits>(rows, [&](uint64_t i) { differs |= load<Bits>(elements + i) ^ elements[0]; });
  bool is_packed = false;
  if (or_of<Bits>(differs) == 0) {
    out.add(kEqual);
    out.add(elements[0]);
    is_packed = true;
  } else if constexpr (Type::kIsFloat) {
    is_packed = pack_floats<Type>(elements, n, raw + 1, out);
  } else {
    is_packed = pack_integers<Type>(elements, n, raw + 1, out);
  }
  __builtin_memcpy(elements + n, saved, num_behind * sizeof(Bits));
  if (is_packed) return;
  out.add(kRaw);
  out.add_all(elements, raw);
}

// Reads a block; behind its elements, as many as whole vectors need are overwritten.
template <class Type>
INLINE bool unpack_block(Reader& in, typename Type::Bits* elements, uint64_t n) {
  using Bits = typename Type::Bits;
  uint8_t how = 0;
  if (!in.read(how)) return false;
  if (how == kRaw) {
    const uint8_t* raw = in.take(n * sizeof(Bits));
    if (raw != nullptr) __builtin_memcpy(elements, raw, n * sizeof(Bits));
    return raw != nullptr;
  }
  if (how == kEqual) {
    Bits equal = 0;
    if (!in.read(equal)) return false;
    for (uint64_t i = 0; i < n; ++i) elements[i] = equal;
    return true;
  }
  if constexpr (Type::kIsFloat)
    return how <= kPackedAndListed && unpack_floats<Type>(in, how == kPackedAndListed, elements, n);
  else
    return how == kPacked && unpack_integers<Type>(in, elements, n);
}

// A bitmap has a bit for each element, and a zero that stays is listed.
template <class Type>
INLINE bool is_worth_marks(uint64_t num_zeros, uint64_t n) {
  return num_zeros * (8 * sizeof(typename Type::Bits) / 2 + 8) > n;
}

template <class Type>
uint64_t pack(const uint8_t* from, uint64_t n, uint8_t* to) {
  using Bits = typename Type::Bits;
  Writer out{to};
  Elements<Bits, kChunk> chunk, marked;
  uint8_t marks[kChunk / 8];
  for (uint64_t begin = 0; begin < n; begin += kChunk) {
    const uint64_t size = n - begin < kChunk ? n - begin : kChunk;
    __builtin_memcpy(chunk.of, from + begin * sizeof(Bits), size * sizeof(Bits));
    Bits* elements = chunk.of;
    uint64_t count = size;
    const uint64_t num_zeros = count_zeros(chunk.of, size);
    if (num_zeros == size) {
      out.add(kZeros);
      continue;
    }
    if (Type::kIsFloat && is_worth_marks<Type>(num_zeros, size)) {
      count = take_marked(chunk.of, size, marks, marked.of);
      elements = marked.of;
      out.add(kMarked);
      out.add_all(marks, (size + 7) / 8);
    } else {
      out.add(kAll);
    }
    for (uint64_t at = 0; at < count; at += kBlock)
      pack_block<Type>(elements + at, count - at < kBlock ? count - at : kBlock, out);
  }
  return static_cast<uint64_t>(out.at - to);
}

template <class Type>
bool unpack(const uint8_t* from, uint64_t nbytes, uint8_t* to, uint64_t n) {
  using Bits = typename Type::Bits;
  Reader in{from, nbytes};
  Elements<Bits, kChunk> chunk, marked;
  for (uint64_t begin = 0; begin < n; begin += kChunk) {
    const uint64_t size = n - begin < kChunk ? n - begin : kChunk;
    uint8_t what = 0;
    if (!in.read(what) || what > kZeros || (what == kMarked && !Type::kIsFloat)) return false;
    if (what == kZeros) {
      __builtin_memset(to + begin * sizeof(Bits), 0, size * sizeof(Bits));
      continue;
    }
    const uint8_t* marks = nullptr;
    uint64_t count = size;
    if (what == kMarked) {
      const uint64_t num_marks = (size + 7) / 8;
      marks = in.take(num_marks);
      if (marks == nullptr) return false;
      count = 0;
      for (uint64_t i = 0; i < num_marks; ++i) count += static_cast<uint64_t>(__builtin_popcount(marks[i]));
      if (count > size) return false;
    }
    Bits* elements = what == kMarked ? marked.of : chunk.of;
    for (uint64_t at = 0; at < count; at += kBlock)
      if (!unpack_block<Type>(in, elements + at, count - at < kBlock ? count - at : kBlock)) return false;
    if (what == kMarked) put_marked(marked.of, marks, size, chunk.of);
    __builtin_memcpy(to + begin * sizeof(Bits), chunk.of, size * sizeof(Bits));
  }
  return in.left == 0;
}

template <class Call>
INLINE auto with_type(DType dtype, Call call) {
  switch (dtype) {
    case DType::float16:
      return call(Float<uint16_t, 5, 10>{});
    case DType::bfloat16:
      return call(Float<uint16_t, 8, 7>{});
    case DType::float32:
      return call(Float<uint32_t, 8, 23>{});
    case DType::float64:
      return call(Float<uint64_t, 11, 52>{});
    case DType::int8:
      return call(Integer<uint8_t, true>{});
    case DType::int16:
      return call(Integer<uint16_t, true>{});
    case DType::int32:
      return call(Integer<uint32_t, true>{});
    case DType::int64:
      return call(Integer<uint64_t, true>{});
    case DType::uint16:
      return call(Integer<uint16_t, false>{});
    case DType::uint32:
      return call(Integer<uint32_t, false>{});
    case DType::uint64:
      return call(Integer<uint64_t, false>{});
    default:
      return call(Integer<uint8_t, false>{});
  }
}

uint64_t pack_any(DType dtype, const uint8_t* elements, uint64_t n, uint8_t* out) {
  return with_type(dtype, [&](auto type) { return pack<decltype(type)>(elements, n, out); });
}

bool unpack_any(DType dtype, const uint8_t* in, uint64_t nbytes, uint8_t* elements, uint64_t n) {
  return with_type(dtype, [&](auto type) { return unpack<decltype(type)>(in, nbytes, elements, n); });
}

}  // namespace

Blocks blocks() { return {pack_any, unpack_any}; }

}  // namespace hocket::HOCKET_ISA
