// Blocks of floats: sign, mantissa, and an exponent in a window.
#pragma once

#include "lossless/vectors.inl"

namespace hocket::HOCKET_ISA {
namespace {

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
      const uint64_t bits = num_sampled * fewer + 12 * (num_sampled - most_inside) + 4;
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

}  // namespace
}  // namespace hocket::HOCKET_ISA
