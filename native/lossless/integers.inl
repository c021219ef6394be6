// Blocks of integers above the least of them.
#pragma once

#include "lossless/vectors.inl"

namespace hocket::HOCKET_ISA {
namespace {

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

}  // namespace
}  // namespace hocket::HOCKET_ISA
